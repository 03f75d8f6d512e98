"""The simple feature pyramid of ViTDet (Li et al., arXiv 2203.16527, section 3): all levels from one map."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from momentum_transfer.transfer.torchvision_engine.backbone import ConvP6P7, MaxPoolP6
from momentum_transfer.transfer.torchvision_engine.layers import ConvNorm, norm_layer


class SimplePyramid(nn.Module):
    """Levels of strides 4, 8, 16 and 32: transposed convolutions up, max-pooling down, then 1×1 and 3×3 convolutions.

    Args:
        net: gives one map of stride 16, its width in ``channels``.
        levels: of "p2" to "p5", those wanted.
        norm: after every convolution; Detectron2's pyramid needs one.
        top_block: P6 (and P7) from P5.
        square: pad images to a square of so many pixels; 0: to the next multiple of the last stride.
    """

    def __init__(
        self,
        net: nn.Module,
        width: int,
        levels: Sequence[str],
        channels: int,
        norm: str,
        top_block: MaxPoolP6 | ConvP6P7,
        square: int = 0,
    ) -> None:
        super().__init__()
        self.levels = list(levels)
        for name in self.levels:
            self.add_module(f"simfp_{name[-1]}", _level(2 ** int(name[-1]), width, channels, norm))
        self.net, self.top_block, self.square = net, top_block, square
        names = [*self.levels, *top_block.levels]
        self.strides = {name: 2 ** int(name[-1]) for name in names}
        self.channels = dict.fromkeys(names, channels)
        self.size_divisibility = self.strides[self.levels[-1]]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Normalised images [N, 3, H, W] → p2 … p6 or p3 … p7."""
        (features,) = self.net(x).values()
        outputs = {name: getattr(self, f"simfp_{name[-1]}")(features) for name in self.levels}
        outputs.update(zip(self.top_block.levels, self.top_block(outputs[self.top_block.source]), strict=True))
        return outputs


def _level(stride: int, width: int, channels: int, norm: str) -> nn.Sequential:
    """One level from a map of stride 16; Detectron2's numbering of its parts."""
    make_norm = norm_layer(norm)
    if make_norm is None:
        raise ValueError("a simple feature pyramid needs a norm")
    scaling: list[nn.Module] = []
    if stride == 4:
        half = width // 2
        scaling = [nn.ConvTranspose2d(width, half, 2, stride=2), make_norm(half), nn.GELU()]
        scaling.append(nn.ConvTranspose2d(half, width // 4, 2, stride=2))
        width //= 4
    elif stride == 8:
        scaling = [nn.ConvTranspose2d(width, width // 2, 2, stride=2)]
        width //= 2
    elif stride == 32:
        scaling = [nn.MaxPool2d(2, stride=2)]
    convs = [ConvNorm(width, channels, 1, norm=norm), ConvNorm(channels, channels, 3, padding=1, norm=norm)]
    return nn.Sequential(*scaling, *convs)
