"""Tables of the page as text, for HTML and Markdown alike, and how measures are named and ordered in them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from momentum_transfer.report.aggregate import Cell, Measure, Results
from momentum_transfer.verdicts.comparison import ALPHA, Comparison
from momentum_transfer.verdicts.corrections import BETTER, WORSE
from momentum_transfer.verdicts.corrections import word as for_readers

#: Families of tasks in the order of the page, with their headings.
FAMILIES = {
    "coco": "COCO-style detection",
    "lvis": "LVIS-style long-tailed detection",
    "voc": "PASCAL VOC-style detection",
    "semantic": "Semantic segmentation",
    "svm": "Low-shot classification (linear SVM)",
    "knn": "k-nearest neighbours",
    "retrieval": "Image retrieval",
    "linear": "Linear classification",
    "finetune": "Fine-tuning with few labels",
    "fixmatch": "FixMatch",
    "diagnostics": "Label-free diagnostics of the features",
}

#: Families with so many metrics that every task has its own table.
DETECTION = ("coco", "lvis", "voc")


@dataclass(frozen=True)
class CellView:
    """One cell: ``main`` is the number, ``spread`` and ``trials`` are ``± 1.3`` and ``n=5`` where there are several.

    ``tone``: up or down for a significant difference; ``mark``: a paper's footnote sign, explained in the row's note;
    ``differs``: of another protocol, other settings or other data than the rows beside it.
    """

    main: str = "–"
    spread: str = ""
    trials: str = ""
    best: bool = False
    tone: str = ""
    mark: str = ""
    differs: bool = False
    note: str = ""

    @property
    def text(self) -> str:
        """The cell in one line of plain text."""
        count = f"({self.trials})" if self.trials else ""
        sign = "≠" if self.differs else ""
        return " ".join(part for part in (sign, self.main + self.mark, self.spread, count, self.note) if part)


@dataclass(frozen=True)
class RowView:
    """A row: ``colour`` is the checkpoint's series number.

    ``kind``: ours, difference, rank, published, fact, or a heading without cells across the table: group (of our
    rows), source (of published ones).
    """

    label: str
    kind: str
    cells: tuple[CellView, ...]
    note: str = ""
    colour: int | None = None


@dataclass(frozen=True)
class TableView:
    """A table with a heading for each column after the first; ``groups`` are (heading, columns spanned).

    ``reading`` explains the numbers at more length than the caption.
    """

    title: str
    caption: str
    first: str
    columns: tuple[str, ...]
    rows: tuple[RowView, ...]
    groups: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    reading: str = ""


def number(value: float, digits: int = 1) -> str:
    """A rounded number with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def rendered(template: str, **values: Any) -> str:
    """A page in one file, with the style inside it. Undefined names in the template are errors."""
    environment = Environment(
        loader=PackageLoader("momentum_transfer.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    style = resources.files("momentum_transfer.report").joinpath("style.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(style=style, number=number, **values)


def with_interval(value: float, interval: tuple[float, float], digits: int = 1) -> CellView:
    """``52.0 [50.1, 53.9]``."""
    return CellView(number(value, digits), f"[{number(interval[0], digits)}, {number(interval[1], digits)}]")


def cell_views(results: Results, measure: Measure, names: Sequence[str], counted: bool) -> list[CellView]:
    """The cells of a measure for these checkpoints, with their numbers of trials where ``counted``."""
    cells, unlike = results.cells[measure], results.unlike.get(measure, frozenset())
    top = set() if measure.metric in results.descriptive else _best(cells)
    views = []
    for name in names:
        if (cell := cells.get(name)) is None:
            views.append(CellView())
            continue
        spread = "" if cell.std is None else f"± {number(cell.std)}"
        trials = f"n={cell.trials}" if spread and counted else ""
        views.append(CellView(number(cell.mean), spread, trials, name in top, differs=name in unlike))
    return views


def difference_view(change: Comparison | None, word: str | None = None, digits: int = 1) -> CellView:
    """A difference with its interval; coloured by the word of the summary, or without one by its own p."""
    if change is None:
        return CellView(note=word or "")
    sign = "+" if change.value >= 0 else ""
    significant = word in (BETTER, WORSE) if word else change.p is not None and change.p <= ALPHA and change.value != 0
    tone = ("up" if change.value > 0 else "down") if significant else ""
    spread = ""
    if change.low is not None and change.high is not None:
        spread = f"[{number(change.low, digits)}, {number(change.high, digits)}]"
    return CellView(sign + number(change.value, digits), spread, tone=tone, note=for_readers(word or "", change))


def compared(results: Results, kinds: Iterable[str] = ("baseline", "random", "supervised")) -> list[tuple[str, str]]:
    """(checkpoint, baseline) for every checkpoint of interest against the first kind of baseline, then the next."""
    bases = [name for kind in kinds if (name := results.baseline(kind))]
    return [(name, base) for base in bases for name in evaluated(results) if name != base]


def evaluated(results: Results) -> list[str]:
    """The checkpoints that are compared with baselines; supervised weights are both."""
    return [name for name in results.checkpoints if results.kinds[name] in ("", "supervised")]


def _best(cells: Mapping[str, Cell]) -> set[str]:
    """Names with the highest mean, as shown (one decimal); nothing is best alone, or where all are equal."""
    shown = {round(cell.mean, 1) for cell in cells.values()}
    top = max(shown) if len(shown) > 1 else None
    return {name for name, cell in cells.items() if round(cell.mean, 1) == top}


def headline_order(results: Results) -> list[Measure]:
    """The main measures in the order of the page."""
    return sorted(results.headlines(), key=measure_order)


def one_of_each_family_first(measures: Sequence[Measure]) -> list[Measure]:
    """Detection, low-shot, … each once before any of them twice; a stable order."""
    seen: Counter[str] = Counter()
    turns = []
    for measure in measures:
        turns.append((seen[measure.family], measure))
        seen[measure.family] += 1
    return [measure for _, measure in sorted(turns, key=lambda turn: turn[0])]


def short_labels(measures: Sequence[Measure]) -> dict[Measure, str]:
    """Distinct labels: with the protocol where a task was measured under several."""
    plain = Counter(measure.label for measure in measures)
    labels = {
        measure: measure.label + f" ({measure.protocol or 'no protocol'})" * (plain[measure.label] > 1)
        for measure in measures
    }
    if len(set(labels.values())) < len(labels):
        return {measure: f"{measure.label} ({context(measure)})" for measure in measures}
    return labels


def context(measure: Measure) -> str:
    """Data set, protocol and engine."""
    return " · ".join(part for part in (measure.dataset, measure.protocol, measure.engine) if part)


def measure_order(measure: Measure) -> tuple[int, str, str, float]:
    """Key of the page's order: ``svm/k=16`` after ``svm/k=4``."""
    place = list(FAMILIES).index(measure.family) if measure.family in FAMILIES else len(FAMILIES)
    stem, _, count = measure.task.rpartition("=")
    natural = (stem, float(count)) if stem and count.isdigit() else (measure.task, 0.0)
    return place, context(measure), *natural
