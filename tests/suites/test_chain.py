"""A chain of commands: what waits for what, what a second call repeats, how a failure ends the others."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.chain import Step, run_chain

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


def noted_steps(folder: Path) -> Callable[..., Step]:
    """``made(title, needs, seconds, code)``: a step that notes its begin and end in notes.txt, and prints a line."""
    script = folder / "script.py"
    script.write_text(SCRIPT)

    def made(title: str, needs: tuple[str, ...] = (), seconds: float = 0.0, code: int = 0) -> Step:
        return Step(title, [str(script), str(folder / "notes.txt"), title, str(seconds), str(code)], needs)

    return made


@pytest.fixture
def step(tmp_path: Path) -> Callable[..., Step]:
    return noted_steps(tmp_path)


def notes(folder: Path) -> list[str]:
    return (folder / "notes.txt").read_text().splitlines()


def test_a_step_waits_for_what_it_needs_and_others_run_beside_it(step, tmp_path, capsys):
    run_chain([step("long", seconds=1.0), step("after", ("long",)), step("short")], tmp_path / "memory.json", jobs=2)
    assert notes(tmp_path).index("short ends") < notes(tmp_path).index("long ends")
    assert notes(tmp_path).index("long ends") < notes(tmp_path).index("after begins")
    assert "after | words of after" in capsys.readouterr().out
    os.remove(tmp_path / "notes.txt")
    run_chain([step("long", seconds=1.0), step("after", ("long",)), step("new")], tmp_path / "memory.json", jobs=1)
    assert notes(tmp_path) == ["new begins", "new ends"]
    assert "long: done before" in capsys.readouterr().out


def test_one_job_runs_the_steps_in_their_order(step, tmp_path):
    run_chain([step("first"), step("second"), step("third", ("first",))], tmp_path / "memory.json", jobs=1)
    assert notes(tmp_path) == [
        f"{title} {word}" for title in ("first", "second", "third") for word in ("begins", "ends")
    ]


def test_a_failure_is_named_and_ends_the_others(step, tmp_path):
    chain = [step("good"), step("bad", ("good",), code=3), step("endless", seconds=100.0), step("report", ("bad",))]
    with pytest.raises(InputError, match=r"the step bad ended with exit code 3 .*finished work is kept"):
        run_chain(chain, tmp_path / "memory.json", jobs=2)
    assert "endless ends" not in notes(tmp_path)
    assert "report begins" not in notes(tmp_path)
    assert list(json.loads((tmp_path / "memory.json").read_text())) == [chain[0].key]


def test_a_step_that_was_stopped_stops_the_chain_with_its_code(step, tmp_path):
    with pytest.raises(Stopped, match="stopped during one; finished work is kept") as stopped:
        run_chain([step("one", code=143)], tmp_path / "memory.json", jobs=1)
    assert stopped.value.exit_code == 143
