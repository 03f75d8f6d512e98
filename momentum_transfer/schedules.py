"""Schedules as functions of progress in [0, 1], evaluated once an iteration."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from momentum_transfer.errors import InputError

MOMENTUM_SCHEDULES = ("cosine", "constant")
LR_SCHEDULES = ("cosine", "step")


def cosine_to_zero(base: float, progress: float) -> float:
    """base * (cos(pi * k/K) + 1) / 2 (Momentum^2 Teacher, eq. 8): base at the start, 0 at the end."""
    return base * (math.cos(math.pi * progress) + 1) / 2


def momentum_at(base: float, progress: float, schedule: str) -> float:
    """The weight of the new value in the teacher's EMA, or alpha in Momentum BN.

    RCF and EMAN write 1 - m: their momentum .99 -> 1 is base .01 under "cosine", their fixed .999 is .001 "constant".
    """
    return cosine_to_zero(base, progress) if schedule == "cosine" else base


def check_momentum(key: str, value: float) -> None:
    """Raises InputError unless the setting may be the weight of a new value: in [0, 0.5], or 1, which copies.

    What lies between is the share that is kept, as most papers print it (.9, .99, .999), written by mistake.
    """
    if 0.5 < value < 1:
        raise InputError(
            f"expected {key} as the weight of the new value, in [0, 0.5] or 1, found {value}, which looks like the "
            f"share that is kept, as papers write it; if so, write {1 - value:.6g}"
        )
    if not 0 <= value <= 1:
        raise InputError(f"expected {key} in [0, 1], found {value}; a momentum is the weight of the new value")


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
    """Learning rate of iteration ``step`` in [0, total).

    Args:
        total: iterations of the whole run.
        base: the rate at the end of the warm-up.
        warmup: iterations of linear growth from ``warmup_factor * base``.
        schedule: "cosine", to 0 over what follows the warm-up; "step", times ``gamma`` at every milestone.
        milestones: ascending fractions of the run.
    """
    if step < warmup:
        share = step / warmup
        return base * (warmup_factor * (1 - share) + share)
    if schedule == "cosine":
        return cosine_to_zero(base, (step - warmup) / max(total - warmup, 1))
    return base * gamma ** bisect.bisect_right([round(milestone * total) for milestone in milestones], step)


def scale_to_batch(value: float, batch_size: int, base_batch_size: int) -> float:
    """value * k for k times the base batch: linear scaling of lr, and the equivalence rule for m_base (section 4.2)."""
    return value * batch_size / base_batch_size


def check_choice(key: str, value: str, known: Sequence[str]) -> None:
    """Raises InputError unless the config key's value is one of the known ones."""
    if value not in known:
        raise InputError(f"expected {key} of {', '.join(known)}, found {value!r}; correct the config")
