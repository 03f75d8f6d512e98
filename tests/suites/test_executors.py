"""Engines by entry point, what they are told, and what is told of them."""

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.suites import executors
from momentum_transfer.suites.executors import Seen, Setup, cancel, executor_class, run_on, submitted
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.task import Job
from tests.suites.suite_files import words, write_suite, write_weights

#: An engine of another package, whole: processes of this machine, without dependencies of its own.
PROCESSES = """
import pickle
import subprocess
import sys

from momentum_transfer.suites.executors import Seen

CODE = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))()"


class Processes:
    name = "Processes"
    running = {}

    def __init__(self, setup):
        self.most = setup.at_once or 2

    def gpus(self):
        return 0

    def submit(self, attempts, earlier):
        for attempt in attempts:
            alive = [one for one in self.running.values() if one.poll() is None]
            if len(alive) < self.most and all(need.done() for need in attempt.job.needs):
                command = [sys.executable, "-c", CODE, pickle.dumps(attempt).hex()]
                process = subprocess.Popen(command)
                self.running[str(process.pid)] = process
                yield str(process.pid), [attempt]

    def look(self, numbers):
        return {number: Seen("RUNNING", alive=one.poll() is None) for number, one in self.running.items()}

    def cancel(self, numbers):
        for number in numbers:
            self.running[number].terminate()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package with an executor, as pip leaves it on the path, and one whose module is broken."""
    site = tmp_path / "site"
    info = site / "another_package-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "another_package.py").write_text(PROCESSES, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: another-package\nVersion: 1.0\n", encoding="utf-8")
    entries = "processes = another_package:Processes\nbroken = another_package:Nothing\ngone = no_such_module:Nothing\n"
    (info / "entry_points.txt").write_text(f"[momentum_transfer.executors]\n{entries}", encoding="utf-8")
    monkeypatch.syspath_prepend(site)


def jobs_of(folder: Path, *tasks: dict) -> list[Job]:
    (folder / "out").mkdir(exist_ok=True)
    return plan(load_suite(write_suite(folder, *tasks)), write_weights(folder)[:1], folder / "out")


def test_an_executor_of_another_package_runs_a_suite(tmp_path: Path, installed, capsys):
    assert len(PROCESSES.strip().splitlines()) <= 40
    jobs = jobs_of(tmp_path, {}, {"needs": "task0"}, {"word": "fail"}, {"needs": "task2"})
    engine = executor_class("processes:anywhere")(Setup(tmp_path / "out"))
    outcomes = run_on(engine, jobs, tmp_path / "out", gpus=engine.gpus(), poll=0.1)
    assert [outcome.status for outcome in outcomes] == ["done", "done", "failed", "not run"]
    assert [outcome.note for outcome in outcomes[2:]] == ["exit code 3: boom: no such thing", "task2 did not end well"]
    assert words(tmp_path / "out") == ["word0", "word1"]
    assert "Processes: 0 of 4 ended" in capsys.readouterr().out
    assert submitted(tmp_path / "out", "Processes")[jobs[0].title][1] == jobs[0].key
    assert submitted(tmp_path / "out", "Slurm") == {}


@pytest.mark.parametrize(
    ("on", "told"),
    [
        ("lsf", "expected --on local, slurm, ray, processes, broken, gone or NAME:ADDRESS, found 'lsf'; another"),
        ("broken", "expected the executor broken in another_package:Nothing, found .*install its package again"),
        ("gone", "expected the executor gone in no_such_module:Nothing, found No module named"),
    ],
)
def test_an_unknown_or_broken_engine_is_one_line(on: str, told: str, installed):
    with pytest.raises(InputError, match=told):
        executor_class(on)


def test_the_extra_of_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        InputError, match=r'expected the package ray, found none; pip install "momentum-transfer\[ray\]'
    ):
        executor_class("ray:auto")(Setup(tmp_path))


class Scripted:
    """An engine that says what it is told to, and runs nothing."""

    name = "Scripted"

    def __init__(self, *looks: str, takes: int = 100) -> None:
        self.looks, self.takes, self.cancelled = list(looks), takes, []

    def submit(self, attempts, earlier):
        for number, attempt in enumerate(attempts[: self.takes]):
            yield f"n{number}", [attempt]

    def look(self, numbers):
        word = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if word == "silent":
            raise InputError("expected an answer, found none.")
        return {number: Seen(word, alive=word in ("PENDING", "RUNNING")) for number in numbers if word}

    def cancel(self, numbers):
        self.cancelled += numbers


