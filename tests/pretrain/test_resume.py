import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from pretrain import resume
from pretrain.config import dump
from pretrain.errors import InputError
from pretrain.methods import build_method


def parts(cfg):
    method = build_method(cfg, 10)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    return method, optimizer, GradScaler("cpu", enabled=False)


def draws():
    return random.random(), np.random.random(), torch.rand(1).item()  # noqa: NPY002


def test_generators_go_on_where_they_were(tiny_cfg):
    cfg = tiny_cfg()
    run = parts(cfg)
    state = resume.capture(cfg, *run, 3, 10)
    expected = draws()
    draws()
    assert resume.restore(state, cfg, *run) == 3
    assert draws() == expected


def test_capture_holds_plain_data_only(tiny_cfg, tmp_path):
    cfg = tiny_cfg({"METHOD.NAME": "moco", "NORM.TEACHER": "EMAN"})
    state = resume.capture(cfg, *parts(cfg), 25, 10)
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert loaded["sampler"] == {"epoch": 2, "step_in_epoch": 5}
    assert loaded["architecture"] == {"name": "resnet10", "width": 4, "stem": "imagenet"}
    assert (loaded["method"], loaded["network_default"], loaded["step"]) == ("moco", "student", 25)
    assert {"queue.keys", "queue.pointer", "student.backbone.conv1.weight"} <= loaded["model"].keys()


def test_settings_that_do_not_change_what_is_learned_may_differ(tiny_cfg):
    saved = dump(tiny_cfg())
    resume.check_same_settings(saved, tiny_cfg({"OUTPUT_DIR": "x", "RUN.KEEP": 9, "DATA.WORKERS": 2, "DATA.ROOT": "y"}))
    with pytest.raises(InputError, match=r"NORM\.ALPHA_BASE 1\.0 -> 0\.5"):
        resume.check_same_settings(saved, tiny_cfg({"NORM.ALPHA_BASE": 0.5}))


def test_another_model_is_refused(tiny_cfg):
    cfg = tiny_cfg()
    state = resume.capture(cfg, *parts(cfg), 1, 10)
    state["model"] = nn.Linear(1, 1).state_dict()
    with pytest.raises(InputError, match="expected a checkpoint of this model"):
        resume.restore(state, cfg, *parts(cfg))
