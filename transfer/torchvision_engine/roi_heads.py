"""The second stage of R-CNN detectors: regions from proposals, then boxes and masks (Mask R-CNN, arXiv 1703.06870).

RoIAlign on a feature pyramid (Mask R-CNN, section 3; FPN, equation 1), or on res4 alone (C4 detectors).
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.layers import NormLayer, ScaleGradient
from momentum_transfer.transfer.torchvision_engine.region_heads import (
    BoxPredictor,
    MaskHead,
    mask_loss,
    mask_probabilities,
)
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Maps, Output, Proposals, Target


def assign_levels(boxes: Tensor, min_level: int, max_level: int) -> Tensor:
    """Index of the pyramid level of each box, from 0 for ``min_level`` (FPN, equation 1).

    A box of 224 × 224 pixels belongs to level 4, one of half the side to level 3. Boxes [R, 4] → int64 [R].
    """
    side = torch.sqrt(box_ops.area(boxes))
    levels = torch.floor(4 + torch.log2(side / 224 + 1e-8))
    return levels.clamp(min=min_level, max=max_level).to(torch.int64) - min_level


class RoIPooler(nn.Module):
    """Features of each box at a fixed size, from the level that fits the box.

    Unlike torchvision's MultiScaleRoIAlign the strides are given and not guessed from shapes, and pixels are aligned.

    Args:
        resolution: side of the output. strides: of the levels, finest first, each twice the one before.
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


class ProposalSampler:
    """Samples the proposals that train the heads, labelled by overlap with ground truth (Fast R-CNN, section 2.3).

    Args:
        thresholds, labels: overlap borders and the labels of the intervals (``boxes.match``); −1 is never sampled.
        append_ground_truth: the true boxes join the proposals, so that early training sees foreground.
    """

    def __init__(
        self, num_classes: int, thresholds: Sequence[float], labels: Sequence[int], *, batch_size: int,
        positive_fraction: float, append_ground_truth: bool
    ) -> None:  # fmt: skip
        self.num_classes, self.thresholds, self.labels = num_classes, list(thresholds), list(labels)
        self.batch_size, self.positive_fraction = batch_size, positive_fraction
        self.append_ground_truth = append_ground_truth

    @torch.no_grad()
    def __call__(self, proposals: Sequence[Proposals], targets: Sequence[Target]) -> list[Proposals]:
        return [self._sample(p, t) for p, t in zip(proposals, targets, strict=True)]

    def _sample(self, proposals: Proposals, target: Target) -> Proposals:
        boxes = torch.cat((proposals.boxes, target.boxes)) if self.append_ground_truth else proposals.boxes
        proposals = Proposals(boxes, proposals.image_size)
        labelled = label_proposals(proposals, target, self.thresholds, self.labels, self.num_classes)
        sampled = torch.cat(
            box_ops.sample(labelled.classes, self.batch_size, self.positive_fraction, background=self.num_classes)
        )
        return _index(labelled, sampled)


def label_proposals(
    proposals: Proposals, target: Target, thresholds: Sequence[float], labels: Sequence[int], num_classes: int
) -> Proposals:
    """The proposals with class and box of the object that each overlaps most; background or −1 as ``labels`` say."""
    index, label = box_ops.match(box_ops.pairwise_iou(target.boxes, proposals.boxes), thresholds, labels)
    if len(target.boxes):
        classes, boxes = target.classes[index], target.boxes[index]
        classes[label == 0] = num_classes
        classes[label == -1] = -1
    else:
        classes, boxes = torch.full_like(index, num_classes), torch.zeros_like(proposals.boxes)
    return Proposals(proposals.boxes, proposals.image_size, classes, index, boxes)


def _index(p: Proposals, at: Tensor) -> Proposals:
    return Proposals(p.boxes[at], p.image_size, p.classes[at], p.matched[at], p.matched_boxes[at])


def foreground(proposals: Sequence[Proposals], num_classes: int) -> list[Proposals]:
    """Only the proposals that carry an object."""
    return [_index(p, torch.nonzero((p.classes >= 0) & (p.classes < num_classes)).squeeze(1)) for p in proposals]


def mask_targets(proposals: Sequence[Proposals], targets: Sequence[Target], size: int) -> Tensor:
    """The true mask within each proposal, bool [ΣR, size, size]."""
    crops = []
    for p, target in zip(proposals, targets, strict=True):
        if len(p.boxes):
            if target.masks is None:
                raise ValueError("the mask head needs masks in every target")
            crops.append(target.masks.crop_and_resize(p.boxes, p.matched, size))
    device = proposals[0].boxes.device
    return torch.cat(crops).to(device) if crops else torch.zeros(0, size, size, dtype=torch.bool, device=device)


