"""How the plots of a sweep are drawn: a measure over a setting, and one measure over another."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from momentum_transfer.report.drawing import MARKERS, legend, make_axes, series_colour, short_label, styled, to_svg
from momentum_transfer.suites.plots import AXES


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
