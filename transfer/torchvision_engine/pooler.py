"""RoIAlign on a feature pyramid (Mask R-CNN, section 3; FPN, equation 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from momentum_transfer.transfer.torchvision_engine import boxes as box_ops


def assign_levels(boxes: Tensor, min_level: int, max_level: int, size: int = 224, level: int = 4) -> Tensor:
    """Index of the pyramid level of each box, from 0 for ``min_level`` (FPN, equation 1).

    A box of ``size`` × ``size`` pixels belongs to ``level``, one of half the side to the level below. Boxes [R, 4] →
    int64 [R].
    """
    side = torch.sqrt(box_ops.area(boxes))
    levels = torch.floor(level + torch.log2(side / size + 1e-8))
    return levels.clamp(min=min_level, max=max_level).to(torch.int64) - min_level


class RoIPooler(nn.Module):
    """Features of each box at a fixed size, from the level that fits the box.

    Unlike torchvision's MultiScaleRoIAlign the strides are given and not guessed from shapes, and pixels are aligned.

    Args:
        resolution: side of the output.
        strides: of the levels, finest first, each twice the one before.
        sampling_ratio: samples per output cell and side; 0 takes as many as the box covers.
        aligned: subtract half a pixel before sampling (Detectron2's ROIAlignV2); False is ROIAlign.
    """

    def __init__(self, resolution: int, strides: Sequence[int], sampling_ratio: int = 0, aligned: bool = True) -> None:
        super().__init__()
        self.resolution, self.strides = resolution, list(strides)
        self.sampling_ratio, self.aligned = sampling_ratio, aligned
        self.min_level = int(math.log2(self.strides[0]))
        self.max_level = int(math.log2(self.strides[-1]))

    def forward(self, features: Sequence[Tensor], boxes: Sequence[Tensor]) -> Tensor:
        """Maps [N, C, H, W] of each level, boxes [R_n, 4] of each image → [ΣR_n, C, resolution, resolution]."""
        counts = torch.tensor([len(b) for b in boxes], device=features[0].device)
        merged = torch.cat(list(boxes))
        image = torch.repeat_interleave(torch.arange(len(boxes), dtype=merged.dtype, device=merged.device), counts)
        rois = torch.cat((image[:, None], merged), dim=1)
        if len(self.strides) == 1:
            return self._pool(features[0], rois, self.strides[0])
        pooled = features[0].new_zeros(len(rois), features[0].shape[1], self.resolution, self.resolution)
        levels = assign_levels(merged, self.min_level, self.max_level)
        for level, (feature, stride) in enumerate(zip(features, self.strides, strict=True)):
            chosen = torch.nonzero(levels == level).squeeze(1)
            pooled.index_put_((chosen,), self._pool(feature, rois[chosen], stride))
        return pooled

    def _pool(self, feature: Tensor, rois: Tensor, stride: int) -> Tensor:
        size = (self.resolution, self.resolution)
        # In float32 whatever the features are: bfloat16 would move corners at 1000 px by up to 4 px.
        pooled = roi_align(feature.float(), rois, size, 1.0 / stride, self.sampling_ratio, self.aligned)
        return pooled.to(feature.dtype)
