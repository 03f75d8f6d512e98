"""The section on a detector's errors: what each kind costs, classes, calibration, confusions, the hardest images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.patches import Rectangle

from momentum_transfer.report import plots
from momentum_transfer.report.figures import Plot, run_colours
from momentum_transfer.report.read_inputs import Analysis
from momentum_transfer.report.tables import CellView, RowView, TableView, number

#: Kinds of error in the order of the paper (TIDE, arXiv 2008.08115).
KINDS = ("classification", "localisation", "both", "duplicate", "background", "missed")
_SIDES = ("false positives", "false negatives")

#: Rows of a table of classes, of confused pairs, of images; classes in a matrix; detectors with tables of their own.
_CLASSES, _PAIRS, _IMAGES, MATRIX, _DETAILED = 100, 15, 10, 20, 4
_Runs = Mapping[str, Mapping[str, Any]]
_OVERLAPS = {"bbox": "boxes", "segm": "masks"}

_READING = (
    "A detection is right where it takes an object of its class at IoU 0.5. Else it is of the first kind that fits: "
    "badly placed (an object of its class at IoU 0.1 to 0.5), wrong class (one of another class at 0.5), found twice, "
    "nothing there (no object above 0.1), or both. What a kind costs is AP50 with that kind alone put right, minus "
    "AP50: the costs do not add up (TIDE, Bolya et al., arXiv 2008.08115)."
)


@plots.styled
def _cost_plot(costs: Mapping[str, Sequence[float]], colours: Mapping[str, int]) -> str:
    """One group of bars a kind of error, one bar a run; ``costs``: run to points of AP50 for each kind."""
    figure, axes = plots.make_axes(6.4, 1.2 + 0.3 * max(6, len(KINDS) * min(3, len(costs))))
    height = 0.8 / max(1, len(costs))
    for place, (run, values) in enumerate(costs.items()):
        where = [row + (place - (len(costs) - 1) / 2) * height for row in range(len(KINDS))]
        colour, label = plots.series_colour(colours[run]), plots.short_label(run)
        bars = axes.barh(where, values, 0.9 * height, color=colour, label=label)
        axes.bar_label(bars, [f"{value:.1f}" for value in values], padding=3, fontsize=9, color=plots.INK)
    axes.set_yticks(range(len(KINDS)), list(KINDS))
    axes.set_ylim(len(KINDS) - 0.5, -0.5)
    axes.set_xlim(right=1.12 * max(1.0, *(value for values in costs.values() for value in values)))
    axes.grid(axis="y", visible=False)
    title = "What each kind of error costs, in points of AP50"
    return plots.finish(figure, "error-costs", title, x="points of AP50", legend=len(costs) > 1)


@plots.styled
def _curve_plot(curves: Mapping[str, Sequence[float]], colours: Mapping[str, int]) -> str:
    """Precision over recall; ``curves``: name to precision at recall levels evenly spaced from 0 to 1."""
    figure, axes = plots.make_axes(6.4, 3.8)
    for name, values in curves.items():
        recall = [100 * index / max(1, len(values) - 1) for index in range(len(values))]
        axes.plot(recall, [100 * v for v in values], color=plots.series_colour(colours[name]), linewidth=1.8,
                  label=plots.short_label(name))  # fmt: skip
    axes.set_xlim(-2, 102)
    axes.set_ylim(-2, 102)
    title = "Precision over recall"
    return plots.finish(figure, "precision-recall", title, x="recall, %", y="precision, %", legend=True)


@plots.styled
def _calibration_plot(bins: Mapping[str, Sequence[tuple[float, float, int]]], colours: Mapping[str, int]) -> str:
    """Fraction of right detections over their mean score, and the line where both are equal; larger marks hold more.

    Args:
        bins: run to (mean score, fraction of right ones, detections) of each bin that has any.
    """
    figure, axes = plots.make_axes(6.4, 3.8)
    axes.plot([0, 1], [0, 1], color=plots.FAINT, linewidth=1.5)
    for run, points in bins.items():
        if not points:
            continue
        scores, fractions, numbers = zip(*points, strict=True)
        colour = plots.series_colour(colours[run])
        sizes = [20 + 160 * number / max(numbers) for number in numbers]
        axes.plot(scores, fractions, color=colour, linewidth=1.5, label=plots.short_label(run))
        axes.scatter(scores, fractions, s=sizes, color=colour, marker=plots.series_marker(colours[run]), zorder=3)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    title, y = "Fraction of right detections over their score", "fraction of right detections"
    return plots.finish(figure, "calibration", title, x="score", y=y, legend=any(bins.values()))


@plots.styled
def _confusion_plot(names: Sequence[str], cells: Mapping[tuple[int, int], int]) -> str:
    """Objects by true class (rows; the last is background) and by the class of the detection (columns; last: missed).

    Args:
        cells: (row, column) to a number, of those above 0; K stands for background and for missed.
    """
    size = len(names) + 1
    side = max(3.2, 1.6 + 0.36 * size)
    figure, axes = plots.make_axes(side + 0.6, side)
    totals = [sum(n for (row, _), n in cells.items() if row == index) for index in range(size)]
    for (row, column), value in cells.items():
        colour, alpha = plots.series_colour(0 if row == column else 1), 0.15 + 0.6 * value / max(1, totals[row])
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour, alpha=alpha, linewidth=0))
        axes.text(column, row, str(value), ha="center", va="center", fontsize=8.5, color=plots.INK)
    axes.set_xticks(range(size), [*(plots.short_label(name, 16) for name in names), "missed"], rotation=90, fontsize=9)
    axes.set_yticks(range(size), [*(plots.short_label(name, 16) for name in names), "background"], fontsize=9)
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    axes.grid(visible=False)
    title = "Objects by their class and the class of the detection that takes them"
    return plots.finish(figure, "confusion", title, x="detected as", y="is")


@dataclass(frozen=True)
class ErrorPart:
    """One detector on one data set: tables and plots of all runs that have it; ``details`` of each run alone."""

    title: str
    tables: tuple[TableView, ...]
    plots: tuple[Plot, ...]
    details: tuple[TableView, ...]


def error_parts(found: Sequence[Analysis], colours: Mapping[str, int], notices: list[str]) -> list[ErrorPart]:
    """A part for every detector, data set and kind of overlap; what cannot be read goes to ``notices``."""
    groups: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for analysis in found:
        if analysis.content.get("format") != 1:
            notices.append(f"{analysis.run}: errors_{analysis.name}.json is of another version; it is left out")
            continue
        groups.setdefault((analysis.place, analysis.name), {})[analysis.run] = analysis.content
    parts = []
    for (place, name), runs in groups.items():
        title = _title(name) if place == "." else f"{place}: {_title(name)}"
        try:
            parts.append(_part(title, runs, run_colours(list(runs), colours)))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError) as error:
            notices.append(f"errors_{name}.json of {', '.join(runs)}: not an analysis of errors ({error!r}); left out")
    return parts


def _title(name: str) -> str:
    data, _, overlaps = name.rpartition("_")
    return f"{data}, {_OVERLAPS[overlaps]}" if overlaps in _OVERLAPS else name


def _part(title: str, runs: _Runs, colours: Mapping[str, int]) -> ErrorPart:
    tables = [_kind_table(title, runs, colours)]
    if len(runs) > 1:
        tables.append(_class_comparison(title, runs))
    details = []
    for run in list(runs)[:_DETAILED]:
        details += [_class_table(run, runs[run]), *_pair_table(run, runs[run]), _image_table(run, runs[run])]
    return ErrorPart(title, tuple(tables), tuple(_plots(title, runs, colours)), tuple(details))


def _plots(title: str, runs: _Runs, colours: Mapping[str, int]) -> list[Plot]:
    costs = {run: [float(content["kinds"][kind]["cost"] or 0.0) for kind in KINDS] for run, content in runs.items()}
    curves = {run: [float(v) for v in content["curve"]] for run, content in runs.items() if content["curve"]}
    bins = {run: _bins(content["calibration"]) for run, content in runs.items()}
    caption = f"{title}: points of AP50 that putting one kind right would give."
    found = [Plot("What each kind of error costs", caption, _cost_plot(costs, colours))]
    if curves:
        caption = f"{title}: mean over the classes, IoU 0.5."
        found.append(Plot("Precision over recall", caption, _curve_plot(curves, colours)))
    if len(runs) == 1 and (classes := _class_curves(next(iter(runs.values())))):
        caption = f"{title}: the classes of lowest AP50 first, IoU 0.5."
        svg = _curve_plot(classes, {name: i for i, name in enumerate(classes)})
        found.append(Plot("Precision over recall by class", caption, svg))
    gaps = ", ".join(f"{run} {_percent(content['calibration']['error'])} %" for run, content in runs.items())
    caption = (
        f"{title}: fraction of right detections over their score; on the line a score of 0.7 is right in 70 % of "
        f"cases. Mean gap: {gaps}."
    )
    found.append(Plot("Calibration", caption, _calibration_plot(bins, colours)))
    for run, content in list(runs.items())[:_DETAILED]:
        names = [str(entry["name"]) for entry in content["classes"]]
        if len(names) <= MATRIX:
            cells = {(int(i), int(j)): int(n) for i, j, n in content["confusion"]}
            caption = (
                f"{title}: objects of a row's class taken by detections of a column's, at the thresholds of the best "
                "F1; shades are fractions of the row."
            )
            found.append(Plot(f"Confusions of {run}", caption, _confusion_plot(names, cells)))
    return found


def _bins(found: Mapping[str, Any]) -> list[tuple[float, float, int]]:
    rows = zip(found["score"], found["precision"], found["number"], strict=True)
    return [(float(score), float(right), int(n)) for score, right, n in rows if score is not None and right is not None]


def _class_curves(content: Mapping[str, Any]) -> dict[str, list[float]]:
    defined = [entry for entry in content["classes"] if entry.get("curve") and entry["ap50"] is not None]
    worst = sorted(defined, key=lambda entry: float(entry["ap50"]))[:8] if len(defined) > 1 else []
    return {str(entry["name"]): [float(v) for v in entry["curve"]] for entry in worst}


def _kind_table(title: str, runs: _Runs, colours: Mapping[str, int]) -> TableView:
    rows = []
    for run, content in runs.items():
        cells = [CellView(_percent(content["ap50"]))]
        for kind in KINDS:
            entry = content["kinds"][kind]
            cells.append(CellView(_percent(entry["cost"]), note=f"({int(entry['number'])})"))
        cells += [CellView(_percent(content["sides"][side])) for side in _SIDES]
        rows.append(RowView(run, "ours", tuple(cells), colour=colours[run]))
    caption = (
        "Points of AP50 that each kind of error costs, and how many there are; the last two are what perfect precision "
        "and perfect recall would give."
    )
    columns = ("AP50", *KINDS, *_SIDES)
    return TableView(f"Kinds of error: {title}", caption, "detector", columns, tuple(rows), reading=_READING)


def _class_comparison(title: str, runs: _Runs) -> TableView:
    """AP of every class, a column a run."""
    by_run = {run: {str(entry["name"]): entry for entry in content["classes"]} for run, content in runs.items()}
    first = next(iter(by_run.values()))
    objects = {name: int(entry["objects"]) for name, entry in first.items() if entry["objects"]}
    rows = []
    for name in sorted(objects, key=lambda name: -objects[name])[:_CLASSES]:
        entries = [found.get(name, {}) for found in by_run.values()]
        scores = [entry.get("ap50") if entry.get("ap") is None else entry["ap"] for entry in entries]
        values = [None if score is None else float(score) for score in scores]
        top = max((round(v, 1) for v in values if v is not None), default=None)
        cells = [CellView(_percent(v), best=v is not None and len(values) > 1 and round(v, 1) == top) for v in values]
        rows.append(RowView(name, "fact", (CellView(str(objects[name])), *cells)))
    caption = f"By the protocol's own scorer.{_most_frequent(rows, len(objects))}"
    return TableView(f"AP by class: {title}", caption, "class", ("objects", *runs), tuple(rows))


def _most_frequent(rows: Sequence[RowView], total: int) -> str:
    return f" The {len(rows)} most frequent of {total} classes." if len(rows) < total else ""


def _class_table(run: str, content: Mapping[str, Any]) -> TableView:
    classes = [entry for entry in content["classes"] if entry["objects"] or entry["detections"]]
    classes.sort(key=lambda entry: (entry["ap50"] is None, -int(entry["objects"])))
    rows = []
    for entry in classes[:_CLASSES]:
        threshold = entry["threshold"]
        values = [str(int(entry["objects"])), _percent(entry.get("ap")), _percent(entry["ap50"])]
        values.append("–" if threshold is None else f"{float(threshold):.2f}")
        values += [_percent(entry[key]) for key in ("precision", "recall", "f1")]
        values += [str(int(entry["kinds"][kind])) for kind in KINDS]
        rows.append(RowView(str(entry["name"]), "fact", tuple(map(CellView, values))))
    caption = (
        "Threshold: of the score, for the best F1 at IoU 0.5; precision, recall and F1 there."
        f"{_most_frequent(rows, len(classes))}"
    )
    columns = ("objects", "AP", "AP50", "threshold", "precision", "recall", "F1", *KINDS)
    return TableView(f"Classes of {run}", caption, "class", columns, tuple(rows))


def _pair_table(run: str, content: Mapping[str, Any]) -> list[TableView]:
    """The pairs of classes that are confused most, where they are too many for a matrix."""
    names = [str(entry["name"]) for entry in content["classes"]]
    if len(names) <= MATRIX:
        return []
    pairs = [(int(n), int(i), int(j)) for i, j, n in content["confusion"] if i != j and max(i, j) < len(names)]
    most = sorted(pairs, reverse=True)[:_PAIRS]
    rows = [RowView(f"{names[i]} → {names[j]}", "fact", (CellView(str(n)),)) for n, i, j in most]
    caption = "Objects of the first class taken by detections of the second, at the thresholds of the best F1."
    return [TableView(f"Confusions of {run}", caption, "classes", ("objects",), tuple(rows))] if rows else []


def _image_table(run: str, content: Mapping[str, Any]) -> TableView:
    rows = []
    for image in content["hardest"][:_IMAGES]:
        values = [_percent(image["f1"]), *(str(int(image[key])) for key in ("objects", "right", "wrong", "missed"))]
        values.append(", ".join(f"{int(n)} {kind}" for kind, n in image["kinds"].items() if n) or "–")
        rows.append(RowView(str(image["file_name"]), "fact", tuple(map(CellView, values))))
    caption = "At the thresholds of the best F1, IoU 0.5; lowest F1 first."
    columns = ("F1", "objects", "right", "wrong", "missed", "wrong by kind")
    return TableView(f"Hardest images of {run}", caption, "image", columns, tuple(rows))


def _percent(value: float | None) -> str:
    return "–" if value is None else number(float(value))
