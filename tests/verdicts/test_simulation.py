"""False alarms, coverage and power by simulation: the rule by t intervals, and those that it replaced.

``pytest -m slow -s tests/verdicts/test_simulation.py`` prints the tables of docs/verdicts.md.
"""

import functools

import numpy as np
import pytest
from scipy import special, stats

from momentum_transfer.verdicts.comparison import ItemEvidence, compare, mcnemar, paired_interval
from momentum_transfer.verdicts.outcomes import item_weights

RUNS = 20_000


def noise(random, kind: str, shape):
    """Noise of mean 0 and standard deviation 1."""
    return random.normal(size=shape) if kind == "normal" else (random.gamma(16, size=shape) - 16) / 4


def scores(random, n: int, shared: bool, kind: str, difference: float):
    """[RUNS, n] of both sides; shared trials have a skewed effect in common, as easy and hard images have."""
    effect = 3 * (random.gamma(2, size=(RUNS, n)) - 2) if shared else 0.0
    first, second = (noise(random, kind, (RUNS, n)) for _ in range(2))
    return first + effect + difference, second + effect


def simulate(n: int, shared: bool, kind: str, seed: int = 0) -> dict[str, float]:
    """Percent of runs: false alarms, coverage of a true difference of 1 σ, and how often that is found."""
    random = np.random.default_rng(seed)
    found = {}
    for difference in (0.0, 1.0):
        pairs = zip(*scores(random, n, shared, kind, difference), strict=True)
        made = [compare(dict(enumerate(a)), dict(enumerate(b)), shared) for a, b in pairs]
        found["false alarms" if difference == 0 else "found"] = 100 * np.mean([each.p <= 0.05 for each in made])
        found["coverage"] = 100 * np.mean([each.low <= difference <= each.high for each in made])
    return found


def old_rule(n: int, shared: bool, difference: float, seed: int = 0) -> float:
    """Percent of runs in which the difference is above twice the larger spread over trials."""
    a, b = scores(np.random.default_rng(seed), n, shared, "normal", difference)
    spread = np.maximum(a.std(axis=1, ddof=1), b.std(axis=1, ddof=1))
    return 100 * float(np.mean(np.abs(a.mean(axis=1) - b.mean(axis=1)) > 2 * spread))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "skewed"])
@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_shared_trials_cry_wolf_in_5_percent_and_cover_in_95(n, kind):
    found = simulate(n, True, kind)
    print(n, "paired", kind, found)
    assert found["false alarms"] == pytest.approx(5.0, abs=0.5)
    assert found["coverage"] == pytest.approx(95.0, abs=1.0)


#: What Welch gives at the 5 % level with few trials of equal variance: it is safe rather than exact.
WELCH = {2: 2.3, 3: 3.5, 5: 4.4, 10: 4.9}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "skewed"])
@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_unshared_trials_never_cry_wolf_more_often_than_5_percent(n, kind):
    found = simulate(n, False, kind)
    print(n, "unpaired", kind, found)
    assert found["false alarms"] == pytest.approx(WELCH[n], abs=0.5)
    assert found["coverage"] >= 94.0


@pytest.mark.slow
def test_the_old_rule_cried_wolf_at_two_trials_and_went_blind_at_ten():
    for n in (2, 3, 5, 10):
        print(n, *(f"{old_rule(n, shared, d):.1f}" for shared in (False, True) for d in (0.0, 1.0)))
    assert old_rule(2, False, 0.0) > 10
    assert old_rule(10, False, 1.0) < 2


# Trials and test items. The score of trial t is effect_t + Σ outcomes / items; effects have ratio times the standard
# deviation of the second term, which is 1. Intervals move with the difference: coverage is 100 % less the false alarms.

TRIALS, ITEMS, RATIOS = (2, 3, 4, 5, 7, 10, 20), (30, 60, 200, 540), (0.0, 0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0)
DESIGNS = ("paired", "welch", "several against one")
RESAMPLES = 1000


@functools.lru_cache
def weights_of(items: int) -> np.ndarray:
    """[RESAMPLES + groups, items] of the bootstrap, then of the jackknife, as the report has them; rows sum to 1."""
    weights = item_weights(items, RESAMPLES, blocks=100).astype(np.float32)
    return weights / weights.sum(axis=1, keepdims=True)


