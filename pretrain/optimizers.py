"""SGD, AdamW and LARS ("Large Batch Training of Convolutional Networks", arXiv 1708.03888)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from momentum_transfer.ranges import Choice

OPTIMIZERS = ("sgd", "lars", "adamw")


class LARS(Optimizer):
    """SGD with momentum whose step is scaled for each tensor by eta * |w| / |g + wd * w|.

    The trust ratio takes the norm of the decayed gradient, as the self-supervised papers use LARS, and the learning
    rate multiplies the momentum buffer, as torch's SGD does. It is 1 where |w| or the gradient's norm is 0.
    On a GPU all tensors of a group are updated together (``torch._foreach_*``); on the CPU one after the other, each
    while it is in the cache.

    Args:
        params: parameters or groups. A group with ``adapt`` False (biases, normalisation) is plain SGD.
        lr: learning rate.
        momentum: of the buffer.
        weight_decay: L2 penalty, added to the gradient before the trust ratio is taken.
        eta: trust coefficient.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta, "adapt": True}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # overloaded
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            together = [params] if params and params[0].is_cuda else [[p] for p in params]
            for tensors in together:
                self._update(tensors, group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        if group["weight_decay"]:
            updates = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        else:
            updates = [grad.clone() for grad in grads] if group["adapt"] else grads
        if group["adapt"]:
            torch._foreach_mul_(updates, self._trust_ratios(params, updates, group["eta"]))
        for p in params:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, updates)
        torch._foreach_add_(params, buffers, alpha=-group["lr"])

    @staticmethod
    def _trust_ratios(params: list[Tensor], updates: list[Tensor], eta: float) -> list[Tensor]:
        weights = torch.stack(torch._foreach_norm(params))
        steps = torch.stack(torch._foreach_norm(updates))
        usable = (weights > 0) & (steps > 0)
        return list(torch.where(usable, eta * weights / steps.where(usable, 1.0), 1.0).unbind())


def is_excluded(parameter: Tensor) -> bool:
    """Whether LARS neither adapts nor decays the parameter: every bias and every normalisation's scale and shift."""
    return parameter.dim() <= 1


def build_optimizer(
    module: nn.Module, name: str, *, lr: float, momentum: float, weight_decay: float, eta: float, fixed_lr: str = ""
) -> Optimizer:
    """The optimiser over the module's trainable parameters.

    SGD decays all parameters, as the papers do on one machine; AdamW all but biases and normalisation; LARS leaves
    these out of adaptation and decay (Momentum^2 Teacher, 4).

    Args:
        module: its frozen parameters (a teacher's) are left out.
        name: "sgd", "lars" or "adamw".
        lr, momentum, weight_decay, eta: of the optimiser; AdamW has no momentum, only LARS an eta.
        fixed_lr: parameters whose name contains this keep their rate (group key ``fixed``): SimSiam's predictor.
    """
    Choice(OPTIMIZERS).require("SOLVER.OPTIMIZER", name)
    groups: dict[tuple[bool, bool], list[Tensor]] = {}
    for key, parameter in module.named_parameters():
        if parameter.requires_grad:
            fixed = bool(fixed_lr) and fixed_lr in key
            excluded = name != "sgd" and is_excluded(parameter)
            groups.setdefault((fixed, excluded), []).append(parameter)
    described = [
        {"params": params, "fixed": fixed, "weight_decay": 0.0 if excluded else weight_decay, "excluded": excluded}
        for (fixed, excluded), params in groups.items()
    ]
    if name == "sgd":
        return _sgd(described, lr, momentum)
    if name == "adamw":
        return AdamW(described, lr=lr, fused=True)
    for group in described:
        group["adapt"] = not group["excluded"]
    return LARS(described, lr=lr, momentum=momentum, eta=eta)


def _sgd(groups: list[dict[str, Any]], lr: float, momentum: float) -> SGD:
    """torch's fused SGD with its momentum buffers at zero, from which the first step comes out the same.

    By itself it makes them in its first step without a value, and where the scaler skips that step (under fp16 nearly
    always) the second would read what lay there.
    """
    optimizer = SGD(groups, lr=lr, momentum=momentum, fused=True)
    if momentum:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def set_learning_rate(optimizer: Optimizer, lr: float, base: float) -> None:
    """Sets every group's rate: ``lr``, or the undecayed ``base`` for groups marked ``fixed``."""
    for group in optimizer.param_groups:
        group["lr"] = base if group.get("fixed") else lr
