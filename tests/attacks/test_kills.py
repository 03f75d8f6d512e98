"""kill -9 in the middle of writing a model: the next run ends in the same weights or scores, and no rest stays."""

import io
import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from momentum_transfer.backbones import convert
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.files import sha256_of
from momentum_transfer.lowshot import fixmatch, linear
from momentum_transfer.pretrain.train import train
from tests.pretrain.conftest import tiny_cfg  # noqa: F401  a fixture
from tests.tools.in_process import run_tool
from tests.transfer.torchvision_engine.tiny import shapes_config

ROOT = Path(__file__).resolve().parents[2]


def killed_while_writing(number: int, work: Callable[[], object]) -> bool:
    """Run it in a fork that is killed when half of its ``number``-th model file is written; whether it came to that."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left, save, save_file = [number], torch.save, safetensors.torch.save_file

    def slow(content: bytes, write: Callable[[bytes], object]) -> None:
        left[0] -= 1
        write(content if left[0] else content[: len(content) // 2])
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    def slow_save(state, stream):
        whole = io.BytesIO()
        save(state, whole)
        slow(whole.getvalue(), lambda part: (stream.write(part), stream.flush()))

    def slow_save_file(tensors, path, metadata=None):
        save_file(tensors, path, metadata)
        slow(Path(path).read_bytes(), Path(path).write_bytes)

    torch.save = slow_save
    safetensors.torch.save_file = convert.save_file = slow_save_file
    try:
        work()
    finally:
        os._exit(0)


def hidden(folder: Path) -> list[Path]:
    return list(folder.rglob(".*"))


def ends_the_same(whole: Callable[[], object], parts: Callable[[], object], folder: Path, kills: Iterable[int]) -> None:
    """``whole`` once; ``parts`` killed at these writes of a model, each from where the one before left it, then not."""
    expected = whole()
    for number in kills:
        assert killed_while_writing(number, parts), f"there were fewer than {number} writes"
    assert parts() == expected
    assert hidden(folder) == []


def test_pretraining(tiny_cfg, tmp_path):  # noqa: F811
    def run(name):
        cfg = tiny_cfg({"OUTPUT_DIR": tmp_path / name, "RUN.CHECKPOINT_EVERY": 2, "DATA.WORKERS": 0})
        return sha256_of(train(cfg, resuming=True))

    ends_the_same(lambda: run("whole"), lambda: run("parts"), tmp_path / "parts", (1, 2, 1, 2))


@pytest.mark.slow
def test_detector(tmp_path):
    words = ["SOLVER.MAX_ITER", "4", "SOLVER.STEPS", "()", "SOLVER.CHECKPOINT_PERIOD", "2", "ENGINE", "torchvision",
             "SOLVER.WARMUP_ITERS", "0"]  # fmt: skip

    def run(name):
        cfg = shapes_config("retinanet", tmp_path, *words, "OUTPUT_DIR", str(tmp_path / name))
        from momentum_transfer.transfer.run import Request
        from momentum_transfer.transfer.run import run as transfer

        transfer(cfg, Request("none", resume=True))
        model = torch.load(tmp_path / name / "model_final.pth", weights_only=True)["model"]
        return {key: value.sum().item() for key, value in model.items()}

    ends_the_same(lambda: run("whole"), lambda: run("parts"), tmp_path / "parts", (1, 2, 2))


SHORT = {
    "linear": ["LINEAR.FRACTION", 0.1, "LINEAR.EPOCHS", 2, "LINEAR.BATCH_SIZE", 16, "LINEAR.PRESET", "eman",
               "LINEAR.LEARNING_RATES", "[0.1]", "LINEAR.WORKERS", 0],
    "fixmatch": ["FIXMATCH.FRACTION", 0.1, "FIXMATCH.STEPS", 6, "FIXMATCH.BATCH_SIZE", 4, "FIXMATCH.WORKERS", 0,
                 "FIXMATCH.UNLABELLED_RATIO", 2],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", SHORT)
def test_few_labels_within_a_trial(command, tmp_path, monkeypatch):
    weights = tmp_path / "backbone.pth"
    torch.manual_seed(0)
    torch.save(build_resnet(Architecture("resnet10", 8)).state_dict(), weights)
    for room in (linear, fixmatch):

        def fit(run, *arguments, fit=room.fit):
            run.checkpoint_every = 2
            fit(run, *arguments)

        monkeypatch.setattr(room, "fit", fit)

    def run(name):
        folder = tmp_path / name
        config = ROOT / "configs/smoke/lowshot_digits.yaml"
        done = run_tool("lowshot", command, "--config", config, "--weights", weights, "--results",
                        folder / "results.jsonl", "OUTPUT_DIR", folder / "out", *SHORT[command])  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = (folder / "results.jsonl").read_text().splitlines()
        return sorted((record["metric"], record["network"], record["value"]) for record in map(json.loads, lines))

    ends_the_same(lambda: run("whole"), lambda: run("parts"), tmp_path / "parts", (1, 2, 2))
