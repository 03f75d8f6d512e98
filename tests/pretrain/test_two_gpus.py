"""Two processes on two cards, by NCCL."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.pretrain.conftest import TINY

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {**TINY, "METHOD.NAME": "byol", "NORM.STUDENT": "SyncBN", "NORM.TEACHER": "SyncBN", "RUN.DEVICE": "cuda"}


def run(output: Path, processes: int, *options: str) -> dict[str, torch.Tensor]:
    words = [str(word) for pair in {**SETTINGS, "OUTPUT_DIR": output}.items() for word in pair]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    config = str(ROOT / "configs/smoke/momentum2_digits.yaml")
    command = [sys.executable, *launcher, str(ROOT / "tools/pretrain.py"), "--config", config, *options, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 or "--stop-after" in options, done.stderr
    return load_file(output / "backbone.safetensors") if "--stop-after" not in options else {}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL between two processes needs two CUDA devices")
def test_two_cards_train_the_network_of_one_and_resume_it(tmp_path):
    one, two = run(tmp_path / "one", 1), run(tmp_path / "two", 2)
    run(tmp_path / "parts", 2, "--stop-after", "2")
    parts = run(tmp_path / "parts", 2, "--resume")
    for name, value in two.items():
        torch.testing.assert_close(value, one[name], rtol=1e-3, atol=1e-4)
        assert torch.equal(value, parts[name]), name
