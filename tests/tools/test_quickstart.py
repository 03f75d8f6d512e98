"""The quickstart's steps and its command line; `tests/suites/test_chain.py` is about chains."""

import os
import signal
import threading
import time
from pathlib import Path

from momentum_transfer.core.command import run_tool
from momentum_transfer.tools import quickstart
from momentum_transfer.tools.quickstart import steps
from tests.suites.test_chain import noted_steps, notes
from tests.tools.in_process import run_tool as run


def test_sigterm_ends_the_running_steps(tmp_path, monkeypatch):
    step = noted_steps(tmp_path)
    monkeypatch.setattr(quickstart, "steps", lambda output: [step("endless", seconds=100.0)])

    def end_it():
        while not (tmp_path / "notes.txt").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_it, daemon=True).start()
    assert run_tool(quickstart.parser(), quickstart.main, ["--output", str(tmp_path / "out")]) == 143
    assert notes(tmp_path) == ["endless begins"]


def test_every_step_needs_earlier_ones_only_and_the_report_all():
    chain = steps(Path("out"))
    titles = [step.title for step in chain]
    assert all(set(step.needs) <= set(titles[:place]) for place, step in enumerate(chain))
    assert chain[-1].needs == tuple(titles[:-1])
    assert len(set(titles)) == len({step.key for step in chain}) == 13
    printed = run("quickstart", "--dry-run", "--output", "out").stdout.splitlines()
    assert [line.split()[1] for line in printed] == [step.command[0] for step in chain]


def test_no_jobs_is_one_line_and_code_2(tmp_path):
    done = run("quickstart", "--jobs", 0, "--output", tmp_path / "out")
    assert (done.returncode, done.stderr) == (2, "error: expected --jobs of at least 1, found 0\n")
