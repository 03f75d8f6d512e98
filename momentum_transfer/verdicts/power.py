"""Power: the smallest difference that a design can show, and how many trials a difference needs.

"Show" is: the two-sided test at the 5 % level finds it with probability 80 %. The t statistic under a true difference δ
has the noncentral t distribution with noncentrality δ / SE (Johnson, Kotz and Balakrishnan 1995, chapter 31).
"""

import bisect
import math

import numpy as np
from scipy import optimize, stats

from momentum_transfer.core.errors import InputError

_ALPHA, POWER = 0.05, 0.8

#: More trials than these nobody runs; the answer is then None.
MOST_TRIALS = 1 << 16

#: Gauss-Legendre nodes of (−1, 1), of the quantiles at which a χ² is taken, and their weights.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def power_of(difference: float, se: float, df: float) -> float:
    """Probability that |t| exceeds its critical value when the true difference is ``difference``."""
    if se == 0:
        return 1.0 if difference else _ALPHA
    shift, critical = abs(difference) / se, float(stats.t.ppf(1 - _ALPHA / 2, df))
    if shift > 1e4:
        return 1.0
    # P(|Z + shift| > critical·S) with S² ~ χ²/df, averaged over S: stable where scipy's noncentral t gives NaN.
    scale = np.sqrt(stats.chi2.ppf((_NODES + 1) / 2, df) / df) if df < 1e5 else np.ones(1)
    found = stats.norm.sf(critical * scale - shift) + stats.norm.cdf(-critical * scale - shift)
    return float(np.clip(found @ _WEIGHTS / 2 if len(scale) > 1 else found[0], 0.0, 1.0))


def detectable(se: float, df: float) -> float:
    """The smallest true difference that a comparison of standard error ``se`` shows, in its unit; df inf: normal."""
    if not (se >= 0 and math.isfinite(se)) or not df > 0:
        raise InputError(f"expected a standard error of at least 0 and degrees of freedom above 0, found {se}, {df}")
    if se == 0:
        return 0.0
    high = float(stats.t.ppf(1 - _ALPHA / 2, df)) + 1.0
    while power_of(high, 1.0, df) < POWER:
        high *= 2
    return se * float(optimize.brentq(lambda shift: power_of(shift, 1.0, df) - POWER, 0.0, high, xtol=1e-10))


def detectable_by_mcnemar(items: int, discordant: int) -> float | None:
    """The smallest true difference, in points, that McNemar's exact test of two networks' hits shows.

    Items on which exactly one of them is right are as frequent as observed, or as a larger difference asks for (all of
    them then speak for one side); power is over their binomial number (Connor, Biometrics 43, 1987). None if not
    even a difference on every item would be shown (with fewer than 6 items).
    """
    if not 0 <= discordant <= items:
        raise InputError(f"expected 0 to {items} items on which exactly one is right, found {discordant}")

    def power(difference: float) -> float:
        fraction = max(difference, discordant / items)
        least, most = stats.binom.interval(1 - 1e-9, items, fraction)
        numbers = np.arange(least, most + 1)
        tail = stats.binom.ppf(_ALPHA / 2, numbers, 0.5) - 1  # the largest smaller number that is significant
        first = (1 + difference / fraction) / 2
        refused = stats.binom.cdf(tail, numbers, first) + stats.binom.sf(numbers - tail - 1, numbers, first)
        return float(stats.binom.pmf(numbers, items, fraction) @ refused)

    if not items or power(1.0) < POWER:
        return None
    return 100 * float(optimize.brentq(lambda difference: power(difference) - POWER, 1e-9, 1.0, xtol=1e-10))


def trials_needed(difference: float, std: float, paired: bool, floor: float = 0.0) -> int | None:
    """The smallest number of trials (of each side) that shows ``difference``; None if no number does.

    Args:
        difference: true difference in points, not 0.
        std: standard deviation over trials, of the differences where ``paired``, else of each side.
        floor: a standard error that more trials do not lessen (that of the test items).
    """
    if not (difference and math.isfinite(difference)) or not (std >= 0 and math.isfinite(std)):
        raise InputError(
            f"expected a difference other than 0 and a standard deviation of at least 0, found {difference} and {std}"
        )
    sides = 1 if paired else 2

    def enough(n: int) -> bool:
        variance, own = sides * std**2 / n, sides * (n - 1)
        total = variance + floor**2  # floor: known well, infinitely many degrees of freedom
        df = own * (total / variance) ** 2 if variance > 0 else math.inf
        # as a verdict: by trials and items, and by trials alone
        return min(power_of(difference, math.sqrt(v), df) for v, df in ((total, df), (variance, own))) >= POWER

    n = bisect.bisect_left(range(MOST_TRIALS + 1), True, lo=2, key=enough)
    return n if n <= MOST_TRIALS else None
