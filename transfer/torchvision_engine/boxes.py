"""Boxes: clipping, overlap, matching with ground truth, sampling of a training batch, coding of offsets, anchors.

Boxes are float32 [N, 4], x1 y1 x2 y2 in pixels. Every function orders its arithmetic so that its results carry the
same bits as Detectron2's.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import box_area, clip_boxes_to_image

#: Area of boxes [N, 4] in square pixels, [N]; and boxes [..., 4] limited to an image of (height, width).
area, clip = box_area, clip_boxes_to_image


def nonempty(boxes: Tensor, threshold: float = 0.0) -> Tensor:
    """Bool [N]: both sides are longer than ``threshold`` pixels."""
    return ((boxes[:, 2] - boxes[:, 0]) > threshold) & ((boxes[:, 3] - boxes[:, 1]) > threshold)


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of every pair, [N, M]; 0 where nothing intersects, also for empty boxes."""
    size = torch.min(first[:, None, 2:], second[:, 2:]) - torch.max(first[:, None, :2], second[:, :2])
    intersection = size.clamp_(min=0).prod(dim=2)
    union = area(first)[:, None] + area(second) - intersection
    return torch.where(intersection > 0, intersection / union, intersection.new_zeros(1))


def match(
    quality: Tensor, thresholds: Sequence[float], labels: Sequence[int], *, low_quality: bool = False
) -> tuple[Tensor, Tensor]:
    """Assign each candidate its best ground-truth object.

    Args:
        quality: overlap [G, N] of G objects with N candidates.
        thresholds: ascending borders of the overlap; ``labels`` has one more entry, the label of each interval
            (1 foreground, 0 background, −1 ignored).
        low_quality: every object also takes the candidates that overlap it most, however little
            (Faster R-CNN, section 3.1.2, rule i).

    Returns:
        index int64 [N] of the matched object (0 where there are none), label int8 [N].
    """
    objects, candidates = quality.shape
    if objects == 0 or candidates == 0:
        index = quality.new_zeros(candidates, dtype=torch.int64)
        return index, quality.new_full((candidates,), labels[0], dtype=torch.int8)
    best, index = quality.max(dim=0)
    label = torch.full_like(index, labels[0], dtype=torch.int8)
    for threshold, value in zip(thresholds, labels[1:], strict=True):
        label[best >= threshold] = value
    if low_quality:
        most = quality.max(dim=1, keepdim=True).values
        label[(quality == most).any(dim=0)] = 1
    return index, label


def sample(labels: Tensor, count: int, positive_fraction: float, background: int) -> tuple[Tensor, Tensor]:
    """Sample up to ``count`` candidates, at most ``positive_fraction`` of them foreground, the rest background.

    Args:
        labels: [N]; −1 is never sampled, ``background`` is background, all else is foreground.

    Returns:
        Indices of the sampled foreground and background candidates, in random order.
    """
    positive = torch.nonzero((labels != -1) & (labels != background)).squeeze(1)
    negative = torch.nonzero(labels == background).squeeze(1)
    positives = min(positive.numel(), int(count * positive_fraction))
    negatives = min(negative.numel(), count - positives)
    sampled = positive[torch.randperm(positive.numel(), device=labels.device)[:positives]]
    return sampled, negative[torch.randperm(negative.numel(), device=labels.device)[:negatives]]


class OffsetCoder:
    """Boxes as offsets of centre and log size from a reference box (R-CNN, appendix C): torchvision's coder.

    Decoding is done in float32 whatever the precision of the network: bfloat16 offsets would move boxes by pixels.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        wx, wy, ww, wh = (float(weight) for weight in weights)
        self._coder = BoxCoder((wx, wy, ww, wh))

    def encode(self, references: Tensor, boxes: Tensor) -> Tensor:
        """Offsets [N, 4] that lead from ``references`` to ``boxes``."""
        return self._coder.encode_single(boxes, references)

    def decode(self, offsets: Tensor, references: Tensor) -> Tensor:
        """Boxes [N, K·4] from offsets [N, K·4] and references [N, 4]."""
        offsets = offsets.float()
        return self._coder.decode_single(offsets, references.to(offsets.dtype)).reshape(offsets.shape)


class DistanceCoder:
    """Boxes as distances from a point to the four sides, in units of the stride (FCOS, arXiv 2006.09214, section 2.1).

    A point is given as the square of one stride around it.
    """

    def encode(self, references: Tensor, boxes: Tensor) -> Tensor:
        """Distances left, top, right, bottom [N, 4]."""
        x, y, stride = _centres(references)
        sides = (x - boxes[:, 0], y - boxes[:, 1], boxes[:, 2] - x, boxes[:, 3] - y)
        return torch.stack(sides, dim=1) / stride

    def decode(self, offsets: Tensor, references: Tensor) -> Tensor:
        """Boxes [N, 4] from distances [N, 4]; negative distances count as 0."""
        offsets = F.relu(offsets.float())
        x, y, stride = _centres(references.to(offsets.dtype))
        left, top, right, bottom = (offsets * stride).unbind(dim=1)
        return torch.stack((x - left, y - top, x + right, y + bottom), dim=1)


def _centres(references: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centre x [N], centre y [N], sides [N, 4] as width, height, width, height."""
    x = 0.5 * (references[:, 0] + references[:, 2])
    y = 0.5 * (references[:, 1] + references[:, 3])
    width, height = references[:, 2] - references[:, 0], references[:, 3] - references[:, 1]
    return x, y, torch.stack((width, height, width, height), dim=1)


def _cell_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Tensor:
    """Boxes around the origin, [len(sizes)·len(aspect_ratios), 4]: roots of their areas in pixels, height ÷ width."""
    anchors = []
    for size in sizes:
        for ratio in aspect_ratios:
            width = math.sqrt(size**2.0 / ratio)
            height = ratio * width
            anchors.append([-width / 2.0, -height / 2.0, width / 2.0, height / 2.0])
    return torch.tensor(anchors)


def _per_level(values: Sequence[Sequence[float]] | Sequence[float], levels: int) -> list[list[float]]:
    """One list a level; a single list serves all levels, as in Detectron2's configs."""
    given: list[Any] = list(values)
    nested = [list(v) for v in given] if isinstance(given[0], (list, tuple)) else [[float(v) for v in given]]
    if len(nested) == 1:
        nested = nested * levels
    if len(nested) != levels:
        raise ValueError(f"expected anchor settings for 1 or {levels} levels, found {len(nested)}")
    return nested


class AnchorGenerator(nn.Module):
    """Anchors of all feature levels: boxes around every cell (Faster R-CNN, section 3.1.1), as Detectron2's.

    They are unrounded, all shapes of the first size before the second size, on strides that are fixed by the network.
    torchvision's own generator rounds them and derives the strides from the image's size, which is wrong where that is
    no multiple of the stride.

    Args:
        sizes, aspect_ratios: one list a level, or one for all.
        strides: pixels between neighbouring cells of each level.
        offset: where in its cell an anchor's centre lies, as a fraction of the stride (Detectron2's default 0).
    """

    def __init__(
        self, sizes: Sequence[Sequence[float]], aspect_ratios: Sequence[Sequence[float]], strides: Sequence[int],
        offset: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__()
        self.strides, self.offset = list(strides), offset
        levels = zip(_per_level(sizes, len(strides)), _per_level(aspect_ratios, len(strides)), strict=True)
        for index, (level_sizes, level_ratios) in enumerate(levels):
            # Not persistent: anchors are settings, not weights, and are absent from Detectron2's files too.
            self.register_buffer(f"cell_{index}", _cell_anchors(level_sizes, level_ratios), persistent=False)

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
