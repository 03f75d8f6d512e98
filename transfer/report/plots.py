"""Plots as inline SVG that follows the page's colours: matplotlib draws, CSS variables paint.

Each plot is drawn in sentinel colours, which are then replaced by ``var(--…)``; so one SVG serves the light and the
dark page, and print.
"""

import html
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from transfer.report.runs import Curve

#: Number of series colours that the page's style sheet defines (--series-0 …).
SERIES = 8

_INK, _FAINT, _PAPER = "#010203", "#040506", "#070809"
_SENTINELS = {_INK: "var(--ink-soft)", _FAINT: "var(--line)", _PAPER: "var(--card)"}
_SENTINELS |= {f"#0a0b{index:02x}": f"var(--series-{index})" for index in range(SERIES)}

_MARKERS = "osD^vPX*"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.parse_math": False,  # a dollar sign in a checkpoint's name is a dollar sign
    "svg.hashsalt": "report",
}
_styled = matplotlib.rc_context(_STYLE)


def series_colour(index: int) -> str:
    """The sentinel of the page's ``--series-index``; beyond the last colour they repeat (markers differ)."""
    return f"#0a0b{index % SERIES:02x}"


@_styled
def low_shot_plot(shots: Mapping[str, Sequence[tuple[int, float, float | None]]], colours: Mapping[str, int]) -> str:
    """Accuracy over labelled images per class.

    Args:
        shots: checkpoint to (k, mean, standard deviation over draws or None), percent.
        colours: checkpoint to series number.
    """
    figure, axes = _axes(6.4, 3.6)
    for name, points in shots.items():
        ks, means, stds = zip(*sorted(points), strict=True)
        style = series_colour(colours[name])
        axes.plot(
            ks, means, color=style, marker=_MARKERS[colours[name] % len(_MARKERS)], linewidth=2, label=_label(name)
        )
        low = [mean - (std or 0) for mean, std in zip(means, stds, strict=True)]
        high = [mean + (std or 0) for mean, std in zip(means, stds, strict=True)]
        axes.fill_between(ks, low, high, color=style, alpha=0.18, linewidth=0)
    every = sorted({k for points in shots.values() for k, _, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(every, [str(k) for k in every])
    axes.minorticks_off()
    axes.set_xlabel("labelled images per class (k)")
    axes.set_ylabel("accuracy, %")
    _legend(axes)
    return _svg(figure, "low-shot", "Accuracy over the number of labelled images per class; bands are ±1 std")


@_styled
def slope_plot(
    columns: Sequence[str],
    rows: Mapping[str, Mapping[str, tuple[float, float | None]]],
    colours: Mapping[str, int],
    title: str,
) -> str:
    """One line a task across the checkpoints; points in the checkpoints' colours, labels at the right end.

    Args:
        columns: checkpoints from left to right.
        rows: task to checkpoint to (mean, standard deviation or None), percent.
        colours: checkpoint to series number.
    """
    figure, axes = _axes(6.4, 1.4 + 0.34 * max(5, len(rows)))
    ends: list[tuple[float, str]] = []
    for label, cells in rows.items():
        places = [(place, *cells[name]) for place, name in enumerate(columns) if name in cells]
        xs, means, _ = zip(*places, strict=True)
        axes.plot(xs, means, color=_INK, linewidth=1.2, alpha=0.55)
        for x, mean, std in places:
            shown = colours[columns[x]]
            axes.errorbar(
                x, mean, yerr=std or 0, color=series_colour(shown), marker=_MARKERS[shown % len(_MARKERS)], capsize=3
            )
        ends.append((means[-1], label))
    axes.set_xticks(range(len(columns)), [_label(name, 26) for name in columns])
    if sum(map(len, columns)) > 60:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlim(-0.3, len(columns) - 1 + 0.12)
    axes.set_ylabel("%")
    axes.grid(axis="x", visible=False)
    heights = _spread(sorted(end[0] for end in ends), axes, figure.get_figheight())
    for height, (_, label) in zip(heights, sorted(ends), strict=True):
        axes.annotate(
            _label(label), (1.0, height), xycoords=("axes fraction", "data"), va="center", fontsize=10,
            xytext=(4, 0), textcoords="offset points", annotation_clip=False,
        )  # fmt: skip
    return _svg(figure, "slope", title)


def _spread(heights: list[float], axes: Axes, inches: float) -> list[float]:
    """Sorted heights moved apart so that labels of one line each do not overlap."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.26 / inches
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    excess = max(0.0, placed[-1] - high) if placed else 0.0
    return [height - excess for height in placed]


@_styled
def curve_plot(curves: Sequence[Curve], key: str, label: str) -> str:
    """Training curves of several runs over the step; long ones are thinned to 400 points by means of blocks."""
    figure, axes = _axes(6.4, 3.0)
    for index, curve in enumerate(curves):
        steps, values = _thin(curve.steps), _thin(curve.values)
        axes.plot(steps, values, color=series_colour(index), linewidth=1.6, label=_label(curve.run))
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    _legend(axes)
    return _svg(figure, f"curve-{key}", f"{label} over training steps")


@_styled
def line_plot(lines: Mapping[str, Sequence[tuple[str, float]]], label: str) -> str:
    """Values by named layer or block (weight norms, CKA); every line shares the first one's places where it can."""
    figure, axes = _axes(7.2, 3.4)
    names = list(dict.fromkeys(name for points in lines.values() for name, _ in points))
    for index, (run, points) in enumerate(lines.items()):
        xs = [names.index(name) for name, _ in points]
        axes.plot(xs, [value for _, value in points], color=series_colour(index), marker=".", label=_label(run))
    shown = names if len(names) <= 20 else names[:: -(-len(names) // 20)]
    axes.set_xticks(
        [names.index(name) for name in shown], [_label(name, 26) for name in shown], rotation=60, ha="right", fontsize=9
    )
    axes.set_ylabel(label)
    _legend(axes)
    return _svg(figure, f"line-{label}", label)


def _thin(values: Sequence[float], points: int = 400) -> list[float]:
    size = -(-len(values) // points)
    blocks = [values[start : start + size] for start in range(0, len(values), size)]
    return [sum(block) / len(block) for block in blocks]


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, labelcolor="linecolor", fontsize=10)


def _label(name: str, longest: int = 40) -> str:
    """A name that fits beside a plot; matplotlib hides labels that begin with an underscore."""
    short = name if len(name) <= longest else f"{name[: longest - 1]}…"
    return f" {short}" if short.startswith("_") else short


def _svg(figure: Figure, name: str, title: str) -> str:
    """The figure as one ``<svg>`` element with a text alternative and the page's colours."""
    buffer = io.StringIO()
    with warnings.catch_warnings():  # of glyphs that its font lacks (the browser has them), of labels without room
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]  # without the XML prologue
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", text, flags=re.DOTALL)
    prefix = re.sub("[^a-z0-9]+", "-", name.lower())  # ids are shared by all plots of a page
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r"font-family: [^;]*;", "", text)
    for sentinel, variable in _SENTINELS.items():
        text = text.replace(sentinel, variable)
    opening = re.sub(r' (width|height)="[^"]*"', "", text[: text.index(">")])
    opening = opening.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
    return opening + text[text.index(">") :]
