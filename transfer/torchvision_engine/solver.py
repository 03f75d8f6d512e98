"""Optimiser and schedule of Detectron2: SGD whose norms take their own weight decay; warm-up, then steps or cosine."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

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


def multi_step(milestones: Sequence[int], gamma: float) -> Callable[[int], float]:
    """Factor of the learning rate at a step: ``gamma`` to the number of milestones passed."""
    ordered = sorted(milestones)
    return lambda step: gamma ** bisect_right(ordered, step)


def cosine(total: int, end: float) -> Callable[[int], float]:
    """From 1 to ``end`` along half a cosine over ``total`` steps."""
    return lambda step: end + (1 - end) * 0.5 * (1 + math.cos(math.pi * step / total))


def poly(total: int, power: float, ending: float = 0.0) -> Callable[[int], float]:
    """From 1 to 0 as a power of what remains, the schedule of DeepLab; never below ``ending``."""
    return lambda step: max((1 - step / total) ** power, ending)


def product(first: Callable[[int], float], second: Callable[[int], float]) -> Callable[[int], float]:
    """Two factors at once: DeepLab's warm-up multiplies its falling schedule instead of leading up to it."""
    return lambda step: first(step) * second(step)


def with_warmup(
    schedule: Callable[[int], float], steps: int, factor: float, method: str = "linear"
) -> Callable[[int], float]:
    """Before ``steps``: linearly from ``factor`` to the schedule's own value at ``steps``, or constantly ``factor``."""

    def warmed(step: int) -> float:
        if step >= steps:
            return schedule(step)
        start = factor * schedule(0)
        if method == "constant":
            return start
        return start + (schedule(steps) - start) * step / steps

    return warmed


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