@pytest.mark.parametrize(
    ("looks", "status", "note"),
    [
        (("PENDING", "silent", "CANCELLED by root"), "cancelled", "Scripted job n0 was cancelled"),
        (("RUNNING", "NODE_FAIL"), "failed", "Scripted job n0 ended as NODE_FAIL; its last line: no output"),
        (("",), "failed", "Scripted job n0 is gone from the queue"),
    ],
)
def test_an_end_that_the_folder_does_not_hold_is_told_by_the_engine(tmp_path, monkeypatch, looks, status, note):
    monkeypatch.setattr("momentum_transfer.suites.executors.SETTLE", 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    first, after = run_on(Scripted(*looks), jobs_of(tmp_path, {}, {"needs": "task0"}), tmp_path / "out", gpus=0, poll=0)
    assert (first.status, after.status) == (status, "not run")
    assert note in first.note


def earlier_submission(jobs: list[Job], output: Path) -> None:
    line = {"number": "7", "on": "Scripted", "jobs": [[job.title, job.key] for job in jobs]}
    (output / "submitted.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")


def test_an_engine_that_is_silent_when_a_later_call_looks_for_its_tasks_is_asked_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("momentum_transfer.suites.executors.SETTLE", 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    jobs, output = jobs_of(tmp_path, {}), tmp_path / "out"
    earlier_submission(jobs, output)
    with caplog.at_level("WARNING", "momentum_transfer"):
        (outcome,) = run_on(Scripted("silent", "silent", "RUNNING", "CANCELLED"), jobs, output, gpus=0, poll=0)
    assert "Scripted job 7 was cancelled" in outcome.note
    assert caplog.text.count("expected an answer, found none. Asking again.") == 1
    assert cancel(Scripted("silent", "RUNNING"), jobs, output) == 1


def test_ctrl_c_ends_the_wait_for_an_engine_that_stays_silent(tmp_path, monkeypatch):
    jobs = jobs_of(tmp_path, {})
    earlier_submission(jobs, tmp_path / "out")
    monkeypatch.setattr(time, "sleep", lambda _: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Stopped, match="stopped waiting, the submitted jobs go on"):
        run_on(Scripted("silent"), jobs, tmp_path / "out", gpus=0)


def test_a_full_disk_leaves_no_half_line_of_a_submission_on_which_the_next_would_be_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("momentum_transfer.suites.executors.SETTLE", 0.0)
    jobs, output, true = jobs_of(tmp_path, {}), tmp_path / "out", executors.append_whole

    class Full:
        def __init__(self, stream) -> None:
            self.stream, self.fileno = stream, stream.fileno

        def write(self, content) -> int:
            if len(content) < 20:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.stream.write(content[:-10])

    with monkeypatch.context() as patched:
        patched.setattr(executors, "append_whole", lambda stream, *rest: true(Full(stream), *rest))
        with pytest.raises(OSError, match=r"No space left .*submitted\.jsonl"):
            run_on(Scripted(""), jobs, output, gpus=0, poll=0)
    run_on(Scripted(""), jobs, output, gpus=0, poll=0)
    assert submitted(output, "Scripted")[jobs[0].title] == ("n0", jobs[0].key)


def test_an_engine_that_takes_nothing_is_told(tmp_path):
    with pytest.raises(InputError, match="expected Scripted to take momentum2: task0, found that it takes none"):
        run_on(Scripted("", takes=0), jobs_of(tmp_path, {}), tmp_path / "out", gpus=0)


def test_what_still_runs_is_cancelled_by_number_and_under_another_key_refused(tmp_path):
    jobs = jobs_of(tmp_path, {}, {})
    lines = [f'{{"number": "7", "on": "Scripted", "jobs": [["{job.title}", "{job.key}"]]}}\n' for job in jobs[:1]]
    (tmp_path / "out/submitted.jsonl").write_text("".join(lines) + '{"number": "half', encoding="utf-8")
    engine = Scripted("RUNNING")
    assert cancel(engine, jobs, tmp_path / "out") == 1
    assert engine.cancelled == ["7"]
    (tmp_path / "out/submitted.jsonl").write_text(lines[0].replace(jobs[0].key, "other"), encoding="utf-8")
    with pytest.raises(InputError, match=r"found Scripted job 7 there with another command.*with --cancel"):
        run_on(engine, jobs, tmp_path / "out", gpus=0)
