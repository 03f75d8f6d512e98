"""Is B better than A? From prediction files, tables of outcomes per item or results files, whoever wrote them.

Whatever is given becomes results as the report has them, one column a file, so that differences, intervals and words
are the report's own (``differences.Comparisons``); the correction is over all measures and files of the table.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from momentum_transfer.core.errors import InputError, counted, shown
from momentum_transfer.images.groups import FILE as IMAGE_GROUPS
from momentum_transfer.images.groups import read_groups
from momentum_transfer.report import tables
from momentum_transfer.report.aggregate import Cell, Measure, Results, aggregate, checkpoint_of
from momentum_transfer.report.differences import RESAMPLES, Comparisons, about
from momentum_transfer.report.draws import by_draw
from momentum_transfer.report.outcome_tables import paired, read_outcomes
from momentum_transfer.report.read_inputs import merge_methods, read_records
from momentum_transfer.report.tables import CellView, RowView, TableView, number
from momentum_transfer.verdicts.comparison import Comparison
from momentum_transfer.verdicts.corrections import word
from momentum_transfer.verdicts.outcomes import Outcomes, in_groups
from momentum_transfer.verdicts.power import trials_needed

#: Kinds of predictions, and the settings of their scores that may be given.
KINDS = {"coco": ("iou_type", "max_dets"), "lvis": ("iou_type", "max_dets"), "voc": ("interpolation",),
         "semantic": ("ignore_label",)}  # fmt: skip

#: Fewer items do not show how they spread.
FEWEST_ITEMS = 10

_NUMBERS = ("value", "low", "high", "p", "se", "df", "items", "clusters", "detectable")


@dataclass(frozen=True)
class Row:
    """One measure of the first file, and of the file ``name``; ``change`` is that less the first, ``p`` corrected."""

    measure: str
    name: str
    first: float
    second: float
    change: Comparison | None
    word: str
    p: float | None


@dataclass(frozen=True)
class Gate:
    """A requirement of one file: met where the 95 % interval's lower end ``low`` is at (or above) ``bound`` points."""

    measure: str
    name: str
    sign: str
    bound: float
    low: float
    met: bool
    line: str


@dataclass(frozen=True)
class Verdict:
    """What the table, the page and the gate say.

    Attributes:
        against: the first file, with which all others are compared. what: of which items: ``5000 images of val.json``.
        sentences: one for each other file, then what the verdict is about.
        gate: of every requirement and file. resamples, seed: of the bootstrap.
    """

    against: str
    what: str
    rows: tuple[Row, ...]
    sentences: tuple[str, ...]
    gate: tuple[Gate, ...]
    notices: tuple[str, ...]
    resamples: int
    seed: int

    @property
    def met(self) -> bool:
        """Whether every requirement is."""
        return all(each.met for each in self.gate)

    def table(self) -> TableView:
        """A row a measure; of several files, a row a file and measure."""
        names = list(dict.fromkeys(row.name for row in self.rows))
        second = names[0] if len(names) == 1 else "the other"
        columns = (self.against, second, "difference [95 %]", "p (corrected)", "would have been seen")
        return TableView(self.what, "", "measure", columns, tuple(_view(row, len(names) > 1) for row in self.rows))

    def as_json(self) -> str:
        """All numbers, unrounded."""
        changes = [{key: getattr(row.change, key, None) for key in _NUMBERS} for row in self.rows]
        rows = [{**vars(row), "change": {key: None if value == math.inf else value for key, value in change.items()}}
                for row, change in zip(self.rows, changes, strict=True)]  # fmt: skip
        gate = list(map(vars, self.gate))
        return json.dumps({**vars(self), "rows": rows, "gate": gate, "met": self.met}, indent=1, allow_nan=False) + "\n"

    def as_html(self) -> str:
        """One page in one file, in the report's style."""
        return tables.rendered("verdict.html.j2", verdict=self)


