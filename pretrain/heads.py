"""Projectors and predictors: the MLPs behind the pooled features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

NormLayer = Callable[[int], nn.Module]


def mlp(inputs: int, hidden: int, outputs: int, norm_layer: NormLayer | None) -> nn.Sequential:
    """Linear, normalisation, ReLU, Linear: [N, inputs] -> [N, outputs]; no normalisation after the last linear.

    BYOL (arXiv 2006.07733, 3.3) and Momentum^2 Teacher use 2048 -> 4096 -> 256 ("4098" in the latter is a misprint).
    MoCo v2 (arXiv 2003.04297) has no normalisation: ``norm_layer`` None.
    """
    layers: list[nn.Module] = [nn.Linear(inputs, hidden, bias=norm_layer is None)]
    if norm_layer is not None:
        layers.append(norm_layer(hidden))
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Linear(hidden, outputs))


def simsiam_projector(inputs: int, hidden: int, outputs: int, norm_layer: NormLayer) -> nn.Sequential:
    """SimSiam's three-layer projector, normalised after every linear, the output too (arXiv 2011.10566, 3).

    The output's normalisation has no scale and shift, as in the released model.
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        norm_layer(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden, bias=False),
        norm_layer(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs, bias=False),
        without_affine(norm_layer(outputs)),
    )


def without_affine(layer: nn.Module) -> nn.Module:
    """The normalisation with scale 1 and shift 0 for good: constants that are neither learned nor saved."""
    for name, constant in (("weight", torch.ones_like), ("bias", torch.zeros_like)):
        values = constant(layer.get_parameter(name).detach())
        delattr(layer, name)
        layer.register_buffer(name, values, persistent=False)
    layer.affine = False  # type: ignore[assignment]  # torch types every attribute as a tensor or module
    return layer
