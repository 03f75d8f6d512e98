"""RoI heads of C4 detectors: res5 runs on every region of res4, shared by boxes and masks (Faster R-CNN on ResNet)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from momentum_transfer.transfer.torchvision_engine.heads import BoxPredictor, MaskHead, mask_loss
from momentum_transfer.transfer.torchvision_engine.layers import NormLayer
from momentum_transfer.transfer.torchvision_engine.roi_heads import (
    ProposalSampler,
    RoIPooler,
    attach_masks,
    mask_targets,
)
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Proposals, Target


def res5_head(res5: nn.Sequential, channels: int, extra_norm: NormLayer | None) -> nn.Sequential:
    """The blocks of res5, then the norm that MoCo and the papers after it add because such features are unscaled."""
    blocks: OrderedDict[str, nn.Module] = OrderedDict((str(index), block) for index, block in enumerate(res5))
    if extra_norm is not None:
        blocks["norm"] = extra_norm(channels)
    return nn.Sequential(blocks)


class Res5RoIHeads(nn.Module):
    """Regions pooled from res4, through res5; their mean predicts boxes, their map predicts masks.

    Args:
        level: name of the map to pool from. res5: from ``res5_head``.
    """

    def __init__(
        self,
        level: str,
        sampler: ProposalSampler,
        pooler: RoIPooler,
        res5: nn.Sequential,
        box_predictor: BoxPredictor,
        mask_head: MaskHead | None = None,
    ) -> None:
        super().__init__()
        self.level, self.sampler, self.pooler = level, sampler, pooler
        self.res5, self.box_predictor, self.mask_head = res5, box_predictor, mask_head

    def forward(
        self, features: dict[str, Tensor], proposals: Sequence[Proposals], targets: Sequence[Target] | None
    ) -> tuple[list[Detections], dict[str, Tensor]]:
        """Losses in training (no detections), detections otherwise (no losses)."""
        maps = [features[self.level]]
        if self.training:
            if targets is None:
                raise ValueError("the RoI heads need targets in training")
            return [], self._losses(maps, self.sampler(proposals, targets), targets)
        return self._detect(maps, proposals), {}

    def _region(self, maps: Sequence[Tensor], boxes: Sequence[Tensor]) -> Tensor:
        return self.res5(self.pooler(maps, boxes))

    def _losses(
        self, maps: Sequence[Tensor], drawn: Sequence[Proposals], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        regions = self._region(maps, [p.boxes for p in drawn])
        logits, offsets = self.box_predictor(regions.mean(dim=[2, 3]))
        losses = self.box_predictor.losses(logits, offsets, drawn)
        if self.mask_head is not None:
            classes = torch.cat([p.classes for p in drawn])
            chosen = (classes >= 0) & (classes < self.sampler.num_classes)
            # The drawn foreground stands first in each image, so the selection keeps the images' order.
            proposals = [_select(p, self.sampler.num_classes) for p in drawn]
            logits = self.mask_head(regions[chosen])
            losses["loss_mask"] = mask_loss(logits, classes[chosen], mask_targets(proposals, targets, logits.shape[-1]))
        return losses

    def _detect(self, maps: Sequence[Tensor], proposals: Sequence[Proposals]) -> list[Detections]:
        predictor = self.box_predictor
        logits, offsets = predictor(self._region(maps, [p.boxes for p in proposals]).mean(dim=[2, 3]))
        boxes, scores = predictor.decode(offsets, proposals), predictor.probabilities(logits, proposals)
        found = [predictor.detect(b, s, p.image_size) for b, s, p in zip(boxes, scores, proposals, strict=True)]
        if self.mask_head is None:
            return found
        return attach_masks(self.mask_head(self._region(maps, [d.boxes for d in found])), found)


def _select(p: Proposals, num_classes: int) -> Proposals:
    keep = (p.classes >= 0) & (p.classes < num_classes)
    return Proposals(p.boxes[keep], p.image_size, p.classes[keep], p.matched[keep], p.matched_boxes[keep])
