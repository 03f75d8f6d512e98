"""Builds the report's tables as text, once for the HTML page and the Markdown.

A detail table has the papers' orientation: one row a checkpoint, one column a metric; below them the differences from
the baselines, and the nearest published rows, each marked where its protocol or data are not those of our rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from momentum_transfer.report.aggregate import DESCRIPTIVE, Cell, Measure, Results, baseline
from momentum_transfer.report.differences import AHEAD, ALPHA, BEHIND, Comparisons
from momentum_transfer.report.reference import Published, published_rows
from momentum_transfer.report.views import CellView, RowView, TableView, number
from momentum_transfer.verdicts.comparison import Comparison

#: Baselines that are not themselves compared with one.
BASELINES_ONLY = ("baseline", "random", "pixels", "none")

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

_PARTS = {"bbox": "boxes", "segm": "masks"}


def cell_view(cell: Cell | None, best: bool = False, counted: bool = True, differs: bool = False) -> CellView:
    """A cell of trials, their number told where ``counted``; marked where its settings are not those of its row."""
    if cell is None:
        return CellView()
    if cell.std is None:
        return CellView(number(cell.mean), best=best, differs=differs)
    trials = f"n={cell.trials}" if counted else ""
    return CellView(number(cell.mean), f"± {number(cell.std)}", trials, best, differs=differs)


def cell_views(results: Results, measure: Measure, names: Sequence[str], counted: bool) -> list[CellView]:
    """The cells of a measure for these checkpoints."""
    cells, unlike = results.cells[measure], results.unlike.get(measure, frozenset())
    top = set() if measure.metric in DESCRIPTIVE else _best(cells)
    return [cell_view(cells.get(name), name in top, counted, name in unlike) for name in names]


def difference_view(change: Comparison | None, word: str | None = None) -> CellView:
    """A difference with its sign and its 95 % interval, and the word of the summary.

    Without a word, up and down are told where p is at most 5 % for this number alone.
    """
    if change is None:
        return CellView(note=word or "")
    sign = "+" if change.value >= 0 else ""
    told = word in (AHEAD, BEHIND) if word else change.p is not None and change.p <= ALPHA and change.value != 0
    tone = ("up" if change.value > 0 else "down") if told else ""
    spread = (
        f"[{number(change.low)}, {number(change.high)}]" if change.low is not None and change.high is not None else ""
    )
    return CellView(sign + number(change.value), spread, tone=tone, note=word or "")


def compared(results: Results) -> list[tuple[str, str]]:
    """(checkpoint, baseline) for every checkpoint of interest against random, then against supervised."""
    bases = [name for kind in ("baseline", "random", "supervised") if (name := baseline(results, kind))]
    return [
        (name, base)
        for base in bases
        for name in results.checkpoints
        if name != base and results.kind(name) not in BASELINES_ONLY
    ]


def _best(cells: Mapping[str, Cell]) -> set[str]:
    """Names with the highest mean, as shown (one decimal); nothing is best alone, or where all are equal."""
    shown = {round(cell.mean, 1) for cell in cells.values()}
    if len(shown) < 2:
        return set()
    top = max(shown)
    return {name for name, cell in cells.items() if round(cell.mean, 1) == top}


def headline_order(results: Results) -> list[Measure]:
    """The main measures in the order of the page."""
    return sorted(results.headlines(), key=_measure_order)


def one_of_each_family_first(measures: Sequence[Measure]) -> list[Measure]:
    """Detection, low-shot, … each once before any of them twice; a stable order."""
    seen: Counter[str] = Counter()
    turns = []
    for measure in measures:
        family = measure.task.split("/")[0]
        turns.append((seen[family], measure))
        seen[family] += 1
    return [measure for _, measure in sorted(turns, key=lambda turn: turn[0])]


def short_labels(measures: Sequence[Measure]) -> dict[Measure, str]:
    """Labels that tell the measures apart: with the protocol where a task was measured under several."""
    plain = Counter(measure_label(measure) for measure in measures)
    labels: dict[Measure, str] = {}
    for measure in measures:
        label = measure_label(measure)
        labels[measure] = label if plain[label] == 1 else f"{label} ({measure.protocol or 'no protocol'})"
    if len(set(labels.values())) < len(labels):
        return {measure: f"{measure_label(measure)} ({_context(measure)})" for measure in measures}
    return labels


def measure_label(measure: Measure) -> str:
    """``svm/k=4 top1``."""
    return f"{measure.task} {measure.metric}"


def _context(measure: Measure) -> str:
    return " · ".join(part for part in (measure.dataset, measure.protocol, measure.engine) if part)


def _measure_order(measure: Measure) -> tuple[int, str, str, float]:
    return (_place(measure), _context(measure), *_natural(measure.task))


def _place(measure: Measure) -> int:
    family = measure.task.split("/")[0]
    return list(FAMILIES).index(family) if family in FAMILIES else len(FAMILIES)


def _natural(task: str) -> tuple[str, float]:
    """``svm/k=16`` after ``svm/k=4``."""
    stem, _, count = task.rpartition("=")
    return (stem, float(count)) if stem and count.isdigit() else (task, 0.0)


def detail_tables(
    comparisons: Comparisons, published: Sequence[Published], colours: Mapping[str, int]
) -> list[TableView]:
    """One table for every (family, dataset, protocol, engine); detection has one for boxes and one for masks."""
    results = comparisons.results
    groups: dict[tuple[str, ...], list[Measure]] = {}
    for measure in sorted(results.cells, key=_measure_order):
        family = measure.task.split("/")[0]
        part = measure.task if family in DETECTION else family
        groups.setdefault((part, *measure[2:]), []).append(measure)
    titles = Counter(_title(measures[0].task) for measures in groups.values())
    tables = []
    for measures in groups.values():
        title = _title(measures[0].task)
        if titles[title] > 1 and measures[0].protocol:
            title = f"{title} · {measures[0].protocol}"
        tables.append(_detail_table(comparisons, title, _in_columns(measures), published, colours))
    return tables


def _in_columns(measures: Sequence[Measure]) -> Sequence[Measure]:
    """Counted tasks (``svm/k=1``, ``svm/k=2``, …) stand side by side for each metric, as the papers print them."""
    metrics = list(dict.fromkeys(measure.metric for measure in measures))
    if all("=" in measure.task for measure in measures):
        return sorted(measures, key=lambda measure: metrics.index(measure.metric))
    return measures


def _detail_table(
    comparisons: Comparisons,
    title: str,
    measures: Sequence[Measure],
    published: Sequence[Published],
    colours: Mapping[str, int],
) -> TableView:
    results = comparisons.results
    columns, groups = _headings(measures)
    present = [name for name in results.checkpoints if any(name in results.cells[m] for m in measures)]
    counts = {cell.trials for m in measures for cell in results.cells[m].values()}
    columns_of_cells = [cell_views(results, measure, present, counted=len(counts) > 1) for measure in measures]
    rows = [
        RowView(name, "ours", cells, colour=colours[name])
        for name, cells in zip(present, zip(*columns_of_cells, strict=True), strict=True)
    ]
    for name, base in compared(results):
        changes = [comparisons.of(measure, name, base) for measure in measures]
        if any(changes):
            rows.append(RowView(f"{name} − {base}", "difference", tuple(difference_view(c) for c in changes)))
    beside, left_out = published_rows(measures, published, results.data.get(measures[0], {}))
    notes = [f"{left_out} more published rows of these measures are in configs/reference/."] if left_out else []
    return TableView(
        title,
        " · ".join(
            part for part in (groups[0][0] if len(groups) == 1 else "", _context(measures[0]), _trials(counts)) if part
        ),
        "weights",
        columns,
        tuple(rows + beside),
        groups=groups,
        notes=tuple(notes),
    )


def _trials(counts: set[int]) -> str:
    if len(counts) > 1:
        return "mean ± std over n trials"
    (count,) = counts
    return "a single trial" if count == 1 else f"mean ± std over {count} trials each"


def _title(task: str) -> str:
    family, _, part = task.partition("/")
    heading = FAMILIES.get(family, family)
    return f"{heading}: {_PARTS.get(part, part)}" if family in DETECTION and part else heading


def _headings(measures: Sequence[Measure]) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Column headings and the groups above them: metrics under tasks, or counts (k=1 …) under metrics."""
    counted = all("=" in measure.task for measure in measures)
    columns = tuple(m.task.partition("/")[2] if counted else m.metric for m in measures)
    groups: list[tuple[str, int]] = []
    for measure in measures:
        heading = measure.metric if counted else measure.task
        if groups and groups[-1][0] == heading:
            groups[-1] = (heading, groups[-1][1] + 1)
        else:
            groups.append((heading, 1))
    return columns, tuple(groups)
