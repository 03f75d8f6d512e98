"""Schedules of learning rates and momenta, from fvcore's curves.

A ``Schedule`` gives the factor of the base rate at a step. fvcore's ``CompositeParamScheduler`` is not used: it finds
its parts with a tolerance of 1e-6 of the run, so that a warm-up of a run beyond a million steps would end early.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

from fvcore.common.param_scheduler import (
    ConstantParamScheduler,
    CosineParamScheduler,
    LinearParamScheduler,
    MultiStepParamScheduler,
    PolynomialDecayParamScheduler,
)

Schedule = Callable[[int], float]
"""A step of the run, from 0 -> factor of the base rate."""

MOMENTUM_SCHEDULES = ("cosine", "constant")
LR_SCHEDULES = ("cosine", "step")


def cosine_to_zero(base: float, progress: float) -> float:
    """base * (cos(pi * k/K) + 1) / 2 (Momentum^2 Teacher, eq. 8): base at the start, 0 at the end."""
    return CosineParamScheduler(base, 0.0)(progress)


def momentum_at(base: float, progress: float, schedule: str) -> float:
    """The weight of the new value in the teacher's EMA, or alpha in Momentum BN.

    RCF and EMAN write 1 - m: their momentum .99 -> 1 is base .01 under "cosine", their fixed .999 is .001 "constant".
    """
    return cosine_to_zero(base, progress) if schedule == "cosine" else base


def cosine(total: int, end: float = 0.0) -> Schedule:
    """From 1 to ``end`` along half a cosine over ``total`` steps."""
    curve = CosineParamScheduler(1.0, end)
    return lambda step: curve(step / total)


def multi_step(total: int, milestones: Sequence[int], gamma: float) -> Schedule:
    """``gamma`` to the number of milestones passed; those that coincide count each, later ones than ``total`` not."""
    ordered = sorted(milestones)
    drops = sorted({milestone for milestone in ordered if 0 < milestone < total})
    values = [gamma ** bisect.bisect_right(ordered, start) for start in (0, *drops)]
    curve = MultiStepParamScheduler(values, total, drops)
    # The middle of a step, less fvcore's tolerance, is in that step however long the run is.
    return lambda step: curve(min((step + 0.5) / total - curve.WHERE_EPSILON, 1.0))


def polynomial(total: int, power: float) -> Schedule:
    """From 1 to 0 as a power of what remains of ``total`` steps."""
    curve = PolynomialDecayParamScheduler(1.0, power)
    return lambda step: curve(step / total)


def warm_up(steps: int, factor: float, end: float = 1.0, method: str = "linear") -> Schedule:
    """For steps before ``steps``: from ``factor`` to ``end`` in a straight line, or constantly ``factor``."""
    curve = ConstantParamScheduler(factor) if method == "constant" else LinearParamScheduler(factor, end)
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

    Args:
        total: iterations of the whole run.
        base: the rate at the end of the warm-up.
        warmup: iterations of linear growth from ``warmup_factor * base``.
        schedule: "cosine", to 0 over what follows the warm-up; "step", times ``gamma`` at every milestone.
        milestones: ascending fractions of the run.
    """
    if step < warmup:
        return base * warm_up(warmup, warmup_factor)(step)
    if schedule == "cosine":
        return base * cosine(max(total - warmup, 1))(step - warmup)
    return base * multi_step(total, [round(milestone * total) for milestone in milestones], gamma)(step)


def with_warmup(main: Schedule, steps: int, factor: float, method: str = "linear") -> Schedule:
    """Detectron2's warm-up: from ``factor`` times the schedule's start to the schedule's value at its end."""
    if steps == 0:
        return main
    rising = warm_up(steps, factor * main(0), main(steps), method)
    return lambda step: rising(step) if step < steps else main(step)


def times_warmup(main: Schedule, steps: int, factor: float, method: str = "linear", ending: float = 0.0) -> Schedule:
    """DeepLab's warm-up, which multiplies the schedule; after it the factor is at least ``ending``."""
    rising = warm_up(steps, factor, method=method)

    def both(step: int) -> float:
        warmth = rising(step) if step < steps else 1.0
        return max(main(step), ending) if warmth == 1.0 else warmth * main(step)

    return both


def scale_to_batch(value: float, batch_size: int, base_batch_size: int) -> float:
    """value * k for k times the base batch: linear scaling of lr, and the equivalence rule for m_base (section 4.2)."""
    return value * batch_size / base_batch_size
