"""Plots that a suite asked for: measures over the settings of its pretrainings, seeds as trials.

``suite.json`` beside the records (written by the suite's runner) says what each run was and which plots are wanted.

How the plots of a sweep are drawn: a measure over a setting, and one measure over another.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.report.aggregate import Results
from momentum_transfer.report.figures import Plot
from momentum_transfer.report.plots import MARKERS, legend, make_axes, series_colour, short_label, styled, to_svg
from momentum_transfer.report.runs import Curve
from momentum_transfer.suites.sweep import AXES, VARIANT, PlotRequest, is_setting


class Point(NamedTuple):
    """A mean over seeds with its standard deviation, None of a single seed."""

    x: float
    mean: float
    std: float | None


@styled
def setting_plot(lines: Mapping[str, Sequence[Point]], x: str, y: str, names: Sequence[str] | None, log: bool) -> str:
    """One line a group over a setting.

    Args:
        names: of the places 0, 1, … where the setting is no number.
        log: logarithmic x axis.
    """
    figure, axes = make_axes(6.4, 3.6)
    for index, (label, points) in enumerate(lines.items()):
        xs, means = [point.x for point in points], np.array([point.mean for point in points])
        spread = np.array([point.std or 0.0 for point in points])
        style = series_colour(index)
        marker = MARKERS[index % len(MARKERS)] if len(points) < 40 else None
        axes.plot(xs, means, color=style, marker=marker, linewidth=2, label=short_label(label) or "all")
        axes.fill_between(xs, means - spread, means + spread, color=style, alpha=0.18, linewidth=0)
    places = sorted({point.x for points in lines.values() for point in points})
    if names is not None:
        axes.set_xticks(range(len(names)), [short_label(name) for name in names])
        if sum(map(len, names)) > 50:  # more than fits side by side
            axes.tick_params(axis="x", labelrotation=30)
            for tick in axes.get_xticklabels():
                tick.set(ha="right", rotation_mode="anchor")
    elif len(places) <= 12 and x not in AXES:
        if log and min(places) > 0:
            axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(lines) > 1:
        legend(axes)
    return to_svg(figure, "sweep", f"{y} over {x}")


@styled
def scatter_plot(
    groups: Mapping[str, Sequence[tuple[str, float, float]]],
    fits: Mapping[str, tuple[float, float, float] | None],
    x: str,
    y: str,
) -> str:
    """One point a checkpoint, named where there is room, with a regression line a group.

    Args:
        groups: label to (checkpoint, x, y). fits: label to (slope, intercept, r), None without a line.
    """
    figure, axes = make_axes(6.4, 3.8)
    total = sum(map(len, groups.values()))
    for index, (label, points) in enumerate(groups.items()):
        xs, ys = np.array([point[1] for point in points]), np.array([point[2] for point in points])
        style = series_colour(index)
        marker = MARKERS[index % len(MARKERS)]
        axes.plot(xs, ys, color=style, marker=marker, linestyle="none", label=short_label(label) or "all")
        fit = fits.get(label)
        if fit is not None:
            ends = np.array([xs.min(), xs.max()])
            axes.plot(ends, fit[0] * ends + fit[1], color=style, linewidth=1.4)
        for name, px, py in points if total <= 12 else ():
            axes.annotate(short_label(name, 22), (px, py), xytext=(5, 4), textcoords="offset points", fontsize=8.5)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(groups) > 1:
        legend(axes)
    return to_svg(figure, "scatter", f"{y} over {x}")


FILE = "suite.json"


def read_suites(results: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The ``suite.json`` beside each results file, where there is one.

    Raises:
        InputError: such a file is damaged.
    """
    found = []
    for path in dict.fromkeys(Path(file).parent / FILE for file in results):
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found.append({"runs": dict(content["runs"]), "plots": [PlotRequest(**plot) for plot in content["plots"]]})
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"expected what a suite's runner wrote in {path}, found other content; run the suite again"
            ) from error
    return found


def sweep_figures(suites: Sequence[Mapping[str, Any]], results: Results, curves: Sequence[Curve]) -> list[Plot]:
    """The plots of all suites; one whose measures are not there yet says so in its caption."""
    return [_draw(plot, suite["runs"], results, curves) for suite in suites for plot in suite["plots"]]


def _draw(plot: PlotRequest, runs: Mapping[str, Any], results: Results, curves: Sequence[Curve]) -> Plot:
    if plot.curve:
        return _curve(plot, runs, curves)
    return _over_setting(plot, runs, results) if is_setting(plot.x) else _scatter(plot, runs, results)


