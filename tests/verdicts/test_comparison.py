"""Trials and test items together, and items alone: variances, intervals that agree with p, and what changes neither."""

import numpy as np
import pytest
from scipy import stats

from momentum_transfer.verdicts.comparison import ItemEvidence, compare, mcnemar, paired_interval
from momentum_transfer.verdicts.outcomes import item_weights

SEVERAL = {0: 61.0, 1: 55.0, 2: 58.0, 3: 64.0, 4: 52.0}


def evidence(se: float, items: int = 540) -> ItemEvidence:
    """Replicates whose difference has the standard error ``se``."""
    noise = np.random.default_rng(0).normal(size=1000)
    noise = se * (noise - noise.mean()) / noise.std(ddof=1)
    return ItemEvidence(items, noise + 58.0, np.full(1000, 60.0), np.full(20, 58.0), np.full(20, 60.0))


@pytest.mark.parametrize("se", [2.0, 3.0])
def test_variance_is_that_of_the_several_and_of_the_items(se):
    found = compare(SEVERAL, {0: 60.0}, evidence=evidence(se))
    parts = np.var(list(SEVERAL.values()), ddof=1) / 5, se**2 * 540 / 539
    df = sum(parts) ** 2 / (parts[0] ** 2 / 4 + parts[1] ** 2 / 539)
    assert found.se == pytest.approx(np.sqrt(sum(parts)))
    assert found.p == pytest.approx(2 * stats.t.sf(2.0 / np.sqrt(sum(parts)), df))
    assert (found.high - found.low) / 2 == pytest.approx(stats.t.ppf(0.975, df) * np.sqrt(sum(parts)))
    assert (found.value, found.n, found.items, found.needed) == (-2.0, (5, 1), 540, None)


def test_items_without_spread_leave_scipys_t_of_one_sample():
    found = compare(SEVERAL, {0: 60.0}, evidence=evidence(0.0))
    assert found.p == pytest.approx(stats.ttest_1samp(list(SEVERAL.values()), 60.0).pvalue)
    turned = compare({0: 60.0}, SEVERAL, evidence=evidence(0.0))
    assert (turned.value, turned.p, turned.low, turned.high) == (2.0, found.p, -found.high, -found.low)


def test_no_more_false_alarms_than_promised():
    scores = np.random.default_rng(1).normal(60.0, 4.0, size=(1000, 5))
    still = evidence(0.1)
    alarms = [compare(dict(enumerate(each)), {0: 60.0}, evidence=still).p < 0.05 for each in scores]
    assert np.mean(alarms) == pytest.approx(0.05, abs=0.02)


def test_a_small_spread_of_two_trials_alarms_no_more_than_the_trials_alone():
    """Two trials 1.0 apart beside items with an error of 0.1: by Satterthwaite alone p is .042, by the trials .11."""
    found = compare({0: 62.5, 1: 63.5}, {0: 60.0}, evidence=evidence(0.1))
    by_trials = stats.ttest_1samp([62.5, 63.5], 60.0)
    assert found.p == pytest.approx(by_trials.pvalue)
    assert (found.low, found.high) == pytest.approx(by_trials.confidence_interval() - np.array(60.0))
    assert (found.se, found.df) == pytest.approx((0.5, 1))  # what detectable is worked out from


def of_items(differences) -> ItemEvidence:
    """As ``differences`` makes it of outcomes per item, here of one side alone."""
    count = len(differences)
    weights = item_weights(count, 1000, blocks=100)
    means = weights @ differences / weights.sum(axis=1)
    zero = np.zeros(len(means))
    return ItemEvidence(count, means[:1000], zero[:1000], means[1000:], zero[1000:])


@pytest.mark.parametrize("trials", [{0: 0.0}, {0: -3.0, 1: 3.0, 2: 0.0}])
def test_p_is_below_5_percent_exactly_where_the_interval_excludes_0(trials):
    """Skewed outcomes, moved until 0 stands just inside and just outside of either end of the interval."""
    differences = np.random.default_rng(2).exponential(20, size=40) ** 1.5
    for sign in (1, -1):
        there = of_items(sign * differences)

        def at(shift, there=there):
            return compare({trial: value + shift for trial, value in trials.items()}, dict.fromkeys(trials, 0.0),
                           shared=False, evidence=there)  # fmt: skip

        low, high = at(0.0).low, at(0.0).high
        inside = [at(-low - 1e-6), at(-high + 1e-6)]
        outside = [at(-low + 1e-6), at(-high - 1e-6)]
        assert all(found.low < 0 < found.high and 0.05 < found.p < 0.0501 for found in inside)
        assert all(found.low * found.high > 0 and 0.0499 < found.p < 0.05 for found in outside)
        if len(trials) == 1:  # the longer side is where the items' tail is, by 2·a·t² standard errors
            skew, t = stats.skew(differences) / (6 * 40**0.5), stats.t.ppf(0.975, 39)
            longer, shorter = (high, -low) if sign > 0 else (-low, high)
            assert longer / shorter == pytest.approx(1 + 2 * skew * t, rel=0.02)
            assert shorter == pytest.approx(t * differences.std(ddof=1) / 40**0.5, rel=0.05)


