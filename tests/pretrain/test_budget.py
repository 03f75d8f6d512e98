"""A recipe from the number of images and a budget in minutes."""

import numpy as np
import PIL.Image
import pytest
import torch

from momentum_transfer.backbones.convert import export_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain import budget
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.run import prepare
from momentum_transfer.pretrain.train import train


@pytest.fixture
def photos(tmp_path):
    """``photos(80)`` -> a folder of as many images of 90 px in subfolders, with label images beside them."""

    def make(count):
        random = np.random.default_rng(0)
        for number in range(count):
            folder = tmp_path / "photos" / ("a", "b")[number % 2]
            for place in (folder, folder / "masks"):
                place.mkdir(parents=True, exist_ok=True)
                PIL.Image.fromarray(random.integers(0, 255, (90, 99, 3), dtype=np.uint8)).save(place / f"{number}.png")
        return tmp_path / "photos"

    return make


@pytest.fixture
def small(tmp_path, monkeypatch):
    """``small(folder, "KEY", value, …)`` -> (settings, the config's own); a step takes 1 s at 64 px."""
    monkeypatch.setattr(budget, "_step_seconds", lambda cfg, *rest: (cfg.DATA.IMAGE_SIZE / 64) ** 2)

    def make(folder, *overrides):
        tiny = ["MODEL.ARCH", "resnet10", "MODEL.WIDTH", "4", "HEAD.HIDDEN", "16", "HEAD.OUTPUT", "8"]
        given = ["DATA.ROOT", folder, "OUTPUT_DIR", tmp_path / "run", "DATA.WORKERS", 0, "RUN.DEVICE", "cpu"]
        base = load_config(get_cfg(), "pretrain/own_small", tiny)
        return load_config(get_cfg(), "pretrain/own_small", [*map(str, [*tiny, *given, *overrides])]), base

    return make


def prepared(cfg, preset):
    return prepare(cfg, torch.device("cpu"), CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints"), preset)


def test_batch_size_of_views_and_steps_follow_from_images_and_minutes_and_are_said(photos, small, capsys):
    run = prepared(*small(photos(80), "RUN.MINUTES", 10))
    solver = run.cfg.SOLVER
    assert len(run.images) == 80  # no label images
    assert (solver.BATCH_SIZE, run.cfg.DATA.IMAGE_SIZE) == (8, 64)  # the largest side of at most 90 px
    assert solver.STEPS == run.plan.steps == int(0.85 * 600)
    assert run.plan.warmup == 51
    said = capsys.readouterr().out
    assert "80 images, 10 minutes: views of 64 px, batches of 8, 510 steps (51 passes), about 8.5 minutes" in said
    assert "expect nothing of a short run: on 314 digits" in said


def test_what_is_given_stays_and_passes_end_at_200(photos, small):
    run = prepared(*small(photos(80), "RUN.MINUTES", 600, "SOLVER.BATCH_SIZE", 16, "DATA.IMAGE_SIZE", 48))
    assert (run.cfg.SOLVER.BATCH_SIZE, run.cfg.DATA.IMAGE_SIZE, run.plan.steps) == (16, 48, 200 * 5)


@pytest.mark.parametrize(
    ("count", "minutes", "message"),
    [
        (80, 0.5, r"expected minutes for at least 50 steps of 1\.00 s, found 0\.5; give --minutes 0\.98 or more"),
        (9, 10, "expected at least 16 images, found 9; leave the weights as they are"),
    ],
)
def test_too_few_minutes_or_images_are_refused_before_the_training(count, minutes, message, photos, small, tmp_path):
    with pytest.raises(InputError, match=message):
        prepared(*small(photos(count), "RUN.MINUTES", minutes))
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_its_plan_and_the_network_is_that_of_the_weights(
    photos, small, tmp_path, monkeypatch, capsys
):
    torch.manual_seed(0)
    export_backbone(tmp_path / "w.safetensors", build_resnet(Architecture("resnet10", 6)), {})
    words = ["RUN.MINUTES", 1, "MODEL.WEIGHTS", tmp_path / "w.safetensors"]
    cfg, preset = small(photos(64), *words)
    with pytest.raises(Stopped):
        train(cfg, stop_after=1, preset=preset)
    assert "expect some points or none: on 314 digits" in capsys.readouterr().out
    monkeypatch.setattr(budget, "_step_seconds", lambda *_: 0.5)  # another day's machine
    with pytest.raises(Stopped):
        train(cfg, resuming=True, stop_after=2, preset=preset)
    state = load(CheckpointFolder(tmp_path / "run/checkpoints").last())
    assert state["step"] == 2
    assert state["architecture"]["width"] == 6
    assert "STEPS: 51" in state["config"]


def test_the_seconds_of_a_step_are_measured_and_leave_random_numbers_alone(photos, small, monkeypatch):
    monkeypatch.undo()
    cfg, preset = small(photos(32), "RUN.MINUTES", 1000, "DATA.IMAGE_SIZE", 32)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    run = prepared(cfg, preset)
    assert run.plan.steps >= 50
    torch.manual_seed(1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # a GPU that a run on the CPU leaves alone
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: pytest.fail("opened the GPU"))
    seconds = budget._step_seconds(run.cfg, run.images, 4, torch.device("cpu"))
    assert 0 < seconds < 60
    assert torch.equal(torch.rand(2), expected)


def test_minutes_are_of_one_process(photos, small, monkeypatch):
    monkeypatch.setattr(budget.distributed, "world_size", lambda: 2)
    cfg, preset = small(photos(32), "RUN.MINUTES", 10)
    with pytest.raises(InputError, match=r"expected one process with RUN.MINUTES, found 2"):
        budget.settle_budget(cfg, preset, None, torch.device("cpu"), CheckpointFolder(cfg.OUTPUT_DIR))