def _setting(runs: Mapping[str, Any], name: str, key: str) -> str:
    """What a run has for a setting; "" where it does not say, or for a checkpoint that the suite was given."""
    run = runs.get(name)
    if run is None or not key:
        return ""
    value = run["variant"] if key == VARIANT else {"SEED": run["seed"], **run["settings"]}.get(key, "")
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _in_order(groups: Mapping[str, Any], runs: Mapping[str, Any], by: str) -> dict[str, Any]:
    """The groups as the suite lists them, so that one has one colour in all plots; others last."""
    order = list(dict.fromkeys(_setting(runs, name, by) for name in runs))
    return dict(sorted(groups.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def _values(results: Results, measure: str) -> dict[str, float]:
    """Checkpoint -> mean over trials of a measure, unless it names one of the protocol that most checkpoints have."""
    name, _, where = (part.strip() for part in measure.partition("@"))
    rows = [
        cells
        for found, cells in results.cells.items()
        if [found.task, found.metric] == name.split() and where in ("", found.dataset, found.protocol)
    ]
    best = max(rows, key=len, default={})
    return {name: cell.mean for name, cell in best.items()}


def _over_setting(plot: PlotRequest, runs: Mapping[str, Any], results: Results) -> Plot:
    values = {name: value for name, value in _values(results, plot.y).items() if name in runs}
    groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, value in values.items():
        groups[_setting(runs, name, plot.by)][_setting(runs, name, plot.x)].append(value)
    if not groups:
        return _nothing(plot, plot.y)
    places = list(dict.fromkeys(x for x in (_setting(runs, name, plot.x) for name in runs if name in values)))
    numeric = all(_number(x) is not None for x in places)  # words keep the suite's order: steps, one after the other
    if numeric:
        places.sort(key=float)
    lines = {
        label: [
            Point(float(x) if numeric else places.index(x), statistics.fmean(found), _std(found))
            for x, found in sorted(line.items(), key=lambda item: places.index(item[0]))
        ]
        for label, line in _in_order(groups, runs, plot.by).items()
    }
    sizes = sorted({len(found) for line in groups.values() for found in line.values()})
    count = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    points = {(_setting(runs, name, plot.by), _setting(runs, name, plot.x), runs[name]["seed"]) for name in values}
    of = "pretraining seed(s)" if len(points) == len(values) else "checkpoint(s), which differ in other settings too"
    caption = f"{plot.y}; mean over {count} {of}; bands are ±1 standard deviation over them."
    svg = setting_plot(lines, plot.x, plot.y, None if numeric else places, plot.log)
    return Plot(plot.title, caption, svg)


def _scatter(plot: PlotRequest, runs: Mapping[str, Any], results: Results) -> Plot:
    xs, ys = _values(results, plot.x), _values(results, plot.y)
    groups: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for name in (name for name in xs if name in ys):
        groups[_setting(runs, name, plot.by)].append((name, xs[name], ys[name]))
    if not groups:
        return _nothing(plot, f"{plot.x} and {plot.y}")
    groups = _in_order(groups, runs, plot.by)
    fits = {label: _regression(points) for label, points in groups.items()}
    told = "; ".join(
        f"{label or 'all'}: slope {fit[0]:.2f}, r = {fit[2]:.2f}, n = {len(groups[label])}"
        for label, fit in fits.items()
        if fit is not None
    )
    caption = f"One point a checkpoint, lines by least squares ({told})." if told else "One point a checkpoint."
    return Plot(plot.title, caption, scatter_plot(groups, fits, plot.x, plot.y))


def _regression(points: Sequence[tuple[str, float, float]]) -> tuple[float, float, float] | None:
    """Slope, intercept and Pearson's r by least squares; None of fewer than three points or of equal x."""
    x, y = (np.array([point[place] for point in points]) for place in (1, 2))
    if len(points) < 3 or np.ptp(x) == 0:
        return None
    slope, intercept = np.polyfit(x, y, 1)
    r = float(np.corrcoef(x, y)[0, 1]) if np.ptp(y) else 0.0
    return float(slope), float(intercept), r


def _curve(plot: PlotRequest, runs: Mapping[str, Any], curves: Sequence[Curve]) -> Plot:
    groups: dict[str, dict[float, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    clocks = {curve.run: _elapsed(curve) for curve in curves if curve.key == "seconds"}
    for curve in (curve for curve in curves if curve.key == plot.curve):
        for step, value in zip(curve.steps, curve.values, strict=True):
            x: float | None = step
            if plot.x == "seconds":
                x = _at(clocks.get(curve.run), step)
            if x is not None:  # seeds share steps, not seconds: theirs are averaged like the values
                groups[_setting(runs, curve.checkpoint, plot.by)][step].append((x, value))
    if not groups:
        return _nothing(plot, f"{plot.curve} in a metrics.jsonl")
    lines = {
        label: [_joint(found) for _, found in sorted(line.items())]
        for label, line in _in_order(groups, runs, plot.by).items()
    }
    caption = f"{plot.curve} over {plot.x or 'step'}; bands are ±1 standard deviation over seeds."
    return Plot(plot.title, caption, setting_plot(lines, plot.x or "step", plot.curve, None, False))


def _joint(points: Sequence[tuple[float, float]]) -> Point:
    """The point of all seeds at one step."""
    xs, values = zip(*points, strict=True)
    return Point(statistics.fmean(xs), statistics.fmean(values), _std(values))


def _elapsed(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the seconds of training until each: a line holds the mean seconds of a step since the line before."""
    steps = np.array([0, *curve.steps])
    return steps, np.cumsum([0, *(np.diff(steps) * np.array(curve.values))])


def _at(clock: tuple[np.ndarray, np.ndarray] | None, step: float) -> float | None:
    return None if clock is None else float(np.interp(step, *clock))


def _nothing(plot: PlotRequest, what: str) -> Plot:
    return Plot(plot.title, f"Not drawn: there is no {what} among the records yet.", "")


def _std(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
