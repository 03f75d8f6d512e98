"""RetinaNet (arXiv 1708.02002), and the base of dense detectors: heads on every level, focal loss, inference."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from fvcore.nn import giou_loss, sigmoid_focal_loss, smooth_l1_loss
from torch import Tensor, nn
from torchvision.ops import batched_nms

from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.boxes import AnchorGenerator
from momentum_transfer.transfer.torchvision_engine.layers import norm_layer, normal_fill
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Maps, Output, Sizes, Target


class PerLevelNorm(nn.ModuleList):
    """One BatchNorm for each level, taken in turn: levels have the same convolutions, but differ in their statistics.

    As in Detectron2 the affine parameters are shared, and the turn is counted by the calls, one a level.
    """

    def __init__(self, levels: int, channels: int, norm: str) -> None:
        kind = {"BN": nn.BatchNorm2d, "SyncBN": nn.SyncBatchNorm}[norm]
        super().__init__([kind(channels, affine=False) for _ in range(levels)])
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self._turn = 0

    def forward(self, x: Tensor) -> Tensor:
        normalised = self[self._turn](x)
        self._turn = (self._turn + 1) % len(self)
        return normalised * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


def subnet(channels: int, convs: int, norm: str, levels: int) -> nn.Sequential:
    """``convs`` times convolution, norm, ReLU."""
    layers: list[nn.Module] = []
    make_norm = norm_layer(norm)
    for _ in range(convs):
        layers.append(nn.Conv2d(channels, channels, 3, padding=1))
        normal_fill(layers[-1], std=0.01)
        if norm in ("BN", "SyncBN"):
            layers.append(PerLevelNorm(levels, channels, norm))
        elif make_norm is not None:
            layers.append(make_norm(channels))
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class RetinaNetHead(nn.Module):
    """Two towers of convolutions, shared between levels: class scores and offsets.

    Args:
        anchors: per cell. prior: initial foreground probability (RetinaNet, section 4.1).
    """

    def __init__(
        self, channels: int, num_classes: int, anchors: int, *, convs: int, norm: str, prior: float, levels: int
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.cls_subnet = subnet(channels, convs, norm, levels)
        self.bbox_subnet = subnet(channels, convs, norm, levels)
        self.cls_score = nn.Conv2d(channels, anchors * num_classes, 3, padding=1)
        self.bbox_pred = nn.Conv2d(channels, anchors * 4, 3, padding=1)
        normal_fill(self.cls_score, std=0.01, bias=-math.log((1 - prior) / prior))
        normal_fill(self.bbox_pred, std=0.01)

    def forward(self, features: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Logits [N, H·W·A, classes] and offsets [N, H·W·A, 4] of each level, in float32."""
        logits = [flatten_cells(self.cls_score(self.cls_subnet(x)), self.num_classes) for x in features]
        return logits, [flatten_cells(self.bbox_pred(self.bbox_subnet(x)), 4) for x in features]


def flatten_cells(x: Tensor, size: int) -> Tensor:
    """[N, A·size, H, W] → float32 [N, H·W·A, size]."""
    n, _, height, width = x.shape
    return x.view(n, -1, size, height, width).permute(0, 3, 4, 1, 2).reshape(n, -1, size).float()


class MovingCount(nn.Module):
    """Moving average of the foreground count, by which dense losses are divided: one batch's own count varies too much.

    A buffer, so that a resumed training goes on with it; Detectron2 keeps it outside its files and starts anew.
    While it is ``held`` nothing is counted.
    """

    #: Weight of the new count (Detectron2 writes 1 - m = .9; the difference is exact, so its bits are ours).
    momentum = 1 - 0.9

    def __init__(self, start: float) -> None:
        super().__init__()
        self.value: Tensor
        self.register_buffer("value", torch.tensor(start, dtype=torch.float64))
        self.held = False

    def update(self, count: int) -> float:
        if not self.held:
            self.value.mul_(1 - self.momentum).add_(max(count, 1) * self.momentum)
        return float(self.value)