class _Verdicts:
    """Compare prediction files, outcomes per item or results files with the first of them; greater is better.

    ``verdict(a, b, …)`` takes

    - prediction files with their ``ground_truth`` (COCO, LVIS or VOC results, folders of label PNGs), whose ``kind`` is
      found from it, if not given; other arguments (``iou_type``, …: see ``KINDS``) go to its score;
    - outcomes per item: arrays [n] in one order, mappings of measures to such arrays, pandas frames or CSV files with
      a column of ids. Measures of 0 and 1 are hits, others from 0 to 1 fractions: both in percent;
    - results files (``.jsonl``), each of one checkpoint, or of pretrainings of one of ``methods``.

    Args:
        groups: of items, resampled whole (films, patients): a CSV file of items and groups, a mapping or pandas series
            of groups by item, or an array [n].
        margin: points within which a difference counts as none.
        require: requirements such as ``"AP >= -0.5"``, met where the lower end of the 95 % interval is.
        measure: names of the measures that are compared; (): all.
        methods: method to the names of its checkpoints, as ``read_inputs.merge_methods`` takes them.
        resamples, seed: of the bootstrap.

    Raises:
        InputError: other items on the sides, NaN, fewer than 10 items or 3 groups, an unknown measure, a file twice.
    """

    def __call__(
        self, *given: Any, ground_truth: str | Path | None = None, kind: str | None = None, groups: Any = None,
        margin: float | None = None, require: str | Sequence[str] = (), measure: str | Sequence[str] = (),
        methods: Mapping[str, Sequence[str]] | None = None, resamples: int = RESAMPLES, seed: int = 0, **score: Any,
    ) -> Verdict:  # fmt: skip
        required, chosen = ([each] if isinstance(each, str) else list(each) for each in (require, measure))
        called, requirements = _names(given), [_requirement(text) for text in required]
        if resamples < 100 or seed < 0:
            raise InputError(f"expected 100 resamples or more and a seed from 0, found {resamples} and {seed}")
        of_records = ground_truth is None and all(
            isinstance(each, (str, Path)) and Path(each).suffix == ".jsonl" for each in given
        )
        if (score or kind) and ground_truth is None:
            odd = next(iter(score), "kind")
            raise InputError(f"expected {odd} with predictions and their ground truth, found it without")
        if (of_records and groups is not None) or (methods and not of_records):
            odd = f"groups with outcomes or predictions (evaluations read {IMAGE_GROUPS} beside the images)"
            odd = odd if of_records else "methods with results files"
            raise InputError(f"expected {odd}, found {', '.join(called)}")
        if ground_truth is not None:
            found = _of_predictions(Path(ground_truth), given, called, groups, kind, score)
        elif of_records:
            found = _of_records(given, called, methods or {})
        else:
            found = _of_outcomes(given, called, groups, chosen)
        labels = _labels(found.results, chosen, [name for name, *_ in requirements])
        comparisons = Comparisons(
            found.results, resamples, found.methods, seed=seed, outcomes=found.outcomes, margin=margin
        )
        rows = _rows(comparisons, labels)
        by_file = [[row for row in rows if row.name == name] for name in called[1:]]
        sentences = [_sentence(comparisons, each, found.what) for each in by_file]
        sentences.append(about(found.methods))
        notices = *found.results.notices, *comparisons.notices
        gate = tuple(_gate(*each, row, notices) for each in requirements for row in rows if row.measure == each[0])
        return Verdict(called[0], found.what, tuple(rows), tuple(sentences), gate, notices, resamples, seed)

    @staticmethod
    def plan(*, detect: float, sigma: float, paired: bool = True) -> int | None:
        """How many trials show a true difference of ``detect`` points in 80 % of cases; None if no number does.

        Args:
            sigma: standard deviation over trials, of the differences where trials are ``paired``, else of each side.
        """
        return trials_needed(detect, sigma, paired)


verdict = _Verdicts()