def score_test_refuses(b: int, c: int, n: int, difference: float) -> bool:
    """The score test of a paired difference with its continuity correction; the likelihood maximised by brute force."""
    q = np.linspace(max(0, -difference), (1 - difference) / 2, 200_001)[1:-1]  # chance that only the second is right
    likelihood = b * np.log(q + difference) + c * np.log(q) + (n - b - c) * np.log(1 - 2 * q - difference)
    best = q[likelihood.argmax()]
    variance = n * (2 * best + difference - difference**2)
    return abs(b - c - n * difference) - 0.9 > stats.norm.ppf(0.975) * variance**0.5


@pytest.mark.parametrize(("b", "c", "n"), [(9, 2, 60), (0, 0, 30), (12, 0, 200), (25, 10, 540), (1, 4, 30)])
def test_interval_of_hits_is_the_inverted_score_test_to_0_where_mcnemar_is_not_significant(b, c, n):
    first, second = np.zeros((2, n), bool)
    first[:b] = second[b : b + c] = True
    low, high = paired_interval(first, second)
    if mcnemar(first, second)[2] >= 0.05:
        assert low <= 0 <= high
    for end, out in ((low, -1e-3), (high, 1e-3)):
        assert end == 0.0 or not score_test_refuses(b, c, n, end - out)
        assert score_test_refuses(b, c, n, end + out)


def test_interval_of_hits_excludes_0_exactly_where_mcnemars_p_is_below_5_percent():
    for discordant in (*range(50), 331):
        for b in range(discordant // 2 + 1):
            first, second = np.zeros((2, discordant + 13), bool)
            first[:b] = second[b:discordant] = True
            low, high = paired_interval(first, second)
            assert (low > 0 or high < 0) == (mcnemar(first, second)[2] < 0.05), (b, discordant)
    everything = np.ones(30, bool)
    assert paired_interval(everything, ~everything)[1] == 1.0


def test_one_item_is_no_evidence():
    one = ItemEvidence(1, np.full(9, 100.0), np.zeros(9), np.full(1, np.nan), np.full(1, np.nan))
    assert compare({0: 100.0}, {0: 0.0}, evidence=one).p is None
    both = compare(SEVERAL, {0: 0.0, 1: 9.0}, evidence=one)
    assert (both.items, both.p is None) == (0, False)


@pytest.mark.parametrize(("holding", "counts"), [(1, False), (3, False), (5, False), (20, True)])
def test_items_count_only_where_every_resample_has_a_score(holding, counts):
    """Scores of the first ``holding`` of 40 items alone; a resample misses all of them by (1 - holding/40)^40."""
    drawn = np.stack([np.random.default_rng(n).multinomial(40, [1 / 40] * 40)[:holding] for n in range(1000)])
    outcomes = np.random.default_rng(0).normal(size=holding)
    with np.errstate(invalid="ignore"):
        means = drawn @ outcomes / drawn.sum(axis=1)
    assert np.isnan(means).mean() == pytest.approx((1 - holding / 40) ** 40, abs=0.03)
    there = ItemEvidence(40, means, np.zeros(1000), np.zeros(40), np.zeros(40))
    alone = compare({0: outcomes.mean()}, {0: 0.0}, evidence=there)
    assert (alone.items, alone.p is not None) == (40 * counts, counts)
    trials = {0: 62.0, 1: 64.0, 2: 63.5}
    paired = compare(trials, dict.fromkeys(trials, 60.0), evidence=there)
    assert counts or paired.p == pytest.approx(stats.ttest_1samp([2.0, 4.0, 3.5], 0.0).pvalue)


def test_one_trial_without_outcomes_gives_no_verdict():
    found = compare(SEVERAL, {0: 60.0})
    assert (found.p, found.low, found.se, found.items) == (None, None, None, 0)


def test_hits_that_never_differ_still_say_how_large_a_difference_would_have_been_seen():
    hits = np.arange(30) < 20
    same = ItemEvidence(30, np.full(9, 66.7), np.full(9, 66.7), np.full(9, 66.7), np.full(9, 66.7), hits=(hits, hits))
    found = compare({0: 66.7}, {0: 66.7}, evidence=same)
    assert (found.p, found.low < 0 < found.high) == (1.0, True)
    assert stats.binom.sf(5, 30, found.detectable / 100) == pytest.approx(0.8)


def test_trials_or_outcomes_without_any_spread_do_not_promise_to_see_every_difference():
    assert compare({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}).detectable is None
    assert compare({0: 0.0}, {0: 0.0}, evidence=evidence(0.0)).detectable is None


@pytest.mark.parametrize("power", [-480, -40, 40])
def test_a_verdict_is_the_same_in_any_unit(power):
    """Powers of two round nothing; the squares of variances of 2^-960 would vanish."""
    unit = 2.0**power
    there = evidence(2.0)
    small = ItemEvidence(there.items, *(unit * part for part in (there.first, there.second, there.first_left_out,
                                                                 there.second_left_out)))  # fmt: skip
    found = compare({trial: unit * value for trial, value in SEVERAL.items()}, {0: unit * 60.0}, evidence=small)
    expected = compare(SEVERAL, {0: 60.0}, evidence=there)
    assert (found.p, found.df) == pytest.approx((expected.p, expected.df))
    assert (found.low, found.high, found.se) == pytest.approx(
        (unit * expected.low, unit * expected.high, unit * expected.se), abs=0
    )