@functools.lru_cache
def items_noise(items: int, runs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[runs] the mean of normal outcomes, its bootstrap standard error, and its skewness / 6 by the jackknife."""
    random, found = np.random.default_rng(items), []
    for start in range(0, runs, 5000):
        outcomes = random.normal(size=(items, min(5000, runs - start))).astype(np.float32) * items**0.5
        replicates = weights_of(items) @ outcomes
        offsets = replicates[RESAMPLES:].mean(axis=0) - replicates[RESAMPLES:]
        skewness = (offsets**3).sum(axis=0) / (6 * (offsets**2).sum(axis=0) ** 1.5)
        found.append([outcomes.mean(axis=0), replicates[:RESAMPLES].std(axis=0, ddof=1), skewness])
    return tuple(np.concatenate(parts).astype(np.float64) for parts in zip(*found, strict=True))


def simulated_trials(design: str, n: int, ratio: float, runs: int):
    """[runs, n] noise of both sides; of the second [runs, 1] zeros where it is one as it stands."""
    random = np.random.default_rng([DESIGNS.index(design), n, int(10 * ratio)])
    first = ratio * random.normal(size=(runs, n))
    second = ratio * random.normal(size=(runs, n)) if design == "welch" else np.zeros((runs, n))
    return first, second[:, :1] if design == "several against one" else second


def by_rule(difference, se, df, items, error, skewness) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(low, high) [runs] by the rule, and by the one before 2026-11-23, written with arrays.

    Args:
        difference, se, df: of the trials alone. error, skewness: of the items, the variance of ``error`` uncorrected.
    """

    def half(variance):
        sizes = np.stack([se**2, np.broadcast_to(variance, se.shape)])
        dfs = sizes.sum(axis=0) ** 2 / (sizes**2 / np.stack([df, np.full_like(df, items - 1)])).sum(axis=0)
        return special.stdtrit(dfs, 0.975), np.sqrt(sizes.sum(axis=0))

    before = np.prod(half(error**2), axis=0)
    t, total = half(error**2 * items / (items - 1))
    lean = 2 * skewness * (error**2 * items / (items - 1) / total**2) ** 1.5 * t**2 * total
    alone = special.stdtrit(df, 0.975) * se
    return {
        "before": (difference - before, difference + before),
        "now": (
            difference - np.maximum(alone, t * total + np.maximum(0, -lean)),
            difference + np.maximum(alone, t * total + np.maximum(0, lean)),
        ),
    }


def cell(design: str, n: int, items: int, ratio: float, runs: int):
    """Percent of false alarms by rule, percent found of a difference of 2.8 standard errors, intervals, what was drawn.

    "at equal alarms" is the rule before with intervals stretched until its false alarms are those of the rule now.
    """
    mean, error, skewness = items_noise(items, runs)
    first, second = simulated_trials(design, n, ratio, runs)
    variances = first.var(axis=1, ddof=1) / n, second.var(axis=1, ddof=1) / n if design == "welch" else 0.0
    se, df = np.sqrt(sum(variances)), np.full(runs, n - 1.0)
    if design == "welch":
        df = (n - 1) * sum(variances) ** 2 / sum(v**2 for v in variances) if ratio else 2 * df
    difference = first.mean(axis=1) - second.mean(axis=1) + mean
    intervals = by_rule(difference, se, df, items, error, skewness)
    true = 2.8 * np.sqrt((2 if design == "welch" else 1) * ratio**2 / n + 1)
    alarms, finds = (
        {rule: 100 * float(np.mean((low + shift > 0) | (high + shift < 0))) for rule, (low, high) in intervals.items()}
        for shift in (0.0, true)
    )
    half = intervals["before"][1] - difference
    stretch = np.quantile(np.abs(difference) / half, 1 - alarms["now"] / 100)
    finds["at equal alarms"] = 100 * float(np.mean(difference + true > stretch * half))
    return alarms, finds, intervals["now"], (first, second, mean)


def check_as_product(design: str, items: int, drawn, interval, runs: int) -> None:
    """The rule as written here is that of ``compare``, run for run: interval, and p below .05 where it excludes 0."""
    first, second, mean = drawn
    random = np.random.default_rng(items)
    outcomes = random.normal(size=(items, min(5000, len(mean)))).astype(np.float32)[:, :runs] * items**0.5
    for run in range(runs):
        replicates = weights_of(items) @ outcomes[:, run]
        there = ItemEvidence(items, replicates[:RESAMPLES], np.zeros(RESAMPLES), replicates[RESAMPLES:],
                             np.zeros(len(replicates) - RESAMPLES))  # fmt: skip
        sides = [dict(enumerate(side[run])) for side in (first + mean[:, None], second)]
        found = compare(*sides, shared=design == "paired", evidence=there)
        assert (found.low, found.high) == pytest.approx((interval[0][run], interval[1][run]), rel=1e-3, abs=1e-3)
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)


