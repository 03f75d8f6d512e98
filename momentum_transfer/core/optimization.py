"""Schedules of learning rates and momenta from fvcore's curves, and the LARS optimizer.

A ``Schedule`` gives the factor of the base rate at a step. fvcore's ``CompositeParamScheduler`` is not used: its
tolerance of 1e-6 of the run would end the warm-up of a run beyond a million steps early.

LARS: "Large Batch Training of Convolutional Networks" (arXiv 1708.03888), for pretraining and linear classifiers.
"""

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from fvcore.common import param_scheduler
from torch import Tensor
from torch.optim import Optimizer

Schedule = Callable[[int], float]
"""A step of the run, from 0 -> factor of the base rate."""

MOMENTUM_SCHEDULES = ("cosine", "constant")
LR_SCHEDULES = ("cosine", "step")


def momentum_at(base: float, progress: float, schedule: str) -> float:
    """The weight of the new value in the teacher's EMA, or alpha in Momentum BN.

    "cosine" is base * (cos(pi * k/K) + 1) / 2 (Momentum^2 Teacher, eq. 8): base at the start, 0 at the end. RCF and
    EMAN write 1 - m: their momentum .99 -> 1 is base .01 under "cosine", their fixed .999 is .001 "constant".
    """
    return param_scheduler.CosineParamScheduler(base, 0.0)(progress) if schedule == "cosine" else base


def cosine(total: int, end: float = 0.0) -> Schedule:
    """From 1 to ``end`` along half a cosine over ``total`` steps."""
    curve = param_scheduler.CosineParamScheduler(1.0, end)
    return lambda step: curve(step / total)


def multi_step(total: int, milestones: Sequence[int], gamma: float) -> Schedule:
    """``gamma`` to the power of milestones passed; equal ones count each, those after ``total`` not at all."""
    ordered = sorted(milestones)
    drops = sorted({milestone for milestone in ordered if 0 < milestone < total})
    values = [gamma ** bisect.bisect_right(ordered, start) for start in (0, *drops)]
    curve = param_scheduler.MultiStepParamScheduler(values, total, drops)
    # The middle of a step, less fvcore's tolerance, is in that step however long the run is.
    return lambda step: curve(min((step + 0.5) / total - curve.WHERE_EPSILON, 1.0))


def polynomial(total: int, power: float) -> Schedule:
    """From 1 to 0 as a power of the remaining fraction of ``total`` steps."""
    curve = param_scheduler.PolynomialDecayParamScheduler(1.0, power)
    return lambda step: curve(step / total)


def _warm_up(steps: int, factor: float, end: float = 1.0, method: str = "linear") -> Schedule:
    """For steps before ``steps``: from ``factor`` to ``end`` in a straight line, or constantly ``factor``."""
    if method == "constant":
        return lambda step: factor
    curve = param_scheduler.LinearParamScheduler(factor, end)
    return lambda step: curve(step / steps)


def learning_rate(
    step: int,
    *,
    total: int,
    base: float,
    warmup: int = 0,
    warmup_factor: float = 0.001,
    schedule: str = "cosine",
    milestones: Sequence[float] = (),
    gamma: float = 0.1,
) -> float:
    """Learning rate of iteration ``step`` in [0, total), in pretraining and in training with few labels.

    It grows linearly from ``warmup_factor * base`` to ``base`` in ``warmup`` iterations. Then the schedule "cosine"
    falls to 0 over the rest, and "step" multiplies by ``gamma`` at each of ``milestones``, fractions of the run.
    """
    if step < warmup:
        return base * _warm_up(warmup, warmup_factor)(step)
    if schedule == "cosine":
        return base * cosine(max(total - warmup, 1))(step - warmup)
    return base * multi_step(total, [round(milestone * total) for milestone in milestones], gamma)(step)


def with_warmup(main: Schedule, steps: int, factor: float, method: str = "linear") -> Schedule:
    """Detectron2's warm-up: from ``factor`` times the schedule's start to the schedule's value at its end."""
    if steps == 0:
        return main
    rising = _warm_up(steps, factor * main(0), main(steps), method)
    return lambda step: rising(step) if step < steps else main(step)


def times_warmup(main: Schedule, steps: int, factor: float, method: str = "linear", ending: float = 0.0) -> Schedule:
    """DeepLab's warm-up, which multiplies the schedule; after it the factor is at least ``ending``."""
    rising = _warm_up(steps, factor, method=method)

    def both(step: int) -> float:
        warmth = rising(step) if step < steps else 1.0
        return max(main(step), ending) if warmth == 1.0 else warmth * main(step)

    return both


def scale_to_batch(value: float, batch_size: int, base_batch_size: int) -> float:
    """value * k for k times the base batch: linear scaling of lr, and the equivalence rule for m_base (section 4.2)."""
    return value * batch_size / base_batch_size


class LARS(Optimizer):
    """SGD with momentum whose step is scaled for each tensor by eta * |w| / |g + wd * w|.

    The trust ratio takes the norm of the decayed gradient, as the self-supervised papers use LARS; it is 1 where |w| or
    that norm is 0. The learning rate multiplies the momentum buffer, as in torch's SGD. A group with ``adapt`` False
    (biases, normalisation) is plain SGD. On a GPU all tensors of a group are updated together (``torch._foreach_*``),
    on the CPU one after the other, each while it is in the cache.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.9, weight_decay: float = 0.0, eta: float = 0.001
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
            weights, steps = torch.stack(torch._foreach_norm(params)), torch.stack(torch._foreach_norm(updates))
            usable = (weights > 0) & (steps > 0)
            ratios = torch.where(usable, group["eta"] * weights / steps.where(usable, 1.0), 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
        for p in params:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, updates)
        torch._foreach_add_(params, buffers, alpha=-group["lr"])
