"""The rule that makes a verdict: the difference between two checkpoints from their trials, their test items or both.

A trial is one repetition: another sample of the labelled images, or another seed of a training. What there is decides:

- Two trials or more on both sides: Student's t over the differences trial by trial where both sides have the same
  trials (Student 1908), otherwise Welch's t (Welch 1947).
- Outcomes per test item besides: their bootstrap variance is added, V = s²/n + V_items, with Satterthwaite's degrees of
  freedom. Of this and the interval of the trials alone the wider counts, of their p the larger: a spread of few trials
  that is small by chance makes V small and its degrees of freedom many (at two trials 13 % false alarms). Variance that
  trials and items have in common is in both parts, so the interval is rather too wide than too narrow.
- Several trials against one, with outcomes per item: V = s²/n of the several + V_items, likewise. It is about the one
  as it stands: raw pixels, which have no seed, or a network that was trained once.
- One trial on both sides, with outcomes per item: McNemar's exact test and a score interval that agrees with it where
  they are hits; otherwise t with the bootstrap's standard error and items − 1 degrees of freedom, the side to which the
  items lean stretched by their skewness. It is about these trained networks alone.
- One trial on a side and no outcomes: no verdict.
- Outcomes of which some resamples leave the score undefined (APs of few images with a small object) do not count: it
  rests on too few items for t with items − 1, and has no value in just the resamples that would show how it spreads.

Where items come in groups (frames of a film), whole groups are resampled, and groups − 1 stand for items − 1.

``corrections.verdicts`` makes words of many comparisons that are read together.

Assumption: trials are independent and (differences of) scores roughly normal. False alarms at the 5 % level in
simulation: 5.0 % in the paired case; Welch is on the safe side where trials are few (2.2 % at 2, 4.2 % at 5).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import optimize, special, stats

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts import power

#: The level at which a difference is significant.
ALPHA = 0.05

#: Fewer groups of items are few: hardly more than shows that they differ.
FEW_GROUPS = 10

#: Largest number of trials whose 2^n sign patterns are listed.
_MOST_SIGN_FLIPS = 12

#: Continuity correction of the score interval, in items. One is usual; with 0.9 the interval excludes 0 wherever the
#: exact test does (0.918 is the most that allows it, at 17 discordant items).
_CORRECTION = 0.9


@dataclass(frozen=True)
class ItemEvidence:
    """Means over each side's trials of the score, resampled with the same item weights on both sides.

    Attributes:
        items: number of test items.
        first, second: [B] replicates in points. first_left_out, second_left_out: [G] with a group of items left out.
        hits: where each side has one trial and its outcomes are hits that are drawn one by one: bool [items] of both.
        clusters: number of groups, where whole groups of items were resampled.
    """

    items: int
    first: np.ndarray
    second: np.ndarray
    first_left_out: np.ndarray
    second_left_out: np.ndarray
    hits: tuple[np.ndarray, np.ndarray] | None = None
    clusters: int | None = None

    @property
    def drawn(self) -> int:
        """How many things are drawn: groups of items, or items."""
        return self.items if self.clusters is None else self.clusters

    @property
    def undefined(self) -> bool:
        """Whether some resamples have no score, because few items hold what it is about."""
        return bool(np.isnan(self.first - self.second).any())

    def error_and_acceleration(self) -> tuple[float, float]:
        """Standard error by the bootstrap, whose variance is too small by (drawn − 1) / drawn, and ``acceleration``."""
        error = float(np.std(self.first - self.second, ddof=1))
        return error * math.sqrt(self.drawn / (self.drawn - 1)), acceleration(
            self.first_left_out - self.second_left_out
        )


@dataclass(frozen=True)
class Comparison:
    """The difference, in points, and how sure it is.

    Attributes:
        low, high: 95 % interval; None, as p, se and df, where nothing can be said.
        p: two-sided p of "no difference"; below .05 exactly where the interval excludes 0. se, df: of the t interval
            that counts. exact_p: of the sign-flip test over up to 12 trials that both sides have.
        n: trials of both sides. items: test items that were resampled (0: none). paired: compared trial by trial.
        item_fraction: part of the variance that comes from the test items, where trials have the rest.
        std: over trials, of the differences where ``paired``, else of a side; None if a side has one trial.
        floor: standard error from items alone.
        discordant: where McNemar's test gave p: items on which exactly one side is right.
        clusters: groups of items, where whole groups were resampled.
        designs: (se, df, lean) of every t interval of which the widest counts; () where se and df are the only one.
        replicates: [B] of the difference, under the item weights that all comparisons on the same items share.
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
    item_fraction: float | None = None
    std: float | None = None
    floor: float = 0.0
    discordant: int | None = None
    clusters: int | None = None
    designs: tuple[tuple[float, float, float], ...] = ()
    replicates: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def in_few_groups(self) -> bool:
        """Whether the items come in groups, and these are few."""
        return self.clusters is not None and self.clusters < FEW_GROUPS

    @property
    def constant(self) -> bool:
        """Whether the difference was seen without any spread (but for rounding), which makes p 0 and proves nothing."""
        return self.se is not None and self.discordant is None and self.se < 1e-9 * abs(self.value)

    @property
    def detectable(self) -> float | None:
        """The smallest true difference that this design shows in 80 % of cases, at 5 %; None without any spread."""
        if self.discordant is not None:
            return power.detectable_by_mcnemar(self.items, self.discordant)
        return power.detectable(self.se, self.df) if self.se else None

    @property
    def needed(self) -> int | None:
        """Trials that would show the observed difference in 80 % of cases; None if no number does."""
        if self.std is None or not self.value:
            return None
        return power.trials_needed(self.value, self.std, self.paired, floor=self.floor)


