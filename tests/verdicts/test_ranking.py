"""Intervals of ranks and correlations against plain loops over the same resamples."""

import numpy as np
import pytest
from scipy import stats

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts import ranking

RANDOM = np.random.default_rng(1)


def middle(values: list[float]) -> list[float]:
    return np.nanpercentile(values, [2.5, 97.5]).tolist()


def test_intervals_of_correlations_are_percentiles_over_resampled_checkpoints():
    a, b = RANDOM.integers(0, 6, 9).astype(float), RANDOM.integers(0, 6, 9).astype(float)
    found = ranking.agreement(a, b, resamples=150)
    picks = np.random.default_rng(0).integers(0, 9, (150, 9))
    taus = [stats.kendalltau(a[pick], b[pick]).statistic for pick in picks]
    rhos = [stats.spearmanr(a[pick], b[pick]).statistic for pick in picks]
    assert found.tau_interval == pytest.approx(middle(taus))
    assert found.rho_interval == pytest.approx(middle(rhos))
    assert (found.n, found.tau) == (9, pytest.approx(stats.kendalltau(a, b).statistic))


@pytest.mark.parametrize(("n", "resamples"), [(5, 1000), (60, 1000), (65, 992), (300, 100)])
def test_many_checkpoints_are_resampled_less_often(n: int, resamples: int, monkeypatch):
    seen = []
    monkeypatch.setattr(ranking, "_middle", lambda values: seen.append(len(values)) or (0.0, 0.0))
    monkeypatch.setattr(ranking, "_kendall", lambda a, b: np.zeros(len(a)))
    ranking.agreement(RANDOM.random(n), RANDOM.random(n))
    assert seen == [resamples] * 2


@pytest.mark.parametrize(("samples", "n"), [(3, 9), (11, 300), (12, 300), (30, 300), (2, 400), (2, 401)])
def test_kendalls_tau_of_many_samples_is_scipys_however_they_are_divided(samples: int, n: int):
    a, b = RANDOM.integers(0, 50, (samples, n)).astype(np.float32), RANDOM.random((samples, n), dtype=np.float32)
    expected = [stats.kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)]
    assert ranking._kendall(a, b) == pytest.approx(expected, abs=1e-12)


def test_a_side_on_which_all_are_equal_has_no_correlation():
    a, b = np.ones((1, 6)), RANDOM.random((1, 6))
    for correlation in (ranking._kendall, ranking._spearman):
        assert np.isnan(correlation(a, b)).all()
        assert np.isnan(correlation(b, a)).all()
        assert correlation(b, b) == pytest.approx([1])
    found = ranking.agreement(np.ones(5), np.arange(5))
    assert np.isnan([found.tau, *found.tau_interval, found.rho, *found.rho_interval]).all()


def test_scores_of_other_checkpoints_or_missing_ones_are_refused():
    five = np.arange(5.0)
    assert ranking.agreement(five, five).tau == 1
    for first, second in ((five, np.arange(6.0)), (five[:4], five[:4]), (five[None], five[None])):
        with pytest.raises(InputError, match="the scores of the same 5 or more checkpoints"):
            ranking.agreement(first, second)
    for first, second in ((five, np.append(five[:4], np.nan)), (np.append(five[:4], np.inf), five)):
        with pytest.raises(InputError, match="finite scores of every checkpoint"):
            ranking.agreement(first, second)


def interquartile(tasks: list[np.ndarray]) -> float:
    return float(stats.trim_mean(np.concatenate(tasks), 0.25))


@pytest.mark.parametrize("trials", [(4, 4, 4), (3, 5, 2)])
def test_intervals_over_tasks_resample_trials_within_each_task(trials: tuple[int, ...]):
    first = [RANDOM.normal(task, 1, n) for task, n in enumerate(trials)]
    second = [RANDOM.normal(task - 0.5, 1, n + 1) for task, n in enumerate(trials)]
    random = np.random.default_rng(0)
    samples = [[task[pick] for pick in random.integers(0, len(task), (250, len(task)))] for task in first]
    alike = len(set(trials)) == 1
    means = [interquartile([task[k] if alike else task[k].mean(keepdims=True) for task in samples]) for k in range(250)]
    assert ranking.stratified_interval(first, resamples=250) == pytest.approx(middle(means))
    assert ranking.interquartile_mean(first) == pytest.approx(
        interquartile(first if alike else [task.mean(keepdims=True) for task in first])
    )
    random = np.random.default_rng(0)
    chances = np.zeros(250)
    for a, b in zip(first, second, strict=True):
        left, right = (task[random.integers(0, len(task), (250, len(task)))] for task in (a, b))
        for k in range(250):
            wins = [1.0 if x > y else 0.5 if x == y else 0.0 for x in left[k] for y in right[k]]
            chances[k] += np.mean(wins) / len(trials)
    assert ranking.stratified_interval(first, second, resamples=250) == pytest.approx(middle(chances))


@pytest.mark.parametrize(("trials", "resamples"), [(2000, 1000), (2100, 998), (20_000, 200)])
def test_many_trials_are_resampled_less_often(trials: int, resamples: int, monkeypatch):
    seen = []
    monkeypatch.setattr(ranking, "_middle", lambda values: seen.append(len(values)) or (0.0, 0.0))
    monkeypatch.setattr(ranking, "_interquartile_mean", lambda tasks: np.zeros(len(tasks[0])))
    ranking.stratified_interval([np.zeros(trials - 10), np.zeros(10)])
    assert seen == [resamples]


def test_a_tie_counts_half_and_a_sure_win_once():
    a, b, c = np.array([1.0, 2.0]), np.array([0.0, 0.0]), np.array([1.0, 2.0])
    assert ranking.probability_of_improvement([a], [b]) == 1
    assert ranking.probability_of_improvement([b], [a]) == 0
    assert ranking.probability_of_improvement([a], [c]) == 0.5
    assert ranking.probability_of_improvement([a, b], [b, a]) == 0.5


def test_of_few_or_missing_scores_there_are_no_ranks():
    scores = RANDOM.random((2, 3))
    for few in (scores[:1], scores[:, :2], scores[None], scores[0]):
        with pytest.raises(InputError, match="at least 2 measures of at least 3 checkpoints"):
            ranking.friedman(few)
    with pytest.raises(InputError, match="found one missing"):
        ranking.friedman(np.array([[1.0, 2.0, np.nan], [1.0, 2.0, 3.0]]))
    assert ranking.friedman(np.array([[1.0, 2.0, 2.0], [1.0, 3.0, 4.0]])).ranks == [3.0, 1.75, 1.25]
    assert ranking.friedman(np.array([[1.0, 1.0, 1.0], [1.0, 3.0, 4.0]])).p < 1
