"""The table of a plan."""

from pathlib import Path

import pytest

from momentum_transfer.suites.plan import Expected, show_plan
from momentum_transfer.suites.task import Job, Task


def job(name: str, folder: Path, gpu_hours: float) -> Job:
    task = Task(name, "tools/lowshot.py knn", (), gpu_hours)
    return Job("m2", task, ("tools/lowshot.py", "knn"), folder / name, (), "0" * 16, folder / "results.jsonl")


def test_a_task_of_unknown_hours_is_not_shown_as_free(tmp_path: Path, capsys: pytest.CaptureFixture):
    jobs = [job("known", tmp_path, 4.0), job("unknown", tmp_path, 0.0)]
    figures = {jobs[0].title: Expected(4.0, 4.0, "suite"), jobs[1].title: Expected(0.0, float("nan"), "")}
    show_plan(jobs, figures, 1, 2.5)
    said = capsys.readouterr().out
    rows = {name: next(line for line in said.splitlines() if f": {name} " in line and "to do" in line)
            for name in ("known", "unknown")}  # fmt: skip
    assert "10.00" in rows["known"]
    assert "0.00" not in rows["unknown"]
    assert "cost 10.00" in said
    assert "1 of them have no known hours" in said
