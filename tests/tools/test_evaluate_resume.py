"""A suite of the real tools, killed in the middle and run again, has the records of an uninterrupted run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
