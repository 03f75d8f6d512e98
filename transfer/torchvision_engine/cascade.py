"""Cascade R-CNN (arXiv 1712.00726): box heads in sequence, each trained at a higher overlap on the last one's boxes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.heads import BoxPredictor
from momentum_transfer.transfer.torchvision_engine.layers import ScaleGradient
from momentum_transfer.transfer.torchvision_engine.roi_heads import (
    ProposalSampler,
    RoIPooler,
    StandardRoIHeads,
    label_proposals,
)
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Proposals, Target


class CascadeRoIHeads(StandardRoIHeads):
    """Stages of box heads; the mask branch is that of Mask R-CNN.

    Gradients into the shared features are divided by the number of stages. Scores of all stages are averaged, boxes
    are the last stage's.

    Args:
        box_heads, box_predictors: one a stage; the predictors are class-agnostic.
        thresholds: overlap from which a box is foreground, for each stage. masks: see ``StandardRoIHeads``.
    """

    def __init__(
        self, levels: Sequence[str], sampler: ProposalSampler, box_pooler: RoIPooler, box_heads: Sequence[nn.Module],
        box_predictors: Sequence[BoxPredictor], *, thresholds: Sequence[float], **masks: Any
    ) -> None:  # fmt: skip
        super().__init__(levels, sampler, box_pooler, nn.ModuleList(box_heads), nn.ModuleList(box_predictors), **masks)
        self.thresholds = list(thresholds)

    def _predictor(self, stage: int) -> BoxPredictor:
        return self.box_predictor[stage]  # type: ignore[index]  # a ModuleList of predictors

    def _stage(self, stage: int, maps: Sequence[Tensor], proposals: Sequence[Proposals]) -> tuple[Tensor, Tensor]:
        pooled = self.box_pooler(maps, [p.boxes for p in proposals])
        if self.training:
            pooled = ScaleGradient.apply(pooled, 1.0 / len(self.thresholds))
        return self._predictor(stage)(self.box_head[stage](pooled))  # type: ignore[index]  # a ModuleList too

    def _next(self, stage: int, offsets: Tensor, proposals: Sequence[Proposals]) -> list[Proposals]:
        """The boxes of ``stage`` as proposals of the next. At test empty ones stay, so that scores can be averaged."""
        following = []
        for boxes, before in zip(self._predictor(stage).decode(offsets, proposals), proposals, strict=True):
            boxes = box_ops.clip(boxes.detach(), before.image_size)
            if self.training:
                boxes = boxes[box_ops.nonempty(boxes)]
            following.append(Proposals(boxes, before.image_size))
        return following

    def _box_losses(
        self, maps: Sequence[Tensor], sampled: Sequence[Proposals], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        proposals = list(sampled)
        for stage, threshold in enumerate(self.thresholds):
            if stage > 0:
                classes = self.sampler.num_classes
                with torch.no_grad():
                    proposals = [
                        label_proposals(p, t, [threshold], [0, 1], classes)
                        for p, t in zip(proposals, targets, strict=True)
                    ]
            logits, offsets = self._stage(stage, maps, proposals)
            for name, loss in self._predictor(stage).losses(logits, offsets, proposals).items():
                losses[f"{name}_stage{stage}"] = loss
            proposals = self._next(stage, offsets, proposals)
        return losses

    def _detect(self, maps: Sequence[Tensor], proposals: Sequence[Proposals]) -> list[Detections]:
        stages = len(self.thresholds)
        scores: list[list[Tensor]] = []
        boxes: list[Tensor] = []
        for stage in range(stages):
            logits, offsets = self._stage(stage, maps, proposals)
            scores.append(self._predictor(stage).probabilities(logits, proposals))
            boxes = self._predictor(stage).decode(offsets, proposals)
            proposals = self._next(stage, offsets, proposals)
        averaged = [torch.stack(of_image).sum(dim=0) * (1.0 / stages) for of_image in zip(*scores, strict=True)]
        last = self._predictor(stages - 1)
        return [last.detect(b, s, p.image_size) for b, s, p in zip(boxes, averaged, proposals, strict=True)]
