"""Plots of errors: costs by kind, precision over recall, calibration, confusion matrices."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from momentum_transfer.report.drawing import (
    FAINT,
    INK,
    MARKERS,
    legend,
    make_axes,
    series_colour,
    short_label,
    styled,
    to_svg,
)


@styled
def cost_plot(kinds: Sequence[str], costs: Mapping[str, Sequence[float]], colours: Mapping[str, int]) -> str:
    """One group of bars a kind of error, one bar a run.

    Args:
        costs: run to points of AP50 for each kind. colours: run to series number.
    """
    figure, axes = make_axes(6.4, 1.2 + 0.3 * max(6, len(kinds) * min(3, len(costs))))
    height = 0.8 / max(1, len(costs))
    for place, (run, values) in enumerate(costs.items()):
        where = [row + (place - (len(costs) - 1) / 2) * height for row in range(len(kinds))]
        bars = axes.barh(where, values, 0.9 * height, color=series_colour(colours[run]), label=short_label(run))
        axes.bar_label(bars, [f"{value:.1f}" for value in values], padding=3, fontsize=9, color=INK)
    axes.set_yticks(range(len(kinds)), list(kinds))
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.set_xlim(right=1.12 * max(1.0, *(value for values in costs.values() for value in values)))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("points of AP50")
    if len(costs) > 1:
        legend(axes)
    return to_svg(figure, "error-costs", "What each kind of error costs, in points of AP50")


@styled
def curve_plot(curves: Mapping[str, Sequence[float]], colours: Mapping[str, int]) -> str:
    """Precision over recall.

    Args:
        curves: name to precision at recall levels evenly spaced from 0 to 1. colours: name to series number.
    """
    figure, axes = make_axes(6.4, 3.8)
    for name, values in curves.items():
        recall = [100 * index / max(1, len(values) - 1) for index in range(len(values))]
        axes.plot(recall, [100 * v for v in values], color=series_colour(colours[name]), linewidth=1.8,
                  label=short_label(name))  # fmt: skip
    axes.set_xlim(-2, 102)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("recall, %")
    axes.set_ylabel("precision, %")
    legend(axes)
    return to_svg(figure, "precision-recall", "Precision over recall")


@styled
def calibration_plot(bins: Mapping[str, Sequence[tuple[float, float, int]]], colours: Mapping[str, int]) -> str:
    """Share of right detections over their mean score, and the line where both are equal; larger marks hold more.

    Args:
        bins: run to (mean score, share of right ones, detections) of each bin that has any.
    """
    figure, axes = make_axes(6.4, 3.8)
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.5)
    for run, points in bins.items():
        if not points:
            continue
        scores, shares, numbers = zip(*points, strict=True)
        colour = series_colour(colours[run])
        sizes = [20 + 160 * number / max(numbers) for number in numbers]
        axes.plot(scores, shares, color=colour, linewidth=1.5, label=short_label(run))
        axes.scatter(scores, shares, s=sizes, color=colour, marker=MARKERS[colours[run] % len(MARKERS)], zorder=3)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("score")
    axes.set_ylabel("share of right detections")
    if any(bins.values()):
        legend(axes)
    return to_svg(figure, "calibration", "Share of right detections over their score")


@styled
def confusion_plot(names: Sequence[str], cells: Mapping[tuple[int, int], int]) -> str:
    """Objects by true class (rows; the last is background) and by the class of the detection (columns; last: missed).

    Args:
        cells: (row, column) to a number, of those above 0; K stands for background and for missed.
    """
    size = len(names) + 1
    side = max(3.2, 1.6 + 0.36 * size)
    figure, axes = make_axes(side + 0.6, side)
    totals = [sum(n for (row, _), n in cells.items() if row == index) for index in range(size)]
    for (row, column), value in cells.items():
        share = value / max(1, totals[row])
        colour = series_colour(0 if row == column else 1)
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour, alpha=0.15 + 0.6 * share, linewidth=0))
        axes.text(column, row, str(value), ha="center", va="center", fontsize=8.5, color=INK)
    axes.set_xticks(range(size), [*(short_label(name, 16) for name in names), "missed"], rotation=90, fontsize=9)
    axes.set_yticks(range(size), [*(short_label(name, 16) for name in names), "background"], fontsize=9)
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_xlabel("detected as")
    axes.set_ylabel("is")
    return to_svg(figure, "confusion", "Objects by their class and the class of the detection that takes them")