@dataclass
class _Given:
    """What is compared: a column a file, outcomes by file, pretrainings by file."""

    what: str
    results: Results
    outcomes: dict[str, Outcomes] = field(default_factory=dict)
    methods: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _names(given: Sequence[Any]) -> list[str]:
    """The shortest ends of the paths that differ, or A, B, …; InputError where one file is given twice.

    Two files of the same content are fine: of a change that changed nothing.
    """
    paths = [Path(each).resolve() for each in given if isinstance(each, (str, Path))]
    if len(given) < 2 or len(set(paths)) < len(paths):
        found = ", ".join(map(str, paths)) or counted(len(given), "array")
        raise InputError(f"expected two or more different files or arrays to compare, found {found}")
    if len(paths) < len(given):
        return [chr(ord("A") + place) for place in range(len(given))]
    stems = [(*path.parent.parts, path.stem) for path in paths]
    ends = (["/".join(parts[-count:]) for parts in stems] for count in range(1, max(map(len, stems)) + 1))
    return next((each for each in ends if len(set(each)) == len(each)), list(map(str, paths)))


def _of_predictions(
    truth: Path, files: Sequence[Any], called: Sequence[str], groups: Any, kind: str | None, score: Mapping[str, Any]
) -> _Given:
    kind = kind or kind_of(truth)
    if kind not in KINDS or not set(score) <= set(KINDS[kind]):
        known = "; ".join(f"{name} ({', '.join(settings)})" for name, settings in KINDS.items())
        raise InputError(f"expected a kind and its settings of {known}, found {' '.join([kind, *score])}")
    module = import_module(f"momentum_transfer.transfer.scores.{kind}")
    read, names = _truth(truth, files[0], kind, score.get("iou_type", "bbox"))
    items = _items(f"{kind} images of {truth.name}", names, groups)
    sides = [module.evaluate(read, file, **score) for file in files]
    if kind == "semantic":
        classes = max(side.items.classes for side in sides)  # one side alone may have the highest label
        sides = [side if side.items.classes == classes else module.evaluate(truth, file, classes=classes, **score)
                 for side, file in zip(sides, files, strict=True)]  # fmt: skip
    else:
        seen = [np.unique(side.items.image) for side in sides]
        for file, other in zip(files, seen, strict=True):
            if min(len(seen[0]), len(other)) and not len(np.intersect1d(seen[0], other)):
                raise InputError(f"expected detections in the same images, found {files[0]} and {file} to share none")
    scores = [{name: value for name, value in side.metrics.items() if name != "mIoU_ground_truth"} for side in sides]
    return _of_items(*items, [side.items for side in sides], scores, called)


def _truth(truth: Path, first: Any, kind: str, iou_type: Any) -> tuple[Any, list[tuple[str, ...]]]:
    """The ground truth as scores take it, and what each image may be called."""
    from momentum_transfer.transfer.scores import coco_files, semantic

    read: Any = truth
    if kind == "semantic":
        images = [image for image, _ in semantic.pairs(truth, first)]
        ids = [str(image.with_suffix("")).removeprefix(f"{truth}/") for image in images]
    else:
        read = coco_files.load_ground_truth(truth, iou_type, area=kind != "voc")
        images = [Path(str(image.get("file_name", ""))) for image in read.images]
        ids = [str(image["id"]) for image in read.images]
    return read, [(own, str(image), image.name, image.stem) for own, image in zip(ids, images, strict=True)]


class _Keys(msgspec.Struct):
    neg_category_ids: Any = None
    difficult: Any = None


class _Entries(msgspec.Struct):
    images: list[_Keys] = []
    annotations: list[_Keys] = []


def kind_of(truth: Path) -> str:
    """The kind of a ground truth: LVIS' images list absent classes, VOC's objects have a flag ``difficult``."""
    if truth.suffix != ".json":
        return "semantic"
    try:
        keys = msgspec.json.decode(truth.read_bytes() if truth.is_file() else b"", type=_Entries)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "coco"  # whose reader says what is wrong
    if any(image.neg_category_ids is not None for image in keys.images):
        return "lvis"
    return "voc" if any(each.difficult is not None for each in keys.annotations) else "coco"


