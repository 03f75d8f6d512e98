"""RetinaNet and FCOS as one function of a tensor: image in, boxes, scores and classes out, ready for torch.export.

It computes what the detector does on one image that is resized already: normalisation, network, the best of each level,
suppression within classes. Only its form differs, because an exported graph has no branches: the best candidates of a
level are taken first and those below the threshold dropped at the end, after a suppression that lower scores cannot
influence.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torchvision.ops import nms

from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.dense import DenseHeads, RetinaNet
from momentum_transfer.transfer.torchvision_engine.detectors import OneStage


class DenseProgram(nn.Module):
    """A dense detector for export.

    Args:
        detector: of the torchvision engine; it is set to evaluation.
        bgr: its network wants blue, green, red.
    """

    def __init__(self, detector: OneStage, bgr: bool) -> None:
        super().__init__()
        self.detector, self.bgr = detector.eval(), bgr
        heads = cast(DenseHeads, detector.heads)
        self.threshold, self.candidates = heads.score_threshold, heads.candidates
        self.nms_threshold, self.detections = heads.nms_threshold, heads.detections

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """RGB of 0 … 255, float32 [3, H, W], H and W multiples of the network's stride → boxes float32 [D, 4] (x1 y1 x2
        y2, in the pixels of ``image``, clipped), scores float32 [D], classes int64 [D], best first."""
        pixels = image.flip(0) if self.bgr else image
        x = ((pixels - self.detector.pixel_mean) / self.detector.pixel_std)[None]
        heads = cast(DenseHeads, self.detector.heads)
        features = self.detector.backbone(x)
        maps = [features[name] for name in heads.levels]
        anchors, scores, offsets = self._predictions(maps)
        best = [self._best(a, s[0], o[0]) for a, s, o in zip(anchors, scores, offsets, strict=True)]
        boxes, values, classes = (torch.cat(column) for column in zip(*best, strict=True))
        boxes, values, classes = self._suppressed(boxes, values, classes)
        height, width = image.shape[-2], image.shape[-1]
        clipped = box_ops.clip(boxes, (height, width))
        kept = torch.nonzero((values > self.threshold) & box_ops.nonempty(clipped)).squeeze(1)
        return clipped[kept], values[kept], classes[kept]

    def _predictions(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Anchors, scores and offsets of every level."""
        heads = self.detector.heads
        if isinstance(heads, RetinaNet):
            logits, offsets = heads.head(maps)
            return heads.anchors(maps), [x.sigmoid() for x in logits], offsets
        logits, distances, centreness = heads.head(maps)
        scores = [torch.sqrt(x.sigmoid() * c.sigmoid()) for x, c in zip(logits, centreness, strict=True)]
        return heads.points(maps), scores, distances

    def _best(self, anchors: Tensor, scores: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The candidates of one level, whatever their scores."""
        flat = scores.flatten()
        values, place = flat.topk(torch.sym_min(flat.shape[0], self.candidates))
        cell, classes = place // scores.shape[1], place % scores.shape[1]
        return cast(DenseHeads, self.detector.heads).coder.decode(offsets[cell], anchors[cell]), values, classes

    def _suppressed(self, boxes: Tensor, scores: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes of different classes are moved apart, as ``torchvision.ops.batched_nms`` does, so that they never
        overlap; then the best."""
        moved = boxes + (classes.to(boxes.dtype) * (boxes.max() + 1))[:, None]
        keep = nms(moved, scores, self.nms_threshold)[: self.detections]
        return boxes[keep], scores[keep], classes[keep]
