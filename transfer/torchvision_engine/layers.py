"""Normalisation by Detectron2's names, and convolution with an optional norm and activation."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops.misc import FrozenBatchNorm2d as TorchvisionFrozenBatchNorm2d

from momentum_transfer.core.errors import InputError

NormLayer = Callable[[int], nn.Module]


class FrozenBatchNorm2d(TorchvisionFrozenBatchNorm2d):
    """BatchNorm with fixed statistics and affine parameters.

    Where no gradient is needed it runs the fused kernel, as Detectron2's does: the two forms differ in the last bit.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            return super().forward(x)
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of maps [N, C, H, W], "LN" in Detectron2's settings (ConvNeXt, arXiv 2201.03545).

    Its parameters take the ordinary weight decay, as Detectron2's do.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=1, keepdim=True)
        variance = centred.pow(2).mean(dim=1, keepdim=True)
        normalised = centred / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * normalised + self.bias[:, None, None]


class GroupNorm32(nn.GroupNorm):
    """GroupNorm of 32 groups, as Detectron2's GN; InputError for a group of one value, which has no variance."""

    def __init__(self, channels: int) -> None:
        super().__init__(32, channels)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == 32:
            raise InputError(
                "expected more than one value in every group of GN, found a map of 1 x 1 with 32 channels; raise "
                "MODEL.FPN.OUT_CHANNELS above 32, or the images' size"
            )
        return super().forward(x)


_NORMS: dict[str, NormLayer] = {
    "BN": nn.BatchNorm2d,
    "SyncBN": nn.SyncBatchNorm,
    "FrozenBN": FrozenBatchNorm2d,
    "GN": lambda channels: GroupNorm32(channels),
    "LN": ChannelNorm,
}

#: Layers whose parameters take SOLVER.WEIGHT_DECAY_NORM.
NORM_TYPES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.GroupNorm, nn.LayerNorm)


def norm_layer(name: str) -> NormLayer | None:
    """The constructor of a norm by Detectron2's name; None for the empty name, InputError for an unknown one."""
    if name == "":
        return None
    if name not in _NORMS:
        raise InputError(f"expected a NORM among {', '.join(_NORMS)} or the empty name, found {name!r}")
    return _NORMS[name]


class ConvNorm(nn.Conv2d):
    """Convolution, then an optional norm, then an optional ReLU. The norm lives at ``.norm``, as in Detectron2's names.

    The convolution has a bias only where no norm follows.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, *, norm: str = "", relu: bool = False, **options: Any):
        make_norm = norm_layer(norm)
        super().__init__(inputs, outputs, kernel, bias=make_norm is None, **options)
        self.norm = make_norm(outputs) if make_norm else None
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        if self.norm is not None:
            x = self.norm(x)
        return F.relu(x, inplace=True) if self.relu else x


def msra_fill(layer: nn.Module) -> None:
    """Initialisation of layers followed by ReLU: He et al., arXiv 1502.01852, eq. 10 (fan out)."""
    nn.init.kaiming_normal_(layer.get_parameter("weight"), mode="fan_out", nonlinearity="relu")
    if isinstance(layer.bias, Tensor):
        nn.init.zeros_(layer.bias)


def xavier_fill(layer: nn.Module) -> None:
    """Caffe2's XavierFill, for FPN and the fully connected box head: uniform in ±sqrt(3 / fan in)."""
    nn.init.kaiming_uniform_(layer.get_parameter("weight"), a=1)
    if isinstance(layer.bias, Tensor):
        nn.init.zeros_(layer.bias)


def normal_fill(layer: nn.Module, std: float, bias: float = 0.0) -> None:
    """Weights from a zero-mean Gaussian, a constant bias."""
    nn.init.normal_(layer.get_parameter("weight"), std=std)
    if isinstance(layer.bias, Tensor):
        nn.init.constant_(layer.bias, bias)


class ScaleGradient(torch.autograd.Function):
    """Identity forward; the gradient times ``scale`` backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.scale, None