class StandardRoIHeads(nn.Module):
    """Box and mask branches, each with its own pooling from the pyramid.

    Args:
        levels: names of the feature maps that regions are pooled from. mask_head, mask_pooler: None without masks.
    """

    def __init__(
        self, levels: Sequence[str], sampler: ProposalSampler, box_pooler: RoIPooler, box_head: nn.Module,
        box_predictor: nn.Module, *, mask_pooler: RoIPooler | None = None, mask_head: MaskHead | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.levels, self.sampler = list(levels), sampler
        self.box_pooler, self.box_head, self.box_predictor = box_pooler, box_head, box_predictor
        self.mask_pooler, self.mask_head = mask_pooler, mask_head

    def forward(self, features: Maps, proposals: Sequence[Proposals], targets: Sequence[Target] | None) -> Output:
        """Losses with targets (no detections), detections without (no losses)."""
        maps = [features[name] for name in self.levels]
        if targets is not None:
            sampled = self.sampler(proposals, targets)
            return [], self._box_losses(maps, sampled, targets) | self._mask_losses(maps, sampled, targets)
        return self._with_masks(maps, self._detect(maps, proposals)), {}

    def _predict(self, maps: Sequence[Tensor], proposals: Sequence[Proposals]) -> tuple[Tensor, Tensor]:
        return self.box_predictor(self.box_head(self.box_pooler(maps, [p.boxes for p in proposals])))

    def _box_losses(
        self, maps: Sequence[Tensor], sampled: Sequence[Proposals], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        predictor: BoxPredictor = self.box_predictor  # type: ignore[assignment]  # a cascade overrides this
        background = [t.background(p.boxes) for p, t in zip(sampled, targets, strict=True) if t.background]
        return predictor.losses(*self._predict(maps, sampled), sampled, background)

    def _detect(self, maps: Sequence[Tensor], proposals: Sequence[Proposals]) -> list[Detections]:
        predictor: BoxPredictor = self.box_predictor  # type: ignore[assignment]  # a cascade overrides this
        logits, offsets = self._predict(maps, proposals)
        boxes, scores = predictor.decode(offsets, proposals), predictor.probabilities(logits, proposals)
        return [predictor.detect(b, s, p.image_size) for b, s, p in zip(boxes, scores, proposals, strict=True)]

    def _mask_losses(
        self, maps: Sequence[Tensor], sampled: Sequence[Proposals], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        if self.mask_head is None or self.mask_pooler is None:
            return {}
        chosen = foreground(sampled, self.sampler.num_classes)
        logits = self.mask_head(self.mask_pooler(maps, [p.boxes for p in chosen]))
        wanted = mask_targets(chosen, targets, logits.shape[-1])
        return {"loss_mask": mask_loss(logits, torch.cat([p.classes for p in chosen]), wanted)}

    def _with_masks(self, maps: Sequence[Tensor], detections: list[Detections]) -> list[Detections]:
        if self.mask_head is None or self.mask_pooler is None:
            return detections
        logits = self.mask_head(self.mask_pooler(maps, [d.boxes for d in detections]))
        return attach_masks(logits, detections)


def attach_masks(logits: Tensor, detections: list[Detections]) -> list[Detections]:
    """Give each image's detections their mask probabilities; ``logits`` [ΣD, classes or 1, M, M]."""
    masks = mask_probabilities(logits, torch.cat([d.classes for d in detections]))
    split = masks.split([len(d) for d in detections])
    return [Detections(d.boxes, d.scores, d.classes, m) for d, m in zip(detections, split, strict=True)]


class CascadeRoIHeads(StandardRoIHeads):
    """Cascade R-CNN (arXiv 1712.00726): box heads in sequence, each trained at a higher overlap on the boxes before.

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
        self, level: str, sampler: ProposalSampler, pooler: RoIPooler, res5: nn.Sequential,
        box_predictor: BoxPredictor, *, mask_head: MaskHead | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.level, self.sampler, self.pooler = level, sampler, pooler
        self.res5, self.box_predictor, self.mask_head = res5, box_predictor, mask_head

    def forward(self, features: Maps, proposals: Sequence[Proposals], targets: Sequence[Target] | None) -> Output:
        """Losses with targets (no detections), detections without (no losses)."""
        maps = [features[self.level]]
        if targets is not None:
            return [], self._losses(maps, self.sampler(proposals, targets), targets)
        return self._detect(maps, proposals), {}

    def _region(self, maps: Sequence[Tensor], boxes: Sequence[Tensor]) -> Tensor:
        return self.res5(self.pooler(maps, boxes))

    def _losses(
        self, maps: Sequence[Tensor], sampled: Sequence[Proposals], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        regions = self._region(maps, [p.boxes for p in sampled])
        logits, offsets = self.box_predictor(regions.mean(dim=[2, 3]))
        losses = self.box_predictor.losses(logits, offsets, sampled)
        if self.mask_head is not None:
            classes = torch.cat([p.classes for p in sampled])
            chosen = (classes >= 0) & (classes < self.sampler.num_classes)
            # The sampled foreground stands first in each image, so the selection keeps the images' order.
            proposals, logits = foreground(sampled, self.sampler.num_classes), self.mask_head(regions[chosen])
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
