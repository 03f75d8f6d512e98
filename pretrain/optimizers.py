"""The optimizers of pretraining by name: SGD, AdamW and LARS, with the papers' parameter groups."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from momentum_transfer.core.optimization import LARS
from momentum_transfer.core.ranges import Choice

OPTIMIZERS = ("sgd", "lars", "adamw")


def build_optimizer(
    module: nn.Module, name: str, *, lr: float, momentum: float, weight_decay: float, eta: float, fixed_lr: str = "",
    factors: Mapping[str, float] | None = None,
) -> Optimizer:  # fmt: skip
    """The optimizer over the module's trainable parameters.

    SGD decays all parameters, as the papers do on one machine; AdamW all but biases and normalisation; LARS leaves
    these out of adaptation and decay (Momentum^2 Teacher, 4).

    Args:
        module: its frozen parameters (a teacher's) are left out.
        name: "sgd", "lars" or "adamw", which has no momentum; only LARS has an eta.
        fixed_lr: parameters whose name contains this keep their rate (group key ``fixed``): SimSiam's predictor.
        factors: parameter name -> factor of its rate (group key ``lr_scale``), 1 where it is not named.
    """
    Choice(OPTIMIZERS).require("SOLVER.OPTIMIZER", name)
    groups: dict[tuple[bool, bool, float], list[Tensor]] = {}
    for key, parameter in module.named_parameters():
        if parameter.requires_grad:
            fixed = bool(fixed_lr) and fixed_lr in key
            excluded = name != "sgd" and parameter.dim() <= 1  # biases, and normalisations' scale and shift
            groups.setdefault((fixed, excluded, (factors or {}).get(key, 1.0)), []).append(parameter)
    described: list[dict[str, Any]] = [
        {"params": params, "fixed": fixed, "weight_decay": 0.0 if excluded else weight_decay, "excluded": excluded}
        | ({} if factor == 1.0 else {"lr_scale": factor})
        for (fixed, excluded, factor), params in groups.items()
    ]
    if name == "sgd":
        optimizer = SGD(described, lr=lr, momentum=momentum, fused=True)
        # Fused SGD allocates its buffers uninitialised in its first step; where the scaler skips that step (under fp16
        # nearly always) the second would read what lay there. Zeros leave the first step the same.
        for parameter in (one for group in optimizer.param_groups for one in group["params"] if momentum):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    if name == "adamw":
        return AdamW(described, lr=lr, fused=True)
    for group in described:
        group["adapt"] = not group["excluded"]
    return LARS(described, lr=lr, momentum=momentum, eta=eta)


def set_learning_rate(optimizer: Optimizer, lr: float, base: float) -> None:
    """Sets every group's rate: ``lr``, or the undecayed ``base`` for groups marked ``fixed``, times ``lr_scale``."""
    for group in optimizer.param_groups:
        group["lr"] = (base if group.get("fixed") else lr) * group.get("lr_scale", 1.0)