def compare(
    first: Mapping[int, float], second: Mapping[int, float], shared: bool = True, evidence: ItemEvidence | None = None
) -> Comparison:
    """``first`` minus ``second``.

    Args:
        first, second: scores by trial, at least one of each side.
        shared: trials of one number are the same samples or seeds on both sides.
        evidence: outcomes per test item of the same scores.
    """
    a, b = (np.array([side[trial] for trial in sorted(side)], dtype=np.float64) for side in (first, second))
    for side in (a, b):
        if not np.isfinite(side).all():
            raise InputError(f"expected finite scores, found {side[~np.isfinite(side)][0]}")
    if evidence is not None and (evidence.drawn < 2 or evidence.undefined):
        evidence = None  # one item has no spread, and few have none that can be trusted
    n, value = (len(a), len(b)), float(np.mean(a) - np.mean(b))
    if min(n) >= 2:
        same_trials = shared and set(first) == set(second)
        by_trials = _paired(value, a - b) if same_trials else _welch(value, a, b)
        return _with_items(by_trials, by_trials.se or 0.0, by_trials.df, evidence) if evidence else by_trials
    if evidence is None:
        return Comparison(value, n)
    if max(n) < 2:
        return _by_items(value, evidence)
    error = float(np.std(max(a, b, key=len), ddof=1)) / math.sqrt(max(n))
    return _with_items(Comparison(value, n), error, max(n) - 1, evidence)


def _paired(value: float, differences: np.ndarray) -> Comparison:
    """Student's t over the differences trial by trial."""
    n = len(differences)
    se = float(differences.std(ddof=1)) / math.sqrt(n)
    low, high, p = _t_interval(float(differences.mean()), se, n - 1)
    exact = _sign_flip(differences) if n <= _MOST_SIGN_FLIPS else None
    return Comparison(value, (n, n), low, high, p, se, n - 1, paired=True, exact_p=exact, std=se * math.sqrt(n))


def _welch(value: float, a: np.ndarray, b: np.ndarray) -> Comparison:
    """Welch's t, whose two sides may differ in variance and in number."""
    variances = float(a.var(ddof=1)), float(b.var(ddof=1))
    parts = variances[0] / len(a), variances[1] / len(b)
    se, df = math.sqrt(sum(parts)), _satterthwaite(parts, (len(a) - 1, len(b) - 1))
    low, high, p = _t_interval(value, se, df)
    return Comparison(value, (len(a), len(b)), low, high, p, se, df, std=math.sqrt(sum(variances) / 2))


def _with_items(by_trials: Comparison, se: float, df: float, evidence: ItemEvidence) -> Comparison:
    """With the variance of the test items added to that of the trials, ``se`` squared, unless these alone say less."""
    floor, lean = evidence.error_and_acceleration()
    total = math.hypot(se, floor)
    fraction = floor / total if total else 0.0
    lean *= fraction**3  # only the part of the items leans
    designs = (se, df, 0.0), (total, _satterthwaite((se**2, floor**2), (df, evidence.drawn - 1)), lean)
    lows, highs, ps = zip(*(_t_interval(by_trials.value, *design) for design in designs), strict=True)
    se, df, _ = designs[0] if highs[0] - lows[0] > highs[1] - lows[1] else designs[1]
    return replace(by_trials, low=min(lows), high=max(highs), p=max(ps), se=se, df=df, items=evidence.items,
                   item_fraction=fraction**2 if total else None, floor=floor, clusters=evidence.clusters,
                   designs=designs, replicates=evidence.first - evidence.second)  # fmt: skip


def _by_items(value: float, evidence: ItemEvidence) -> Comparison:
    se, lean = evidence.error_and_acceleration()
    df, discordant = evidence.drawn - 1, None
    if evidence.hits is not None:
        low, high = (100 * end for end in paired_interval(*evidence.hits))
        only_first, only_second, p = mcnemar(*evidence.hits)
        discordant = only_first + only_second
    else:
        low, high, p = _t_interval(value, se, df, lean)
    return Comparison(value, (1, 1), low, high, p, se, df, items=evidence.items, discordant=discordant,
                      clusters=evidence.clusters, designs=((se, df, lean),),
                      replicates=evidence.first - evidence.second)  # fmt: skip


