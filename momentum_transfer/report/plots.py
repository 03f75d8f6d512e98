"""The plots of the page as inline SVG in the page's colours.

Each plot is drawn by matplotlib in sentinel colours, which are then replaced by ``var(--…)``; so one SVG serves the
light and the dark page, and print.
"""

import html
import io
import re
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from momentum_transfer.report.read_inputs import Curve

#: Number of series colours that the page's style sheet defines (--series-0 …).
_SERIES = 8

INK, FAINT, PAPER = "#010203", "#040506", "#070809"
_SENTINELS = {INK: "var(--ink-soft)", FAINT: "var(--line)", PAPER: "var(--card)"}
_SENTINELS |= {f"#0a0b{index:02x}": f"var(--series-{index})" for index in range(_SERIES)}

_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), FAINT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
    "svg.fonttype": "none", "svg.hashsalt": "report", "font.family": "sans-serif", "font.size": 11,
    "axes.facecolor": "none", "axes.grid": True, "grid.linewidth": 0.8,
    "text.parse_math": False,  # a dollar sign in a checkpoint's name is a dollar sign
}  # fmt: skip
styled = matplotlib.rc_context(_STYLE)


def series_colour(index: int) -> str:
    """The sentinel of the page's ``--series-index``; beyond the last colour they repeat (markers differ)."""
    return f"#0a0b{index % _SERIES:02x}"


def series_marker(index: int) -> str:
    """One of eight marks of points."""
    return "osD^vPX*"[index % 8]


def make_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of ``width`` × ``height`` inches and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def short_label(name: str, longest: int = 40) -> str:
    """A name that fits beside a plot; matplotlib hides labels that begin with an underscore."""
    short = name if len(name) <= longest else f"{name[: longest - 1]}…"
    return f" {short}" if short.startswith("_") else short


def finish(figure: Figure, name: str, title: str, *, x: str = "", y: str = "", legend: bool = False) -> str:
    """The figure with its labels as one ``<svg>`` element in the page's colours; ``title`` is its text alternative."""
    axes = figure.axes[0]
    axes.set(xlabel=x, ylabel=y)
    if legend:  # names in the colours of their lines
        axes.legend(frameon=False, labelcolor="linecolor", fontsize=10)
    buffer = io.StringIO()
    with warnings.catch_warnings():  # of glyphs that its font lacks (the browser has them), of labels without room
        warnings.simplefilter("ignore", UserWarning)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]  # without the XML prologue
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", text, flags=re.DOTALL)
    # Ids are unique on a page: two of one name differ by their content.
    prefix = re.sub("[^a-z0-9]+", "-", name.lower()) + f"-{zlib.crc32(text.encode()):08x}"
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r"font-family: [^;]*;", "", text)
    for sentinel, variable in _SENTINELS.items():
        text = text.replace(sentinel, variable)
    opening = re.sub(r' (width|height)="[^"]*"', "", text[: text.index(">")])
    opening = opening.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
    return opening + text[text.index(">") :]


def standalone(svg: str) -> str:
    """What ``finish`` gave as a file of its own: the page's light colours on its white, and a font."""
    light = Path(__file__).with_name("style.css").read_text(encoding="utf-8").partition("}")[0]
    colours = dict(re.findall(r"(--[\w-]+): (#\w+)", light))
    text = re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], svg)
    style = f"background: {colours['--card']}; font-family: system-ui, sans-serif"
    return text.replace("<svg", f'<svg style="{style}"', 1) + "\n"


#: Difference in points, ends of its 95 % interval where it has one, whether the rule says better or worse.
Gain = tuple[float, float | None, float | None, bool]


