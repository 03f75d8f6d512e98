"""DeepLab-v3 (arXiv 1706.05587): a dilated ResNet, atrous pyramid pooling, per-pixel classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.torchvision_engine.backbone import SingleScale
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.layers import ConvNorm, normal_fill, xavier_fill
from momentum_transfer.transfer.torchvision_engine.structures import Sample

#: Share of the pixels, the hardest ones, that hard pixel mining trains on.
HARD_PIXELS = 0.2


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling (section 3.3): a 1×1 and three dilated 3×3 convolutions beside image pooling.

    Args:
        pool: (height, width) of the pooling window, in cells: that of a training crop, so that a larger test image is
            pooled over windows of the size the network knows. None pools the whole image.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        dilations: Sequence[int],
        norm: str,
        pool: tuple[int, int] | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.pool, self.dropout = pool, dropout
        convs: list[nn.Module] = [ConvNorm(inputs, channels, 1, norm=norm, relu=True)]
        convs += [ConvNorm(inputs, channels, 3, norm=norm, relu=True, padding=d, dilation=d) for d in dilations]
        for conv in convs:
            xavier_fill(conv)
        pooling: nn.Module = nn.AdaptiveAvgPool2d(1) if pool is None else nn.AvgPool2d(pool, stride=1)
        pooled = ConvNorm(inputs, channels, 1, relu=True)  # no norm: one pixel an image
        xavier_fill(pooled)
        convs.append(nn.Sequential(pooling, pooled))
        self.convs = nn.ModuleList(convs)
        self.project = ConvNorm(channels * len(convs), channels, 1, norm=norm, relu=True)
        xavier_fill(self.project)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] → [N, channels, H, W]."""
        size = x.shape[-2:]
        if self.pool is not None and (size[0] % self.pool[0] or size[1] % self.pool[1]):
            raise InputError(
                f"expected features that are a multiple of the pooling window of {self.pool} cells, found "
                f"{tuple(size)}; let the test image's sides be multiples of INPUT.CROP.SIZE"
            )
        branches = [conv(x) for conv in self.convs]
        branches[-1] = F.interpolate(branches[-1], size=size, mode="bilinear", align_corners=False)
        return F.dropout(self.project(torch.cat(branches, dim=1)), self.dropout, training=self.training)


class DeepLabHead(nn.Module):
    """ASPP, class scores, upsampling to the image.

    Args:
        stride: of the features, by which scores are upsampled.
        hard_pixels: train on the hardest fifth of the pixels only, as Detectron2's DeepLab does.
    """

    def __init__(
        self, aspp: ASPP, channels: int, num_classes: int, *, stride: int, ignore: int, hard_pixels: bool, weight: float
    ) -> None:
        super().__init__()
        self.aspp = aspp
        self.predictor = nn.Conv2d(channels, num_classes, 1)
        normal_fill(self.predictor, std=0.001)
        self.stride, self.ignore, self.hard_pixels, self.weight = stride, ignore, hard_pixels, weight

    def forward(self, x: Tensor) -> Tensor:
        """Features → logits [N, classes, stride·H, stride·W], float32."""
        logits = self.predictor(self.aspp(x)).float()
        return F.interpolate(logits, scale_factor=self.stride, mode="bilinear", align_corners=False)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy with ``labels`` int64 [N, H, W]; pixels labelled ``ignore`` do not count."""
        if not self.hard_pixels:
            return F.cross_entropy(logits, labels, ignore_index=self.ignore) * self.weight
        losses = F.cross_entropy(logits, labels, ignore_index=self.ignore, reduction="none").flatten()
        return losses.topk(int(HARD_PIXELS * losses.numel())).values.mean() * self.weight


class Segmentor(Detector):
    """Images in; the loss out in training, one class per pixel of the original images otherwise."""

    def __init__(
        self, backbone: SingleScale, head: DeepLabHead, pixel_mean: Sequence[float], pixel_std: Sequence[float]
    ) -> None:
        super().__init__(backbone, pixel_mean, pixel_std)
        self.sem_seg_head = head

    def forward(  # type: ignore[override]  # label maps, not detections
        self, samples: Sequence[Sample]
    ) -> dict[str, Tensor] | list[Tensor]:
        """Loss ``loss_sem_seg`` in training; in evaluation int64 [height, width] for each sample."""
        x, sizes = self.batch([sample.image for sample in samples])
        logits = self.sem_seg_head(self.backbone(x)["res5"])
        if self.training:
            return {"loss_sem_seg": self.sem_seg_head.loss(logits, self._labels(samples, x.shape[-2:]))}
        found = []
        for sample, (height, width), scores in zip(samples, sizes, logits, strict=True):
            inside = scores[None, :, :height, :width]
            size = (sample.height, sample.width)
            found.append(F.interpolate(inside, size=size, mode="bilinear", align_corners=False)[0].argmax(dim=0))
        return found

    def _labels(self, samples: Sequence[Sample], size: Sequence[int]) -> Tensor:
        """Labels padded to the batch's size with "ignore"."""
        stacked = torch.full((len(samples), *size), self.sem_seg_head.ignore, dtype=torch.int64, device=self.device)
        for place, sample in zip(stacked, samples, strict=True):
            if sample.labels is None:
                raise ValueError("every sample needs labels in training")
            height, width = sample.labels.shape
            place[:height, :width] = sample.labels.to(self.device)
        return stacked
