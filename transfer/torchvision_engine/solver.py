"""Optimizers of both engines: SGD and AdamW, weight decay by kind, rates by layer, clipping, a gradient watch."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn

from momentum_transfer.core.log import warn
from momentum_transfer.transfer.torchvision_engine.layers import NORM_TYPES

#: Largest absolute gradient that is believed: trainings that end well stay far below (docs/backbones.md).
LARGEST_GRADIENT = 1e5


class GroupRules(NamedTuple):
    """By a parameter's name: its factor of the learning rate, in (0, 1], and whether it takes no weight decay."""

    scale: Callable[[str], float] = lambda name: 1.0
    undecayed: Callable[[str], bool] = lambda name: False


def parameter_groups(
    model: nn.Module, weight_decay: float, weight_decay_norm: float, rules: GroupRules | None = None
) -> list[dict[str, object]]:
    """Trained parameters by factor of the rate (``lr_scale``, absent where it is 1) and weight decay.

    Of one factor the norm layers' affine parameters come after all others, and undecayed parameters last. The factor of
    the first group is the largest.
    """
    rules = rules or GroupRules()
    groups: dict[tuple[float, int], list[nn.Parameter]] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for inner, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                name = f"{prefix}.{inner}" if prefix else inner
                kind = 2 if rules.undecayed(name) else int(isinstance(module, NORM_TYPES))
                groups.setdefault((-rules.scale(name), kind), []).append(parameter)
    decays = (weight_decay, weight_decay_norm, 0.0)
    found = []
    for (negative, kind), parameters in sorted(groups.items(), key=lambda group: group[0]):
        scaled = {} if negative == -1.0 else {"lr_scale": -negative}
        found.append({"params": parameters, "weight_decay": decays[kind], **scaled})
    return found


def build_optimizer(cfg: CfgNode, model: nn.Module, rules: GroupRules | None = None) -> torch.optim.Optimizer:
    """SGD or AdamW of a config (SOLVER.OPTIMIZER); every group's ``lr`` is its rate before the schedule."""
    s = cfg.SOLVER
    groups = parameter_groups(model, s.WEIGHT_DECAY, s.WEIGHT_DECAY_NORM, rules)
    for group in groups:
        if "lr_scale" in group:
            group["lr"] = s.BASE_LR * group["lr_scale"]
    if s.OPTIMIZER == "AdamW":
        return torch.optim.AdamW(groups, lr=s.BASE_LR, betas=(s.BETAS[0], s.BETAS[1]))
    return torch.optim.SGD(groups, lr=s.BASE_LR, momentum=s.MOMENTUM, nesterov=s.NESTEROV)


class GradientClipper:
    """Detectron2's clipping, each parameter by itself: ``value`` clamps every element to ±``limit``; ``norm`` scales a
    parameter's gradient to that norm at most."""

    def __init__(self, kind: str, limit: float, norm_type: float) -> None:
        self.kind, self.limit, self.norm_type = kind, limit, norm_type

    def __call__(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            if self.kind == "value":
                torch.nn.utils.clip_grad_value_(parameter, self.limit)
            else:
                torch.nn.utils.clip_grad_norm_(parameter, self.limit, self.norm_type)


class GradientWatch:
    """Warns of the first step whose largest gradient is above ``LARGEST_GRADIENT``; the training goes on.

    Args:
        scaled: a gradient scaler skips the steps whose gradients are not finite; no warning of these.
    """

    def __init__(self, scaled: bool = False) -> None:
        self.scaled, self.warned = scaled, False
        self._last: tuple[int, Tensor] | None = None

    def measure(self, step: int, parameters: Iterable[nn.Parameter]) -> None:
        """Queue the largest absolute gradient of a step, before clipping; nothing is waited for."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients and not self.warned:
            if gradients[0].is_cuda:
                largest = torch.stack(torch._foreach_norm(gradients, math.inf))
            else:  # the same numbers in a fifteenth of the time on a CPU, whose norm is not vectorised
                largest = torch.stack([extreme for gradient in gradients for extreme in gradient.aminmax()]).abs()
            self._last = step, largest.max()

    def read(self, scale: float = 1.0) -> None:
        """Warn if the step measured last, its gradients still multiplied by ``scale``, was beyond reason.

        To be called where the device is waited for anyway.
        """
        if self._last is None:
            return
        step, tensor = self._last
        largest, self._last = float(tensor) / scale, None
        if largest <= LARGEST_GRADIENT or (self.scaled and not math.isfinite(largest)):
            return
        self.warned = True
        warn(
            f"expected gradients up to {LARGEST_GRADIENT:g}, found {largest:.3g} at iteration {step + 1}: the training "
            "diverges; lower SOLVER.BASE_LR, lengthen SOLVER.WARMUP_ITERS, or set SOLVER.CLIP_GRADIENTS.ENABLED True"
        )