@styled
def gain_plot(rows: Mapping[str, Mapping[str, Gain]], colours: Mapping[str, int]) -> str:
    """Differences from a baseline by measure and checkpoint; filled where the rule says better or worse."""
    figure, axes = _row_axes(list(rows), 46, 9.5)
    names = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    for place, cells in enumerate(rows.values()):
        for name, (gain, low, high, significant) in cells.items():
            shift = 0.5 * (names.index(name) + 0.5) / len(names) - 0.25
            colour = series_colour(colours[name])
            axes.errorbar(
                gain, place + shift, xerr=_whisker(gain, low, high), color=colour,
                marker=series_marker(colours[name]), markersize=6.5,
                markerfacecolor=colour if significant else PAPER, markeredgewidth=1.6, capsize=2.5,
            )  # fmt: skip
    if len(names) > 1:
        handles = [axes.plot([], [], color=series_colour(colours[name]), label=short_label(name))[0] for name in names]
        axes.legend(handles=handles, frameon=False, labelcolor="linecolor", fontsize=10)
    return finish(figure, "gain", "Difference from the baseline for each measure, in points", x="points")


@styled
def agreement_plot(rows: Mapping[str, tuple[float, float, float]]) -> str:
    """Rank correlations with their intervals; ``rows``: pair of measures to (τ_b, low, high)."""
    figure, axes = _row_axes(list(rows), 60, 9)
    style: dict[str, Any] = {"color": series_colour(0), "marker": series_marker(0), "markersize": 6.5, "capsize": 2.5}
    for place, row in enumerate(rows.values()):
        axes.errorbar(row[0], place, xerr=_whisker(*row), **style)
    axes.set_xlim(-1.05, 1.05)
    title = "Rank correlation of pairs of measures over checkpoints"
    return finish(figure, "agreement", title, x="Kendall's τ_b over checkpoints")


def _row_axes(labels: Sequence[str], longest: int, size: float) -> tuple[Figure, Axes]:
    """Axes with a row a label and a line at 0."""
    figure, axes = make_axes(6.4, 1.1 + 0.36 * max(5, len(labels)))
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(labels)), [short_label(label, longest) for label in labels], fontsize=size)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    return figure, axes


def _whisker(value: float, low: float | None, high: float | None) -> list[list[float]]:
    """Lengths of a whisker to either side; a percentile interval need not hold the value."""
    if low is None or high is None or low != low:
        return [[0.0], [0.0]]
    return [[max(0.0, value - low)], [max(0.0, high - value)]]


def banded_lines(axes: Axes, lines: Mapping[str, Sequence[tuple[float, float, float | None]]],
                 colours: Mapping[str, int]) -> list[float]:  # fmt: skip
    """Draw a line a name over (x, mean, standard deviation or None), with bands of ±1; every x, sorted."""
    for name, points in lines.items():
        xs, means, stds = zip(*sorted(points, key=lambda point: point[:2]), strict=True)
        colour, marker = series_colour(colours[name]), series_marker(colours[name])
        label = short_label(name) or "all"
        axes.plot(xs, means, color=colour, marker=marker if len(points) < 40 else None, linewidth=2, label=label)
        low, high = ([mean + sign * (std or 0.0) for mean, std in zip(means, stds, strict=True)] for sign in (-1, 1))
        axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
    return sorted({point[0] for points in lines.values() for point in points})


@styled
def few_labels_plot(lines: Mapping[str, Sequence[tuple[float, float, float | None]]], colours: Mapping[str, int],
                    axis: str) -> str:  # fmt: skip
    """Accuracy over the amount of labels, on a logarithmic axis; ``lines``: see ``banded_lines``."""
    figure, axes = make_axes(6.4, 3.6)
    amounts = banded_lines(axes, lines, colours)
    axes.set_xscale("log", base=2)
    axes.set_xticks(amounts, [f"{amount:g}" for amount in amounts])
    axes.minorticks_off()
    title = f"Accuracy over {axis}; bands are ±1 std"
    return finish(figure, "few-labels", title, x=axis, y="accuracy, %", legend=True)


