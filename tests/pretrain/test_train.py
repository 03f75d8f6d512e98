import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import safetensors
import torch
from safetensors.torch import load_file

import momentum_transfer.pretrain.run as run_module
import momentum_transfer.pretrain.train as train_module
from momentum_transfer.backbones.norms import STUDENT_NORMS, TEACHER_NORMS
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.pretrain.pipeline import evaluation_images
from momentum_transfer.pretrain.run import shuffled_subset
from momentum_transfer.pretrain.train import train
from tests.process_group import outcome_in_own_group, signal_own_group


def last_state(cfg):
    return load(CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints").last())


def metrics(cfg):
    return [json.loads(line) for line in Path(cfg.OUTPUT_DIR, "metrics.jsonl").read_text().splitlines()]


def assert_equal_trees(a, b, where=""):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal_trees(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_equal_trees(left, right, f"{where}[{index}]")
    else:
        assert a == b, where


METHODS = [
    {"METHOD.NAME": "momentum2"},
    {"METHOD.NAME": "moco", "NORM.TEACHER": "EMAN", "HEAD.PROJECTOR_NORM": False},
    {
        "METHOD.NAME": "moco",
        "NORM.TEACHER": "SyncBN",
        "MOCO.SYMMETRIC": True,
        "MOCO.PREDICTOR": True,
        "MOCO.TEACHER_PREDICTOR": True,
    },
    {"METHOD.NAME": "simsiam", "NORM.STUDENT": "MomentumBN", "SOLVER.FIXED_PREDICTOR_LR": True},
    {"METHOD.NAME": "supervised", "SOLVER.OPTIMIZER": "adamw", "SOLVER.ACCUMULATE": 2},
    {"METHOD.NAME": "momentum2", "SOLVER.OPTIMIZER": "lars", "DATA.WORKERS": 2},
    {"METHOD.NAME": "momentum2", "RUN.PRECISION": "fp16", "DATA.IMAGE_SIZE": 48, "NORM.ALPHA_SCHEDULE": "constant"},
    {
        "METHOD.NAME": "moco",
        "NORM.TEACHER": "ShuffleBN",
        "NORM.GROUP_SIZE": 2,
        "SOLVER.SCHEDULE": "step",
        "SOLVER.ACCUMULATE": 2,
    },
    *(
        {"METHOD.NAME": "byol", "NORM.TEACHER": norm, "DATA.IMAGE_SIZE": 48}
        | ({"NORM.GROUP_SIZE": 4} if norm == "ShuffleBN" else {})
        for norm in TEACHER_NORMS
    ),
    *(
        {"METHOD.NAME": "byol", "NORM.STUDENT": norm, "NORM.TEACHER": "BN", "DATA.IMAGE_SIZE": 48}
        for norm in STUDENT_NORMS
    ),
]


@pytest.mark.parametrize("settings", METHODS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_four_steps_equal_two_and_two_resumed(settings, tiny_cfg, tmp_path):
    whole = tiny_cfg({"OUTPUT_DIR": tmp_path / "whole", **settings})
    train(whole)
    parts = tiny_cfg({"OUTPUT_DIR": tmp_path / "parts", **settings})
    with pytest.raises(Stopped, match="--resume"):
        train(parts, stop_after=2)
    assert last_state(parts)["step"] == 2
    torch.manual_seed(12345)  # whatever happened in between
    train(parts, resuming=True)
    first, second = last_state(whole), last_state(parts)
    assert first.pop("config") != second.pop("config")  # OUTPUT_DIR
    assert_equal_trees(first, second)
    assert first["figures"] == {}  # every step is logged at once
    exported = [Path(cfg.OUTPUT_DIR, "backbone.safetensors").read_bytes() for cfg in (whole, parts)]
    assert exported[0] == exported[1]


def test_backbones_on_the_way_are_exported_under_names_of_their_own(tiny_cfg, tmp_path):
    cfg = tiny_cfg({"SOLVER.BATCH_SIZE": 400, "RUN.EXPORT_EVERY": 1, "SOLVER.STEPS": 5, "RUN.CHECKPOINT_EVERY": 5})
    exported = train(cfg)  # of 3 steps an epoch
    (file,) = (tmp_path / "run" / "exports").iterdir()
    assert file.name == "run_epoch1.safetensors"
    with safetensors.safe_open(file, "pt") as opened:
        assert opened.metadata()["steps"] == "3"
    on_the_way, last = load_file(file), load_file(exported)
    assert on_the_way.keys() == last.keys()
    assert not on_the_way["conv1.weight"].equal(last["conv1.weight"])


def test_the_share_of_a_step_spent_waiting_for_images_is_said(tiny_cfg, capsys):
    train(tiny_cfg())
    lines = metrics(tiny_cfg())
    fraction = sum(line["data_seconds"] for line in lines) / sum(line["seconds"] for line in lines)
    assert f"{fraction:.1%} of it waiting for images" in capsys.readouterr().out


def test_metrics_have_one_whole_line_a_step_after_a_resume(tiny_cfg):
    cfg = tiny_cfg()
    with pytest.raises(Stopped):
        train(cfg, stop_after=2)
    with open(f"{cfg.OUTPUT_DIR}/metrics.jsonl", "a") as stream:
        stream.write('{"step": 3, "loss": 1.0}\n{"step": 4, "lo')  # left by a run that was killed
    train(cfg, resuming=True)
    lines = metrics(cfg)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    expected = {"epoch", "loss", "lr", "momentum", "alpha", "embedding_std", "seconds", "data_seconds"}
    assert all(expected <= line.keys() for line in lines)
    assert lines[0]["alpha"] == 1.0


def test_momentum2_exports_the_teachers_history_under_torchvision_names(tiny_cfg):
    path = train(tiny_cfg())
    tensors = load_file(path)
    build_resnet(Architecture("resnet10", 4)).load_state_dict(tensors, strict=True)
    model = last_state(tiny_cfg())["model"]
    assert torch.equal(tensors["bn1.running_var"], model["teacher.backbone.bn1.running_var"])
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert (metadata["network"], metadata["architecture"], metadata["width"]) == ("teacher", "resnet10", "4")
    assert metadata["norm_teacher"] == "MomentumBN"


def test_random_baseline_has_the_initial_weights_and_the_images_statistics(tiny_cfg, tmp_path):
    cfg = tiny_cfg({"METHOD.NAME": "random"})
    tensors = load_file(train(cfg))
    torch.manual_seed(cfg.SEED)
    fresh = build_resnet(Architecture("resnet10", 4))
    assert torch.equal(tensors["conv1.weight"], fresh.conv1.weight)
    assert not torch.equal(tensors["bn1.running_var"], fresh.bn1.running_var)
    run = run_module.prepare(cfg, torch.device("cpu"), CheckpointFolder(tmp_path))
    images = shuffled_subset(evaluation_images(cfg, run.images), 16, cfg.SEED)
    maps = fresh.conv1(torch.stack([images[i][0] for i in range(16)]))
    torch.testing.assert_close(tensors["bn1.running_mean"], maps.mean((0, 2, 3)), rtol=1e-3, atol=1e-4)


def test_random_baseline_resumes_as_done(tiny_cfg):
    cfg = tiny_cfg({"METHOD.NAME": "random"})
    first = load_file(train(cfg))
    assert_equal_trees(first, load_file(train(cfg, resuming=True)))


def test_a_run_is_never_overwritten_silently(tiny_cfg):
    train(tiny_cfg())
    with pytest.raises(InputError, match="add --resume"):
        train(tiny_cfg())


def test_resume_under_other_settings_names_them(tiny_cfg):
    with pytest.raises(Stopped):
        train(tiny_cfg(), stop_after=1)
    with pytest.raises(InputError, match=r"SOLVER.BASE_LR 0.05 -> 0.1; TEACHER.MOVES 'before' -> 'after'"):
        train(tiny_cfg({"SOLVER.BASE_LR": 0.1, "TEACHER.MOVES": "after"}), resuming=True)
    train(tiny_cfg({"RUN.KEEP": 5}), resuming=True)  # how, not what


@pytest.fixture
def image_folder(tmp_path):
    """``image_folder(offset)`` writes 24 images of two classes, under the same names for every offset."""

    def write(offset):
        for number in range(24):
            folder = tmp_path / "data" / "train" / f"class_{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number + offset).integers(0, 256, (20, 20, 3)).astype(np.uint8)
            PIL.Image.fromarray(pixels).save(folder / f"{number}.bmp")
        return {"DATA.NAME": "imagefolder", "DATA.ROOT": tmp_path / "data", "DATA.VIEWS": "mocov2"}

    return write


def test_resume_on_images_overwritten_under_the_same_names_and_sizes_is_refused(tiny_cfg, image_folder):
    settings = image_folder(0)
    with pytest.raises(Stopped):
        train(tiny_cfg(settings), stop_after=1)
    image_folder(100)
    with pytest.raises(InputError, match=r"found others: their bytes differ; restore them, correct DATA\.ROOT"):
        train(tiny_cfg(settings), resuming=True)
    image_folder(0)
    train(tiny_cfg(settings), resuming=True)


def test_resume_on_a_copy_of_the_images_elsewhere_goes_on(tiny_cfg, image_folder, tmp_path):
    settings = image_folder(0)
    with pytest.raises(Stopped):
        train(tiny_cfg(settings), stop_after=1)
    (tmp_path / "data").rename(tmp_path / "moved")
    train(tiny_cfg({**settings, "DATA.ROOT": tmp_path / "moved"}), resuming=True)


def test_resume_on_other_images_says_what_differs(tiny_cfg, image_folder, tmp_path):
    settings = image_folder(0)
    with pytest.raises(Stopped):
        train(tiny_cfg(settings), stop_after=1)
    (tmp_path / "data/train/class_0/0.bmp").rename(tmp_path / "data/train/class_1/0.bmp")
    with pytest.raises(InputError, match=r"found others: their labels and names and sizes"):
        train(tiny_cfg(settings), resuming=True)


def test_means_of_the_log_go_on_across_a_resume(tiny_cfg, tmp_path):
    settings = {"RUN.LOG_EVERY": 3, "SOLVER.STEPS": 6}
    whole, parts = (tiny_cfg({"OUTPUT_DIR": tmp_path / name, **settings}) for name in ("whole", "parts"))
    train(whole)
    with pytest.raises(Stopped):
        train(parts, stop_after=2)
    train(parts, resuming=True)
    assert [line["loss"] for line in metrics(parts)] == [line["loss"] for line in metrics(whole)]
    assert len(metrics(parts)) == 2


def test_knn_scores_whole_held_out_classes_and_lets_only_labelled_images_vote(tiny_cfg, tmp_path):
    cfg = tiny_cfg({"RUN.KNN_EVERY": 1.0, "DATA.LONG_TAIL": 0.1, "DATA.SAMPLE_FRACTION": 0.5})
    run = run_module.prepare(cfg, torch.device("cpu"), CheckpointFolder(tmp_path))
    assert len(run.knn.held_out) == len(build_dataset("digits", split="val"))
    assert len(run.knn.bank) == len(run.images) < 400
    with pytest.raises(InputError, match="filelist"):
        run_module._knn_monitor(tiny_cfg({"RUN.KNN_EVERY": 1.0, "DATA.NAME": "filelist"}), run.images, run.device)


def test_a_signal_saves_and_says_how_to_go_on(tiny_cfg, monkeypatch):
    log = train_module._log

    def interrupt(*arguments):
        log(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(train_module, "_log", interrupt)
    with pytest.raises(Stopped, match=r"saved after step 1 .* --resume") as stopped:
        train(tiny_cfg())
    assert stopped.value.exit_code == 143
    assert last_state(tiny_cfg())["step"] == 1


def _train_and_signal_the_group(cfg):
    log = train_module._log

    def interrupt(run, metrics, done, figures):
        log(run, metrics, done, figures)
        if done == 2:
            signal_own_group()

    train_module._log = interrupt
    train(cfg)


def test_signal_to_the_whole_group_leaves_workers_alive_until_the_step_is_saved(tiny_cfg, tmp_path):
    """As timeout, schedulers and containers send it: the workers get the signal as well."""
    whole, parts = (tiny_cfg({"OUTPUT_DIR": tmp_path / name, "DATA.WORKERS": 2}) for name in ("whole", "parts"))
    outcome = outcome_in_own_group(_train_and_signal_the_group, parts)
    assert outcome.startswith("Stopped 143: saved after step 2")
    train(parts, resuming=True)
    train(whole)
    one, other = last_state(whole)["model"], last_state(parts)["model"]
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_loss_that_is_not_finite_stops_naming_step_and_tensors(tiny_cfg, monkeypatch):
    build = run_module.build_method

    def broken(*arguments):
        method = build(*arguments)
        with torch.no_grad():
            method.student.backbone.layer2[0].conv1.weight[0, 0, 0, 0] = float("nan")
        return method

    monkeypatch.setattr(run_module, "build_method", broken)
    with pytest.raises(InputError, match=r"at step 0; not finite: loss.*student.backbone.layer2.0.conv1.weight"):
        train(tiny_cfg())


def test_a_gradient_that_is_not_finite_never_reaches_the_weights(tiny_cfg, monkeypatch):
    build = run_module.build_method

    def broken(*arguments):
        method = build(*arguments)
        method.student.backbone.conv1.weight.register_hook(lambda gradient: gradient * float("inf"))
        return method

    monkeypatch.setattr(run_module, "build_method", broken)
    cfg = tiny_cfg({"RUN.CHECKPOINT_EVERY": 1})
    with pytest.raises(InputError, match=r"at step 0; not finite: student.backbone.conv1.weight \(gradient\)"):
        train(cfg)
    assert CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints").last() is None


def test_finite_gradients_whose_sum_overflows_are_finite(tiny_cfg, monkeypatch):
    build = run_module.build_method

    def steep(*arguments):
        method = build(*arguments)
        method.student.backbone.conv1.weight.register_hook(lambda gradient: torch.full_like(gradient, 3e38))
        return method

    monkeypatch.setattr(run_module, "build_method", steep)
    cfg = tiny_cfg({"SOLVER.STEPS": 1, "SOLVER.BASE_LR": 1e-30})
    train(cfg)
    assert CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints").last() is not None


@pytest.mark.parametrize(("steps", "message"), [(0, "at least 1 step, found 0"), (2, "beyond the 2 steps done")])
def test_stopping_after_a_step_that_cannot_come_is_refused(steps, message, tiny_cfg):
    with pytest.raises(Stopped):
        train(tiny_cfg(), stop_after=2)
    with pytest.raises(InputError, match=message):
        train(tiny_cfg(), resuming=True, stop_after=steps)


def test_accumulated_micro_batches_have_the_gradient_of_the_whole_batch(tiny_cfg, tmp_path):
    settings = {"METHOD.NAME": "byol", "NORM.STUDENT": "GN", "NORM.TEACHER": "GN", "SOLVER.STEPS": 2}
    settings["MODEL.STEM"] = "small"  # larger maps: over two values a group's normalisation is a sign
    states = []
    for accumulate in (1, 4):
        cfg = tiny_cfg({**settings, "OUTPUT_DIR": tmp_path / str(accumulate), "SOLVER.ACCUMULATE": accumulate})
        train(cfg)
        states.append(last_state(cfg)["model"])
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    "settings", [{"RUN.PRECISION": "bf16"}, {"RUN.PRECISION": "fp16"}, {"RUN.CHANNELS_LAST": True}], ids=str
)
def test_faster_settings_start_from_the_same_loss(settings, tiny_cfg, tmp_path):
    losses = []
    for number, changes in enumerate(({}, settings)):
        # Of width 4, torch 2.14.1 aborts in channels last on CPUs with AVX2 alone (backward of 1x1, stride 2).
        cfg = tiny_cfg({"OUTPUT_DIR": tmp_path / str(number), "DATA.IMAGE_SIZE": 48, "MODEL.WIDTH": 8, **changes})
        train(cfg)
        losses.append([line["loss"] for line in metrics(cfg)])
    # Later losses drift apart with rounding, and fp16's scaler skips its first steps until its scale fits.
    assert losses[1][0] == pytest.approx(losses[0][0], rel=0.02)
    assert losses[1][0] != losses[0][0] or "RUN.CHANNELS_LAST" in settings  # the precision was really in use
    assert all(math.isfinite(loss) for loss in losses[1])


def test_views_made_on_the_device_feed_the_loop_and_resume(tiny_cfg, tmp_path):
    settings = {"DATA.VIEWS": "byol", "DATA.VIEWS_ON": "device"}
    whole, parts = (tiny_cfg({"OUTPUT_DIR": tmp_path / name, **settings}) for name in ("whole", "parts"))
    train(whole)
    with pytest.raises(Stopped):
        train(parts, stop_after=2)
    train(parts, resuming=True)
    assert_equal_trees(last_state(whole)["model"], last_state(parts)["model"])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # the compiler takes a minute or two of an idle core
def test_a_compiled_run_learns_the_same(tiny_cfg, tmp_path):
    losses = []
    for compiled in (False, True):
        cfg = tiny_cfg({"OUTPUT_DIR": tmp_path / str(compiled), "RUN.COMPILE": compiled, "DATA.IMAGE_SIZE": 32})
        train(cfg)
        losses.append([line["loss"] for line in metrics(cfg)])
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def test_knn_monitor_writes_its_score(tiny_cfg):
    cfg = tiny_cfg({"RUN.KNN_EVERY": 0.01, "METHOD.NAME": "simsiam", "DATA.SAMPLE_FRACTION": 0.1})
    train(cfg)
    scores = [line.get("knn_top1") for line in metrics(cfg)]
    assert sum(score is not None and 0 <= score <= 100 for score in scores) >= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"METHOD.NAME": "momentum3"}, "expected METHOD.NAME of momentum2"),
        ({"NORM.TEACHER": "LN"}, "expected NORM.TEACHER of"),
        ({"SOLVER.BATCH_SIZE": 4000, "SOLVER.BASE_BATCH_SIZE": 4000}, "expected at least a batch of 4000"),
        ({"SOLVER.ACCUMULATE": 3}, "divisible by processes x SOLVER.ACCUMULATE"),
        (
            {"TEACHER.MOMENTUM_BASE": 1.5},
            "expected TEACHER.MOMENTUM_BASE as the weight of the new value, between 0 and 0.5, or 1, found 1.5",
        ),
        ({"DATA.VIEWS": "cutout"}, "cutout"),
        ({"DATA.NAME": "imagefolder", "DATA.ROOT": "/nowhere"}, "/nowhere"),
        ({"RUN.DEVICE": "tpu"}, "expected RUN.DEVICE"),
        ({"RUN.PRECISION": "bf16"}, "expected RUN.PRECISION float32 for images of 16 px"),
        ({"SOLVER.BASE_LR": 0.0}, "expected SOLVER.BASE_LR above 0"),
        ({"METHOD.NAME": "moco", "MOCO.TEACHER_PREDICTOR": True}, "MOCO.PREDICTOR True"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(settings, message, tiny_cfg, tmp_path):
    with pytest.raises(InputError, match=message):
        train(tiny_cfg(settings))
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("method", ["momentum2", "moco", "simsiam"])
def test_training_on_a_gpu_resumes_and_exports(method, precision, tiny_cfg):
    settings = {"METHOD.NAME": method, "RUN.DEVICE": "cuda", "RUN.PRECISION": precision, "RUN.CHANNELS_LAST": True}
    with pytest.raises(Stopped):
        train(tiny_cfg(settings), stop_after=2)
    tensors = load_file(train(tiny_cfg(settings), resuming=True))
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


@pytest.mark.gpu
def test_device_views_feed_a_run_on_a_gpu(tiny_cfg):
    train(tiny_cfg({"RUN.DEVICE": "cuda", "DATA.VIEWS": "byol", "DATA.VIEWS_ON": "device"}))
