"""The table of a plan."""

from pathlib import Path

import pytest

from momentum_transfer.suites.plan import Expected, show_plan
from momentum_transfer.suites.task import Job, Task


def job(name: str, folder: Path, gpu_hours: float) -> Job:
    task = Task(name, "tools/lowshot.py knn", (), gpu_hours)
    return Job("m2", task, ("tools/lowshot.py", "knn"), folder / name, (), "0" * 16, folder / "results.jsonl")


def test_a_task_that_tells_no_hours_is_not_said_to_cost_nothing(tmp_path: Path, capsys: pytest.CaptureFixture):
    jobs = [job("told", tmp_path, 4.0), job("untold", tmp_path, 0.0)]
    figures = {jobs[0].title: Expected(4.0, 4.0, "suite"), jobs[1].title: Expected(0.0, float("nan"), "")}
    show_plan(jobs, figures, 1, 2.5)
    said = capsys.readouterr().out
    rows = {name: next(line for line in said.splitlines() if f": {name} " in line and "to do" in line)
            for name in ("told", "untold")}  # fmt: skip
    assert "10.00" in rows["told"]
    assert "0.00" not in rows["untold"]
    assert "cost 10.00" in said
    assert "1 of them tell no hours" in said
