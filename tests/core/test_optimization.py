import bisect
import itertools
import math

import pytest

from momentum_transfer.core.optimization import (
    cosine,
    learning_rate,
    momentum_at,
    multi_step,
    polynomial,
    scale_to_batch,
    times_warmup,
    with_warmup,
)


def test_cosine_runs_from_its_base_to_zero():
    assert momentum_at(0.7, 0, "cosine") == 0.7
    assert momentum_at(0.7, 1, "cosine") == pytest.approx(0, abs=1e-15)
    assert momentum_at(0.7, 0.5, "cosine") == pytest.approx(0.35)


def test_momentum_in_the_other_notation_rises_from_99_to_1():
    for k in range(11):
        byol = 1 - (1 - 0.99) * (math.cos(math.pi * k / 10) + 1) / 2
        assert 1 - momentum_at(0.01, k / 10, "cosine") == pytest.approx(byol)
    assert momentum_at(0.064, 0.9, "constant") == 0.064


def test_warmup_is_linear_and_meets_the_cosine_at_its_top():
    rates = [learning_rate(step, total=100, base=0.4, warmup=10) for step in range(100)]
    assert rates[0] == pytest.approx(0.0004)
    differences = [b - a for a, b in itertools.pairwise(rates[:11])]
    assert max(differences) == pytest.approx(min(differences))
    assert rates[10] == max(rates) == 0.4
    assert 0 < rates[99] < 0.001


def test_step_schedule_drops_at_its_milestones():
    rates = [learning_rate(s, total=10, base=1, schedule="step", milestones=[0.6, 0.8]) for s in range(10)]
    assert rates == pytest.approx([1] * 6 + [0.1] * 2 + [0.01] * 2)


def closed_form(step, total, base, warmup, schedule, milestones=()):
    if step < warmup:
        return base * (0.001 * (1 - step / warmup) + step / warmup)
    if schedule == "cosine":
        return base * (math.cos(math.pi * ((step - warmup) / max(total - warmup, 1))) + 1) / 2
    return base * 0.1 ** bisect.bisect_right([round(milestone * total) for milestone in milestones], step)


@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (2, 1), (3, 0), (97, 13), (1000, 0), (312_000, 3120)])
@pytest.mark.parametrize("schedule", ["cosine", "step"])
def test_rates_are_the_closed_forms_bit_for_bit(total, warmup, schedule):
    shape = {"schedule": schedule, "milestones": (0.3, 0.6, 0.8)[: 3 if schedule == "step" else 0]}
    for step in sorted({*range(0, total, max(total // 500, 1)), total - 1}):
        rate = learning_rate(step, total=total, base=0.3, warmup=warmup, **shape)
        assert rate == closed_form(step, total, 0.3, warmup, **shape)


@pytest.mark.parametrize("total", [10, 999_999, 3_000_001])
def test_a_milestone_falls_on_its_step_in_runs_of_any_length(total):
    schedule, milestone = multi_step(total, [6 * total // 10], 0.1), 6 * total // 10
    assert (schedule(0), schedule(milestone - 1), schedule(milestone), schedule(total - 1)) == (1, 1, 0.1, 0.1)


def test_milestones_that_coincide_count_each_and_those_after_the_end_never():
    assert [multi_step(5, [2, 2, 7], 0.5)(step) for step in range(5)] == [1, 1, 0.25, 0.25, 0.25]
    assert multi_step(1, [1, 1], 0.1)(0) == 1


def test_warm_up_is_a_straight_line_to_the_schedule():
    schedule = with_warmup(multi_step(100, [60], 0.1), 10, 0.001)
    assert [schedule(step) for step in (0, 5, 10, 59, 60)] == pytest.approx([0.001, 0.5005, 1, 1, 0.1])
    assert with_warmup(multi_step(100, [60], 0.1), 10, 0.3, "constant")(9) == pytest.approx(0.3)


def test_curves_end_where_they_are_told():
    assert [cosine(100, 0.2)(step) for step in (0, 50, 100)] == pytest.approx([1, 0.6, 0.2])
    assert [polynomial(100, 0.5)(step) for step in (0, 75, 100)] == pytest.approx([1, 0.5, 0])
    lifted = times_warmup(polynomial(100, 1.0), 10, 0.0, ending=0.3)
    assert [lifted(step) for step in (0, 5, 10, 90)] == pytest.approx([0, 0.5 * 0.95, 0.9, 0.3])


def test_doubling_the_batch_doubles_the_value():
    assert scale_to_batch(0.05, 512, 256) == 0.1
