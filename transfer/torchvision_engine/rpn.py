"""Region proposal network (Faster R-CNN, arXiv 1506.01497, section 3.1), on one level or on a pyramid."""

import itertools
from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from fvcore.nn import smooth_l1_loss
from torch import Tensor, nn
from torchvision.ops import batched_nms

from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.boxes import AnchorGenerator
from momentum_transfer.transfer.torchvision_engine.layers import ConvNorm, normal_fill
from momentum_transfer.transfer.torchvision_engine.structures import Maps, Proposals, Sizes, Target


class RPNHead(nn.Module):
    """3×3 convolutions of ``convs`` channels (-1: as many as come in), then objectness and offsets; for all levels."""

    def __init__(self, channels: int, anchors: int, convs: Sequence[int] = (-1,)) -> None:
        super().__init__()
        widths = [channels]
        for width in convs:
            widths.append(widths[-1] if width == -1 else width)
        layers = [ConvNorm(a, b, 3, relu=True, padding=1) for a, b in itertools.pairwise(widths)]
        several = OrderedDict[str, nn.Module]((f"conv{number}", layer) for number, layer in enumerate(layers))
        self.conv: nn.Module = layers[0] if len(layers) == 1 else nn.Sequential(several)
        self.objectness_logits = nn.Conv2d(widths[-1], anchors, 1)
        self.anchor_deltas = nn.Conv2d(widths[-1], anchors * 4, 1)
        for layer in (*layers, self.objectness_logits, self.anchor_deltas):
            normal_fill(layer, std=0.01)

    def forward(self, feature: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → logits [N, H·W·A], offsets [N, H·W·A, 4], in float32."""
        hidden = self.conv(feature)
        logits, offsets = self.objectness_logits(hidden), self.anchor_deltas(hidden)
        n, _, height, width = offsets.shape
        offsets = offsets.view(n, -1, 4, height, width).permute(0, 3, 4, 1, 2).flatten(1, -2)
        return logits.permute(0, 2, 3, 1).flatten(1).float(), offsets.float()


class RPN(nn.Module):
    """Proposals from anchors, and the losses of objectness and offsets.

    Args:
        levels: names of the feature maps to use, each with ``channels`` channels.
        thresholds, labels: overlap borders and the labels of the intervals (``boxes.match``).
        batch_size, positive_fraction: anchors sampled per image for the losses.
        pre_nms, post_nms: (training, test) proposals kept per level before and per image after suppression.
        smooth_l1_beta: 0 means L1.
    """

    def __init__(
        self, levels: Sequence[str], anchors: AnchorGenerator, channels: int, *, coder_weights: Sequence[float],
        thresholds: Sequence[float], labels: Sequence[int], batch_size: int, positive_fraction: float,
        pre_nms: tuple[int, int], post_nms: tuple[int, int], nms_threshold: float, min_size: float,
        smooth_l1_beta: float, loss_weight: float, box_loss_weight: float, convs: Sequence[int] = (-1,)
    ) -> None:  # fmt: skip
        super().__init__()
        self.levels, self.anchors = list(levels), anchors
        self.rpn_head = RPNHead(channels, anchors.per_location[0], convs)
        self.coder = box_ops.OffsetCoder(coder_weights)
        self.thresholds, self.labels = list(thresholds), list(labels)
        self.batch_size, self.positive_fraction = batch_size, positive_fraction
        self.pre_nms, self.post_nms = pre_nms, post_nms
        self.nms_threshold, self.min_size, self.smooth_l1_beta = nms_threshold, min_size, smooth_l1_beta
        self.loss_weight, self.box_loss_weight = loss_weight, box_loss_weight

    def forward(
        self, features: Maps, image_sizes: Sizes, targets: Sequence[Target] | None
    ) -> tuple[list[Proposals], dict[str, Tensor]]:
        """Proposals of each image, and with targets the losses ``loss_rpn_cls`` and ``loss_rpn_loc``."""
        maps = [features[name] for name in self.levels]
        anchors = self.anchors(maps)
        logits, offsets = zip(*(self.rpn_head(x) for x in maps), strict=True)
        losses = {}
        if targets is not None:
            losses = self._losses(torch.cat(anchors), torch.cat(logits, dim=1), torch.cat(offsets, dim=1), targets)
        with torch.no_grad():
            proposals = self._propose(anchors, logits, offsets, image_sizes)
        return proposals, losses

    @torch.no_grad()
    def _label(self, anchors: Tensor, target: Target) -> tuple[Tensor, Tensor]:
        """Label [R] in {1, 0, −1 = not drawn} and matched box [R, 4] of every anchor."""
        index, label = box_ops.match(
            box_ops.pairwise_iou(target.boxes, anchors), self.thresholds, self.labels, low_quality=True
        )
        positive, negative = box_ops.sample(label, self.batch_size, self.positive_fraction, background=0)
        drawn = torch.full_like(label, -1)
        drawn[positive], drawn[negative] = 1, 0
        return drawn, target.boxes[index] if len(target.boxes) else torch.zeros_like(anchors)

    def _losses(self, anchors: Tensor, logits: Tensor, offsets: Tensor, targets: Sequence[Target]) -> dict[str, Tensor]:
        labelled = [self._label(anchors, target) for target in targets]
        labels = torch.stack([label for label, _ in labelled])
        positive, valid = labels == 1, labels >= 0
        wanted = torch.cat(
            [self.coder.encode(anchors[p], boxes[p]) for p, (_, boxes) in zip(positive, labelled, strict=True)]
        )
        box_loss = smooth_l1_loss(offsets[positive], wanted, beta=self.smooth_l1_beta, reduction="sum")
        objectness = F.binary_cross_entropy_with_logits(logits[valid], labels[valid].float(), reduction="sum")
        normalizer = self.batch_size * len(targets)
        return {
            "loss_rpn_cls": objectness / normalizer * self.loss_weight,
            "loss_rpn_loc": box_loss / normalizer * (self.loss_weight * self.box_loss_weight),
        }

    def _propose(
        self, anchors: Sequence[Tensor], logits: Sequence[Tensor], offsets: Sequence[Tensor],
        image_sizes: Sequence[tuple[int, int]]
    ) -> list[Proposals]:  # fmt: skip
        """The best of each level, decoded; then suppression within levels, clipping, the best of all levels."""
        pre, post = (self.pre_nms[0], self.post_nms[0]) if self.training else (self.pre_nms[1], self.post_nms[1])
        all_boxes, all_scores, all_levels = [], [], []
        for level, (anchor, logit, offset) in enumerate(zip(anchors, logits, offsets, strict=True)):
            count = min(logit.shape[1], pre)
            scores, best = logit.topk(count, dim=1)
            # Only the kept anchors are decoded; the numbers are those of decoding all of them.
            chosen = torch.gather(offset, 1, best[..., None].expand(-1, -1, 4)).reshape(-1, 4)
            decoded = self.coder.decode(chosen, anchor[best].reshape(-1, 4))
            all_boxes.append(decoded.view(len(logit), count, 4))
            all_scores.append(scores)
            all_levels.append(torch.full((count,), level, device=logit.device))
        merged, scores, levels = torch.cat(all_boxes, 1), torch.cat(all_scores, 1), torch.cat(all_levels)
        return [self._suppress(merged[n], scores[n], levels, size, post) for n, size in enumerate(image_sizes)]

    def _suppress(self, boxes: Tensor, scores: Tensor, levels: Tensor, size: tuple[int, int], post: int) -> Proposals:
        finite = torch.isfinite(boxes).all(dim=1) & torch.isfinite(scores)
        if not finite.all():
            if self.training:
                raise FloatingPointError("a proposal or its score is not finite: the training has diverged")
            boxes, scores, levels = boxes[finite], scores[finite], levels[finite]
        boxes = box_ops.clip(boxes, size)
        keep = box_ops.nonempty(boxes, self.min_size)
        boxes, scores, levels = boxes[keep], scores[keep], levels[keep]
        keep = batched_nms(boxes, scores, levels, self.nms_threshold)[:post]
        return Proposals(boxes[keep], size)
