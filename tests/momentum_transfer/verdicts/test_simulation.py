"""False alarms, coverage and power by simulation: the rule by t intervals, and the one it replaced."""

import numpy as np
import pytest

from momentum_transfer.verdicts.trials import paired, welch

RUNS = 20_000


def draws(random, kind: str, shape):
    """Noise of mean 0 and standard deviation 1."""
    return random.normal(size=shape) if kind == "normal" else (random.gamma(16, size=shape) - 16) / 4


def scores(random, n: int, share: bool, kind: str, difference: float):
    """[RUNS, n] of both sides; shared trials have a skewed effect in common, as easy and hard draws of images have."""
    effect = 3 * (random.gamma(2, size=(RUNS, n)) - 2) if share else 0.0
    first, second = (draws(random, kind, (RUNS, n)) for _ in range(2))
    return first + effect + difference, second + effect


def simulate(n: int, share: bool, kind: str, seed: int = 0) -> dict[str, float]:
    """Shares of runs, in percent: false alarms, coverage of a true difference of 1 σ, and how often that is found."""
    random = np.random.default_rng(seed)
    judge = paired if share else welch
    found = {}
    for difference in (0.0, 1.0):
        pairs = zip(*scores(random, n, share, kind, difference), strict=True)
        made = [judge(a, b) for a, b in pairs]
        told = 100 * np.mean([each.p <= 0.05 for each in made])
        found["false alarms" if difference == 0 else "found"] = told
        found["coverage"] = 100 * np.mean([each.low <= difference <= each.high for each in made])
    return found


def old_rule(n: int, share: bool, difference: float, seed: int = 0) -> float:
    """Percent of runs in which the difference is above twice the larger spread over trials."""
    a, b = scores(np.random.default_rng(seed), n, share, "normal", difference)
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
        print(n, *(f"{old_rule(n, share, d):.1f}" for share in (False, True) for d in (0.0, 1.0)))
    assert old_rule(2, False, 0.0) > 10
    assert old_rule(10, False, 1.0) < 2
