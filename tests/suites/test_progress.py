"""What status reads from files: each state, the fraction done and the time left, and the plan's own hours."""

import errno
import json
import math
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from momentum_transfer.core import run_lock
from momentum_transfer.core.errors import InputError
from momentum_transfer.report.provenance import cost_tables
from momentum_transfer.suites import local
from momentum_transfer.suites.attempt import JOB_LOCK
from momentum_transfer.suites.planning import Expected, expected, plan, read_measured, show_plan
from momentum_transfer.suites.progress import read_plan, standings, write_plan
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.task import Job, Task
from tests.suites.suite_files import write_suite, write_weights
from tests.tools.in_process import run_tool


@pytest.fixture
def jobs(tmp_path):
    tasks = [{"gpu_hours": 2.0}, {"needs": "task0"}, {}, {"needs": "task2"}, {}, {}]
    made = plan(load_suite(write_suite(tmp_path, *tasks)), write_weights(tmp_path)[:1], tmp_path / "out")
    (tmp_path / "out").mkdir()
    costs = expected(made, 4)
    write_plan(tmp_path / "out", made, costs)
    return made


def test_every_task_is_where_its_files_say(tmp_path, jobs):
    done, after, failed, _, running, stopped = jobs
    done.results.touch()
    done.begin(1)
    done.end(7200.0, exit_code=0)
    failed.begin(1)
    failed.end(3.0, exit_code=3, note="exit code 3: boom")
    running.begin(0)
    running.log.write_text("begun\ntrain: 20/100 in 10 s  loss 3\ntrain: 60/100 in 20 s  loss 2\nsomething\n")
    stopped.begin(0)
    stopped.end(50.0, stopped="SIGTERM")
    (running.folder / JOB_LOCK).touch()
    line = json.dumps({"number": "12_3", "on": "Slurm", "jobs": [[after.title, after.key]]})
    (tmp_path / "out/submitted.jsonl").write_text(line + "\n")
    found = {one.planned.task: one for one in standings(tmp_path / "out")}
    assert [found[f"task{index}"].state for index in range(6)] == [
        "done", "queued", "failed", "not run", "running", "stopped"
    ]  # fmt: skip
    assert found["task0"].gpu_hours == 2.0
    assert found["task1"].note == "job 12_3"
    assert found["task2"].note == "exit code 3: boom"
    assert (found["task4"].fraction, found["task4"].left) == (0.6, 10.0)  # 40 in the last ten seconds
    assert found["task4"].note == "something"
    assert found["task5"].seconds == 50.0
    entry = {"number": "12", "on": "Slurm", "jobs": [["", ""], ["", ""], ["", ""], [after.title, after.key]]}
    (tmp_path / "out/submitted.jsonl").write_text(json.dumps(entry) + "\n")
    ended = run_tool("status", tmp_path / "out", "--once")
    assert ended.returncode == 1  # one has failed
    assert "6 tasks: 1 failed, 1 running, 1 stopped, 1 not run, 1 queued, 1 done; 2.00 GPU hours used" in ended.stdout
    assert "60%" in ended.stdout


def test_a_task_on_a_node_that_gives_no_sign_of_life_is_silent(tmp_path, jobs):
    job = jobs[0]
    job.begin(1)
    state = {**job.state(), "slurm_job": "7", "began": time.time() - 1000}
    (job.folder / "suite_state.json").write_text(json.dumps(state))
    import os

    for path in (job.log, job.folder / JOB_LOCK):
        path.touch()
        os.utime(path, (time.time() - 600, time.time() - 600))
    silent = standings(tmp_path / "out")[0]
    assert silent.state == "silent"
    assert silent.seconds == pytest.approx(400, abs=5)
    (job.folder / JOB_LOCK).touch()
    assert standings(tmp_path / "out")[0].state == "running"


def test_hours_are_measured_where_they_can_be_and_the_plan_keeps_what_was_expected_first(tmp_path, jobs):
    assert [one.gpu_hours for one in read_plan(tmp_path / "out")][:2] == [2.0, 0.0]
    job = jobs[0]
    job.results.touch()
    job.begin(1)
    job.end(3600.0, exit_code=0)
    others = plan(load_suite(tmp_path / "suite.yaml"), write_weights(tmp_path), tmp_path / "out")
    costs = expected(others, 4)
    assert costs["momentum2: task0"].gpu_hours == 0.0  # is done
    assert costs["random: task0"] == type(costs["random: task0"])(1.0, 1.0, "measured, others")
    assert math.isnan(costs["random: task2"].hours)
    write_plan(tmp_path / "out", others, costs)
    planned = {one.title: (one.gpu_hours, one.source) for one in read_plan(tmp_path / "out")}
    assert planned["momentum2: task0"] == (2.0, "suite")
    assert planned["random: task0"] == (1.0, "measured, others")
    (table,) = cost_tables([tmp_path / "out/results.jsonl"])
    row = next(row for row in table.rows if row.label == "task0")
    assert [cell.main for cell in row.cells] == ["1 of 2", "3.00", "1.00", "0.50", "1.00"]


