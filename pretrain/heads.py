"""Projectors and predictors: the MLPs behind the pooled features."""

from __future__ import annotations

from collections.abc import Callable

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
    """SimSiam's three-layer projector, normalised after every linear, the output too (arXiv 2011.10566, 3)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        norm_layer(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden, bias=False),
        norm_layer(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs, bias=False),
        norm_layer(outputs),
    )
