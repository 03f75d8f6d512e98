"""The quickstart's steps: what waits for what, what a second call repeats, how a failure ends the others."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from momentum_transfer.console import Stopped, run_tool
from momentum_transfer.errors import InputError
from tests.tools.in_process import run_tool as run
from tools import quickstart
from tools.quickstart import Step, run_chain, steps

SCRIPT = """
import sys, time
notes, title, seconds, code = sys.argv[1:]
with open(notes, "a") as file:
    print(title, "begins", file=file, flush=True)
    time.sleep(float(seconds))
    print(title, "ends", file=file)
print("words of", title)
sys.exit(int(code))
"""


@pytest.fixture
def step(tmp_path: Path):
    """``step(title, needs, seconds, code)``: it notes its begin and end in notes.txt, and prints a line."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def make(title: str, needs: tuple[str, ...] = (), seconds: float = 0.0, code: int = 0) -> Step:
        return Step(title, [str(script), str(tmp_path / "notes.txt"), title, str(seconds), str(code)], needs)

    return make


def notes(folder: Path) -> list[str]:
    return (folder / "notes.txt").read_text().splitlines()


def test_a_step_waits_for_what_it_needs_and_others_run_beside_it(step, tmp_path, capsys):
    run_chain([step("long", seconds=1.0), step("after", ("long",)), step("short")], tmp_path, jobs=2)
    assert notes(tmp_path).index("short ends") < notes(tmp_path).index("long ends")
    assert notes(tmp_path).index("long ends") < notes(tmp_path).index("after begins")
    assert "after | words of after" in capsys.readouterr().out
    os.remove(tmp_path / "notes.txt")
    run_chain([step("long", seconds=1.0), step("after", ("long",)), step("new")], tmp_path, jobs=1)
    assert notes(tmp_path) == ["new begins", "new ends"]
    assert "long: done before" in capsys.readouterr().out


def test_one_job_runs_the_steps_in_their_order(step, tmp_path):
    run_chain([step("first"), step("second"), step("third", ("first",))], tmp_path, jobs=1)
    assert notes(tmp_path) == [
        f"{title} {word}" for title in ("first", "second", "third") for word in ("begins", "ends")
    ]


def test_a_failure_is_named_and_ends_the_others(step, tmp_path):
    chain = [step("good"), step("bad", ("good",), code=3), step("endless", seconds=100.0), step("report", ("bad",))]
    with pytest.raises(InputError, match=r"the step bad ended with exit code 3 .*the finished steps are kept"):
        run_chain(chain, tmp_path, jobs=2)
    assert "endless ends" not in notes(tmp_path)
    assert "report begins" not in notes(tmp_path)
    assert list(json.loads((tmp_path / "quickstart.json").read_text())) == [chain[0].key]


def test_a_step_that_was_stopped_stops_the_chain_with_its_code(step, tmp_path):
    with pytest.raises(Stopped, match="stopped during one; the finished steps are kept") as stopped:
        run_chain([step("one", code=143)], tmp_path, jobs=1)
    assert stopped.value.exit_code == 143


def test_sigterm_ends_the_running_steps(step, tmp_path, monkeypatch, capsys):
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