def check_cell(alarms, finds, n: int, most: float) -> None:
    assert alarms["now"] <= most
    if n >= 5:  # no more is lost than false alarms above 5 % had given, and that is little
        assert finds["now"] >= finds["at equal alarms"] - 1.0
        assert finds["now"] >= finds["before"] - 2.5


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    ("n", "items", "ratio"), [(2, 540, 5.0), (3, 30, 3.0), (5, 540, 3.0), (5, 30, 0.0), (2, 30, 0.3)]
)
def test_few_trials_and_few_items_cry_wolf_in_at_most_6_percent(design, n, items, ratio):
    """20,000 runs: the standard error of 5 % is 0.15."""
    alarms, finds, interval, drawn = cell(design, n, items, ratio, RUNS)
    if (n, ratio, design) == (2, 5.0, "paired"):
        assert alarms["before"] > 11
    check_cell(alarms, finds, n, most=6.0)
    check_as_product(design, items, drawn, interval, runs=10)


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_no_number_of_trials_or_items_and_no_ratio_cries_wolf_in_more_than_6_percent(design):
    """40,000 runs: the standard error of 5 % is 0.11."""
    print(f"\n{design}: false alarms, % before → now, at the worst ratio (points of power lost, at most)\n")
    print(f"| trials | {' | '.join(f'{items} items' for items in ITEMS)} |\n|---|{'---|' * len(ITEMS)}")
    for n in TRIALS:
        row = []
        for items in ITEMS:
            made = []
            for ratio in RATIOS:
                alarms, finds, interval, drawn = cell(design, n, items, ratio, 40_000)
                check_cell(alarms, finds, n, most=6.0)
                check_as_product(design, items, drawn, interval, runs=2)
                made.append((alarms, finds))
            worst = [max(alarms[rule] for alarms, _ in made) for rule in ("before", "now")]
            loss = max(finds["before"] - finds["now"] for _, finds in made)
            row.append(f"{worst[0]:.1f} → {worst[1]:.1f} (−{max(loss, 0.0):.1f})")
        print(f"| {n} | {' | '.join(row)} |")


# One trial on both sides: items alone.


def outcomes_per_item(kind: str, random, shape):
    """Differences of two networks' outcomes per item, in points."""
    if kind == "normal":
        return random.normal(size=shape)
    if kind == "skewed":  # exponential: a skewness of 2
        return random.exponential(size=shape)
    if kind == "hits of four renderings":
        chance = random.beta(2, 0.5, size=shape)
        return 25.0 * (random.binomial(4, chance) - random.binomial(4, chance * 0.9))
    first = random.beta(0.6, 0.4, size=shape)  # AP per query: near 0 or near 1, and the second is behind
    return 100 * (first - np.clip(first + random.normal(-0.3, 0.25, size=shape), 0, 1))


KINDS = ("normal", "AP per query", "hits of four renderings", "skewed")


def coverage_of_items(kind: str, items: int, runs: int) -> float:
    """Percent of the intervals of one trial against one that hold the mean of all items."""
    random = np.random.default_rng([KINDS.index(kind), items])
    true = outcomes_per_item(kind, random, 2_000_000).mean()
    held = 0
    for _ in range(0, runs, 5000):
        outcomes = outcomes_per_item(kind, random, (items, 5000)).astype(np.float32)
        replicates = weights_of(items) @ outcomes
        offsets = replicates[RESAMPLES:].mean(axis=0) - replicates[RESAMPLES:]
        spread = (offsets**2).sum(axis=0) ** 1.5
        skewness = (offsets**3).sum(axis=0) / np.where(spread > 0, 6 * spread, 1.0)
        error = replicates[:RESAMPLES].std(axis=0, ddof=1)
        means = outcomes.mean(axis=0, dtype=np.float64)
        low, high = by_rule(means, np.zeros(5000), np.ones(5000), items, np.maximum(error, 1e-9), skewness)["now"]
        held += int(((low <= true) & (true <= high)).sum())
        there = ItemEvidence(items, replicates[:RESAMPLES, 0], np.zeros(RESAMPLES), replicates[RESAMPLES:, 0],
                             np.zeros(len(offsets)))  # fmt: skip
        found = compare({0: means[0]}, {0: 0.0}, evidence=there)
        assert (found.low, found.high) == pytest.approx((low[0], high[0]), rel=1e-3, abs=1e-3)
    return 100 * held / runs


@pytest.mark.parametrize("kind", ["AP per query", "skewed"])
def test_intervals_over_30_items_hold_in_94_percent(kind):
    """20,000 runs: the standard error is 0.15."""
    assert coverage_of_items(kind, 30, 20_000) >= 94.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_over_items_hold_in_94_percent_at_every_number_of_items(kind):
    """20,000 runs: the standard error is 0.15."""
    found = [coverage_of_items(kind, items, 20_000) for items in ITEMS]
    print(f"\n| outcomes | {' | '.join(f'{items} items' for items in ITEMS)} |\n|---|{'---|' * len(ITEMS)}")
    print(f"| {kind} | {' | '.join(f'{each:.1f}' for each in found)} |")
    assert min(found) >= 94.0


