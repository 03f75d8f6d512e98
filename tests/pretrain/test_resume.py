import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import dump
from momentum_transfer.pretrain import resume
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.methods import build_method


def run_of(cfg):
    method = build_method(cfg, 10)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    plan, scaler = SimpleNamespace(steps=10, steps_per_epoch=10), GradScaler("cpu", enabled=False)
    run = {"cfg": cfg, "method": method, "optimizer": optimizer, "scaler": scaler, "plan": plan, "start": None}
    return SimpleNamespace(**run, device=torch.device("cpu"))


def test_the_generator_goes_on_where_it_was(tiny_cfg):
    run = run_of(tiny_cfg())
    state = resume.capture(run, 3)
    expected = torch.rand(3)
    torch.rand(5)
    assert resume.restore(run, state, Path("a.pt")) == 3
    assert torch.equal(torch.rand(3), expected)


def test_a_run_on_the_cpu_opens_no_gpu_of_its_machine(tiny_cfg, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("get_rng_state", "set_rng_state"):
        monkeypatch.setattr(torch.cuda, name, lambda *a: pytest.fail("opened the GPU"))
    run = run_of(tiny_cfg())
    state = resume.capture(run, 3)
    state["processes"][0]["generators"]["cuda"] = torch.zeros(16, dtype=torch.uint8)  # as a run on a GPU has it
    assert resume.restore(run, state, Path("a.pt")) == 3


def test_the_generator_of_the_runs_own_gpu_goes_on_too(tiny_cfg, monkeypatch):
    states = {torch.device("cuda", 1): torch.arange(16, dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device: state}))
    run = run_of(tiny_cfg())
    run.device = torch.device("cuda", 1)
    state = resume.capture(run, 3)
    states[run.device] = torch.zeros(16, dtype=torch.uint8)
    resume.restore(run, state, Path("a.pt"))
    assert states[run.device].tolist() == list(range(16))


def test_capture_holds_plain_data_only(tiny_cfg, tmp_path):
    cfg = tiny_cfg({"METHOD.NAME": "moco", "NORM.TEACHER": "EMAN"})
    state = resume.capture(run_of(cfg), 25)
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert loaded["sampler"] == {"epoch": 2, "step_in_epoch": 5}
    assert loaded["architecture"] == {"name": "resnet10", "width": 4, "stem": "imagenet"}
    assert (loaded["method"], loaded["network_default"], loaded["step"]) == ("moco", "student", 25)
    assert {"queue.keys", "queue.pointer", "student.backbone.conv1.weight"} <= loaded["model"].keys()


def test_settings_that_do_not_change_what_is_learned_may_differ(tiny_cfg):
    free = {"OUTPUT_DIR": "x", "RUN.KEEP": 9, "RUN.LOG_EVERY": 3, "DATA.WORKERS": 2, "DATA.ROOT": "y"}
    resume.check_same_settings(dump(tiny_cfg()), tiny_cfg(free))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("NORM.ALPHA_BASE", 0.5),
        ("SOLVER.WEIGHT_DECAY", 0.5),
        ("SEED", 7),
        ("DATA.CROP_SCALE", [0.5, 1.0]),
        ("MODEL.WIDTH", 8),
        ("RUN.PRECISION", "bf16"),  # another rounding is another run
        ("RUN.COMPILE", True),
        ("RUN.CHANNELS_LAST", True),
    ],
)
def test_settings_that_change_what_is_learned_are_named(key, value, tiny_cfg):
    with pytest.raises(InputError, match=rf"{key} .* -> {re.escape(repr(value))}"):
        resume.check_same_settings(dump(tiny_cfg()), tiny_cfg({key: value}))


def test_another_model_is_refused(tiny_cfg):
    cfg = tiny_cfg()
    state = resume.capture(run_of(cfg), 1)
    state["model"] = nn.Linear(1, 1).state_dict()
    with pytest.raises(InputError, match="expected a checkpoint of this model"):
        resume.restore(run_of(cfg), state, Path("a.pt"))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        (
            {"NORM.STUDENT": "BN", "NORM.TEACHER": "MomentumBN"},
            "4 processes.*found 2: BN and MomentumBN would",
        ),
        ({"NORM.STUDENT": "BN", "NORM.TEACHER": "EMAN"}, "BN would normalise a process's 32 images instead of 16"),
        ({"NORM.STUDENT": "SyncBN", "NORM.TEACHER": "EMAN"}, None),
        ({"NORM.STUDENT": "SyncBN", "NORM.TEACHER": "SyncBN"}, None),
        ({"NORM.STUDENT": "GN", "NORM.TEACHER": "IN"}, None),
        ({"NORM.STUDENT": "BN", "NORM.TEACHER": "MomentumBN", "NORM.GROUP_SIZE": 16}, "expected 4 processes"),
    ],
)
def test_another_number_of_processes_is_refused_where_a_norm_would_see_other_images(settings, refused):
    cfg = get_cfg()
    cfg.merge_from_list([word for pair in settings.items() for word in pair])
    cfg.METHOD.NAME, cfg.SOLVER.BATCH_SIZE, cfg.SOLVER.ACCUMULATE = "momentum2", 64, 1
    if refused:
        with pytest.raises(InputError, match=refused):
            resume.check_other_processes(cfg, 4, 2)
    else:
        resume.check_other_processes(cfg, 4, 2)