def test_records_elsewhere_hold_the_hours_of_a_task_with_the_same_configs(tmp_path):
    command = "python tools/lowshot.py knn --config configs/smoke/lowshot_digits.yaml --weights {} --results r"
    lines = [("a", 1.0, 0.5), ("a", 2.0, 1.0), ("b", 6.0, 3.0)]  # the first of a was written on its way
    path = tmp_path / "r.jsonl"
    checkpoint = {"name": "", "sha256": ""}
    path.write_text("".join(
        json.dumps({"task": "t", "metric": "m", "value": 1, "checkpoint": checkpoint, "command": command.format(name),
                    "gpu_hours": gpu_hours, "hours": hours}) + "\n"
        for name, gpu_hours, hours in lines
    ))  # fmt: skip
    assert read_measured([path]) == {"lowshot knn configs/smoke/lowshot_digits.yaml": (4.0, 2.0)}
    path.write_text(path.read_text().replace("gpu_hours", "x"))
    with pytest.raises(InputError, match="expected records with gpu_hours and hours"):
        read_measured([path])


@pytest.mark.parametrize("text", [None, "[", "{}", '{"tasks": [{}]}', '{"tasks": 3}', "[" * 100_000])
def test_a_folder_without_a_plan_or_with_a_damaged_one_is_one_line(tmp_path, text):
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    ended = run_tool("status", tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: expected the")
    assert ended.stderr.count("\n") == 1


def test_dry_run_shows_hours_and_money(tmp_path, jobs):
    words = ("--suite", tmp_path / "suite.yaml", "--weights", tmp_path / "random.pt", "--output", tmp_path / "out2")
    ended = run_tool("evaluate", *words, "--dry-run", "--gpus", "4", "--price", "2.5")
    assert ended.returncode == 0, ended.stderr
    assert "6 of 6 tasks to do, 2.0 GPU hours expected, 0.5 hours on 4 GPUs, cost 5.00" in ended.stdout
    assert "5 of them have no known hours" in ended.stdout


def test_standings_are_shown_on_a_file_system_that_is_read_only(tmp_path, jobs, monkeypatch):
    jobs[0].begin(1)
    jobs[0].log.touch()

    def refused(*_arguments, **_options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(run_lock, "_offsets", {})
    for name in ("touch", "unlink"):
        monkeypatch.setattr(Path, name, refused)
    assert standings(tmp_path / "out")[0].state == "running"


def test_seconds_of_a_task_do_not_follow_a_clock_that_goes_back(jobs, monkeypatch):
    job = jobs[0]
    job.begin(1)
    running = local._Running(job, SimpleNamespace(returncode=3), time.monotonic() - 5, 0.0, ExitStack())
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert running.outcome().seconds == pytest.approx(5, abs=2)


def test_seconds_of_a_killed_attempt_are_those_of_the_file_server_where_the_nodes_clock_differs(jobs, monkeypatch):
    job, true = jobs[0], time.time
    monkeypatch.setattr(run_lock, "_offsets", {})
    monkeypatch.setattr(time, "time", lambda: true() - 7200)
    job.folder.mkdir(parents=True)
    job.begin(1)
    job.log.touch()
    assert job.state()["began"] == pytest.approx(true(), abs=5)
    assert job.begin(1) == pytest.approx(0, abs=5)


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


def test_hours_of_configs_with_short_names_are_kept_apart(tmp_path):
    path = tmp_path / "r.jsonl"
    hours = {"1": 1.0, "10": 3.0}
    path.write_text("".join(
        json.dumps({"task": "t", "metric": "m", "value": 1, "checkpoint": {"name": "", "sha256": ""}, "hours": spent,
                    "command": f"python tools/lowshot.py linear --config lowshot/eman_table2_linear_{percent}",
                    "gpu_hours": spent}) + "\n"
        for percent, spent in hours.items()
    ))  # fmt: skip
    names = {percent: f"lowshot linear lowshot/eman_table2_linear_{percent}" for percent in hours}
    assert read_measured([path]) == {names[percent]: (spent, spent) for percent, spent in hours.items()}