def _of_outcomes(given: Sequence[Any], called: Sequence[str], groups: Any, measures: Sequence[str]) -> _Given:
    where = [str(each) if isinstance(each, (str, Path)) else name for each, name in zip(given, called, strict=True)]
    tables_read = [read_outcomes(*each, measures) for each in zip(given, where, strict=True)]
    ids, outcomes, scores = paired(where, tables_read)
    found = _of_items(*_items("items", [(item,) for item in ids], groups), outcomes, scores, called)
    for file, (_, columns) in zip(where, tables_read, strict=True):
        if alone := [name for name in columns if name not in scores[0]]:
            found.results.notices.append(f"not in every file, and left out: {', '.join(map(shown, alone))} of {file}")
    return found


def _items(what: str, names: Sequence[Sequence[str]], groups: Any) -> tuple[str, np.ndarray | None]:
    """How many of ``what`` there are, in words, and the group of each; ``names``: all that each may be called."""
    if (count := len(names)) < FEWEST_ITEMS:
        raise InputError(f"expected at least {FEWEST_ITEMS} {what}, found {count}; fewer do not show how they spread")
    if groups is None:
        return f"{count} {what}", None
    numbers = read_groups(groups, names)
    return f"{count} {what} in {int(numbers.max()) + 1} groups", numbers


def _of_items(
    what: str, groups: np.ndarray | None, outcomes: Sequence[Outcomes], scores: Sequence[Mapping[str, float]],
    called: Sequence[str],
) -> _Given:  # fmt: skip
    cells: dict[Measure, dict[str, Cell]] = {}
    for metric in scores[0]:
        if all(math.isfinite(side[metric]) for side in scores):  # NaN: there is no object of that size
            sides = zip(called, scores, strict=True)
            row = {name: Cell({0: side[metric]}, items={0: {"sha256": name}}) for name, side in sides}
            cells[Measure("", metric, "", "", "")] = row
    grouped = [in_groups(side, groups) for side in outcomes]
    return _Given(what, _results(called, cells), dict(zip(called, grouped, strict=True)))


def _of_records(files: Sequence[Any], called: Sequence[str], methods: Mapping[str, Sequence[str]]) -> _Given:
    """The headline measures that all files have of their one checkpoint or method; baselines beside do not count."""
    cells: dict[Measure, dict[str, Cell]] = {}
    notices: list[str] = []
    of_method: dict[str, Sequence[str]] = {}
    for file, name in zip(files, called, strict=True):
        records, problems = read_records([file])
        held = {checkpoint_of(record) for record in records}
        own = {method: listed for method, listed in methods.items() if not held.isdisjoint(listed)}
        found = aggregate(merge_methods(by_draw(records), own) if own else by_draw(records))
        columns = [each for each in found.checkpoints if not found.kinds[each]] or found.checkpoints
        if len(columns) != 1 or problems:
            odd = ", ".join(problems[:1] or columns)
            advice = "say which are of one method (--method NAME=CKPT,CKPT), or take `report`"
            raise InputError(f"expected whole records of one checkpoint in {file}, found {odd}; {advice}")
        notices += found.notices
        of_method |= {name: own[columns[0]]} if columns[0] in own else {}
        for measure in tables.headline_order(found):
            if columns[0] in found.cells[measure]:
                cells.setdefault(measure, {})[name] = found.cells[measure][columns[0]]
    if absent := [method for method, listed in methods.items() if listed not in of_method.values()]:
        raise InputError(f"expected records of the methods, found none of {absent[0]} in {', '.join(map(str, files))}")
    common = {measure: row for measure, row in cells.items() if len(row) == len(called)}
    if not common:
        raise InputError(f"expected a measure that every results file has, found none in {', '.join(map(str, files))}")
    return _Given("records", _results(called, common, notices), methods=of_method)


