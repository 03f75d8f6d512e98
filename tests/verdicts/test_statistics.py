"""Trials, families, power, correlations and the bootstrap against scipy, statsmodels' formulas and brute force."""

import itertools

import numpy as np
import pytest
from scipy import stats

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts import comparison, corrections, outcomes, power, ranking

RANDOM = np.random.default_rng(0)


def compare(a, b, shared=False):
    return comparison.compare(dict(enumerate(a)), dict(enumerate(b)), shared)


def test_paired_and_welch_are_scipys():
    for n, m in ((2, 2), (3, 5), (10, 4)):
        a, b = RANDOM.normal(60, 2, n), RANDOM.normal(59, 4, m)
        other = a + RANDOM.normal(0.3, 1, n)
        found = compare(a, other, shared=True)
        for ours, expected in (
            (compare(a, b), stats.ttest_ind(a, b, equal_var=False)),
            (found, stats.ttest_rel(a, other)),
        ):
            interval = expected.confidence_interval(0.95)
            assert (ours.p, ours.low, ours.high) == pytest.approx((expected.pvalue, *interval), rel=1e-9)
        exact = stats.permutation_test((a, other), lambda x, y: np.mean(x - y), permutation_type="samples")
        assert found.exact_p == pytest.approx(exact.pvalue)


def test_equal_trials_have_no_spread_and_a_sure_difference():
    assert compare([3.0, 4.0], [1.0, 2.0], shared=True).p == 0
    assert compare([3.0, 4.0], [3.0, 4.0], shared=True).p == 1
    assert compare([1e-200, 1e-200], [1e-200, 1e-200]).p == 1


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match="finite scores, found nan"):
        compare([1.0, float("nan")], [1.0, 2.0])


def test_words_are_by_the_sign_and_by_p_after_holm():
    sides = {"up": ([9, 8, 7.1], [1, 0, 0]), "down": ([1, 0, 0], [9, 8, 7.1]), "near": ([1, 2, 3], [1.5, 1, 3.2])}
    found = {name: compare(*each, shared=True) for name, each in sides.items()}
    words = corrections.verdicts({**found, "one": compare([1.0], [2.0]), "other": None})
    assert {name: word for name, (word, _) in words.items()} == {
        "up": "better", "down": "worse", "near": "not significant", "one": "one trial: no verdict",
        "other": "other settings: not compared",
    }  # fmt: skip
    assert [words[name][1] for name in sides] == corrections.holm([each.p for each in found.values()])
    assert words["one"][1] is words["other"][1] is None


def test_mcnemar_is_the_exact_binomial_test():
    a, b = RANDOM.random(300) < 0.8, RANDOM.random(300) < 0.7
    only_a, only_b, p = comparison.mcnemar(a, b)
    assert (only_a, only_b) == (np.sum(a & ~b), np.sum(~a & b))
    tail = stats.binom.cdf(min(only_a, only_b), only_a + only_b, 0.5)
    assert p == pytest.approx(min(1, 2 * tail))
    assert comparison.mcnemar(a, a) == (0, 0, 1.0)
    with pytest.raises(InputError, match="same images"):
        comparison.mcnemar(a, b[:-1])


def test_holm_keeps_the_order_given_and_rejects_what_steps_down():
    p = [0.04, 0.001, 0.03, 0.5]
    assert corrections.holm(p) == pytest.approx([0.09, 0.004, 0.09, 0.5])
    assert corrections.holm([]) == []
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        corrections.holm([1.5])


def test_friedman_is_scipys_and_nemenyi_is_demsars_table():
    scores = RANDOM.normal(size=(9, 4)) + np.arange(4)
    found = ranking.friedman(scores)
    assert found.p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)
    assert found.ranks == pytest.approx(stats.rankdata(-scores, axis=1).mean(axis=0))
    # Demšar 2006, table 5a: q.05 of 2 … 10 classifiers
    for k, q in ((3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)):
        other = ranking.friedman(RANDOM.normal(size=(12, k)))
        assert other.critical_difference == pytest.approx(q * (k * (k + 1) / 72) ** 0.5, abs=2e-3)
    assert ranking.friedman(np.ones((3, 3))).p == 1.0
    with pytest.raises(InputError, match="at least 3 checkpoints"):
        ranking.friedman(scores[:, :2])


