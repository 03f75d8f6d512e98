"""Networks for semantic segmentation: DeepLab-v3 (arXiv 1706.05587) and a linear probe of a frozen backbone."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.torchvision_engine.backbone import SingleScale
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.layers import ConvNorm, normal_fill, xavier_fill
from momentum_transfer.transfer.torchvision_engine.structures import Sample

#: Fraction of the pixels, the hardest ones, that hard pixel mining trains on.
HARD_PIXELS = 0.2


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling (section 3.3): a 1×1 and three dilated 3×3 convolutions beside image pooling.

    Args:
        pool: (height, width) of the pooling window, in cells: that of a training crop, so that a larger test image is
            pooled over windows of the size the network knows. None pools the whole image.
    """

    def __init__(
        self, inputs: int, channels: int, dilations: Sequence[int], *, norm: str, pool: tuple[int, int] | None,
        dropout: float
    ) -> None:  # fmt: skip
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


#: Stands for the last map of any network in MODEL.SEM_SEG_HEAD.IN_FEATURES.
LAST_MAP = "last"


class LinearHead(nn.Module):
    """BatchNorm (``norm`` "BN", "SyncBN" or "") over all patches of a batch, then one linear layer to classes."""

    def __init__(self, channels: int, num_classes: int, norm: str, ignore: int, weight: float) -> None:
        super().__init__()
        kinds: dict[str, type[nn.Module]] = {"BN": nn.BatchNorm1d, "SyncBN": nn.SyncBatchNorm}
        self.norm = kinds[norm](channels) if norm else nn.Identity()
        self.predictor = nn.Linear(channels, num_classes)
        normal_fill(self.predictor, std=0.01)
        self.ignore, self.weight = ignore, weight

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps [C, h, w] of any sizes → logits [classes, h, w] in float32."""
        sizes = [(found.shape[-2], found.shape[-1]) for found in maps]
        patches = torch.cat([found.flatten(1).T for found in maps])
        logits = self.predictor(self.norm(patches)).float()
        parts = logits.split([height * width for height, width in sizes])
        return [part.T.reshape(-1, *size) for part, size in zip(parts, sizes, strict=True)]

    def loss(self, logits: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
        """Cross-entropy over all pixels of a batch; those labelled ``ignore`` do not count."""
        sums = [F.cross_entropy(scores[None], wanted[None], ignore_index=self.ignore, reduction="sum")
                for scores, wanted in zip(logits, labels, strict=True)]  # fmt: skip
        counted = sum(int((wanted != self.ignore).sum()) for wanted in labels)
        return torch.stack(sums).sum() / max(counted, 1) * self.weight


class LinearSegmentor(Detector):
    """Images (or their features) in; the loss out in training, one class per pixel of the original images otherwise.

    The protocol of DINOv2 (arXiv 2304.07193, section 7.4, "linear"): logits of the patches are upsampled to the image.
    Every image is seen by itself at its own size, so that its features are the same in any batch and computed once.

    Args:
        levels: names of the maps that are concatenated, all resized to the first's size.
        blocks: of a plain network, how many last blocks are concatenated.
    """

    backbone: SingleScale

    def __init__(
        self, backbone: SingleScale, head: LinearHead, levels: Sequence[str], blocks: int, **pixels: Sequence[float]
    ) -> None:
        super().__init__(backbone, **pixels)
        self.sem_seg_head, self.levels, self.blocks = head, list(levels), blocks

    @torch.no_grad()
    def features(self, image: Tensor) -> Tensor:
        """Features [C, h, w] of an image [3, H, W] that is not normalised, padded to whole patches.

        In float32 under autocast too, so that features from the cache are the same.
        """
        with torch.autocast(self.device.type, enabled=False):
            return self._features(image)

    def _features(self, image: Tensor) -> Tensor:
        x, _ = self.batch([image])
        network: Any = self.backbone.bottom_up
        if self.blocks > 1:
            return torch.cat([found[0] for _, found in network.tokens(x, self.blocks)])
        maps = self.backbone(x)
        chosen = [list(maps.values())[-1] if name == LAST_MAP else maps[name] for name in self.levels]
        size = chosen[0].shape[-2:]
        same = [m if m.shape[-2:] == size else F.interpolate(m, size=size, mode="bilinear") for m in chosen]
        return torch.cat(same, dim=1)[0]

    def forward(self, samples: Sequence[Sample]) -> dict[str, Tensor] | list[Tensor]:  # type: ignore[override]  # label maps
        """Loss ``loss_sem_seg`` in training; in evaluation int64 [height, width] for each sample."""
        known = [self.features(s.image) if s.features is None else s.features.to(self.device) for s in samples]
        sizes = [self._padded(sample) for sample in samples]
        logits = []
        for scores, (whole, (height, width)) in zip(self.sem_seg_head(known), sizes, strict=True):
            logits.append(F.interpolate(scores[None], size=whole, mode="bilinear")[0, :, :height, :width])
        if self.training:
            labels = [sample.labels.to(self.device) for sample in samples if sample.labels is not None]
            return {"loss_sem_seg": self.sem_seg_head.loss(logits, labels)}
        wanted = [(sample.height, sample.width) for sample in samples]
        return [F.interpolate(scores[None], size=size, mode="bilinear")[0].argmax(dim=0)
                for scores, size in zip(logits, wanted, strict=True)]  # fmt: skip

    def _padded(self, sample: Sample) -> tuple[tuple[int, int], tuple[int, int]]:
        """Size of the resized image with and without its padding."""
        shape = sample.labels.shape if sample.features is not None and sample.labels is not None else sample.image.shape
        height, width = int(shape[-2]), int(shape[-1])
        step, square = self.backbone.size_divisibility, self.backbone.square
        return (square or -(-height // step) * step, square or -(-width // step) * step), (height, width)