def _results(called: Sequence[str], cells: dict[Measure, dict[str, Cell]], notices: Sequence[str] = ()) -> Results:
    return Results(list(called), cells, {}, list(notices), {}, dict.fromkeys(called, ""), {}, descriptive=())


def _labels(results: Results, chosen: Sequence[str], required: Sequence[str]) -> dict[Measure, str]:
    """What the measures that are compared are called; InputError if a chosen or a required one is not among them."""
    labels = {measure: label.strip() for measure, label in tables.short_labels(list(results.cells)).items()}
    for names in (chosen, required):
        if unknown := [name for name in names if name not in labels.values()]:
            raise InputError(f"expected a measure of {', '.join(labels.values())}, found {unknown[0]}")
        labels = {measure: label for measure, label in labels.items() if label in chosen or not chosen}
    return labels


def _rows(comparisons: Comparisons, labels: Mapping[Measure, str]) -> list[Row]:
    base, *others = comparisons.results.checkpoints
    family = [(measure, name, base) for name in others for measure in labels]
    rows = []
    for (measure, name, _), said in comparisons.verdicts(family).items():
        change, cells = comparisons.of(measure, name, base), comparisons.results.cells[measure]
        if comparisons.faults and change is not None and not change.items and cells[name].items and cells[base].items:
            raise InputError("; ".join(comparisons.notices))
        rows.append(Row(labels[measure], name, cells[base].mean, cells[name].mean, change, *said))
    return rows


def _requirement(text: str) -> tuple[str, str, float]:
    """Measure, >= or >, and the points of ``AP >= -0.5``."""
    plain = text.replace("\u2212", "-").replace("\u2265", ">=")  # as tables and people write them
    found = re.fullmatch(r"\s*(.*?\S)\s*(>=?)\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*%?\s*", plain)
    if found is None:
        raise InputError(f'expected a requirement such as "AP >= -0.5" or "AP > 0", found {shown(text)}')
    return found[1], found[2], float(found[3])


def _gate(measure: str, sign: str, bound: float, row: Row, notices: Sequence[str]) -> Gate:
    if row.change is None or row.change.low is None:
        found = f"expected an interval of {measure} for {row.name}, found {row.word}; the gate needs one"
        raise InputError("; ".join([found, *notices]))
    met = row.change.low >= bound if sign == ">=" else row.change.low > bound
    interval = f"{row.change.value:+.2f} [{row.change.low:+.2f}, {row.change.high:+.2f}]"
    line = f"gate {'met' if met else 'NOT MET'}: {measure} {sign} {bound:g} for {row.name}: difference {interval}"
    return Gate(measure, row.name, sign, bound, row.change.low, met, line)


def _view(row: Row, named: bool) -> RowView:
    shown_at = None if row.change is None else row.change.detectable
    difference = replace(tables.difference_view(row.change, row.word, 2), note=row.word)
    texts = "–" if row.p is None else f"{row.p:.2g}", "–" if shown_at is None else number(shown_at, 2)
    cells = (CellView(number(row.first, 2)), CellView(number(row.second, 2)), difference, *map(CellView, texts))
    return RowView(f"{row.name}: {row.measure}" if named else row.measure, "ours", cells)


def _sentence(comparisons: Comparisons, rows: Sequence[Row], what: str) -> str:
    """On the first measure that has a verdict, and how many of all have which word."""
    first, against = next((row for row in rows if row.p is not None), rows[0]), comparisons.results.checkpoints[0]
    found = f"{first.name} against {against} in {first.measure}: {tables.difference_view(first.change, None, 2).text}"
    found += f" points, {word(first.word, first.change)}"
    if comparisons.methods:
        what += f"; about {comparisons.subject(first.name, against)}"
    counts = ", ".join(f"{said} on {count}" for said, count in Counter(row.word for row in rows).items())
    return f"{found}; of {len(rows)} measures {counts} ({what})." if len(rows) > 1 else f"{found} ({what})."
