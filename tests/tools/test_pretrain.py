import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.errors import InputError
from tests.tools.in_process import run_tool

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs/smoke/momentum2_digits.yaml"
TINY = ["DATA.IMAGE_SIZE", "16", "MODEL.WIDTH", "4", "HEAD.HIDDEN", "16", "HEAD.OUTPUT", "8", "SOLVER.BATCH_SIZE", "8"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(ROOT / "tools/pretrain.py"), *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120, check=False)


def wait_for(condition, alive, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert alive(), "the run ended before it could be interrupted"
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_mistyped_key_is_one_line_and_exit_code_2(tmp_path):
    done = run_tool("pretrain", "--config", CONFIG, "OUTPUT_DIR", tmp_path / "run", "NORM.TEACHR", "BN")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [line for line in done.stderr.splitlines() if "NORM.TEACHER" in line]
    assert not (tmp_path / "run").exists()


def test_a_protocol_other_than_the_configs_and_a_long_warm_up_are_said_before_the_first_step(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(f"_BASE_: {CONFIG}\nNORM:\n  GROUP_SIZE: 4\n", encoding="utf-8")
    short = [*TINY, "SOLVER.STEPS", 2, "RUN.LOG_EVERY", 1]
    done = run_tool("pretrain", "--config", own, *short, "OUTPUT_DIR", tmp_path / "a", "SOLVER.WARMUP_EPOCHS", 0)
    assert (done.returncode, done.stderr) == (0, "")
    changed = ["NORM.GROUP_SIZE", 0, "SOLVER.WARMUP_EPOCHS", 2]
    with mock.patch("momentum_transfer.pretrain.train._loop", side_effect=InputError("the loop begins")):
        done = run_tool("pretrain", "--config", own, *short, "OUTPUT_DIR", tmp_path / "b", *changed)
    first, second, last = done.stderr.splitlines()
    assert "the loop begins" in last
    assert first.startswith("warning: another protocol: BN and MomentumBN of 4 images in the config")
    assert "of 8 in this run" in first
    assert second.startswith("warning: 1 of 2 steps are warm-up (50%")


def test_sigterm_saves_says_how_to_resume_and_exits_143(tmp_path):
    arguments = ["--config", CONFIG, "OUTPUT_DIR", tmp_path, *TINY, "SOLVER.STEPS", 100_000]
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    process = fork.Process(target=lambda: results.put(run_tool("pretrain", *arguments)))
    process.start()
    wait_for((tmp_path / "metrics.jsonl").exists, process.is_alive)
    os.kill(process.pid, signal.SIGTERM)
    ended = results.get(timeout=60)
    process.join(timeout=60)
    assert ended.returncode == 143
    assert "run the same command with --resume" in ended.stdout
    assert load(CheckpointFolder(tmp_path / "checkpoints").last())["step"] > 0


@pytest.mark.slow
def test_a_run_killed_and_resumed_ends_with_the_weights_of_one_that_was_not(tmp_path):
    arguments = ["--config", CONFIG, *TINY, "SOLVER.STEPS", 300, "RUN.CHECKPOINT_EVERY", 20, "DATA.WORKERS", 1]
    assert run(*arguments, "OUTPUT_DIR", tmp_path / "whole").returncode == 0
    killed = CheckpointFolder(tmp_path / "killed/checkpoints")
    process = subprocess.Popen(command(*arguments, "OUTPUT_DIR", tmp_path / "killed"), stdout=subprocess.DEVNULL)
    wait_for((killed.folder / "last").exists, lambda: process.poll() is None)
    time.sleep(0.1)
    process.kill()
    process.wait()
    assert load(killed.last())["step"] < 300
    assert run(*arguments, "OUTPUT_DIR", tmp_path / "killed", "--resume").returncode == 0
    whole = load(CheckpointFolder(tmp_path / "whole/checkpoints").last())["model"]
    resumed = load(killed.last())["model"]
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())
    exported = [(tmp_path / name / "backbone.safetensors").read_bytes() for name in ("whole", "killed")]
    assert exported[0] == exported[1]
