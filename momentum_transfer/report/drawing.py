"""Figures as inline SVG that follows the page's colours: matplotlib draws, CSS variables paint.

Each plot is drawn in sentinel colours, which are then replaced by ``var(--…)``; so one SVG serves the light and the
dark page, and print.
"""

import html
import io
import re
import warnings
import zlib
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

_HERE = Path(__file__).resolve().parent

#: Number of series colours that the page's style sheet defines (--series-0 …).
SERIES = 8

INK, FAINT, PAPER = "#010203", "#040506", "#070809"
_SENTINELS = {INK: "var(--ink-soft)", FAINT: "var(--line)", PAPER: "var(--card)"}
_SENTINELS |= {f"#0a0b{index:02x}": f"var(--series-{index})" for index in range(SERIES)}

MARKERS = "osD^vPX*"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.parse_math": False,  # a dollar sign in a checkpoint's name is a dollar sign
    "svg.hashsalt": "report",
}
styled = matplotlib.rc_context(_STYLE)


def series_colour(index: int) -> str:
    """The sentinel of the page's ``--series-index``; beyond the last colour they repeat (markers differ)."""
    return f"#0a0b{index % SERIES:02x}"


def make_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def legend(axes: Axes) -> None:
    """Names in the colours of their lines, without a frame."""
    axes.legend(frameon=False, labelcolor="linecolor", fontsize=10)


def short_label(name: str, longest: int = 40) -> str:
    """A name that fits beside a plot; matplotlib hides labels that begin with an underscore."""
    short = name if len(name) <= longest else f"{name[: longest - 1]}…"
    return f" {short}" if short.startswith("_") else short


def to_svg(figure: Figure, name: str, title: str) -> str:
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
    # All plots of a page share one space of ids; two of one name differ by their content.
    prefix = re.sub("[^a-z0-9]+", "-", name.lower()) + f"-{zlib.crc32(text.encode()):08x}"
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r"font-family: [^;]*;", "", text)
    for sentinel, variable in _SENTINELS.items():
        text = text.replace(sentinel, variable)
    opening = re.sub(r' (width|height)="[^"]*"', "", text[: text.index(">")])
    opening = opening.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
    return opening + text[text.index(">") :]


def standalone(svg: str) -> str:
    """What ``to_svg`` gave as a file of its own: the page's light colours on its white, and a font."""
    light = (_HERE / "style.css").read_text(encoding="utf-8").partition("}")[0]
    colours = dict(re.findall(r"(--[\w-]+): (#\w+)", light))
    text = re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], svg)
    style = f"background: {colours['--card']}; font-family: system-ui, sans-serif"
    return text.replace("<svg", f'<svg style="{style}"', 1) + "\n"
