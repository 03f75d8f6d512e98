"""Anchors: boxes of fixed sizes and shapes around every cell of a feature map (Faster R-CNN, section 3.1.1).

They are Detectron2's: unrounded, all shapes of the first size before the second size, on strides that are fixed by
the network. torchvision's own generator rounds them and derives the strides from the image's size, which is wrong
where that is no multiple of the stride.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def cell_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Tensor:
    """Boxes around the origin, [len(sizes)·len(aspect_ratios), 4].

    Args:
        sizes: square roots of the anchors' areas, in pixels.
        aspect_ratios: height ÷ width.
    """
    anchors = []
    for size in sizes:
        for ratio in aspect_ratios:
            width = math.sqrt(size**2.0 / ratio)
            height = ratio * width
            anchors.append([-width / 2.0, -height / 2.0, width / 2.0, height / 2.0])
    return torch.tensor(anchors)


def per_level(values: Sequence[Sequence[float]] | Sequence[float], levels: int) -> list[list[float]]:
    """One list a level; a single list serves all levels, as in Detectron2's configs."""
    given: list[Any] = list(values)
    nested = [list(v) for v in given] if isinstance(given[0], (list, tuple)) else [[float(v) for v in given]]
    if len(nested) == 1:
        nested = nested * levels
    if len(nested) != levels:
        raise ValueError(f"expected anchor settings for 1 or {levels} levels, found {len(nested)}")
    return nested


class AnchorGenerator(nn.Module):
    """Anchors of all feature levels.

    Args:
        sizes, aspect_ratios: one list a level, or one for all.
        strides: pixels between neighbouring cells of each level.
        offset: where in its cell an anchor's centre lies, as a fraction of the stride (Detectron2's default 0).
    """

    def __init__(
        self,
        sizes: Sequence[Sequence[float]],
        aspect_ratios: Sequence[Sequence[float]],
        strides: Sequence[int],
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        self.strides, self.offset = list(strides), offset
        levels = zip(per_level(sizes, len(strides)), per_level(aspect_ratios, len(strides)), strict=True)
        for index, (level_sizes, level_ratios) in enumerate(levels):
            # Not persistent: anchors are settings, not weights, and are absent from Detectron2's files too.
            self.register_buffer(f"cell_{index}", cell_anchors(level_sizes, level_ratios), persistent=False)

    @property
    def per_location(self) -> list[int]:
        """Anchors per cell, for each level."""
        return [len(getattr(self, f"cell_{index}")) for index in range(len(self.strides))]

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Feature maps [N, C, H, W] of all levels → boxes [H·W·A, 4] of each, row by row, anchors innermost."""
        return [self._level(index, *feature.shape[-2:]) for index, feature in enumerate(features)]

    def _level(self, index: int, height: int, width: int) -> Tensor:
        cells, stride = getattr(self, f"cell_{index}"), self.strides[index]
        start = self.offset * stride
        x = torch.arange(start, width * stride, step=stride, dtype=torch.float32, device=cells.device)
        y = torch.arange(start, height * stride, step=stride, dtype=torch.float32, device=cells.device)
        rows, columns = torch.meshgrid(y, x, indexing="ij")
        shifts = torch.stack((columns, rows, columns, rows), dim=-1).reshape(-1, 1, 4)
        return (shifts + cells).reshape(-1, 4)
