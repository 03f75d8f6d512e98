"""Synthetic LARS: larger weights of a ResNet, and nothing else about it.

RCF (arXiv 2208.00275, section 4.1 and appendix B.4) finds that LARS leaves weights about 10 times as large as SGD does,
and repairs the transfer of such a network by NormRescale. A LARS-trained checkpoint differs from an SGD-trained one in
what it has learned, too. Here one checkpoint's weights are multiplied by c, so that nothing differs but the norms:

- convolutions: a BatchNorm stands behind each, which divides c out. The network computes the same function, but the
  gradient of a weight is 1/c of what it was and the weight c times as large, so SGD turns it at 1/c² of the rate.
- gamma and beta of the BatchNorms: ReLU, pooling and the sum of a block's branches are homogeneous, so every feature is
  c times as large. The next convolution's BatchNorm divides that out too, but not a head without one.

The stored statistics follow: after a BatchNorm's convolution means are as many times as large as that convolution's
input and weights together, and variances the square of it. So ``eval()`` computes what it computed before (features
times c where gamma and beta are scaled), up to BatchNorm's eps, which small variances feel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from momentum_transfer.backbones.norm_rescale import in_scope
from momentum_transfer.backbones.read import SourceBackbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core.errors import InputError

SCOPES = ("conv", "bn", "conv+bn")
#: The BatchNorm whose convolution sees the image itself, which has no scale to follow.
FIRST = "bn1."


def scale_weights(state: Mapping[str, Tensor], factor: float, scope: str = "conv+bn") -> dict[str, Tensor]:
    """The learned weights in ``scope`` times ``factor``, and the running statistics as they follow.

    Args:
        state: of a ResNet, torchvision's names.

    Raises:
        InputError: the factor is not positive and finite, the scope is unknown, or a tensor overflows its type.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"expected a positive factor for --scale, found {factor}; LARS-trained weights look like 10")
    if scope not in SCOPES:
        raise InputError(f"expected a scope of {', '.join(SCOPES)} for --scale, found {scope!r}; statistics follow")
    return {name: _scaled(name, tensor, factor ** _power(name, tensor, scope)) for name, tensor in state.items()}


def _power(name: str, tensor: Tensor, scope: str) -> int:
    """By which power of the factor a tensor grows."""
    if not tensor.is_floating_point():
        return 0
    if not name.endswith(("running_mean", "running_var")):
        return int(in_scope(name, tensor, scope))
    seen = ("conv" in scope) + ("bn" in scope and not name.startswith(FIRST))
    return 2 * seen if name.endswith("running_var") else seen


def _scaled(name: str, tensor: Tensor, times: float) -> Tensor:
    if times == 1.0:
        return tensor
    scaled = (tensor.double() * times).to(tensor.dtype)
    if not bool(torch.isfinite(scaled).all()):
        raise InputError(
            f"expected finite weights, found {name} overflowing {tensor.dtype} at factor {times:.3g}; lower it"
        )
    return scaled


def apply(source: SourceBackbone, factor: float | None, scope: str = "conv+bn") -> str:
    """Scale ``source.state`` in place of the old one; no factor: do nothing.

    Returns:
        What was done, for the file's metadata; "" if nothing.

    Raises:
        InputError: as :func:`scale_weights`, or the network is no ResNet.
    """
    if factor is None:
        return ""
    if not isinstance(source.architecture, Architecture):
        raise InputError(
            f"expected a ResNet for --scale, found {source.architecture}, whose layers are followed by other "
            "normalisations; --constant multiplies weights alone"
        )
    source.state = scale_weights(source.state, factor, scope)
    return f"scale {factor:g} scope {scope}, statistics follow"