class DenseHeads(nn.Module):
    """Inference of RetinaNet and FCOS: the best of each level, then suppression within classes.

    Boxes are suppressed before they are clipped, and empty ones drop out when they are scaled back, as in Detectron2.
    """

    def __init__(
        self, levels: Sequence[str], num_classes: int, *, score_threshold: float, candidates: int,
        nms_threshold: float, detections: int
    ) -> None:  # fmt: skip
        super().__init__()
        self.levels, self.num_classes = list(levels), num_classes
        self.score_threshold, self.candidates = score_threshold, candidates
        self.nms_threshold, self.detections = nms_threshold, detections
        self.coder: box_ops.OffsetCoder | box_ops.DistanceCoder

    def detect(self, anchors: Sequence[Tensor], scores: Sequence[Tensor], offsets: Sequence[Tensor]) -> Detections:
        """One image: anchors [R_l, 4], scores [R_l, classes] and offsets [R_l, 4] of each level."""
        parts = [self._best(a, s, o) for a, s, o in zip(anchors, scores, offsets, strict=True)]
        boxes, best, classes = (torch.cat(column) for column in zip(*parts, strict=True))
        keep = batched_nms(boxes, best, classes, self.nms_threshold)[: self.detections]
        return Detections(boxes[keep], best[keep], classes[keep])

    def _best(self, anchors: Tensor, scores: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chosen = scores > self.score_threshold
        cell, classes = torch.nonzero(chosen).unbind(dim=1)
        best, order = scores[chosen].topk(min(len(cell), self.candidates))
        cell, classes = cell[order], classes[order]
        return self.coder.decode(offsets[cell], anchors[cell]), best, classes


class RetinaNet(DenseHeads):
    """The heads of RetinaNet with their losses.

    Args:
        thresholds, labels: overlap borders and labels of the intervals. box_loss: ``smooth_l1`` or ``giou``.
    """

    def __init__(
        self, levels: Sequence[str], head: RetinaNetHead, anchors: AnchorGenerator, *, coder_weights: Sequence[float],
        thresholds: Sequence[float], labels: Sequence[int], alpha: float, gamma: float, box_loss: str,
        smooth_l1_beta: float, **inference: float
    ) -> None:  # fmt: skip
        super().__init__(levels, head.num_classes, **inference)  # type: ignore[arg-type]  # the base's own types
        self.head, self.anchors = head, anchors
        self.coder = box_ops.OffsetCoder(coder_weights)
        self.thresholds, self.labels = list(thresholds), list(labels)
        self.alpha, self.gamma, self.box_loss, self.smooth_l1_beta = alpha, gamma, box_loss, smooth_l1_beta
        self.loss_normalizer = MovingCount(100.0)

    def forward(self, features: Maps, image_sizes: Sizes, targets: Sequence[Target] | None) -> Output:
        """Losses ``loss_cls`` and ``loss_box_reg`` with targets, detections without."""
        maps = [features[name] for name in self.levels]
        logits, offsets = self.head(maps)
        anchors = self.anchors(maps)
        if targets is not None:
            return [], self._losses(torch.cat(anchors), torch.cat(logits, 1), torch.cat(offsets, 1), targets)
        scores = [x.sigmoid() for x in logits]
        return [
            self.detect(anchors, [s[n] for s in scores], [o[n] for o in offsets]) for n in range(len(image_sizes))
        ], {}

    @torch.no_grad()
    def _label(self, anchors: Tensor, target: Target) -> tuple[Tensor, Tensor]:
        """Class [R] (``num_classes`` background, −1 ignored) and matched box [R, 4] of every anchor."""
        index, label = box_ops.match(
            box_ops.pairwise_iou(target.boxes, anchors), self.thresholds, self.labels, low_quality=True
        )
        if not len(target.boxes):
            return torch.full_like(index, self.num_classes), torch.zeros_like(anchors)
        classes = target.classes[index]
        classes[label == 0] = self.num_classes
        classes[label == -1] = -1
        return classes, target.boxes[index]

    def _losses(self, anchors: Tensor, logits: Tensor, offsets: Tensor, targets: Sequence[Target]) -> dict[str, Tensor]:
        labelled = [self._label(anchors, target) for target in targets]
        classes, matched = (torch.stack(column) for column in zip(*labelled, strict=True))
        valid, foreground = classes >= 0, (classes >= 0) & (classes != self.num_classes)
        normalizer = self.loss_normalizer.update(int(foreground.sum()))
        wanted = F.one_hot(classes[valid], self.num_classes + 1)[:, :-1].to(logits.dtype)
        loss_cls = sigmoid_focal_loss(logits[valid], wanted, alpha=self.alpha, gamma=self.gamma, reduction="sum")
        references = anchors.expand(len(targets), -1, -1)[foreground]
        if self.box_loss == "giou":
            predicted = self.coder.decode(offsets[foreground], references)
            loss_box = giou_loss(predicted, matched[foreground], reduction="sum")
        else:
            target = self.coder.encode(references, matched[foreground])
            loss_box = smooth_l1_loss(offsets[foreground], target, beta=self.smooth_l1_beta, reduction="sum")
        return {"loss_cls": loss_cls / normalizer, "loss_box_reg": loss_box / normalizer}