def test_probability_of_improvement_is_mann_whitneys():
    tasks = [(RANDOM.normal(0.5, 1, 6), RANDOM.normal(0, 1, 5)) for _ in range(4)]
    expected = np.mean([stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)) for a, b in tasks])
    first, second = zip(*tasks, strict=True)
    assert ranking.probability_of_improvement(first, second) == pytest.approx(expected)
    low, high = ranking.stratified_interval(first, second, resamples=300)
    assert low <= expected <= high
    pool = np.sort(np.concatenate([a[:4] for a in first]))
    assert ranking.interquartile_mean([a[:4] for a in first]) == pytest.approx(pool[4:12].mean())


def test_power_is_what_simulated_trials_find():
    for n, paired in ((3, True), (5, False), (10, True)):
        difference = 1.3
        a = RANDOM.normal(difference, 1, (40_000, n))
        if paired:
            found = stats.ttest_1samp(a, 0, axis=1).pvalue < 0.05
            se, df = n**-0.5, n - 1
        else:
            found = stats.ttest_ind(a, RANDOM.normal(0, 1, a.shape), axis=1).pvalue < 0.05
            se, df = (2 / n) ** 0.5, 2 * n - 2
        assert power.power_of(difference, se, df) == pytest.approx(found.mean(), abs=0.01)
        smallest = power.detectable(se, df)
        assert power.power_of(smallest, se, df) == pytest.approx(0.8, abs=1e-6)


def mcnemars_power(items: int, only_first: float, only_second: float) -> float:
    """Chance of p < .05, summed over every table of hits."""
    total = 0.0
    for b, c in itertools.product(range(items + 1), repeat=2):
        if b + c <= items and stats.binomtest(min(b, c), max(b + c, 1)).pvalue < 0.05 and b + c:
            total += stats.multinomial.pmf(
                [b, c, items - b - c], items, [only_first, only_second, 1 - only_first - only_second]
            )
    return total


@pytest.mark.parametrize(("items", "discordant"), [(30, 0), (30, 3), (30, 15), (40, 38), (12, 5)])
def test_difference_that_mcnemars_test_detects_is_found_in_80_percent_of_all_tables(items, discordant):
    difference = power.detectable_by_mcnemar(items, discordant) / 100
    fraction = max(difference, discordant / items)
    sides = (fraction + difference) / 2, max(fraction - difference, 0.0) / 2
    assert mcnemars_power(items, *sides) == pytest.approx(0.8, abs=1e-6)


def test_without_a_discordant_item_six_or_more_are_needed_on_one_side():
    difference = power.detectable_by_mcnemar(60, 0) / 100
    assert stats.binom.sf(5, 60, difference) == pytest.approx(0.8)
    assert power.detectable_by_mcnemar(5, 0) is power.detectable_by_mcnemar(0, 0) is None
    assert power.detectable_by_mcnemar(6, 0) == pytest.approx(100 * 0.8 ** (1 / 6))
    with pytest.raises(InputError, match="expected 0 to 5 items on which exactly one is right, found 6"):
        power.detectable_by_mcnemar(5, 6)


def test_trials_needed_is_the_first_number_that_suffices():
    for paired, sides in ((True, 1), (False, 2)):
        n = power.trials_needed(0.3, 0.2, paired)
        enough = [power.power_of(0.3, (sides * 0.04 / k) ** 0.5, sides * (k - 1)) >= 0.8 for k in (n - 1, n)]
        assert enough == [False, True]
    assert power.trials_needed(0.3, 0.2, paired=True, floor=0.2) is None  # the items alone hide it
    for floor in (0.05, 0.1):  # noise of items never makes fewer trials enough
        assert power.trials_needed(0.6, 0.2, paired=True, floor=floor) == power.trials_needed(0.6, 0.2, paired=True)
    with pytest.raises(InputError, match="difference other than 0"):
        power.trials_needed(0.0, 0.2, paired=True)


def test_rank_correlations_are_scipys_with_ties():
    a, b = RANDOM.integers(0, 5, 9).astype(float), RANDOM.integers(0, 5, 9).astype(float)
    found = ranking.agreement(a, b, resamples=200)
    assert found.tau == pytest.approx(stats.kendalltau(a, b).statistic)
    assert found.rho == pytest.approx(stats.spearmanr(a, b).statistic)
    assert found.tau_interval[0] <= found.tau <= found.tau_interval[1]
    with pytest.raises(InputError, match="5 or more checkpoints"):
        ranking.agreement(a[:4], b[:4])


