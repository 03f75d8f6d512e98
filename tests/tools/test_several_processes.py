"""The tools beside one another and under torchrun: one run a folder, one line an error, a signal that loses no work."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from momentum_transfer.core.checkpoints import CheckpointFolder
from tests.tools.in_process import run_tool
from tests.tools.process_trees import begun, descendants, free_port, kill
from tests.tools.test_pretrain import CONFIG, ROOT, TINY, command, wait_for
from tests.transfer.torchvision_engine.tiny import write_shapes

ENDLESS = 100_000


def torchrun(*words: object) -> list[object]:
    """A tool in two processes on the CPU."""
    port = ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, *port, *words]


@pytest.mark.slow
def test_the_second_of_two_tools_in_one_folder_is_refused_and_the_first_goes_on(tmp_path):
    out = tmp_path / "run"
    endless = command("--config", CONFIG, "OUTPUT_DIR", out, *TINY, "SOLVER.STEPS", ENDLESS)
    first = begun(endless, tmp_path / "log")
    digits = ROOT / "configs/smoke/lowshot_digits.yaml"
    try:
        wait_for(
            lambda: any(line for file in out.glob("metrics.jsonl") for line in file.read_text()),
            lambda: first.poll() is None,
        )
        before = {file.name for file in out.iterdir()} | {"checkpoints", "tensorboard"}  # those two may still come
        for tool, *words in (
            ("transfer", "--config", ROOT / "configs/smoke/retinanet_digits.yaml", "--weights", "none"),
            ("pretrain", "--config", CONFIG, "--resume", *TINY),
            ("lowshot", "linear", "--config", digits, "--weights", "scratch"),
            ("lowshot", "knn", "--config", digits, "--weights", "pixels"),
        ):
            second = run_tool(tool, *words, "OUTPUT_DIR", out)
            errors = [line for line in second.stderr.splitlines() if not line.startswith("warning: ")]
            assert (second.returncode, len(errors)) == (2, 1), second.stderr
            assert f"found process {first.pid} at work there" in second.stderr
            assert before.issuperset(file.name for file in out.iterdir())
        assert first.poll() is None
    finally:
        kill(first)


@pytest.mark.slow
def test_an_error_of_input_is_one_line_under_torchrun(tmp_path):
    words = ("--config", CONFIG, "OUTPUT_DIR", tmp_path / "run", "SOLVER.BATCH_SIZE", 3)
    process = begun(torchrun("tools/pretrain.py", *words), tmp_path / "log")
    try:
        assert process.wait(timeout=180) != 0
    finally:
        kill(process)
    said = (tmp_path / "log").read_text()
    assert said.count("error: expected SOLVER.BATCH_SIZE divisible by processes") == 1, said
    assert not (tmp_path / "run").exists()


def pretraining(out: Path) -> list[object]:
    return ["tools/pretrain.py", "--config", CONFIG, "OUTPUT_DIR", out, *TINY, "DATA.WORKERS", 2, "SOLVER.STEPS",
            ENDLESS, "RUN.CHECKPOINT_EVERY", ENDLESS, "RUN.LOG_EVERY", 1]  # fmt: skip


def detector(out: Path) -> list[object]:
    data = f"('{out.parent}/images:{out.parent}/shapes.json',)"
    return ["tools/transfer.py", "--config", ROOT / "configs/smoke/mask_rcnn_digits.yaml", "--weights", "none",
            "--engine", "torchvision", "OUTPUT_DIR", out, "DATALOADER.NUM_WORKERS", 2, "SOLVER.MAX_ITER", ENDLESS,
            "SOLVER.STEPS", "()", "SOLVER.CHECKPOINT_PERIOD", ENDLESS, "SOLVER.IMS_PER_BATCH", 2, "MODEL.DEVICE", "cpu",
            "DATASETS.TRAIN", data, "DATASETS.TEST", data, "MODEL.ROI_HEADS.NUM_CLASSES", 3,
            "MODEL.RESNETS.NORM", "FrozenBN", "MODEL.ROI_BOX_HEAD.NORM", "", "MODEL.ROI_MASK_HEAD.NORM", "",
            "MODEL.FPN.NORM", ""]  # fmt: skip


def linear(out: Path) -> list[object]:
    return ["tools/lowshot.py", "linear", "--config", ROOT / "configs/smoke/lowshot_digits.yaml", "--weights",
            "scratch", "OUTPUT_DIR", out, "LINEAR.WORKERS", 2, "LINEAR.EPOCHS", 9000, "LINEAR.TRIALS", 1]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("training", [pretraining, detector, linear])
def test_sigterm_to_torchruns_group_saves_what_two_workers_a_process_had_fed(tmp_path, training):
    write_shapes(tmp_path)
    out = tmp_path / "run"
    process, members = begun(torchrun(*training(out)), tmp_path / "log"), []
    try:
        wait_for(lambda: any(out.rglob("metrics.jsonl")), lambda: process.poll() is None, seconds=240)
        time.sleep(1)
        members = descendants(process.pid)
        assert len(members) >= 2 + 2 * 2  # two processes with two loader workers each
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=120) != 0
    finally:
        kill(process, members)
    said = (tmp_path / "log").read_text()
    assert "killed by signal" not in said
    (metrics,) = out.rglob("metrics.jsonl")
    done = max(json.loads(line)["step"] for line in metrics.read_text().splitlines())
    (last,) = out.rglob("last")
    saved = int(CheckpointFolder(last.parent).last().stem.removeprefix("step_"))
    assert saved >= done > 0, (saved, done)
