import math

import pytest
import torch
from torch import nn

from transfer.torchvision_engine import solver


def test_steps_divide_the_rate_at_each_milestone():
    schedule = solver.multi_step([60, 80], 0.1)
    assert [schedule(step) for step in (0, 59, 60, 79, 80, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_warm_up_is_a_straight_line_to_the_schedule():
    schedule = solver.with_warmup(solver.multi_step([60], 0.1), 10, 0.001)
    assert [schedule(step) for step in (0, 5, 10, 59, 60)] == pytest.approx([0.001, 0.5005, 1, 1, 0.1])
    assert solver.with_warmup(solver.multi_step([60], 0.1), 10, 0.3, "constant")(9) == pytest.approx(0.3)


def test_cosine_ends_where_it_is_told():
    schedule = solver.cosine(100, 0.2)
    assert schedule(0) == 1.0
    assert schedule(50) == pytest.approx(0.6)
    assert schedule(100) == pytest.approx(0.2)


def test_norms_take_their_own_weight_decay_and_frozen_parameters_none():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    model[3].bias.requires_grad_(False)
    others, norms = solver.parameter_groups(model, 1e-4, 0.0)
    assert (others["weight_decay"], norms["weight_decay"]) == (1e-4, 0.0)
    assert {id(p) for p in norms["params"]} == {id(p) for m in model[1:3] for p in m.parameters()}
    assert {id(p) for p in others["params"]} == {id(model[0].weight), id(model[0].bias), id(model[3].weight)}


def test_gradients_are_clipped_parameter_by_parameter():
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))]
    for kind, expected in (("value", [[1.0, -1.0], [0.5, 0.5]]), ("norm", [[0.6, -0.8], [0.5, 0.5]])):
        parameters[0].grad, parameters[1].grad = torch.tensor([3.0, -4.0]), torch.tensor([0.5, 0.5])
        solver.GradientClipper(kind, 1.0, 2.0)(parameters)
        for parameter, wanted in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.grad, torch.tensor(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("norm_type", "expected"), [(1.0, [3 / 7, -4 / 7]), (math.inf, [0.75, -1.0])])
def test_the_norm_to_clip_is_of_the_given_type(norm_type, expected):
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, -4.0])
    solver.GradientClipper("norm", 1.0, norm_type)([parameter])
    torch.testing.assert_close(parameter.grad, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_the_schedule_is_fvcores():
    from fvcore.common.param_scheduler import CosineParamScheduler, MultiStepParamScheduler

    theirs = MultiStepParamScheduler([1, 0.1, 0.01], milestones=[60, 80], num_updates=100)
    ours = solver.multi_step([60, 80], 0.1)
    assert [ours(s) for s in range(100)] == pytest.approx([theirs(s / 100) for s in range(100)])
    cosine = CosineParamScheduler(1, 0.1)
    assert [solver.cosine(100, 0.1)(s) for s in range(100)] == pytest.approx([cosine(s / 100) for s in range(100)])
    assert math.isfinite(cosine(0.0))
