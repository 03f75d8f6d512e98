"""Every pretraining config is read, builds its full-size model (without memory), and runs two tiny steps of itself."""

import re
from pathlib import Path

import pytest
import torch

from momentum_transfer.metrics import read
from momentum_transfer.settings import load_config
from pretrain.config import get_cfg
from pretrain.methods import build_method
from pretrain.plan import make_plan
from pretrain.settings_check import check_settings
from pretrain.train import train

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted(path for path in (ROOT / "configs/pretrain").glob("*.yaml") if not path.stem.startswith("base_"))
SMOKE = [ROOT / f"configs/smoke/{name}_digits.yaml" for name in ("momentum2", "moco_eman", "random")]
# What makes a run small; method, norms, optimiser, schedules, heads' form and augmentations stay the config's own.
SMALL = {
    "DATA.NAME": "digits",
    "DATA.SPLIT": "train",
    "DATA.IMAGE_SIZE": 16,
    "DATA.WORKERS": 0,
    "MODEL.WIDTH": 4,
    "HEAD.HIDDEN": 16,
    "HEAD.OUTPUT": 8,
    "MOCO.QUEUE": 20,
    "SOLVER.BATCH_SIZE": 8,
    "SOLVER.STEPS": 2,
    "RUN.DEVICE": "cpu",
    "RUN.PRECISION": "float32",
    "RUN.LOG_EVERY": 1,
    "RUN.CALIBRATION_BATCHES": 2,
}


@pytest.mark.parametrize("path", CONFIGS + SMOKE, ids=lambda path: path.stem)
def test_two_tiny_steps(path, tmp_path):
    overrides = {**SMALL, "OUTPUT_DIR": tmp_path}
    cfg = load_config(get_cfg(), path, [str(word) for pair in overrides.items() for word in pair])
    train(cfg)
    if cfg.METHOD.NAME != "random":
        lines = read(tmp_path / "metrics.jsonl")
        assert [line["step"] for line in lines] == [1, 2]
        assert all(line["loss"] == line["loss"] for line in lines)  # not NaN


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_full_size_model_builds(path):
    cfg = load_config(get_cfg(), path)
    check_settings(cfg)
    plan = make_plan(cfg, 1_281_167, 1_281_167, 8)
    assert plan.steps == cfg.SOLVER.EPOCHS * (1_281_167 // cfg.SOLVER.BATCH_SIZE)
    with torch.device("meta"):
        method = build_method(cfg, 1000)
    assert method.backbone().architecture.name == cfg.MODEL.ARCH


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_header_names_source_expectation_command_and_runtime(path):
    header = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    assert re.search(r"arXiv|ECCV|papers", header)
    for field in ("# Expected: ", f"configs/pretrain/{path.name}", "# Runtime:  "):
        assert field in header
    expected = header.split("# Expected: ")[1].splitlines()[0]
    assert re.match(r"\d\d\.\d|none in the paper\.$", expected), "a score, or that there is none"


def test_every_output_folder_is_its_own():
    folders = [load_config(get_cfg(), path).OUTPUT_DIR for path in CONFIGS]
    assert sorted(folders) == sorted(f"outputs/{path.stem}" for path in CONFIGS)


def test_one_base_batch_gives_the_papers_rates_for_both_batches():
    plans = {}
    for name in ("momentum2_r50_100e", "momentum2_r50_b256_100e"):
        cfg = load_config(get_cfg(), ROOT / f"configs/pretrain/{name}.yaml")
        plans[cfg.SOLVER.BATCH_SIZE] = make_plan(cfg, 1_281_167, 1_281_167, 8)
    assert plans[256].base_lr == pytest.approx(0.05)
    assert plans[1024].base_lr == pytest.approx(0.2)
    assert plans[1024].momentum_base == pytest.approx(0.01)
    assert plans[256].momentum_base == pytest.approx(0.0025)
