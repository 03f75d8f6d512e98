"""Is a difference small enough to count as none? Two one-sided tests (TOST), by the rule of each comparison."""

import math

from scipy import special, stats

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts.comparison import Comparison, score_test, unstretched


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
    return max(
        _one_sided(margin - side * comparison.value, se, df, side * lean)
        for se, df, lean in designs
        for side in (1, -1)
    )


def _one_sided(distance: float, se: float, df: float, lean: float) -> float:
    """p of "the truth is ``distance`` or more above the estimate", by the interval of ``_t_interval``."""
    if se == 0:
        return 0.0 if distance > 0 else 1.0
    t = distance / se
    return float(stats.t.sf(unstretched(t, 2 * lean) if lean > 0 and t > 0 else t, df))
