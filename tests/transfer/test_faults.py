"""What goes wrong outside of this project: a full disk, signals at any moment, pictures that cannot be read."""

import argparse
import errno
import json
import os
import signal

import pytest
import torch

from momentum_transfer.core import records as results
from momentum_transfer.core.command import run_tool
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.transfer.torchvision_engine import detection_run as prediction
from momentum_transfer.transfer.torchvision_engine import train
from momentum_transfer.transfer.torchvision_engine.data import Mapper
from tests.transfer.torchvision_engine.tiny import check_data, shapes_config

SHORT = ["SOLVER.MAX_ITER", "4", "SOLVER.STEPS", "()", "SOLVER.CHECKPOINT_PERIOD", "2", "ENGINE", "torchvision"]
SHORT += ["TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.NUM_ITER", "2", "SOLVER.WARMUP_ITERS", "0"]


def tool(cfg, *, resume=False):
    """The exit code of tools/transfer.py's work, in this process."""
    return run_tool(argparse.ArgumentParser(), lambda _: run(cfg, Request("none", resume=resume)), [])


def weights(folder):
    return torch.load(folder / "model_final.pth", weights_only=True)["model"]


def terminate(*_arguments, **_options):
    os.kill(os.getpid(), signal.SIGTERM)


def with_signal_before(function):
    def called(*arguments, **options):
        terminate()
        return function(*arguments, **options)

    return called


@pytest.fixture
def uninterrupted(tmp_path):
    cfg = shapes_config("mask_rcnn", tmp_path, *SHORT, "OUTPUT_DIR", str(tmp_path / "whole"))
    assert tool(cfg) == 0
    return tmp_path / "whole"


@pytest.mark.parametrize(
    ("owner", "name", "says"),
    [
        (train.Log, "add", "stopped after iteration 1; go on with the same command and --resume"),
        (train, "update_bn_stats", "stopped by SIGTERM"),
        (prediction, "result_entries", "stopped by SIGTERM"),
    ],
    ids=["training", "precise BN", "prediction"],
)
def test_sigterm_at_any_moment_can_be_resumed_to_the_same_end(
    owner, name, says, uninterrupted, tmp_path, monkeypatch, capsys
):
    cfg = shapes_config("mask_rcnn", tmp_path, *SHORT, "MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.05")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, with_signal_before(getattr(owner, name)))
        assert tool(cfg) == 143
    printed = capsys.readouterr()
    assert says in printed.out + printed.err
    assert tool(cfg) == 2  # not without saying so
    assert tool(cfg, resume=True) == 0
    whole, resumed = weights(uninterrupted), weights(tmp_path / "out")
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    first, second = (results.read(folder / "results.jsonl")[0] for folder in (uninterrupted, tmp_path / "out"))
    assert [r["value"] for r in first] == pytest.approx([r["value"] for r in second], nan_ok=True)


def test_a_full_disk_leaves_the_last_checkpoint_whole(uninterrupted, tmp_path, monkeypatch, capsys):
    cfg, save = shapes_config("mask_rcnn", tmp_path, *SHORT), torch.save

    def save_half(content, stream):
        if content.get("iteration") == 3:
            stream.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", stream.name)
        save(content, stream)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save_half)
        assert tool(cfg) == 1
    assert "no space left on the disk" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.pth")) == ["step_0000002.pth"]
    assert tool(cfg, resume=True) == 0
    whole, resumed = weights(uninterrupted), weights(tmp_path / "out")
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_a_kill_while_saving_leaves_nothing_behind_after_the_resumption(tmp_path, monkeypatch):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    with monkeypatch.context() as patch:
        patch.setattr(train.Log, "add", with_signal_before(train.Log.add))
        assert tool(cfg) == 143
    (tmp_path / "out/checkpoints/.step_0000001.k3jh2xyz.tmp.pth").write_bytes(b"half")
    with open(tmp_path / "out/metrics.jsonl", "a") as stream:
        stream.write(json.dumps({"step": 3, "loss": 1.0}) + '\n{"step": 4, "lo')  # written after the last checkpoint
    assert tool(cfg, resume=True) == 0
    assert not list((tmp_path / "out/checkpoints").glob(".step*"))
    steps = [json.loads(line)["step"] for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 4]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_picture_that_cannot_be_read_is_named_while_training(workers, tmp_path, capsys):
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "DATALOADER.NUM_WORKERS", str(workers))
    file = tmp_path / "data/images/002.png"
    file.write_bytes(file.read_bytes()[:-200])  # its header is whole, and is all that is read before the training
    assert tool(cfg) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert error.startswith("error: cannot read the image")
    assert "002.png" in error


def test_checking_the_data_opens_every_picture(tmp_path, capsys):
    from PIL import Image

    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    (tmp_path / "data/images/002.png").write_bytes(b"no picture")
    Image.new("RGB", (30, 64)).save(tmp_path / "data/images/001.png")
    code = run_tool(argparse.ArgumentParser(), lambda _: check_data(cfg, open_images=True), [])
    assert code == 2
    error = capsys.readouterr().err
    assert "2 unusable images of" in error
    assert "001.png is 30×64, not 64×64" in error
    assert "002.png: " in error


def test_the_loss_of_which_images_is_not_finite_is_said(tmp_path, monkeypatch, capsys):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    original = Mapper.train

    def broken(self, picture, random):
        sample = original(self, picture, random)
        if picture.image_id == 3:
            sample.image = sample.image.float().fill_(float("inf"))
        return sample

    monkeypatch.setattr(Mapper, "train", broken)
    assert tool(cfg) == 2
    error = capsys.readouterr().err
    assert "the loss is not finite at iteration" in error
    assert "3" in error.partition("on the images")[2].partition(";")[0]