def ranked(random, count: int):
    """Scores [count, 3] of both networks' detections in images of two objects each, and whether they are right."""
    hard = random.normal(size=(count, 1))
    for quality in (1.0, 1.4):
        right = random.random((count, 3)) < special.expit(quality - hard - np.arange(3))
        right &= np.cumsum(right, axis=1) <= 2
        yield random.normal(size=(count, 3)) + 1.5 * right, right


def average_precision(weights: np.ndarray, scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """[B] AP in percent, precision's envelope over recall, under weights [B, images]."""
    order = np.argsort(-scores.ravel())
    drawn = weights[:, order // 3]
    hits = drawn * right.ravel()[order]
    precision = hits.cumsum(axis=1) / np.maximum(drawn.cumsum(axis=1), 1e-9)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return 100 * (hits * envelope).sum(axis=1) / (2 * weights.sum(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("items", [30, 60])
def test_intervals_of_a_detectors_ap_hold_in_94_percent(items):
    """2000 runs: the standard error is 0.5, and twice of it is allowed for."""
    random = np.random.default_rng(5)
    everything = np.ones((1, 400_000))
    first, second = (average_precision(everything, *side)[0] for side in ranked(random, 400_000))
    weights = np.concatenate([np.full((1, items), 1 / items), weights_of(items)]).astype(np.float32)
    held = 0
    for _ in range(2000):
        a, b = (average_precision(weights, *side) for side in ranked(random, items))
        there = ItemEvidence(items, *(side[1 : RESAMPLES + 1] for side in (a, b)),
                             *(side[RESAMPLES + 1 :] for side in (a, b)))  # fmt: skip
        found = compare({0: a[0]}, {0: b[0]}, evidence=there)
        held += found.low <= first - second <= found.high
    print(f"AP of a detector, {items} images: {held / 20:.1f} %")
    assert held / 20 >= 94.0 - 2 * 0.5


#: Chances that only the first, only the second network is right.
DISCORDANT = (
    *((0.002, 0.002), (0.01, 0.01), (0.05, 0.05), (0.2, 0.2), (0.01, 0.0), (0.02, 0.0), (0.05, 0.0)),
    *((0.1, 0.01), (0.02, 0.01), (0.05, 0.01), (0.1, 0.05), (0.3, 0.1)),
)


@functools.cache
def of_counts(b: int, c: int, items: int) -> tuple[float, float, float]:
    first, second = np.zeros((2, items), bool)
    first[:b] = second[b : b + c] = True
    return *paired_interval(first, second), mcnemar(first, second)[2]


def exactly(items: int, only_first: float, only_second: float) -> tuple[float, float]:
    """Percent of coverage, and of p below .05, summed over all tables that have a chance of 1e-7 or more."""
    b, c = np.meshgrid(np.arange(items + 1), np.arange(items + 1), indexing="ij")
    b, c = b[b + c <= items], c[b + c <= items]
    chances = stats.multinomial.pmf(
        np.stack([b, c, items - b - c], axis=1), items, [only_first, only_second, 1 - only_first - only_second]
    )
    covered = significant = 0.0
    for first, second, chance in zip(b[chances > 1e-7], c[chances > 1e-7], chances[chances > 1e-7], strict=True):
        low, high, p = of_counts(int(first), int(second), items)
        covered += chance * (low <= only_first - only_second <= high)
        significant += chance * (p < 0.05)
    return 100 * covered, 100 * significant


def check_hits(items: int, chances) -> list[str]:
    row = []
    for only_first, only_second in chances:
        covered, alarms = exactly(items, only_first, only_second)
        assert covered >= 94.0
        assert alarms <= 5.0 or only_first != only_second
        row.append(f"{covered:.1f}" + f" ({alarms:.1f})" * (only_first == only_second))
    return row


def test_intervals_of_hits_hold_in_94_percent_also_where_hits_rarely_differ():
    check_hits(60, ((0.002, 0.002), (0.02, 0.0), (0.1, 0.01)))
    check_hits(30, ((0.05, 0.05), (0.3, 0.1)))


@pytest.mark.slow
def test_intervals_of_hits_hold_in_94_percent_at_every_number_of_items():
    """Exact: every table of hits with its chance."""
    print("\nhits, one trial each: coverage in % (false alarms in %)\n")
    print(f"| only the first, only the second right, % | {' | '.join(f'{items} items' for items in ITEMS)} |")
    print(f"|---|{'---|' * len(ITEMS)}")
    columns = [check_hits(items, DISCORDANT) for items in ITEMS]
    for chances, *row in zip(DISCORDANT, *columns, strict=True):
        print(f"| {100 * chances[0]:g}, {100 * chances[1]:g} | {' | '.join(row)} |")
