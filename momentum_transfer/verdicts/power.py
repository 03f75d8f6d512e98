"""Power: the smallest difference that a design can show, and how many trials a difference needs.

"Show" is: the two-sided test at level ``alpha`` finds it with probability ``power``. The distribution of the t
statistic under a true difference δ is the noncentral t with noncentrality δ / SE (Johnson, Kotz and Balakrishnan 1995,
chapter 31).
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, stats

from momentum_transfer.core.errors import InputError

#: More trials than these nobody runs; the answer is then "more than".
MOST_TRIALS = 100_000

#: Gauss-Legendre nodes of (0, 1): quantiles at which a χ² is taken, and their shares.
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(200)
_NODES, _SHARES = (_POINTS + 1) / 2, _WEIGHTS / 2


def power_of(difference: float, se: float, df: float, alpha: float = 0.05) -> float:
    """Probability that |t| exceeds its critical value when the true difference is ``difference``."""
    if se == 0:
        return 1.0 if difference else alpha
    shift, critical = abs(difference) / se, float(stats.t.ppf(1 - alpha / 2, df))
    if shift > 1e4:
        return 1.0
    # P(|Z + shift| > critical·S) with S² ~ χ²/df, averaged over S: stable where scipy's noncentral t gives NaN.
    scale = np.sqrt(stats.chi2.ppf(_NODES, df) / df) if df < 1e5 else np.ones(1)
    found = stats.norm.sf(critical * scale - shift) + stats.norm.cdf(-critical * scale - shift)
    return float(np.clip(found @ _SHARES if len(scale) > 1 else found[0], 0.0, 1.0))


def detectable(se: float, df: float, power: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest true difference that a comparison of standard error ``se`` shows with probability ``power``.

    Args:
        se: standard error of the difference, in points. df: degrees of freedom of its t; inf for a normal.
    """
    _check_shares(power, alpha)
    if not (se >= 0 and math.isfinite(se)) or not df > 0:
        raise InputError(f"expected a standard error of at least 0 and degrees of freedom above 0, found {se}, {df}")
    if se == 0:
        return 0.0
    critical = float(stats.t.ppf(1 - alpha / 2, df))
    high = critical + 1.0
    while power_of(high, 1.0, df, alpha) < power:
        high *= 2
    return se * float(optimize.brentq(lambda shift: power_of(shift, 1.0, df, alpha) - power, 0.0, high, xtol=1e-10))


def detectable_by_mcnemar(items: int, discordant: int, power: float = 0.8, alpha: float = 0.05) -> float | None:
    """The smallest true difference, in points, that McNemar's exact test of two networks' hits shows.

    Items on which exactly one of them is right are as frequent as observed, or as a larger difference asks for (all of
    them then speak for one side); power is over their binomial number (Connor, Biometrics 43, 1987).

    Args:
        discordant: items on which exactly one is right.

    Returns:
        None where not even a difference on every item would be shown (at 5 %, with fewer than 6 items).
    """
    _check_shares(power, alpha)
    if not 0 <= discordant <= items:
        raise InputError(f"expected 0 to {items} items on which exactly one is right, found {discordant}")

    def found(difference: float) -> float:
        fraction = max(difference, discordant / items)
        least, most = stats.binom.interval(1 - 1e-9, items, fraction)
        numbers = np.arange(least, most + 1)
        tail = stats.binom.ppf(alpha / 2, numbers, 0.5) - 1  # the largest smaller number that is significant
        first = (1 + difference / fraction) / 2
        refused = stats.binom.cdf(tail, numbers, first) + stats.binom.sf(numbers - tail - 1, numbers, first)
        return float(stats.binom.pmf(numbers, items, fraction) @ refused)

    if not items or found(1.0) < power:
        return None
    return 100 * float(optimize.brentq(lambda difference: found(difference) - power, 1e-9, 1.0, xtol=1e-10))


def trials_needed(
    difference: float, std: float, paired: bool, power: float = 0.8, alpha: float = 0.05, floor: float = 0.0
) -> int | None:
    """The smallest number of trials (of each side) that shows ``difference``; None where no number does.

    Args:
        difference: true difference in points, not 0.
        std: standard deviation over trials, of the differences where ``paired``, else of each side.
        floor: a standard error that more trials do not lessen (that of the test items).
    """
    _check_shares(power, alpha)
    if not (difference and math.isfinite(difference)) or not (std >= 0 and math.isfinite(std)):
        raise InputError(f"expected a difference other than 0 and a standard deviation of at least 0, found "
                         f"{difference} and {std}")  # fmt: skip
    sides = 1 if paired else 2

    def enough(n: int) -> bool:
        variance, own = sides * std**2 / n, sides * (n - 1)
        total = variance + floor**2
        # floor: known well, infinitely many degrees of freedom
        df = own * (total / variance) ** 2 if variance > 0 else math.inf
        # as a verdict: by trials and items, and by trials alone
        designs = ((total, df), (variance, own))
        return min(power_of(difference, math.sqrt(v), df, alpha) for v, df in designs) >= power

    return _first(enough)


def _first(enough: Callable[[int], bool]) -> int | None:
    """The smallest n ≥ 2 that is enough (more is always better), None above MOST_TRIALS."""
    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_TRIALS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if middle >= 2 and enough(middle):
            high = middle
        else:
            low = middle
    return high


def _check_shares(power: float, alpha: float) -> None:
    if not (0 < alpha < power < 1):
        raise InputError(f"expected 0 < alpha < power < 1, found alpha {alpha} and power {power}")
