"""Which cheap measure predicts the costly one: rank correlations of tasks over checkpoints."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from momentum_transfer.core.errors import InputError

#: Fewer checkpoints say nothing of an order: with 4, a perfect one has p = .08.
FEWEST_CHECKPOINTS = 5


@dataclass(frozen=True)
class Agreement:
    """How two tasks order the same n checkpoints: Kendall's τ_b and Spearman's ρ, each with its 95 % interval."""

    tau: float
    tau_interval: tuple[float, float]
    rho: float
    rho_interval: tuple[float, float]
    n: int


def agreement(first: np.ndarray, second: np.ndarray, resamples: int = 1000, seed: int = 0) -> Agreement:
    """Rank correlations over checkpoints, with percentile bootstrap intervals (checkpoints are resampled).

    With more than 60 checkpoints fewer resamples are taken, down to 100.

    Resamples in which a side is constant have no rank correlation and are left out. With few checkpoints such intervals
    are too narrow rather than too wide; they are to warn, not to prove.

    Args:
        first, second: [n] scores of the same n ≥ 5 checkpoints.

    Raises:
        InputError: fewer checkpoints, unlike numbers of them, or a score that is not finite.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or len(a) < FEWEST_CHECKPOINTS:
        raise InputError(
            f"expected the scores of the same {FEWEST_CHECKPOINTS} or more checkpoints, found {len(a)} and {len(b)}"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("expected finite scores of every checkpoint, found one missing; leave the checkpoint out")
    resamples = max(100, min(resamples, 2**22 // len(a) ** 2))  # pairs of checkpoints are n² numbers a resample
    a, b = (stats.rankdata(v).astype(np.float32) for v in (a, b))  # both correlations are of the order alone
    picks = np.random.default_rng(seed).integers(0, len(a), (resamples, len(a)))
    taus, rhos = kendall(a[picks], b[picks]), spearman(a[picks], b[picks])
    return Agreement(
        float(kendall(a[None], b[None])[0]), _interval(taus), float(spearman(a[None], b[None])[0]), _interval(rhos),
        len(a),
    )  # fmt: skip


def kendall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[S] Kendall's τ_b of each row of [S, n] pairs; NaN where a side is constant."""
    if a.shape[1] > 400:  # where all pairs are too many, sorting tells the same
        return np.array([stats.kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)])
    rows = max(1, 2**20 // a.shape[1] ** 2)  # a thousand times all pairs would be gigabytes
    if len(a) > rows:
        return np.concatenate([kendall(a[i : i + rows], b[i : i + rows]) for i in range(0, len(a), rows)])
    x, y = (_signs(v) for v in (a, b))
    both, ones, others = (np.einsum("si,si->s", u, v).astype(np.float64) for u, v in ((x, y), (x, x), (y, y)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(both / np.sqrt(ones * others))


def _signs(values: np.ndarray) -> np.ndarray:
    """[S, n²] the order of every two of [S, n] values: 1, 0 or −1, in float32, which counts to 2²⁴ without rounding."""
    signs = np.sign(values[:, :, None] - values[:, None, :])
    return signs.astype(np.float32, copy=False).reshape(len(values), -1)


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[S] Spearman's ρ of each row of [S, n] pairs; NaN where a side is constant."""
    x, y = (stats.rankdata(v, axis=1) for v in (a, b))
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1)))


def _interval(values: np.ndarray) -> tuple[float, float]:
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.percentile(defined, (2.5, 97.5))
    return float(low), float(high)