@styled
def slope_plot(columns: Sequence[str], rows: Mapping[str, Mapping[str, tuple[float, float | None]]],
               colours: Mapping[str, int], title: str) -> str:  # fmt: skip
    """One line a task across the checkpoints (``columns``), with its label at the right end.

    Args:
        rows: task to checkpoint to (mean, standard deviation or None), percent.
    """
    figure, axes = make_axes(6.4, 1.4 + 0.34 * max(5, len(rows)))
    ends: list[tuple[float, str]] = []
    for label, cells in rows.items():
        places = [(place, *cells[name]) for place, name in enumerate(columns) if name in cells]
        xs, means, _ = zip(*places, strict=True)
        axes.plot(xs, means, color=INK, linewidth=1.2, alpha=0.55)
        for x, mean, std in places:
            series = colours[columns[x]]
            marker = series_marker(series)
            axes.errorbar(x, mean, yerr=std or 0, color=series_colour(series), marker=marker, capsize=3)
        ends.append((means[-1], label))
    axes.set_xticks(range(len(columns)), [_in_lines(short_label(name, 26)) for name in columns])
    if len(columns) > 5:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlim(-0.3, len(columns) - 1 + 0.12)
    axes.grid(axis="x", visible=False)
    heights = _spread(sorted(end[0] for end in ends), axes, figure.get_figheight())
    for height, (_, label) in zip(heights, sorted(ends), strict=True):
        axes.annotate(
            short_label(label), (1.0, height), xycoords=("axes fraction", "data"), va="center", fontsize=10,
            xytext=(4, 0), textcoords="offset points", annotation_clip=False,
        )  # fmt: skip
    return finish(figure, "slope", title, y="%")


def _spread(heights: list[float], axes: Axes, inches: float) -> list[float]:
    """Sorted heights moved apart so that labels of one line each do not overlap."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.26 / inches
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    excess = max(0.0, placed[-1] - high) if placed else 0.0
    return [height - excess for height in placed]


def _in_lines(name: str, longest: int = 12) -> str:
    """A long name broken after its underscores and hyphens, for the foot of a narrow column."""
    lines = [""]
    for part in re.findall(r"[^_-]*[_-]?", name):
        if lines[-1] and len(lines[-1] + part) > longest:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


@styled
def curve_plot(curves: Sequence[Curve], colours: Mapping[str, int], key: str, quantity: str) -> str:
    """Training curves of several runs over the step; trials of a checkpoint have its colour.

    Long ones are thinned to 400 points by means of blocks.
    """
    figure, axes = make_axes(6.4, 3.0)
    named: set[str] = set()
    for curve in curves:
        name = curve.checkpoint
        label = None if name in named else short_label(name)
        steps, values = _thin(curve.steps), _thin(curve.values)
        axes.plot(steps, values, color=series_colour(colours[name]), linewidth=1.6, label=label)
        named.add(name)
    return finish(figure, f"curve-{key}", f"{quantity} over training steps", x="step", y=quantity, legend=True)


@styled
def line_plot(lines: Mapping[str, Sequence[tuple[str, float]]], label: str) -> str:
    """Values by named layer or block (weight norms, CKA); every line has the first one's places where it can."""
    figure, axes = make_axes(7.2, 3.4)
    names = list(dict.fromkeys(name for points in lines.values() for name, _ in points))
    for index, (run, points) in enumerate(lines.items()):
        xs = [names.index(name) for name, _ in points]
        axes.plot(xs, [value for _, value in points], color=series_colour(index), marker=".", label=short_label(run))
    shown = names if len(names) <= 20 else names[:: -(-len(names) // 20)]
    places, labels = [names.index(name) for name in shown], [short_label(name, 26) for name in shown]
    if sum(map(len, labels)) > 50:
        axes.set_xticks(places, labels, rotation=60, ha="right", fontsize=9)
    else:
        axes.set_xticks(places, labels)
    return finish(figure, f"line-{label}", label, y=label, legend=True)


def _thin(values: Sequence[float], points: int = 400) -> list[float]:
    size = -(-len(values) // points)
    blocks = [values[start : start + size] for start in range(0, len(values), size)]
    return [sum(block) / len(block) for block in blocks]
