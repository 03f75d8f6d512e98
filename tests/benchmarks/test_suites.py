"""The benchmark of large suites, small: from plan to page on a stand-in for Slurm, and a results file to its page."""

import re
import subprocess
import sys

import pytest

from tests.tools.in_process import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--checkpoints", "30", "--tasks", "10"), "evaluate --on slurm of 300 tasks"),
        (("--checkpoints", "30", "--tasks", "10", "--on", "ray"), "evaluate --on ray of 300 tasks"),
        (("--records", "5000"), "report on 5000 records"),
    ],
)
def test_many_tasks_and_records_are_measured_in_bounded_memory(words: tuple[str, ...], what: str):
    # In a process of its own: a child's peak begins at that of the process it was forked from, here that of pytest.
    command = [sys.executable, "benchmarks/suites.py", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(rf"{what}: [\d.]+ s, [\d.]+ s of processors, (\d+) MiB", done.stdout)
    assert found
    assert int(found[1]) < 500
