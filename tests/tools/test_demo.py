"""The demo: its chain, its numbers, and a page at the end."""

import importlib
from pathlib import Path

import pytest

from momentum_transfer.core import records
from tests.tools.in_process import run_tool


def test_accuracies_are_means_over_trials_of_the_demos_own_measure(tmp_path: Path):
    demo, file = importlib.import_module("momentum_transfer.tools.demo"), tmp_path / "results.jsonl"
    for task, metric, value in (("svm/k=4", "top1", 20), ("svm/k=4", "top1", 30), ("svm/k=4", "top5", 90)):
        records.append(file, [records.make_record(task, metric, value, checkpoint={"name": "a", "sha256": ""})])
    assert demo.accuracies(file) == {"a": 25.0}


def test_a_demo_without_steps_is_refused(tmp_path: Path):
    ended = run_tool("demo", "--steps", "0", "--output", tmp_path / "demo")
    assert ended.returncode == 2
    assert "expected --steps of at least 1, found 0" in ended.stderr
    assert not (tmp_path / "demo").exists()


@pytest.mark.slow
def test_a_demo_ends_with_numbers_and_a_page_and_a_second_one_finds_them(tmp_path: Path):
    first, again = (run_tool("demo", "--steps", "3", "--output", tmp_path / "demo") for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stdout.splitlines()[-2] == again.stdout.splitlines()[-2]
    assert "every score of these weights" in again.stdout
    assert (tmp_path / "demo/report.html").is_file()
