"""Several trials against one: the spread of the several counts beside that of the test items."""

import numpy as np
import pytest
from scipy import stats

from momentum_transfer.verdicts.comparison import ItemEvidence, compare

SEVERAL = {0: 61.0, 1: 55.0, 2: 58.0, 3: 64.0, 4: 52.0}


def evidence(se: float, items: int = 540) -> ItemEvidence:
    """Replicates whose difference has the standard error ``se``."""
    draws = np.random.default_rng(0).normal(size=1000)
    draws = se * (draws - draws.mean()) / draws.std(ddof=1)
    return ItemEvidence(items, draws + 58.0, np.full(1000, 60.0), np.full(20, 58.0), np.full(20, 60.0))


@pytest.mark.parametrize("se", [1e-9, 1.0, 3.0])
def test_variance_is_that_of_the_several_and_of_the_items(se):
    found = compare(SEVERAL, {0: 60.0}, evidence=evidence(se))
    parts = np.var(list(SEVERAL.values()), ddof=1) / 5, se**2
    df = sum(parts) ** 2 / (parts[0] ** 2 / 4 + parts[1] ** 2 / 539)
    assert found.se == pytest.approx(np.sqrt(sum(parts)))
    assert found.p == pytest.approx(2 * stats.t.sf(2.0 / np.sqrt(sum(parts)), df))
    assert (found.high - found.low) / 2 == pytest.approx(stats.t.ppf(0.975, df) * np.sqrt(sum(parts)))
    assert (found.value, found.n, found.source, found.needed) == (-2.0, (5, 1), "trials and items", None)


def test_items_that_tell_nothing_leave_scipys_t_of_one_sample():
    found = compare(SEVERAL, {0: 60.0}, evidence=evidence(0.0))
    assert found.p == pytest.approx(stats.ttest_1samp(list(SEVERAL.values()), 60.0).pvalue)
    turned = compare({0: 60.0}, SEVERAL, evidence=evidence(0.0))
    assert (turned.value, turned.p, turned.low, turned.high) == (2.0, found.p, -found.high, -found.low)


def test_no_more_false_alarms_than_promised():
    draws = np.random.default_rng(1).normal(60.0, 4.0, size=(1000, 5))
    still = evidence(0.1)
    alarms = [compare(dict(enumerate(each)), {0: 60.0}, evidence=still).p < 0.05 for each in draws]
    assert np.mean(alarms) == pytest.approx(0.05, abs=0.02)


def test_one_trial_without_outcomes_gives_no_verdict():
    found = compare(SEVERAL, {0: 60.0})
    assert (found.p, found.low, found.se, found.source) == (None, None, None, "nothing")
