"""The run of everything that wants a card: rehearsed on the CPU, and what it does with a part that hangs or fails."""

import time

import pytest

from benchmarks import gpu
from tests.tools.in_process import run_tool


@pytest.mark.slow
def test_a_rehearsed_part_prints_its_table_and_its_outcome(tmp_path):
    done = run_tool("benchmarks/gpu", "--tiny", "--parts", "svm", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "classes x images" in (tmp_path / "svm.txt").read_text()
    assert "5 x 16" in done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("svm ")] == ["done"]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("print('begun'); import time; time.sleep(60)", "out of time"), ("raise SystemExit(3)", "failed (exit code 3)")],
)
def test_a_part_that_hangs_or_fails_leaves_the_others_their_turn(code, outcome, tmp_path):
    begun = time.monotonic()
    part = gpu.Part(("-c", code), ("-c", code), 60)
    assert gpu.run_part("bad", part, tmp_path, False, 1.0)[0].startswith(outcome)
    assert time.monotonic() - begun < 30


def test_without_a_card_it_says_how_to_rehearse(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = run_tool("benchmarks/gpu", "--output", tmp_path / "new")
    assert done.returncode == 2
    assert "expected a CUDA device, found none; --tiny" in done.stderr
    assert not (tmp_path / "new").exists()
