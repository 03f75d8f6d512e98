"""Many measures at once: Holm's correction, mean ranks with Friedman and Nemenyi, improvement over tasks.

Which cheap measure predicts the costly one: rank correlations of tasks over checkpoints.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from momentum_transfer.core.errors import InputError


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given (Holm 1979): the chance of any false alarm among all stays at the level.

    The i-th smallest of m is multiplied by m − i (i from 0), never below the one before it, never above 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if len(p) and not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"expected p values in [0, 1], found {p[~((p >= 0) & (p <= 1))][0]}")
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))))
    adjusted = np.empty(len(p))
    adjusted[order] = steps
    return [float(value) for value in adjusted]


@dataclass(frozen=True)
class Ranking:
    """Mean ranks over measures, 1 is best.

    Attributes:
        ranks: [k] mean rank of each checkpoint. p: Friedman's test of "no checkpoint ranks apart".
        critical_difference: mean ranks closer than this are not told apart at the level (Nemenyi).
        measures: N.
    """

    ranks: list[float]
    p: float
    critical_difference: float
    measures: int


def friedman(scores: np.ndarray, alpha: float = 0.05) -> Ranking:
    """Mean ranks with Friedman's test and Nemenyi's critical difference (Demšar, JMLR 7, 2006, section 3.2.2).

    Args:
        scores: [N measures, k checkpoints], higher is better; N ≥ 2, k ≥ 3. Ties share their ranks.

    Raises:
        InputError: fewer measures or checkpoints, or a missing score.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[0] < 2 or scores.shape[1] < 3:
        raise InputError(
            f"expected at least 2 measures of at least 3 checkpoints for mean ranks, found {scores.shape}; "
            "compare two checkpoints measure by measure"
        )
    if not np.isfinite(scores).all():
        raise InputError("expected every checkpoint's score in every measure, found one missing; leave the measure out")
    measures, checkpoints = scores.shape
    ranks = stats.rankdata(-scores, axis=1).mean(axis=0)
    flat = bool((scores == scores[:, :1]).all())
    p = 1.0 if flat else float(stats.friedmanchisquare(*scores.T).pvalue)
    q = float(stats.studentized_range.ppf(1 - alpha, checkpoints, np.inf)) / math.sqrt(2)
    critical = q * math.sqrt(checkpoints * (checkpoints + 1) / (6 * measures))
    return Ranking([float(rank) for rank in ranks], p, critical, measures)


def probability_of_improvement(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """Chance that a trial of the first beats one of the second on a task drawn at random; ties count half.

    Agarwal et al., "Deep RL at the edge of the statistical precipice", NeurIPS 2021, section 4.3: the mean over tasks
    of the Mann-Whitney statistic.

    Args:
        first, second: scores over trials, [n_t] and [m_t], for each task t.
    """
    if not first or len(first) != len(second):
        raise InputError(f"expected the same tasks on both sides, found {len(first)} and {len(second)}")
    chances = []
    for a, b in zip(first, second, strict=True):
        a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
        if not len(a) or not len(b):
            raise InputError("expected at least one trial of each side in every task, found none")
        chances.append(float(np.mean((a[:, None] > b) + 0.5 * (a[:, None] == b))))
    return float(np.mean(chances))


def interquartile_mean(scores: Sequence[np.ndarray]) -> float:
    """Mean of the middle half of all trials of all tasks (Agarwal et al. 2021, section 4.3).

    Args:
        scores: [n_t] for each task t. Where the tasks have unlike numbers of trials, tasks still weigh the same: every
            task's mean over trials counts once.
    """
    if not len(scores):
        raise InputError("expected the scores of at least one task, found none")
    arrays = [np.asarray(task, dtype=np.float64) for task in scores]
    alike = len({len(task) for task in arrays}) == 1
    pool = np.concatenate(arrays) if alike else np.array([task.mean() for task in arrays])
    return float(stats.trim_mean(pool, 0.25))


def stratified_interval(
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray] | None,
    statistic: str,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % percentile interval of a statistic over tasks, trials resampled within each task.

    The tasks are taken as given (Agarwal et al. 2021, section 4.1): the interval says nothing of other tasks, and where
    every task has one trial it has no width. With more than 2000 trials in all fewer resamples are taken, down to 200.

    Args:
        statistic: ``improvement`` (of ``first`` over ``second``) or ``iqm`` (of ``first``; ``second`` is None).
    """
    random = np.random.default_rng(seed)
    resamples = min(resamples, max(200, 2**21 // max(1, sum(map(len, first)))))  # a sweep of thousands of tasks

    def draw(task: np.ndarray) -> np.ndarray:
        """[resamples, n] of a task's n trials."""
        return np.asarray(task, dtype=np.float64)[random.integers(0, len(task), (resamples, len(task)))]

    if statistic == "iqm" and second is None:
        drawn = [draw(task) for task in first]
        alike = len({task.shape[1] for task in drawn}) == 1
        pool = np.concatenate(drawn if alike else [task.mean(axis=1, keepdims=True) for task in drawn], axis=1)
        values = stats.trim_mean(pool, 0.25, axis=1)
    elif statistic == "improvement" and second is not None:
        tasks = zip(map(draw, first), map(draw, second), strict=True)
        sides = [(a[:, :, None], b[:, None, :]) for a, b in tasks]
        values = np.mean([((a > b) + 0.5 * (a == b)).mean(axis=(1, 2)) for a, b in sides], axis=0)
    else:
        raise InputError(f"expected the statistic improvement (of two sides) or iqm (of one), found {statistic!r}")
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)


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
