import itertools
import math

import pytest

from momentum_transfer.errors import InputError
from momentum_transfer.schedules import check_choice, cosine_to_zero, learning_rate, momentum_at, scale_to_batch


def test_cosine_runs_from_its_base_to_zero():
    assert cosine_to_zero(0.7, 0) == 0.7
    assert cosine_to_zero(0.7, 1) == pytest.approx(0, abs=1e-15)
    assert cosine_to_zero(0.7, 0.5) == pytest.approx(0.35)


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


def test_doubling_the_batch_doubles_the_value():
    assert scale_to_batch(0.05, 512, 256) == 0.1


def test_unknown_choice_lists_the_known_ones():
    with pytest.raises(InputError, match=r"expected SOLVER\.SCHEDULE of cosine, step, found 'linear'"):
        check_choice("SOLVER.SCHEDULE", "linear", ("cosine", "step"))
