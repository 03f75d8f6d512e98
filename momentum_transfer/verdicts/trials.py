"""Is a checkpoint ahead, judged by repeated trials? Paired t, Welch, and an exact sign-flip test beside them.

A trial is one repetition: another draw of the labelled images, or another seed of a fine-tuning. Where both sides share
their trials (the same draws) the differences trial by trial are judged, by Student's t with n − 1 degrees of freedom
(Student 1908). Otherwise Welch's t (Welch 1947), whose two sides may differ in variance and in number.

Assumption: trials are independent and the (differences of) scores are roughly normal. False alarms at the 5 % level,
from the slow test of this module: 5.0 % in the paired case at 2, 3, 5 and 10 trials; Welch is on the safe side where
trials are few (2.2 % at 2, 3.3 % at 3, 4.2 % at 5, 4.6 % at 10), because it must also hold where the variances differ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from momentum_transfer.core.errors import InputError

#: Largest number of trials whose 2^n sign patterns are listed.
MOST_SIGN_FLIPS = 12


@dataclass(frozen=True)
class Estimate:
    """A difference in points with its uncertainty.

    Attributes:
        value: the difference. se: its standard error. df: degrees of freedom of ``t`` (inf: normal).
        low, high: confidence interval. p: two-sided p value of "no difference".
        n: (trials of the first side, of the second); equal numbers in a paired comparison.
        paired: judged trial by trial.
        exact_p: of the sign-flip test, for paired comparisons of up to 12 trials.
    """

    value: float
    se: float
    df: float
    low: float
    high: float
    p: float
    n: tuple[int, int]
    paired: bool
    exact_p: float | None = None


def t_estimate(
    value: float, se: float, df: float, level: float = 0.95, acceleration: float = 0.0
) -> tuple[float, float, float]:
    """(low, high, two-sided p) of ``value`` ± t·``se``. Without any spread p is 0 for a difference, 1 for none.

    Args:
        acceleration: a sixth of the estimate's skewness. The side to which it leans is stretched from t to t + 2·|a|·t²
            (Johnson, JASA 73, 1978); the other is left as it is, so that a skewness found by chance never narrows.
    """
    if se == 0:
        return value, value, 0.0 if value else 1.0
    critical, bend = float(stats.t.ppf(0.5 + level / 2, df)), 2 * abs(acceleration)
    half, stretched = critical * se, (critical + bend * critical**2) * se
    t = abs(value) / se
    if acceleration * value < 0:  # 0 lies on the stretched side: the t with t + 2·|a|·t² = |value| / se
        t = 2 * t / (1 + math.sqrt(1 + 4 * bend * t))
    low = value - (stretched if acceleration < 0 else half)
    high = value + (stretched if acceleration > 0 else half)
    return low, high, float(2 * stats.t.sf(t, df))


def paired(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Estimate:
    """``first`` minus ``second``, trial by trial.

    Args:
        first, second: [n] scores of the same n trials, in the same order; n ≥ 2.

    Raises:
        InputError: the numbers of trials differ, there is one trial only, or a score is not finite.
    """
    a, b = _checked(first), _checked(second)
    if len(a) != len(b):
        raise InputError(f"expected the same trials on both sides, found {len(a)} and {len(b)}; compare unpaired")
    difference = a - b
    value, n = float(difference.mean()), len(difference)
    se = float(difference.std(ddof=1)) / math.sqrt(n)
    low, high, p = t_estimate(value, se, n - 1, level)
    exact = sign_flip(difference) if n <= MOST_SIGN_FLIPS else None
    return Estimate(value, se, n - 1, low, high, p, (n, n), paired=True, exact_p=exact)


def welch(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Estimate:
    """``first`` minus ``second`` where the trials of the two sides have nothing to do with each other.

    Args:
        first, second: [n], [m] scores; n, m ≥ 2.

    Raises:
        InputError: a side has one trial only, or a score is not finite.
    """
    a, b = _checked(first), _checked(second)
    value = float(a.mean() - b.mean())
    parts = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    se, df = math.sqrt(sum(parts)), satterthwaite(parts, (len(a) - 1, len(b) - 1))
    low, high, p = t_estimate(value, se, df, level)
    return Estimate(value, se, df, low, high, p, (len(a), len(b)), paired=False)


def satterthwaite(variances: Sequence[float], dfs: Sequence[float]) -> float:
    """Degrees of freedom of a sum of independent variance estimates (Satterthwaite 1946): (Σv)² / Σ(v²/df)."""
    largest = max(variances)
    if largest == 0:
        return float(sum(dfs))
    shares = [variance / largest for variance in variances]  # squares of 1e-200 would vanish
    return sum(shares) ** 2 / sum(share**2 / df for share, df in zip(shares, dfs, strict=True))


def sign_flip(differences: Sequence[float] | np.ndarray) -> float:
    """Exact two-sided p: the share of the 2^n sign patterns whose mean is at least as far from 0 as the one seen.

    Asks only that each difference is as likely up as down if there is none; its smallest p is 2 / 2^n, so below six
    trials it never reaches 5 %.

    Args:
        differences: [n], 1 ≤ n ≤ 12.
    """
    d = np.asarray(differences, dtype=np.float64)
    if not 1 <= len(d) <= MOST_SIGN_FLIPS:
        raise InputError(f"expected 1 to {MOST_SIGN_FLIPS} paired trials for the sign-flip test, found {len(d)}")
    signs = 1 - 2 * ((np.arange(2 ** len(d))[:, None] >> np.arange(len(d))) & 1)
    sums = np.abs(signs @ d)
    return float(np.mean(sums >= sums[0] * (1 - 1e-12)))


def _checked(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2:
        raise InputError(f"expected at least 2 trials, found {array.size}; one trial gives no verdict from trials")
    if not np.isfinite(array).all():
        raise InputError(f"expected finite scores, found {array[~np.isfinite(array)][0]}")
    return array
