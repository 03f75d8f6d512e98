"""A suite of the real tools, killed in the middle and run again, has the records of an uninterrupted run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tools.process_trees import begun, kill

ROOT = Path(__file__).resolve().parents[2]

#: Keys of a record that tell when and how it was made, not what was measured.
PASSING = ("time", "command", "seconds", "hours", "gpu_hours")


def start(output: Path, cache: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "tools/evaluate.py", "--weights", "pixels", "--suite", "configs/suites/smoke.yaml"]
    environment = {**os.environ, "MOMENTUM_TRANSFER_CACHE": str(cache)}
    return subprocess.Popen(
        [*command, "--output", str(output)],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )


def measured(output: Path) -> list[str]:
    """What the records of a suite say, in any order."""
    lines = (output / "results.jsonl").read_text(encoding="utf-8").splitlines()
    records = [{key: value for key, value in json.loads(line).items() if key not in PASSING} for line in lines]
    return sorted(json.dumps(record, sort_keys=True) for record in records)


@pytest.mark.slow
def test_a_suite_killed_in_the_middle_and_run_again_has_the_records_of_an_uninterrupted_one(tmp_path: Path):
    assert start(tmp_path / "whole", tmp_path / "cache").wait(timeout=600) == 0
    for number, stop in ((signal.SIGKILL, os.killpg), (signal.SIGTERM, os.kill)):
        output = tmp_path / number.name
        runner = start(output, tmp_path / "cache")
        while not (output / "pixels" / "svm" / "log.txt").exists():  # the second of its two tasks
            assert runner.poll() is None
            time.sleep(0.02)
        time.sleep(1.0)
        stop(runner.pid, number)
        assert runner.wait(timeout=120) in (-signal.SIGKILL, 143)
        assert len(measured(output)) < len(measured(tmp_path / "whole"))
        assert start(output, tmp_path / "cache").wait(timeout=600) == 0
        assert measured(output) == measured(tmp_path / "whole")
        assert (output / "report.html").is_file()


#: Two short tasks of the smoke suite's kinds.
SHORT = """name: short
tasks:
  - name: knn
    command: tools/lowshot.py knn --config configs/smoke/lowshot_digits.yaml --weights {weights} --results {results}
  - name: svm
    command: >-
      tools/lowshot.py svm --config configs/smoke/lowshot_digits.yaml --weights {weights} --results {results}
      SVM.TRIALS 2 SVM.SHOTS [1,2]
"""


@pytest.mark.slow
def test_an_evaluation_killed_with_its_tasks_at_any_moments_ends_with_the_records_of_an_uninterrupted_one(tmp_path):
    (tmp_path / "short.yaml").write_text(SHORT)
    tool = [sys.executable, "tools/evaluate.py", "--weights", "pixels", "--suite", tmp_path / "short.yaml", "--output"]

    def begin(output: Path) -> subprocess.Popen[bytes]:
        return begun([*tool, output], tmp_path / "log", MOMENTUM_TRANSFER_CACHE=str(tmp_path / "cache"))

    began = time.monotonic()
    assert begin(tmp_path / "whole").wait(timeout=600) == 0
    whole, moments = time.monotonic() - began, random.Random(0)
    for share in (0.3, 0.5, 0.7, 0.85):  # of what is left of a run that goes on, and so in each of its parts
        runner = begin(tmp_path / "parts")
        time.sleep(whole * (share + moments.uniform(-0.15, 0.15)))
        kill(runner)
    assert begin(tmp_path / "parts").wait(timeout=600) == 0
    assert measured(tmp_path / "parts") == measured(tmp_path / "whole")
    hidden = [file for file in (tmp_path / "parts").rglob(".*") if not file.name.endswith("lock")]
    assert hidden == []
