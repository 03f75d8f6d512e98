import math

import pytest
import torch
from torch import nn

from momentum_transfer.core.settings import load_config
from momentum_transfer.transfer.config import get_cfg
from momentum_transfer.transfer.torchvision_engine import solver
from momentum_transfer.transfer.torchvision_engine.engine import schedule_of


def test_norms_take_their_own_weight_decay_and_frozen_parameters_none():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    model[3].bias.requires_grad_(False)
    others, norms = solver.parameter_groups(model, 1e-4, 0.0)
    assert (others["weight_decay"], norms["weight_decay"]) == (1e-4, 0.0)
    assert {id(p) for p in norms["params"]} == {id(p) for m in model[1:3] for p in m.parameters()}
    assert {id(p) for p in others["params"]} == {id(model[0].weight), id(model[0].bias), id(model[3].weight)}


def test_scaled_rates_and_undecayed_parameters_have_groups_of_their_own_and_the_whole_rate_comes_first():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    rules = solver.GroupRules(lambda name: 0.5 if name.startswith("0.") else 1.0, lambda name: name == "2.bias")
    cfg = load_config(
        get_cfg(), None, ["SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", "0.01", "SOLVER.WEIGHT_DECAY", "0.1"]
    )
    optimizer = solver.build_optimizer(cfg, model, rules)
    found = [(g["lr"], g["weight_decay"], g.get("lr_scale", 1.0), [id(p) for p in g["params"]])
             for g in optimizer.param_groups]  # fmt: skip
    assert found == [
        (0.01, 0.1, 1.0, [id(model[2].weight)]),
        (0.01, 0.0, 1.0, [id(model[1].weight), id(model[1].bias)]),
        (0.01, 0.0, 1.0, [id(model[2].bias)]),
        (0.005, 0.1, 0.5, [id(model[0].weight), id(model[0].bias)]),
    ]


def test_the_first_step_of_adamw_is_its_closed_form():
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    model = nn.Module()
    model.register_parameter("weight", parameter)
    cfg = load_config(
        get_cfg(), None, ["SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", "0.01", "SOLVER.WEIGHT_DECAY", "0.1"]
    )
    optimizer = solver.build_optimizer(cfg, model)
    parameter.grad = torch.tensor([3.0, -0.5])
    optimizer.step()  # the bias-corrected moments of one step are g and g², so that the step is the sign's
    expected = torch.tensor([1.0, -2.0]) * (1 - 0.01 * 0.1) - 0.01 * torch.tensor([1.0, -1.0])
    torch.testing.assert_close(parameter.detach(), expected, rtol=1e-6, atol=1e-7)


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


SCHEDULES = [
    "",
    "SOLVER.GAMMA 0.5 SOLVER.STEPS (10,20,30) SOLVER.WARMUP_ITERS 15",  # a milestone inside the warm-up
    "SOLVER.STEPS (30,80)",  # a milestone that the run does not reach
    "SOLVER.WARMUP_METHOD constant SOLVER.WARMUP_FACTOR 0.3",
    "SOLVER.WARMUP_ITERS 0",
    "SOLVER.WARMUP_ITERS 90",  # longer than the run
    "SOLVER.LR_SCHEDULER_NAME WarmupCosineLR SOLVER.BASE_LR_END 0.002",
    "SOLVER.LR_SCHEDULER_NAME WarmupCosineLR SOLVER.WARMUP_ITERS 90",
    "SOLVER.LR_SCHEDULER_NAME WarmupPolyLR",
    "SOLVER.LR_SCHEDULER_NAME WarmupPolyLR SOLVER.POLY_LR_CONSTANT_ENDING 0.5",
    "SOLVER.LR_SCHEDULER_NAME WarmupPolyLR SOLVER.WARMUP_ITERS 90 SOLVER.POLY_LR_CONSTANT_ENDING 0.5",
    "SOLVER.LR_SCHEDULER_NAME WarmupPolyLR SOLVER.WARMUP_FACTOR 1.0 SOLVER.POLY_LR_CONSTANT_ENDING 0.9",
]


def scheduled(words: str):
    base = "SOLVER.MAX_ITER 50 SOLVER.STEPS (30,40) SOLVER.WARMUP_ITERS 10 SOLVER.BASE_LR 0.02"
    return load_config(get_cfg(), None, f"{base} {words}".split())


@pytest.mark.detectron2
@pytest.mark.parametrize("words", SCHEDULES)
def test_the_rate_of_every_step_is_detectron2s(words):
    pytest.importorskip("detectron2")
    from detectron2.config import get_cfg as their_cfg
    from detectron2.projects.deeplab import add_deeplab_config, build_lr_scheduler

    cfg, theirs = scheduled(words), their_cfg()
    add_deeplab_config(theirs)
    for key in ("MAX_ITER", "STEPS", "GAMMA", "BASE_LR", "BASE_LR_END", "LR_SCHEDULER_NAME", "WARMUP_ITERS",
                "WARMUP_FACTOR", "WARMUP_METHOD", "POLY_LR_POWER", "POLY_LR_CONSTANT_ENDING"):  # fmt: skip
        theirs.SOLVER[key] = cfg.SOLVER[key]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=cfg.SOLVER.BASE_LR)
    scheduler, expected = build_lr_scheduler(theirs, optimizer), []
    for _ in range(cfg.SOLVER.MAX_ITER):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    factor = schedule_of(cfg)
    assert [cfg.SOLVER.BASE_LR * factor(step) for step in range(50)] == pytest.approx(expected, rel=1e-12)


def test_a_warm_up_longer_than_the_run_ends_below_the_rate_in_deeplabs_schedule_and_at_its_last_step_in_others():
    poly, cosine = (
        f"SOLVER.LR_SCHEDULER_NAME {name} SOLVER.WARMUP_ITERS 100" for name in ("WarmupPolyLR", "WarmupCosineLR")
    )
    share = 25 / 100
    assert schedule_of(scheduled(poly))(25) == pytest.approx((share + 0.001 * (1 - share)) * 0.5**0.9)
    assert schedule_of(scheduled(cosine))(25) == pytest.approx(0.0005)  # half way from 0.001 to the end, which is 0


def watched(largest, *, scaled=False, scale=1.0, steps=1):
    """A watch over ``steps`` steps whose gradients are all ``largest`` at most."""
    watch = solver.GradientWatch(scaled)
    parameters = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.full((2, 3), 0.5), torch.tensor([0.0, -largest, 1.0, 0.0])
    for step in range(steps):
        watch.measure(step, parameters)
        watch.read(scale)
    return watch


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"largest": 0.99e5}, ""),
        ({"largest": 2.1e7}, "found 2.1e+07 at iteration 1:"),
        ({"largest": math.nan}, "found nan at iteration 1:"),
        ({"largest": math.inf}, "found inf at iteration 1:"),
        ({"largest": math.inf, "scaled": True}, ""),
        ({"largest": 2.1e7, "scaled": True, "scale": 65536.0}, ""),
        ({"largest": 2.1e12, "scaled": True, "scale": 65536.0}, "found 3.2e+07 at iteration 1:"),
    ],
)
def test_a_gradient_beyond_reason_is_said_once_with_its_step_and_size(options, says, caplog):
    watched(**options, steps=3)
    assert len(caplog.messages) == bool(says)
    assert says in "".join(caplog.messages)