def _t_interval(value: float, se: float, df: float, lean: float = 0.0) -> tuple[float, float, float]:
    """(low, high, two-sided p) of ``value`` ± t·``se``. Without any spread p is 0 for a difference, 1 for none.

    Args:
        lean: a sixth of the estimate's skewness. The side to which it leans is stretched from t to t + 2·|a|·t²
            (Johnson, JASA 73, 1978); the other is left as it is, so that a skewness found by chance never narrows.
    """
    if se == 0:
        return value, value, 0.0 if value else 1.0
    critical, bend = float(stats.t.ppf(0.975, df)), 2 * abs(lean)
    half, stretched = critical * se, (critical + bend * critical**2) * se
    t = abs(value) / se
    if lean * value < 0:  # 0 lies on the stretched side
        t = unstretched(t, bend)
    low = value - (stretched if lean < 0 else half)
    high = value + (stretched if lean > 0 else half)
    return low, high, float(2 * stats.t.sf(t, df))


def unstretched(far: float, bend: float) -> float:
    """The t with t + ``bend``·t² = ``far``."""
    return 2 * far / (1 + math.sqrt(1 + 4 * bend * far))


def _satterthwaite(variances: Sequence[float], dfs: Sequence[float]) -> float:
    """Degrees of freedom of a sum of independent variance estimates (Satterthwaite 1946): (Σv)² / Σ(v²/df)."""
    largest = max(variances)
    if largest == 0:
        return float(sum(dfs))
    parts = [variance / largest for variance in variances]  # squares of 1e-200 would vanish
    return sum(parts) ** 2 / sum(part**2 / df for part, df in zip(parts, dfs, strict=True))


def _sign_flip(differences: np.ndarray) -> float:
    """Exact two-sided p: the fraction of the 2^n sign patterns whose mean is at least as far from 0 as the one seen.

    Assumes only that each difference is as likely up as down if there is none; its smallest p is 2 / 2^n, so below six
    trials it never reaches 5 %.
    """
    n = len(differences)
    signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    sums = np.abs(signs @ differences)
    return float(np.mean(sums >= sums[0] * (1 - 1e-12)))


def acceleration(jackknife: np.ndarray) -> float:
    """A sixth of the estimate's skewness (Efron and Tibshirani 1993, equation 14.15); of a mean γ / (6·√n).

    Args:
        jackknife: [G] the statistic with a group of items left out; undefined ones (NaN) do not count.
    """
    left_out = jackknife[~np.isnan(jackknife)]
    offsets = left_out.mean() - left_out if len(left_out) else np.zeros(1)
    spread = float((offsets**2).sum()) ** 1.5
    return float((offsets**3).sum()) / (6 * spread) if spread > 0 else 0.0


def mcnemar(first: np.ndarray, second: np.ndarray) -> tuple[int, int, float]:
    """Exact McNemar test of two classifiers on the same images (McNemar 1947).

    A binomial test with probability ½ over the images on which exactly one of them is right.

    Args:
        first, second: [n] bool, whether each image was classified rightly; the same images in the same order.

    Returns:
        (images only the first has right, only the second, two-sided p).
    """
    if first.shape != second.shape or first.ndim != 1:
        raise InputError(f"expected hits of the same images, found the shapes {first.shape} and {second.shape}")
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if only_first + only_second == 0:
        return 0, 0, 1.0
    return only_first, only_second, float(stats.binomtest(only_first, only_first + only_second).pvalue)


def paired_interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """95 % interval of the difference of two fractions of hits; it excludes 0 where ``mcnemar``'s p is below .05 only.

    Tango's score interval (Statistics in Medicine 17, 1998) with a continuity correction, which holds also where hits
    differ on few images or none; it is widened to 0 where the exact test is not significant.
    """
    only_first, only_second, p = mcnemar(first, second)
    low = -_upper_end(only_second, only_first, len(first))
    high = _upper_end(only_first, only_second, len(first))
    return (min(low, 0.0), max(high, 0.0)) if p >= ALPHA else (low, high)


def _upper_end(b: int, c: int, n: int) -> float:
    """The largest difference that the score test does not refuse, where b of n images speak for it and c against."""
    if b - c == n:
        return 1.0
    z = float(special.ndtri(0.975))

    def beyond(difference: float) -> float:
        far, error = score_test(b, c, n, difference)
        return far - z * error

    return float(optimize.brentq(beyond, (b - c) / n, 1.0, xtol=1e-12))


def score_test(b: int, c: int, n: int, difference: float) -> tuple[float, float]:
    """How far below ``difference`` b for and c against of n images lie, with the correction, and the standard error."""
    linear = (2 * n - b + c) * difference - b - c
    against = (math.sqrt(linear**2 + 8 * n * c * difference * (1 - difference)) - linear) / (4 * n)
    variance = n * (2 * against + difference * (1 - difference))
    return n * difference - (b - c) - _CORRECTION, math.sqrt(max(variance, 0.0))
