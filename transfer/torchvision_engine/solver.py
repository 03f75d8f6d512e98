"""Detectron2's optimizer: SGD whose norms take their own weight decay, and its clipping of gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from transfer.torchvision_engine.layers import NORM_TYPES


def parameter_groups(model: nn.Module, weight_decay: float, weight_decay_norm: float) -> list[dict[str, object]]:
    """Trained parameters in two groups: norm layers' affine parameters, and all others."""
    norms: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    seen: set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                (norms if isinstance(module, NORM_TYPES) else others).append(parameter)
    groups: list[dict[str, object]] = [{"params": others, "weight_decay": weight_decay}]
    if norms:
        groups.append({"params": norms, "weight_decay": weight_decay_norm})
    return groups


class GradientClipper:
    """Detectron2's clipping, each parameter by itself.

    Args:
        kind: ``value`` clamps every element to ±``limit``; ``norm`` scales a parameter's gradient to that norm at most.
    """

    def __init__(self, kind: str, limit: float, norm_type: float) -> None:
        self.kind, self.limit, self.norm_type = kind, limit, norm_type

    def __call__(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            if self.kind == "value":
                torch.nn.utils.clip_grad_value_(parameter, self.limit)
            else:
                torch.nn.utils.clip_grad_norm_(parameter, self.limit, self.norm_type)
