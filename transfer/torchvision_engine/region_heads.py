"""Region heads: box head, box predictor with losses and inference, mask head."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from fvcore.nn import giou_loss, smooth_l1_loss
from torch import Tensor, nn
from torchvision.ops import batched_nms

from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.layers import ConvNorm, msra_fill, normal_fill, xavier_fill
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Proposals


def _add_convs(to: nn.Sequential, name: str, channels: int, count: int, width: int, norm: str) -> int:
    """Append 3×3 convolutions with ReLU; the channels behind them."""
    for index in range(count):
        conv = ConvNorm(channels, width, 3, padding=1, norm=norm, relu=True)
        msra_fill(conv)
        to.add_module(f"{name}{index + 1}", conv)
        channels = width
    return channels


class BoxHead(nn.Sequential):
    """``convs`` 3×3 convolutions, then ``fcs`` fully connected layers, each followed by ReLU.

    2 fcs and no convolution are the head of FPN; 4 normalised convolutions and 1 fc the papers' second preset.
    """

    def __init__(self, channels: int, resolution: int, *, convs: int, conv_dim: int, fcs: int, fc_dim: int, norm: str):
        super().__init__()
        channels = _add_convs(self, "conv", channels, convs, conv_dim, norm)
        self.flatten = nn.Flatten()
        self.outputs = channels * resolution * resolution
        for index in range(fcs):
            fc = nn.Linear(self.outputs, fc_dim)
            xavier_fill(fc)
            self.add_module(f"fc{index + 1}", fc)
            self.add_module(f"fc_relu{index + 1}", nn.ReLU(inplace=True))
            self.outputs = fc_dim


class CosineClassifier(nn.Linear):
    """Float32 cosine similarities with a vector a class, times ``scale`` (TFA, arXiv 2003.06957, section 3)."""

    def __init__(self, inputs: int, outputs: int, scale: float) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(x), F.normalize(self.weight)).float()


def region_cross_entropy(logits: Tensor, classes: Tensor, gamma: float, background: Sequence[Tensor] = ()) -> Tensor:
    """Weighted mean of cross-entropy times (1 - p)^gamma; logits [R, classes + 1], int64 [R] → scalar.

    background: of each image, weights of regions of the last class: a teacher's scores (Soft Teacher, arXiv 2106.09018,
    equation 3); others weigh 1. As in its code the sum of all weights divides, where equation 2 has two means.
    """
    entropy = F.cross_entropy(logits, classes, reduction="none")
    loss = (1 - torch.exp(-entropy)) ** gamma * entropy
    if not background:
        return loss.mean()
    weights = torch.cat(list(background)).where(classes == logits.shape[1] - 1, 1.0)
    return (loss * weights).sum() / weights.sum()


class BoxPredictor(nn.Module):
    """Scores and offsets of each region (Fast R-CNN, arXiv 1504.08083); the last class is background.

    Args:
        inputs: length of a region's feature vector. coder_weights: scale of the four offsets.
        class_agnostic: one set of offsets for all classes.
        box_loss: ``smooth_l1`` (``smooth_l1_beta`` 0: L1) or ``giou``.
        focal_gamma: above 0 the class loss is focal: cross-entropy times (1 - p)^gamma of the right class's p.
        score_threshold, nms_threshold, detections: of inference; ``detections`` per image.
        cosine_scale: above 0 class logits are cosine similarities times this (TFA, arXiv 2003.06957, section 3).
    """

    def __init__(
        self, inputs: int, num_classes: int, *, coder_weights: Sequence[float], class_agnostic: bool, box_loss: str,
        smooth_l1_beta: float, box_loss_weight: float, score_threshold: float, nms_threshold: float, detections: int,
        cosine_scale: float = 0.0, focal_gamma: float = 0.0
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_classes, self.class_agnostic = num_classes, class_agnostic
        classes = num_classes + 1
        self.cls_score = CosineClassifier(inputs, classes, cosine_scale) if cosine_scale else nn.Linear(inputs, classes)
        self.bbox_pred = nn.Linear(inputs, 4 if class_agnostic else 4 * num_classes)
        normal_fill(self.cls_score, std=0.01)
        normal_fill(self.bbox_pred, std=0.001)
        self.coder = box_ops.OffsetCoder(coder_weights)
        self.box_loss, self.smooth_l1_beta, self.box_loss_weight = box_loss, smooth_l1_beta, box_loss_weight
        self.focal_gamma = focal_gamma
        self.score_threshold, self.nms_threshold, self.detections = score_threshold, nms_threshold, detections

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features [R, inputs] → logits [R, classes + 1], offsets [R, 4 or 4·classes], both float32."""
        return self.cls_score(x).float(), self.bbox_pred(x).float()

    def losses(
        self, logits: Tensor, offsets: Tensor, proposals: Sequence[Proposals], background: Sequence[Tensor] = ()
    ) -> dict[str, Tensor]:
        """``region_cross_entropy`` of all regions; the box loss over foreground, divided by the number of all."""
        classes = torch.cat([p.classes for p in proposals])
        loss_cls = F.cross_entropy(logits, classes, reduction="mean") if len(classes) else logits.sum() * 0.0
        if (self.focal_gamma or background) and len(classes):
            loss_cls = region_cross_entropy(logits, classes, self.focal_gamma, background)
        loss_box = self._box_loss(offsets, classes, proposals) / max(classes.numel(), 1)
        return {"loss_cls": loss_cls, "loss_box_reg": loss_box * self.box_loss_weight}

    def _box_loss(self, offsets: Tensor, classes: Tensor, proposals: Sequence[Proposals]) -> Tensor:
        foreground = torch.nonzero((classes >= 0) & (classes < self.num_classes)).squeeze(1)
        references = torch.cat([p.boxes for p in proposals])[foreground]
        wanted = torch.cat([p.matched_boxes for p in proposals])[foreground]
        if self.class_agnostic:
            predicted = offsets[foreground]
        else:
            predicted = offsets.view(-1, self.num_classes, 4)[foreground, classes[foreground]]
        if self.box_loss == "giou":
            return giou_loss(self.coder.decode(predicted, references), wanted, reduction="sum")
        target = self.coder.encode(references, wanted)
        return smooth_l1_loss(predicted, target, beta=self.smooth_l1_beta, reduction="sum")

    def decode(self, offsets: Tensor, proposals: Sequence[Proposals]) -> list[Tensor]:
        """Boxes [R_n, 4 or 4·classes] of each image."""
        merged = torch.cat([p.boxes for p in proposals])
        return list(self.coder.decode(offsets, merged).split([len(p.boxes) for p in proposals]))

    def probabilities(self, logits: Tensor, proposals: Sequence[Proposals]) -> list[Tensor]:
        """Softmax scores [R_n, classes + 1] of each image."""
        return list(F.softmax(logits, dim=-1).split([len(p.boxes) for p in proposals]))

    def detect(self, boxes: Tensor, scores: Tensor, image_size: tuple[int, int]) -> Detections:
        """Detections of one image: thresholded scores, suppression within classes, the best ``detections``.

        Args:
            boxes: [R, 4 or 4·classes]. scores: [R, classes + 1], the last column is background.
        """
        finite = torch.isfinite(boxes).all(dim=1) & torch.isfinite(scores).all(dim=1)
        boxes, scores = boxes[finite], scores[finite, :-1]
        boxes = box_ops.clip(boxes.view(len(boxes), boxes.shape[1] // 4, 4), image_size)
        chosen = scores > self.score_threshold
        region, classes = torch.nonzero(chosen).unbind(dim=1)
        boxes = boxes[region, 0] if self.class_agnostic else boxes[region, classes]
        scores = scores[chosen]
        keep = batched_nms(boxes, scores, classes, self.nms_threshold)
        keep = keep[: self.detections] if self.detections >= 0 else keep
        return Detections(boxes[keep], scores[keep], classes[keep])


class MaskHead(nn.Sequential):
    """``convs`` 3×3 convolutions, a stride-2 transposed convolution, one mask per class (Mask R-CNN, figure 4)."""

    def __init__(self, channels: int, num_classes: int, convs: int, conv_dim: int, norm: str) -> None:
        super().__init__()
        channels = _add_convs(self, "mask_fcn", channels, convs, conv_dim, norm)
        self.deconv = nn.ConvTranspose2d(channels, conv_dim, 2, stride=2)
        msra_fill(self.deconv)
        self.deconv_relu = nn.ReLU(inplace=True)
        self.predictor = nn.Conv2d(conv_dim, num_classes, 1)
        normal_fill(self.predictor, std=0.001)


def mask_loss(logits: Tensor, classes: Tensor, wanted: Tensor) -> Tensor:
    """Binary cross-entropy of logits [R, classes or 1, M, M] on the mask of the true class, bool [R, M, M]."""
    if not len(logits):
        return logits.sum() * 0.0
    return F.binary_cross_entropy_with_logits(_of_class(logits, classes), wanted.float(), reduction="mean")


def mask_probabilities(logits: Tensor, classes: Tensor) -> Tensor:
    """Probability of the mask of each predicted class, [R, 1, M, M]."""
    return _of_class(logits, classes)[:, None].sigmoid()


def _of_class(logits: Tensor, classes: Tensor) -> Tensor:
    logits = logits.float()
    if logits.shape[1] == 1:  # class-agnostic
        return logits[:, 0]
    return logits[torch.arange(len(logits), device=logits.device), classes]
