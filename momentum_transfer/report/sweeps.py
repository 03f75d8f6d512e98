"""Plots defined in a suite: a measure against a pretraining setting (mean over seeds), or against another measure.

``suite.json`` beside the records (written by the suite's runner) holds what each run was and which plots the page has.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from momentum_transfer.report import plots
from momentum_transfer.report.aggregate import Results
from momentum_transfer.report.figures import Plot
from momentum_transfer.report.read_inputs import Curve
from momentum_transfer.suites.sweep import AXES, VARIANT, PlotRequest, is_setting


class Point(NamedTuple):
    """A mean over seeds with its standard deviation, None of a single seed."""

    x: float
    mean: float
    std: float | None

    @classmethod
    def of(cls, xs: Sequence[float], values: Sequence[float]) -> "Point":
        """The mean place and the mean of the values of all seeds."""
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(xs), statistics.fmean(values), std)


@plots.styled
def setting_plot(lines: Mapping[str, Sequence[Point]], x: str, y: str, names: Sequence[str] | None, log: bool) -> str:
    """One line a group over a setting.

    Args:
        names: of the places 0, 1, … where the setting is no number.
        log: logarithmic x axis.
    """
    figure, axes = plots.make_axes(6.4, 3.6)
    places = plots.banded_lines(axes, lines, {label: index for index, label in enumerate(lines)})
    if names is not None:
        axes.set_xticks(range(len(names)), [plots.short_label(name) for name in names])
        if sum(map(len, names)) > 50:  # more than fits side by side
            axes.tick_params(axis="x", labelrotation=30)
            for tick in axes.get_xticklabels():
                tick.set(ha="right", rotation_mode="anchor")
    elif len(places) <= 12 and x not in AXES:
        if log and min(places) > 0:
            axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
    return plots.finish(figure, "sweep", f"{y} over {x}", x=x, y=y, legend=len(lines) > 1)


@plots.styled
def scatter_plot(groups: Mapping[str, Sequence[tuple[str, float, float]]],
                 fits: Mapping[str, tuple[float, float, float] | None], x: str, y: str) -> str:  # fmt: skip
    """One point a checkpoint, named where there is room, with a regression line a group.

    Args:
        groups: label to (checkpoint, x, y). fits: label to (slope, intercept, r), None without a line.
    """
    figure, axes = plots.make_axes(6.4, 3.8)
    total = sum(map(len, groups.values()))
    for index, (label, points) in enumerate(groups.items()):
        xs, ys = np.array([point[1] for point in points]), np.array([point[2] for point in points])
        colour, marker = plots.series_colour(index), plots.series_marker(index)
        axes.plot(xs, ys, color=colour, marker=marker, linestyle="none", label=plots.short_label(label) or "all")
        if (fit := fits.get(label)) is not None:
            ends = np.array([xs.min(), xs.max()])
            axes.plot(ends, fit[0] * ends + fit[1], color=colour, linewidth=1.4)
        for name, px, py in points if total <= 12 else ():
            label = plots.short_label(name, 22)
            axes.annotate(label, (px, py), xytext=(5, 4), textcoords="offset points", fontsize=8.5)
    return plots.finish(figure, "scatter", f"{y} over {x}", x=x, y=y, legend=len(groups) > 1)


def sweep_figures(suites: Sequence[Mapping[str, Any]], results: Results, curves: Sequence[Curve]) -> list[Plot]:
    """The plots of all suites; one whose measures are not there yet says so in its caption."""
    found = []
    for suite in suites:
        runs = suite["runs"]
        for plot in suite["plots"]:
            if plot.curve:
                found.append(_curve(plot, runs, curves))
            else:
                found.append((_over_setting if is_setting(plot.x) else _scatter)(plot, runs, results))
    return found


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
    """Checkpoint -> mean of a measure over trials.

    ``@ PLACE`` in ``measure`` names a data set or a protocol; where several fit, the one that most checkpoints have.
    """
    name, _, where = (part.strip() for part in measure.partition("@"))
    rows = [
        cells
        for found, cells in results.cells.items()
        if [found.task, found.metric] == name.split() and where in ("", found.dataset, found.protocol)
    ]
    return {name: cell.mean for name, cell in max(rows, key=len, default={}).items()}


def _over_setting(plot: PlotRequest, runs: Mapping[str, Any], results: Results) -> Plot:
    values = {name: value for name, value in _values(results, plot.y).items() if name in runs}
    groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, value in values.items():
        groups[_setting(runs, name, plot.by)][_setting(runs, name, plot.x)].append(value)
    if not groups:
        return _nothing(plot, plot.y)
    places = list(dict.fromkeys(_setting(runs, name, plot.x) for name in runs if name in values))
    try:
        places, numeric = sorted(places, key=float), True
    except ValueError:  # words keep the suite's order: steps, one after the other
        numeric = False
    lines = {
        label: [
            Point.of([float(x) if numeric else places.index(x)], found)
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
    regressions = "; ".join(
        f"{label or 'all'}: slope {fit[0]:.2f}, r = {fit[2]:.2f}, n = {len(groups[label])}"
        for label, fit in fits.items()
        if fit is not None
    )
    caption = "One point a checkpoint" + f", lines by least squares ({regressions})" * bool(regressions) + "."
    return Plot(plot.title, caption, scatter_plot(groups, fits, plot.x, plot.y))


def _regression(points: Sequence[tuple[str, float, float]]) -> tuple[float, float, float] | None:
    """Slope, intercept and Pearson's r by least squares; None of fewer than three points or of equal x."""
    x, y = (np.array([point[place] for point in points]) for place in (1, 2))
    if len(points) < 3 or np.ptp(x) == 0:
        return None
    fit = stats.linregress(x, y)
    return float(fit.slope), float(fit.intercept), float(fit.rvalue)


def _curve(plot: PlotRequest, runs: Mapping[str, Any], curves: Sequence[Curve]) -> Plot:
    groups: dict[str, dict[float, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    clocks = {}  # steps, and the seconds until each: a line holds the mean seconds of a step since the line before
    for curve in (curve for curve in curves if curve.key == "seconds"):
        steps = np.array([0, *curve.steps])
        clocks[curve.run] = steps, np.cumsum([0, *(np.diff(steps) * np.array(curve.values))])
    for curve in (curve for curve in curves if curve.key == plot.curve):
        clock = clocks.get(curve.run)
        for step, value in zip(curve.steps, curve.values, strict=True):
            if plot.x != "seconds":
                x = step
            elif clock is not None:
                x = float(np.interp(step, *clock))  # seeds have steps in common, not seconds: these are averaged too
            else:
                continue
            groups[_setting(runs, curve.checkpoint, plot.by)][step].append((x, value))
    if not groups:
        return _nothing(plot, f"{plot.curve} in a metrics.jsonl")
    lines = {
        label: [Point.of(*zip(*found, strict=True)) for _, found in sorted(line.items())]
        for label, line in _in_order(groups, runs, plot.by).items()
    }
    caption = f"{plot.curve} over {plot.x or 'step'}; bands are ±1 standard deviation over seeds."
    return Plot(plot.title, caption, setting_plot(lines, plot.x or "step", plot.curve, None, False))


def _nothing(plot: PlotRequest, what: str) -> Plot:
    return Plot(plot.title, f"Not drawn: there is no {what} among the records yet.", "")
