"""Many comparisons that are read together: the word of each, after a correction over all of them.

Better or worse where p is at most 5 % after the correction; equal within a margin by two one-sided tests (TOST).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from scipy import special, stats

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts.comparison import ALPHA, Comparison, score_test, unstretched

#: The words of a verdict.
BETTER, WORSE, EQUAL, NOT_SIGNIFICANT = "better", "worse", "equal within", "not significant"
ONE_TRIAL, NOT_COMPARED = "one trial: no verdict", "other settings: not compared"

Key = TypeVar("Key", bound=Hashable)


def verdicts(
    comparisons: Mapping[Key, Comparison | None], margins: Mapping[Key, float] | None = None
) -> dict[Key, tuple[str, float | None]]:
    """The word of each comparison (None: of other settings), and its p after the correction over all of them.

    Args:
        margins: points within which a difference counts as none. Where ``equal_within`` shows that, after Holm over all
            that have a margin, the word is "equal within …", even if the difference is not 0.
    """
    found: dict[Key, tuple[str, float | None]] = {
        key: (NOT_COMPARED if one is None else ONE_TRIAL, None) for key, one in comparisons.items()
    }
    tested = {key: one for key, one in comparisons.items() if one is not None and one.p is not None}
    for (key, one), p in zip(tested.items(), corrected(list(tested.values())), strict=True):
        direction = BETTER if one.value > 0 else WORSE
        found[key] = (direction if p <= ALPHA and one.value else NOT_SIGNIFICANT, p)
    asked = {key: margin for key, margin in (margins or {}).items() if key in tested}
    within = holm([equal_within(tested[key], margin) for key, margin in asked.items()])
    for (key, margin), p in zip(asked.items(), within, strict=True):
        if p <= ALPHA:
            found[key] = (f"{EQUAL} {margin:g}", found[key][1])
    return found


def equal_within(comparison: Comparison, margin: float) -> float:
    """p of "the difference is ``margin`` points or more": the larger of two one-sided tests' (Schuirmann 1987).

    It is below .05 exactly where the 90 % interval, made as the 95 % one, lies between −margin and margin; 1 where
    nothing can be said.
    """
    if not 0 < margin < math.inf:
        raise InputError(f"expected a margin above 0 points, found {margin}")
    if comparison.p is None or comparison.se is None:
        return 1.0
    if comparison.discordant is not None:
        ahead = round(comparison.value * comparison.items / 100)
        b, c = (comparison.discordant + ahead) // 2, (comparison.discordant - ahead) // 2
        scores = [score_test(*sides, comparison.items, min(1.0, margin / 100)) for sides in ((b, c), (c, b))]
        return float(max(special.ndtr(-far / error) if error else far <= 0 for far, error in scores))
    designs = comparison.designs or ((comparison.se, comparison.df, 0.0),)
    tests = [(margin - side * comparison.value, se, df, side * lean) for se, df, lean in designs for side in (1, -1)]
    return max(_one_sided(*one) for one in tests)


def _one_sided(distance: float, se: float, df: float, lean: float) -> float:
    """p of "the truth is ``distance`` or more above the estimate", by the interval of ``_t_interval``."""
    if se == 0:
        return 0.0 if distance > 0 else 1.0
    t = distance / se
    return float(stats.t.sf(unstretched(t, 2 * lean) if lean > 0 and t > 0 else t, df))


def corrected(comparisons: Sequence[Comparison]) -> list[float]:
    """Adjusted p, in the order given, of tested comparisons that are read together.

    By ``max_t``, which asks for less, where every one has outcomes per item and none has few groups of them (whose few
    distinct resamples bound the largest difference: 10 % false alarms of nine at 3 and 5 groups); else by ``holm``.
    """
    if all(one.replicates is not None and not one.in_few_groups for one in comparisons):
        return max_t(comparisons)
    return holm([one.p or 0.0 for one in comparisons])


def word(verdict: str, comparison: Comparison | None) -> str:
    """A word of ``verdicts`` for readers: "not significant" with the smallest difference that would have been seen."""
    if verdict != NOT_SIGNIFICANT or comparison is None or comparison.detectable is None:
        return verdict
    return f"{verdict} ({points(comparison.detectable)} would have been seen)"


def points(size: float) -> str:
    """The size of a difference: 12.3, 0.53."""
    return f"{size:.1f}" if size >= 1 else f"{size:.2g}"


def max_t(comparisons: Sequence[Comparison]) -> list[float]:
    """Adjusted p, in the order given, of tested comparisons that all have ``replicates``; it knows how they correlate.

    Step-down max-t (Westfall and Young 1993, section 2.6): where there is no difference, differences vary together as
    their replicates do, each centred and in units of its own standard error. The adjusted p is the chance that the
    largest of all with the same or a larger p is as far from 0 as the one seen, which stands there as the normal
    deviate of its own p (t and McNemar's test keep their size). Comparisons of several trials are taken as independent
    of all others, which asks for more than any dependence (Šidák 1967): few trials do not tell how they vary together.
    1000 resamples show no p below .001, so that the smaller of this and Holm's counts; never less than the p itself.
    """
    p = np.array([one.p for one in comparisons], dtype=np.float64)
    if len(p) < 2:
        return [float(each) for each in p]
    replicates = np.stack([one.replicates for one in comparisons if one.replicates is not None])
    centred = replicates - replicates.mean(axis=1, keepdims=True)
    error = centred.std(axis=1, keepdims=True)
    trials = np.array([max(one.n) > 1 for one in comparisons])[:, None]
    apart = np.random.default_rng(0).standard_normal(centred.shape)
    null = np.where(trials, apart, centred / np.where(error > 0, error, 1.0))
    order = np.argsort(-p, kind="stable")
    largest = np.maximum.accumulate(np.abs(null[order]), axis=0)
    chance = (1 + (largest >= -special.ndtri(p[order] / 2)[:, None]).sum(axis=1)) / (1 + null.shape[1])
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(chance[::-1])[::-1]
    return [float(each) for each in np.maximum(p, np.minimum(adjusted, holm(p)))]


def holm(p_values: Sequence[float] | np.ndarray) -> list[float]:
    """Adjusted p values, in the order given (Holm 1979): the chance of any false alarm among all stays at the level.

    The i-th smallest of m is multiplied by m − i (i from 0), never below the one before it, never above 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if len(p) and not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"expected p values in [0, 1], found {p[~((p >= 0) & (p <= 1))][0]}")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))))
    return [float(each) for each in adjusted]
