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
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from momentum_transfer.verdicts import power, trials
from momentum_transfer.verdicts.bootstrap import acceleration
from momentum_transfer.verdicts.hits import mcnemar, paired_interval
from momentum_transfer.verdicts.trials import satterthwaite, t_estimate


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
    paired = shared and set(first) == set(second)
    found = trials.paired(a, b) if paired else trials.welch(a, b)
    std = found.se * math.sqrt(n[0]) if paired else math.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2)
    made = Comparison(
        value, n, found.low, found.high, found.p, found.se, found.df, paired=paired, exact_p=found.exact_p, std=std
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
