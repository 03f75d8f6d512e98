"""Many measures at once: mean ranks with Friedman and Nemenyi, improvement over tasks, rank correlations of tasks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from momentum_transfer.core.errors import InputError

#: With fewer checkpoints an order says nothing: with 4, a perfect one has p = .08.
FEWEST_CHECKPOINTS = 5


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of the checkpoints over measures (1 is best), with p of Friedman's test that all rank alike.

    Mean ranks closer than ``critical_difference`` do not differ significantly at 5 % (Nemenyi).
    """

    ranks: list[float]
    p: float
    critical_difference: float


def friedman(scores: np.ndarray) -> Ranking:
    """Mean ranks with Friedman's test and Nemenyi's critical difference (Demšar, JMLR 7, 2006, section 3.2.2).

    Args:
        scores: [N measures, k checkpoints], higher is better; N ≥ 2, k ≥ 3. Ties get their mean rank.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[0] < 2 or scores.shape[1] < 3:
        raise InputError(f"expected at least 2 measures of at least 3 checkpoints for ranks, found {scores.shape}; "
                         "compare two checkpoints measure by measure")  # fmt: skip
    if not np.isfinite(scores).all():
        raise InputError("expected every checkpoint's score in every measure, found one missing; leave the measure out")
    measures, checkpoints = scores.shape
    ranks = stats.rankdata(-scores, axis=1).mean(axis=0)
    flat = bool((scores == scores[:, :1]).all())
    p = 1.0 if flat else float(stats.friedmanchisquare(*scores.T).pvalue)
    q = float(stats.studentized_range.ppf(0.95, checkpoints, np.inf)) / math.sqrt(2)
    return Ranking(ranks.tolist(), p, q * math.sqrt(checkpoints * (checkpoints + 1) / (6 * measures)))


def probability_of_improvement(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """Chance that a trial of the first beats one of the second on a random task; ties count half.

    Agarwal et al., "Deep RL at the edge of the statistical precipice", NeurIPS 2021, section 4.3: the mean over tasks
    of the Mann-Whitney statistic; ``first`` and ``second`` are scores over trials, [n_t] and [m_t], for each task t.
    """
    return float(_improvement([task[None] for task in first], [task[None] for task in second])[0])


def _improvement(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """[S] of scores [S, n_t] and [S, m_t] for each task t."""
    sides = [(a[:, :, None], b[:, None, :]) for a, b in zip(first, second, strict=True)]
    return np.asarray(np.mean([((a > b) + 0.5 * (a == b)).mean(axis=(1, 2)) for a, b in sides], axis=0))


def interquartile_mean(scores: Sequence[np.ndarray]) -> float:
    """Mean of the middle half of all trials of all tasks (Agarwal et al. 2021, section 4.3); ``scores``: [n_t] a task.

    Where the tasks have unlike numbers of trials, every task's mean counts once, so that tasks weigh the same.
    """
    return float(_interquartile_mean([task[None] for task in scores])[0])


def _interquartile_mean(scores: Sequence[np.ndarray]) -> np.ndarray:
    """[S] of scores [S, n_t] for each task t."""
    alike = len({task.shape[1] for task in scores}) == 1
    pool = np.concatenate(scores if alike else [task.mean(axis=1, keepdims=True) for task in scores], axis=1)
    return np.asarray(stats.trim_mean(pool, 0.25, axis=1))


def stratified_interval(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray] | None = None, resamples: int = 1000
) -> tuple[float, float]:
    """95 % percentile interval, trials resampled within each task, of ``interquartile_mean`` of ``first``, or with
    ``second`` of ``probability_of_improvement``.

    The tasks are taken as given (Agarwal et al. 2021, section 4.1): the interval says nothing of other tasks, and where
    every task has one trial it has no width. With more than 2000 trials in all fewer resamples are taken, down to 200.
    """
    random = np.random.default_rng(0)
    resamples = min(resamples, max(200, 2**21 // max(1, sum(map(len, first)))))  # a sweep of thousands of tasks

    def resampled(task: np.ndarray) -> np.ndarray:
        return task[random.integers(0, len(task), (resamples, len(task)))]

    if second is None:
        return _middle(_interquartile_mean([resampled(task) for task in first]))
    sides = [(resampled(a), resampled(b)) for a, b in zip(first, second, strict=True)]
    return _middle(_improvement([a for a, _ in sides], [b for _, b in sides]))


@dataclass(frozen=True)
class Agreement:
    """How two tasks order the same n checkpoints: Kendall's τ_b and Spearman's ρ, each with its 95 % interval."""

    tau: float
    tau_interval: tuple[float, float]
    rho: float
    rho_interval: tuple[float, float]
    n: int


def agreement(first: np.ndarray, second: np.ndarray, resamples: int = 1000) -> Agreement:
    """Rank correlations over checkpoints, with percentile bootstrap intervals (checkpoints are resampled).

    Resamples in which a side is constant have no rank correlation and are left out; with more than 60 checkpoints fewer
    are taken, down to 100. With few checkpoints such intervals are too narrow rather than too wide: they are to warn,
    not to prove. ``first`` and ``second`` are [n] finite scores of the same n ≥ 5 checkpoints.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or len(a) < FEWEST_CHECKPOINTS:
        needed = f"the scores of the same {FEWEST_CHECKPOINTS} or more checkpoints"
        raise InputError(f"expected {needed}, found {len(a)} and {len(b)}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("expected finite scores of every checkpoint, found one missing; leave the checkpoint out")
    resamples = max(100, min(resamples, 2**22 // len(a) ** 2))  # pairs of checkpoints are n² numbers a resample
    a, b = (stats.rankdata(v).astype(np.float32) for v in (a, b))  # both correlations are of the order alone
    picks = np.random.default_rng(0).integers(0, len(a), (resamples, len(a)))
    (tau, tau_interval), (rho, rho_interval) = (
        (float(correlation(a[None], b[None])[0]), _middle(correlation(a[picks], b[picks])))
        for correlation in (_kendall, _spearman)
    )
    return Agreement(tau, tau_interval, rho, rho_interval, len(a))


def _kendall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[S] Kendall's τ_b of each row of [S, n] pairs; NaN where a side is constant."""
    if a.shape[1] > 400:  # too many pairs: scipy sorts instead, with the same result
        return np.array([stats.kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)])
    rows = max(1, 2**20 // a.shape[1] ** 2)  # a thousand times all pairs would be gigabytes
    if len(a) > rows:
        return np.concatenate([_kendall(a[i : i + rows], b[i : i + rows]) for i in range(0, len(a), rows)])
    # the order of every two, 1, 0 or −1, [S, n²] in float32, which counts to 2²⁴ without rounding
    x, y = (np.sign(v[:, :, None] - v[:, None]).astype(np.float32, copy=False).reshape(len(v), -1) for v in (a, b))
    both, ones, others = (np.einsum("si,si->s", u, v).astype(np.float64) for u, v in ((x, y), (x, x), (y, y)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(both / np.sqrt(ones * others))


def _spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[S] Spearman's ρ of each row of [S, n] pairs; NaN where a side is constant."""
    x, y = (stats.rankdata(v, axis=1) for v in (a, b))
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1)))


def _middle(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the values that are defined; NaN where none is."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.percentile(defined, (2.5, 97.5))
    return float(low), float(high)
