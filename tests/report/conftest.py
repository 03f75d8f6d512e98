"""What was drawn, beside the SVG that it became."""

import pytest
from matplotlib.axes import Axes

from momentum_transfer.report import plots


@pytest.fixture
def canvases(monkeypatch) -> list[Axes]:
    """The axes of every plot that a test makes, in order, with all that was drawn on them."""
    seen: list[Axes] = []
    original = plots.make_axes

    def make_axes(width: float, height: float):
        figure, axes = original(width, height)
        seen.append(axes)
        return figure, axes

    monkeypatch.setattr(plots, "make_axes", make_axes)
    return seen
