"""Every pretraining config is read, builds its full-size model (without memory), and runs two tiny steps of itself."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from momentum_transfer.core.loggers import read
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain.config import check_settings, get_cfg
from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.plan import concerns, make_plan
from momentum_transfer.pretrain.train import train
from tests.config_headers import configs_of, header, spelling

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = configs_of("pretrain")
SMOKE = [ROOT / f"configs/smoke/{name}_digits.yaml" for name in ("momentum2", "moco_eman", "random")]
# What makes a run small; method, norms, optimizer, schedules, heads' form and augmentations stay the config's own.
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
    "NORM.GROUP_SIZE": 4,  # of the batch of 8; how many the papers had is asked below
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
    text = header(path)
    assert re.search(r"arXiv|ECCV|papers", text)
    for field in ("# Expected: ", f"# Command:  torchrun .* --config {re.escape(spelling(path))} ", "# Runtime:  "):
        assert len(re.findall(field, text)) == 1
    expected = text.split("# Expected: ")[1].splitlines()[0]
    assert re.match(r"\d\d\.\d|none in the paper\.$", expected), "a score, or that there is none"


def test_every_output_folder_is_its_own():
    folders = [load_config(get_cfg(), path).OUTPUT_DIR for path in CONFIGS]
    assert sorted(folders) == sorted(f"outputs/{path.stem}" for path in CONFIGS)


def settings(name):
    return load_config(get_cfg(), f"pretrain/{name}")


#: Config -> (GPUs, images on each) of its paper. RCF names no GPUs, Momentum² table 3 no batch: MoCo v2's own there.
PAPERS_GPUS = {
    **dict.fromkeys([path.stem for path in CONFIGS if path.stem.startswith("stl10_r18_student")], (64, 32)),
    "momentum2_r50_lars_300e": (128, 32),
    "momentum2_r50_lars_100e": (128, 32),
    "momentum2_r50_lars_128_300e": (128, 128),
    "momentum2_r50_lars_128_1000e": (128, 128),
    "moco_shufflebn_r50_200e": (32, 8),
    "moco_momentumbn_r50_200e": (32, 8),
    **dict.fromkeys([f"momentum2_{name}" for name in ("r50_100e", "r50_200e", "r50_300e")], (8, 128)),
    **dict.fromkeys([f"momentum2_{name}" for name in ("r18_100e", "r101_100e", "r50w2_200e")], (8, 128)),
    "momentum2_r50_b256_100e": (8, 32),
    **dict.fromkeys([f"moco_eman_{name}" for name in ("r50_200e", "r50_800e", "r50w2_200e")], (8, 32)),
    "moco_eman_inaturalist_1000e": (8, 32),
    **dict.fromkeys([f"byol_eman_{name}" for name in ("r50_200e", "r50_800e", "r50w2_200e")], (8, 64)),
    "byol_eman_inaturalist_200e": (8, 64),
    **dict.fromkeys([f"mocov2_{name}" for name in ("r50_200e", "r18_100e", "r101_100e")], (32, 32)),
    "supervised_r50_100e": (8, 32),
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_bn_sees_the_papers_images_whatever_the_number_of_gpus(path):
    cfg = settings(path.stem)
    names = {cfg.NORM.STUDENT} | ({cfg.NORM.TEACHER} if cfg.METHOD.NAME in ("byol", "moco", "momentum2") else set())
    if path.stem not in PAPERS_GPUS and names == {"SyncBN"}:
        return  # nothing of it depends on the number of GPUs
    gpus, images = PAPERS_GPUS[path.stem]
    assert (gpus * images, images) == (cfg.SOLVER.BATCH_SIZE, cfg.NORM.GROUP_SIZE)
    for processes in (1, gpus):
        plan = make_plan(cfg, 1_281_167, 1_281_167, processes)
        assert concerns(plan, cfg, processes, preset=cfg) == []
    own = cfg.clone()
    own.defrost()
    own.NORM.GROUP_SIZE = 0
    lines = concerns(make_plan(own, 1_281_167, 1_281_167, 2), own, 2, preset=cfg)
    changed = [line for line in lines if f"of {images} images" in line and f"of {gpus * images // 2} in" in line]
    assert len(changed) == (names != {"SyncBN"})


@pytest.mark.parametrize(("name", "rate"), [("momentum2_r50_100e", 0.2), ("momentum2_r50_b256_100e", 0.05)])
def test_both_one_machine_batches_of_momentum2_have_the_published_momentum(name, rate):
    plan = make_plan(settings(name), 1_281_167, 1_281_167, 8)
    assert plan.base_lr == pytest.approx(rate)
    assert plan.momentum_base == pytest.approx(0.01)


@pytest.mark.parametrize("name", ["byol_r50_lars_200e", "mocov2plus_r50_lars_200e"])
def test_rcfs_lars_runs_have_byols_weight_decay_of_short_schedules(name):
    assert settings(name).SOLVER.WEIGHT_DECAY == 1e-6


def test_table_3_of_momentum2_is_mocos_own_protocol_on_32_gpus_and_pairs_with_its_reference():
    names = {"moco_shufflebn_r50_200e": "ShuffleBN", "moco_momentumbn_r50_200e": "MomentumBN"}
    for name, norm in names.items():
        cfg = settings(name)
        plan = make_plan(cfg, 1_281_167, 1_281_167, 32)
        assert (cfg.NORM.TEACHER, plan.warmup, plan.micro_batch, cfg.NORM.GROUP_SIZE) == (norm, 0, 8, 8)
        assert (plan.base_lr, plan.momentum_base) == (pytest.approx(0.03), 0.001)
        assert "--nnodes 4 --nproc-per-node 8" in (ROOT / f"configs/pretrain/{name}.yaml").read_text()
    assert (cfg.NORM.ALPHA_BASE, cfg.NORM.ALPHA_SCHEDULE) == (0.064, "constant")
    evaluation = yaml.safe_load((ROOT / "configs/lowshot/momentum2_table3_linear.yaml").read_text())
    table = yaml.safe_load((ROOT / "configs/reference/momentum2_table_03.yaml").read_text())
    protocols = {column["protocol"] for column in table["columns"] if "protocol" in column}
    assert protocols == {evaluation["LINEAR"]["PRESET"]}
