"""Groups of items, equality within a margin, and many comparisons at once, against naive loops and scipy."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts import outcomes
from momentum_transfer.verdicts.comparison import Comparison, ItemEvidence, compare
from momentum_transfer.verdicts.corrections import (
    BETTER,
    NOT_SIGNIFICANT,
    WORSE,
    equal_within,
    holm,
    max_t,
    verdicts,
    word,
)

GROUPS = np.repeat(np.arange(12), [1, 5, 3, 4, 2, 6, 5, 1, 3, 4, 2, 6])


def of_items(differences, trials=(0.0,), groups=None, hits=None) -> Comparison:
    """The comparison of outcomes whose differences item by item are given, in points; ``trials`` add to their mean."""
    count, differences = len(differences), np.asarray(differences, dtype=float)
    weights = outcomes.item_weights(count, 2000, groups=groups, blocks=100)
    means, zero = weights @ differences / weights.sum(axis=1), np.zeros(len(weights))
    evidence = ItemEvidence(
        count, means[:2000], zero[:2000], means[2000:], zero[2000:], hits,
        None if groups is None else int(groups.max()) + 1,
    )  # fmt: skip
    scores = {trial: differences.mean() + each for trial, each in enumerate(trials)}
    return compare(scores, dict.fromkeys(scores, 0.0), shared=False, evidence=evidence)


def test_whole_groups_are_drawn_and_a_mean_is_that_of_the_items_drawn():
    values = np.random.default_rng(0).random(len(GROUPS))
    drawn = outcomes.item_weights(12, 30, seed=3)
    naive = [np.mean(np.concatenate([values[g == GROUPS] for g in range(12) for _ in range(row[g])])) for row in drawn]
    weights = outcomes.item_weights(len(GROUPS), 30, seed=3, groups=GROUPS)
    assert outcomes.weighted_means(values, weights) == pytest.approx(naive)
    left_out = outcomes.item_weights(len(GROUPS), 0, groups=GROUPS, blocks=100)
    assert sorted(map(tuple, left_out)) == sorted(tuple((g != GROUPS).astype(int)) for g in range(12))


def test_groups_of_one_size_are_a_t_test_of_their_means():
    random = np.random.default_rng(1)
    groups = np.repeat(np.arange(20), 5)
    differences = 2 + random.normal(size=100) + np.repeat(random.normal(0, 4, 20), 5)
    found, means = of_items(differences, groups=groups), differences.reshape(20, 5).mean(axis=1)
    assert found.se == pytest.approx(stats.sem(means), rel=0.05)
    assert (found.df, found.clusters, found.items) == (19, 20, 100)
    assert found.high - found.low > 1.7 * np.diff(stats.t.interval(0.95, 99, scale=stats.sem(differences)))[0]
    several = of_items(differences, trials=(-0.1, 0.1), groups=groups)
    parts = several.floor**2, 0.1**2
    assert several.designs[1][1] == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 19 + parts[1] ** 2))


def test_groups_are_numbered_and_two_are_too_few():
    assert outcomes.group_numbers(["b", "a", "b", "c"]).tolist() == [1, 0, 1, 2]
    with pytest.raises(InputError, match="expected 3 groups or more, found 2"):
        outcomes.group_numbers(["b", "a", "b"])


@pytest.mark.parametrize("margin", [0.5, 1.5, 4.0])
def test_equality_by_trials_is_two_one_sided_t_tests(margin):
    a = np.array([60.0, 61.5, 59.0, 62.0, 60.5])
    b = a - np.array([0.2, 1.1, -0.4, 0.9, 0.0])
    found = compare(dict(enumerate(a)), dict(enumerate(b)))
    sides = [stats.ttest_1samp(a - b, -margin, alternative="greater"),
             stats.ttest_1samp(a - b, margin, alternative="less")]  # fmt: skip
    assert equal_within(found, margin) == pytest.approx(max(side.pvalue for side in sides))


@pytest.mark.parametrize("trials", [(0.0,), (-3.0, 3.0, 0.0)])
def test_equality_is_at_5_percent_where_the_90_percent_interval_ends(trials):
    differences = np.random.default_rng(2).exponential(20, size=40) ** 1.5
    for sign in (1, -1):
        found = of_items(sign * differences, trials)
        ends = []
        for se, df, lean in found.designs:
            t = stats.t.ppf(0.95, df)
            up, down = (t + 2 * abs(lean) * t**2 * (side * lean > 0) for side in (1, -1))
            ends.append((found.value - down * se, found.value + up * se))
        far = max(-min(low for low, _ in ends), max(high for _, high in ends))
        assert equal_within(found, far) == pytest.approx(0.05)
        assert equal_within(found, 1.01 * far) < 0.05 < equal_within(found, 0.99 * far)


@pytest.mark.parametrize(("b", "c", "n"), [(9, 2, 60), (0, 0, 30), (3, 8, 200), (25, 10, 540)])
def test_equality_of_hits_is_the_score_test_against_the_margin(b, c, n):
    first, second = np.zeros((2, n), bool)
    first[:b] = second[b : b + c] = True
    found = of_items(100.0 * first - 100.0 * second, hits=(first, second))
    for margin in (0.08, 0.2, 0.5):
        p = []
        for more, fewer in ((b, c), (c, b)):  # the likelihood under "more - fewer is margin", maximised by brute force
            q = np.linspace(0, (1 - margin) / 2, 200_001)[1:-1]
            best = q[
                (more * np.log(q + margin) + fewer * np.log(q) + (n - b - c) * np.log(1 - 2 * q - margin)).argmax()
            ]
            error = (n * (2 * best + margin - margin**2)) ** 0.5
            p.append(stats.norm.sf((n * margin - (more - fewer) - 0.9) / error))
        assert equal_within(found, 100 * margin) == pytest.approx(max(p), rel=2e-3)


def test_where_nothing_can_be_said_nothing_is_equal_and_a_margin_is_above_0():
    assert equal_within(compare({0: 1.0}, {0: 1.0}), 50.0) == 1.0
    for margin in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="expected a margin above 0 points"):
            equal_within(compare({0: 1.0}, {0: 1.0}), margin)


def family(rho: float, count: int = 9, items: int = 150, shift: float = 0.2, seed: int = 0) -> list[Comparison]:
    random = np.random.default_rng(seed)
    noise = rho**0.5 * random.normal(size=(items, 1)) + (1 - rho) ** 0.5 * random.normal(size=(items, count))
    return [of_items(column + shift) for column in noise.T]


def test_max_t_is_the_naive_step_down():
    found = family(0.6, shift=0.17)
    p = [one.p for one in found]
    z = [abs(one.replicates - one.replicates.mean()) / one.replicates.std() for one in found]
    expected, so_far = {}, 0.0
    for place in sorted(range(len(p)), key=lambda k: p[k]):
        rest = [k for k in range(len(p)) if p[k] >= p[place]]
        seen = stats.norm.isf(p[place] / 2)
        hits = sum(max(z[k][b] for k in rest) >= seen for b in range(2000))
        so_far = max(so_far, (1 + hits) / 2001)
        expected[place] = max(p[place], min(so_far, holm(p)[place]))
    assert max_t(found) == pytest.approx([expected[k] for k in range(len(p))])
    assert max_t(found[::-1]) == pytest.approx(max_t(found)[::-1])


def test_measures_that_always_agree_cost_nothing_and_independent_ones_what_holm_asks():
    one = of_items(0.2 + stats.zscore(np.random.default_rng(5).normal(size=150)))
    assert max_t([one] * 9)[0] == pytest.approx(one.p, abs=0.01)
    assert holm([one.p] * 9)[0] == pytest.approx(9 * one.p)
    apart = family(0.0, shift=0.05)
    p = np.array([each.p for each in apart])
    assert min(max_t(apart)) == pytest.approx(1 - (1 - p.min()) ** 9, rel=0.2)
    for each in (family(rho, seed=seed) for rho in (0.0, 0.9) for seed in range(3)):
        own = [one.p for one in each]
        assert all(a <= b <= c for a, b, c in zip(own, max_t(each), holm(own), strict=True))


def test_several_trials_are_taken_as_independent():
    one = of_items(1.6 + stats.zscore(np.random.default_rng(5).normal(size=150)), trials=(-0.9, 0.9, 0.3, -0.3))
    assert 0.01 < one.p < 0.05
    assert max_t([one] * 9)[0] == pytest.approx(1 - (1 - one.p) ** 9, abs=0.03)


def test_comparisons_without_outcomes_per_item_are_corrected_by_holm():
    found = {
        name: compare({0: 1.0 + shift, 1: 2.0, 2: 3.0}, {0: 0.1, 1: 1.0, 2: 2.2})
        for shift, name in ((0, "a"), (1, "b"))
    }
    found["c"] = of_items(np.random.default_rng(0).normal(size=50))
    ordered = holm([one.p for one in found.values()])
    assert [p for _, p in verdicts(found).values()] == ordered
    items = {"c": found["c"], "d": found["c"]}
    assert [p for _, p in verdicts(items).values()] == max_t(list(items.values()))


def test_within_a_margin_is_equal_though_a_difference_is_seen():
    random = np.random.default_rng(3)
    small = of_items(0.3 + random.normal(0, 0.5, 400))
    wide = of_items(random.normal(0, 9, 40))
    assert small.p < 0.001
    words = verdicts({"small": small, "wide": wide, "one": None}, {"small": 0.5, "wide": 0.5, "one": 0.5})
    assert words["small"][0] == "equal within 0.5"
    assert (words["wide"][0], verdicts({"small": small})["small"][0]) == (NOT_SIGNIFICANT, BETTER)
    assert verdicts({"small": of_items(-0.3 + random.normal(0, 0.5, 400))})["small"][0] == WORSE
    p = [equal_within(one, margin) for one, margin in ((small, 0.36), (small, 0.5))]
    assert p[0] <= 0.05 < 2 * p[0]  # one alone would be equal, of two not
    assert verdicts({"a": small}, {"a": 0.36})["a"][0] == "equal within 0.36"
    both = verdicts({"a": small, "b": wide}, {"a": 0.36, "b": 0.5})
    assert both["a"][0] == BETTER


def test_not_significant_says_what_would_have_been_seen():
    wide = of_items(np.random.default_rng(0).normal(0, 9, 40))
    assert word(NOT_SIGNIFICANT, wide) == f"not significant ({wide.detectable:.1f} would have been seen)"
    assert word(BETTER, wide) == BETTER
    assert (
        word(NOT_SIGNIFICANT, None)
        == word(NOT_SIGNIFICANT, compare({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}))
        == NOT_SIGNIFICANT
    )


def test_few_groups_are_corrected_by_holm():
    """At 3 groups there are ten distinct resamples, and max-t would give 10 % false alarms of nine measures."""
    random = np.random.default_rng(2)
    found = {name: replace(of_items(random.normal(0.3, 1, 60)), clusters=9) for name in "abc"}
    assert [p for _, p in verdicts(found).values()] == holm([one.p for one in found.values()])
    many = {name: replace(one, clusters=10) for name, one in found.items()}
    assert [p for _, p in verdicts(many).values()] == max_t(list(many.values()))
