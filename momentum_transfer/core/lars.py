"""LARS: "Large Batch Training of Convolutional Networks" (arXiv 1708.03888), for pretraining and linear classifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


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