def test_weights_are_samples_with_replacement():
    weights = outcomes.item_weights(50, 400, seed=3)
    assert (weights.sum(axis=1) == 50).all()
    np.testing.assert_array_equal(weights[:7], outcomes.item_weights(50, 7, seed=3))
    assert weights.var() == pytest.approx(1 - 1 / 50, abs=0.03)
    left_out = outcomes.item_weights(50, 0, blocks=10)
    assert (left_out.sum(axis=1) == 45).all()
    assert (left_out.sum(axis=0) == 9).all()


def test_acceleration_of_a_mean_is_a_sixth_of_its_skewness():
    values = RANDOM.exponential(size=60)
    jackknife = outcomes.item_weights(60, 0, blocks=60) @ values / 59
    assert comparison.acceleration(jackknife) == pytest.approx(stats.skew(values) / (6 * 60**0.5))
    assert comparison.acceleration(np.append(-jackknife, np.nan)) == -comparison.acceleration(jackknife)
    assert comparison.acceleration(np.full(3, 2.0)) == comparison.acceleration(np.full(3, np.nan)) == 0.0


def test_means_under_weights_are_means_of_repeated_items():
    values = RANDOM.random(30)
    weights = outcomes.item_weights(30, 5)
    expected = [np.mean(list(itertools.chain(*([v] * w for v, w in zip(values, row, strict=True))))) for row in weights]
    assert outcomes.weighted_means(values, weights) == pytest.approx(expected)
    assert outcomes.weighted_means(values, np.ones((1, 30), np.int32))[0] == values.mean()


def test_renderings_of_an_item_are_their_mean():
    hits_of_four = np.array([1, 0, 1, 0, 1, 1, 1, 0], dtype=bool)  # all four once, then once more
    assert outcomes.per_item(hits_of_four, 2).tolist() == [1.0, 0.5, 1.0, 0.0]
    assert outcomes.per_item(hits_of_four, 1) is hits_of_four


@pytest.mark.parametrize("df", [1, 2, 9, 50, 1000])
@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0, -3.0, 6.0])
def test_power_is_that_of_the_noncentral_t(shift: float, df: float):
    critical = stats.t.ppf(0.975, df)
    expected = stats.nct.sf(critical, df, abs(shift)) + stats.nct.cdf(-critical, df, abs(shift))
    assert power.power_of(3 * shift, 3.0, df) == pytest.approx(expected, abs=2e-4)


def test_power_without_spread_and_of_infinitely_many_degrees_of_freedom():
    assert (power.power_of(0.0, 0.0, 3), power.power_of(0.1, 0.0, 3), power.power_of(1.0, 1e-6, 3)) == (0.05, 1.0, 1.0)
    normal = stats.norm.sf(1.959964 - 2) + stats.norm.cdf(-1.959964 - 2)
    for df in (1e5 - 1, 1e5, float("inf")):
        assert power.power_of(2.0, 1.0, df) == pytest.approx(normal, abs=1e-4)
    assert power.detectable(0.0, 3) == 0
    assert power.detectable(2.0, float("inf")) == pytest.approx(2 * (1.959964 + 0.841621), abs=1e-4)
    assert power.detectable(1.0, 1) == pytest.approx(power.detectable(3.0, 1) / 3)
    for se, df in ((-1.0, 3), (float("nan"), 3), (float("inf"), 3), (1.0, 0), (1.0, float("nan"))):
        with pytest.raises(InputError, match="expected a standard error of at least 0 and degrees of freedom above 0"):
            power.detectable(se, df)


def test_weights_are_the_draws_and_the_blocks_bit_for_bit():
    """Of two bytes each, in one array; as ``bincount`` of the same draws and one block left out at a time."""
    groups = np.random.default_rng(1).permutation(np.arange(90) % 7)
    for given, count in ((None, 90), (groups, 7)):
        random = np.random.default_rng(5)
        drawn = np.stack([np.bincount(random.integers(0, count, count), minlength=count) for _ in range(20)])
        block = np.random.default_rng(0).permutation(count) % min(10, count)
        left_out = [(block != number).astype(int) for number in range(min(10, count))]
        expected = np.concatenate([drawn, left_out])
        found = outcomes.item_weights(90, 20, 5, given, blocks=10)
        np.testing.assert_array_equal(found, expected if given is None else expected[:, groups])
        assert found.dtype == np.int16
    hits = np.random.default_rng(2).random(40_000) < 0.9  # their sum is beyond 16 bits
    weights = outcomes.item_weights(len(hits), 3)
    expected = [np.repeat(hits, row).mean() for row in weights]
    np.testing.assert_array_equal(outcomes.weighted_means(hits, weights), expected)
