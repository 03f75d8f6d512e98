"""One difference between two checkpoints, judged by what there is: trials, test items, or both.

- Both sides have two trials or more: the t interval of ``trials`` (paired where they share their trials, else Welch).
- Outcomes per item besides: their bootstrap variance is added, V = s²/n + V_items, with Satterthwaite's degrees of
  freedom. Of this and the interval of the trials alone the wider counts, of their p the larger: a spread of few trials
  that is small by chance makes V small and its degrees of freedom many (at two trials 13 % false alarms).
  Chance that trials and items share is in both parts, so the interval is rather too wide than too narrow.
- Several trials against one, with outcomes per item: V = s²/n of the several + V_items, likewise. It speaks of the one
  as it stands: raw pixels, which have no seed, or a network that was trained once.
- One trial on both sides, but outcomes per item: where they are hits, McNemar's exact test and a score interval that
  agrees with it; else t with the bootstrap's standard error, items − 1 degrees of freedom, and the side to which the
  items lean stretched by their skewness. It speaks of the trained networks at hand alone.
- One trial on a side and no outcomes: no verdict.

Is a checkpoint ahead, judged by repeated trials? Paired t, Welch, and an exact sign-flip test beside them.

A trial is one repetition: another draw of the labelled images, or another seed of a fine-tuning. Where both sides share
their trials (the same draws) the differences trial by trial are judged, by Student's t with n − 1 degrees of freedom
(Student 1908). Otherwise Welch's t (Welch 1947), whose two sides may differ in variance and in number.

Assumption: trials are independent and the (differences of) scores are roughly normal. False alarms at the 5 % level,
from the slow test of this module: 5.0 % in the paired case at 2, 3, 5 and 10 trials; Welch is on the safe side where
trials are few (2.2 % at 2, 3.3 % at 3, 4.2 % at 5, 4.6 % at 10), because it must also hold where the variances differ.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts import power
from momentum_transfer.verdicts.bootstrap import acceleration
from momentum_transfer.verdicts.outcomes import mcnemar, paired_interval

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


@dataclass(frozen=True)
class ItemEvidence:
    """Means over each side's trials of the score, resampled with the same item weights on both sides.

    Attributes:
        items: number of test items.
        first, second: [B] replicates in points. first_left_out, second_left_out: [G] with a group of items left out.
        hits: where each side has one trial and its outcomes are hits: bool [items] of both.
    """

    items: int
    first: np.ndarray
    second: np.ndarray
    first_left_out: np.ndarray
    second_left_out: np.ndarray
    hits: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class Comparison:
    """The difference, in points, and how sure it is.

    Attributes:
        low, high: 95 % interval; None, as p, se and df, where nothing can be said.
        p: two-sided p of "no difference"; below .05 exactly where the interval excludes 0. se, df: of the t interval
            that counts. exact_p: of the sign-flip test over up to 12 shared trials.
        n: trials of both sides. items: test items that were resampled (0: none). paired: judged trial by trial.
        item_share: share of the variance that the test items have, where trials have the rest.
        std: over trials, of the differences where ``paired``, else of a side; None where a side has one trial.
        floor: standard error from items alone.
        discordant: where McNemar's test gave p: items on which exactly one side is right.
    """

    value: float
    n: tuple[int, int]
    low: float | None = None
    high: float | None = None
    p: float | None = None
    se: float | None = None
    df: float = math.inf
    items: int = 0
    paired: bool = False
    exact_p: float | None = None
    item_share: float | None = None
    std: float | None = None
    floor: float = 0.0
    discordant: int | None = None

    @property
    def source(self) -> str:
        """``trials``, ``items``, ``trials and items`` or ``nothing``."""
        parts = ["trials"] * (self.p is not None and max(self.n) > 1) + ["items"] * (self.items > 0)
        return " and ".join(parts) or "nothing"

    @property
    def detectable(self) -> float | None:
        """The smallest true difference that this design shows in 80 % of cases, at 5 %; None without any spread."""
        if self.discordant is not None:
            return power.detectable_by_mcnemar(self.items, self.discordant)
        return power.detectable(self.se, self.df) if self.se else None

    @property
    def needed(self) -> int | None:
        """Trials that would show the observed difference in 80 % of cases; None where no number does."""
        if self.std is None or not self.value:
            return None
        return power.trials_needed(self.value, self.std, self.paired, floor=self.floor)


def compare(
    first: Mapping[int, float], second: Mapping[int, float], shared: bool = True, evidence: ItemEvidence | None = None
) -> Comparison:
    """``first`` minus ``second``.

    Args:
        first, second: scores by trial, at least one of each side.
        shared: trials of one number are the same draws or seeds on both sides.
        evidence: outcomes per test item of the same scores.
    """
    if evidence is not None and evidence.items < 2:
        evidence = None  # one item has no spread
    a, b = [first[trial] for trial in sorted(first)], [second[trial] for trial in sorted(second)]
    n, value = (len(a), len(b)), float(np.mean(a) - np.mean(b))
    if min(n) < 2:
        if evidence is None:
            return Comparison(value, n)
        if max(n) < 2:
            return _by_items(value, evidence)
        error = float(np.std(max(a, b, key=len), ddof=1)) / math.sqrt(max(n))
        return _with_items(Comparison(value, n), error, max(n) - 1, evidence)
    same_trials = shared and set(first) == set(second)
    found = paired(a, b) if same_trials else welch(a, b)
    std = found.se * math.sqrt(n[0]) if same_trials else math.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2)
    made = Comparison(
        value, n, found.low, found.high, found.p, found.se, found.df, paired=same_trials, exact_p=found.exact_p, std=std
    )
    return _with_items(made, found.se, found.df, evidence) if evidence else made


def _with_items(made: Comparison, se: float, df: float, evidence: ItemEvidence) -> Comparison:
    """With the variance of the test items added to that of the trials, ``se`` squared, unless these alone say less."""
    floor, skewness = _error_and_skewness(evidence)
    total = math.hypot(se, floor)
    fraction = floor / total if total else 0.0
    designs = [(se, df), (total, satterthwaite((se**2, floor**2), (df, evidence.items - 1)))]
    lows, highs, ps = zip(
        t_estimate(made.value, *designs[0]),
        t_estimate(made.value, *designs[1], acceleration=skewness * fraction**3),  # only the part of the items leans
        strict=True,
    )
    se, df = designs[0] if highs[0] - lows[0] > highs[1] - lows[1] else designs[1]
    return replace(made, low=min(lows), high=max(highs), p=max(ps), se=se, df=df, items=evidence.items,
                   item_share=fraction**2 if total else None, floor=floor)  # fmt: skip


def _by_items(value: float, evidence: ItemEvidence) -> Comparison:
    se, skewness = _error_and_skewness(evidence)
    df, discordant = evidence.items - 1, None
    if evidence.hits is not None:
        low, high = (100 * end for end in paired_interval(*evidence.hits))
        only_first, only_second, p = mcnemar(*evidence.hits)
        discordant = only_first + only_second
    else:
        low, high, p = t_estimate(value, se, df, acceleration=skewness)
    return Comparison(value, (1, 1), low, high, p, se, df, items=evidence.items, discordant=discordant)


def _error_and_skewness(evidence: ItemEvidence) -> tuple[float, float]:
    """Standard error by the bootstrap, whose variance is too small by (items - 1) / items, and ``acceleration``."""
    error = float(np.nanstd(evidence.first - evidence.second, ddof=1))
    left_out = evidence.first_left_out - evidence.second_left_out
    return error * math.sqrt(evidence.items / (evidence.items - 1)), acceleration(left_out)
