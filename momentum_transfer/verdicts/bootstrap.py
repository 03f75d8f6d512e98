"""The bootstrap over test items: shared multinomial weights, percentile intervals, jackknife, two levels.

A resample of n items with replacement is a weight per item: how often it was drawn. All checkpoints of a comparison get
the same weights, so that differences are paired item by item (Efron and Tibshirani, "An introduction to the bootstrap",
1993, chapters 6, 13 and 14).
"""

from dataclasses import dataclass

import numpy as np

from momentum_transfer.core.errors import InputError

#: Groups of items that the jackknife leaves out in turn.
JACKKNIFE_GROUPS = 100


def multinomial_weights(items: int, resamples: int, seed: int = 0) -> np.ndarray:
    """[resamples, items] int32: how often each item is drawn; every row sums to ``items``."""
    if items < 1 or resamples < 1:
        raise InputError(f"expected at least one item and one resample, found {items} and {resamples}")
    random = np.random.default_rng(seed)
    weights = np.empty((resamples, items), dtype=np.int32)
    for row in weights:
        row[:] = np.bincount(random.integers(0, items, items), minlength=items)
    return weights


def jackknife_weights(items: int, groups: int = JACKKNIFE_GROUPS, seed: int = 0) -> np.ndarray:
    """[min(groups, items), items] int32: all ones but for the group of items that is left out.

    Leaving out groups instead of single items keeps the acceleration at the price of some noise (Efron and Tibshirani
    1993, section 14.3), and 5000 items need 100 evaluations instead of 5000.
    """
    groups = min(groups, items)
    group = np.random.default_rng(seed).permutation(items) % groups
    return (group[None, :] != np.arange(groups)[:, None]).astype(np.int32)


def percentile_interval(replicates: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The middle ``level`` of the replicates; undefined ones (NaN) are left out. NaN where none is defined."""
    defined = _defined(replicates)
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, (0.5 - level / 2, 0.5 + level / 2))
    return float(low), float(high)


def acceleration(jackknife: np.ndarray) -> float:
    """A sixth of the estimate's skewness (Efron and Tibshirani 1993, equation 14.15); of a mean γ / (6·√n).

    Args:
        jackknife: [G] the statistic with a group of items left out; undefined ones (NaN) do not count.
    """
    left_out = _defined(jackknife)
    offsets = left_out.mean() - left_out if len(left_out) else np.zeros(1)
    spread = float((offsets**2).sum()) ** 1.5
    return float((offsets**3).sum()) / (6 * spread) if spread > 0 else 0.0


def bootstrap_p(replicates: np.ndarray) -> float:
    """Two-sided p of "no difference": twice the smaller share of differences on either side of 0, ties on both.

    It cannot be below 2 / (B + 1): more resamples resolve more.
    """
    defined = _defined(replicates)
    if not len(defined):
        return 1.0
    smaller = min((defined <= 0).sum(), (defined >= 0).sum())
    return float(min(1.0, 2 * (smaller + 1) / (len(defined) + 1)))


@dataclass(frozen=True)
class Split:
    """Variance of a mean over seeds, split into its sources.

    Attributes:
        items: variance from the test items. seeds: variance from the training seeds, s² / S; None with one seed.
        replicates: [B] of the two-level resampling, centred as the statistic is.
    """

    items: float
    seeds: float | None
    replicates: np.ndarray

    @property
    def total(self) -> float:
        """Of the mean over seeds, on new items and new seeds. The part that both share is in both: not too small."""
        return self.items + (self.seeds or 0.0)


def two_level(values: np.ndarray, replicates: np.ndarray, seed: int = 0) -> Split:
    """Resample the training seeds, then the items.

    Resampled seeds alone understate the spread by (S − 1) / S; their part of every replicate is stretched by
    √(S / (S − 1)), so that the variance of the two levels is that of the two estimates.

    Args:
        values: [S] the statistic of each seed on all items.
        replicates: [S, B] of each seed under the same item weights.
    """
    values, replicates = np.asarray(values, dtype=np.float64), np.asarray(replicates, dtype=np.float64)
    if replicates.ndim != 2 or len(values) != len(replicates):
        raise InputError(f"expected replicates of {len(values)} seeds, found the shape {replicates.shape}")
    seeds, resamples = replicates.shape
    over_items = replicates.mean(axis=0)
    items = float(np.nanvar(over_items, ddof=1))
    if seeds == 1:
        return Split(items, None, over_items)
    picks = np.random.default_rng(seed).integers(0, seeds, (resamples, seeds))
    resampled = np.take_along_axis(replicates.T, picks, axis=1).mean(axis=1)
    stretched = over_items + (resampled - over_items) * np.sqrt(seeds / (seeds - 1))
    return Split(items, float(values.var(ddof=1)) / seeds, stretched)


def _defined(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    return values[~np.isnan(values)]
