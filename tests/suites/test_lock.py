"""One runner in a folder at a time; a killed runner leaves no task behind, and the next run goes on where it was."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.attempt import alone
from momentum_transfer.suites.local import run_local
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from tests.suites.suite_files import words, write_suite, write_weights

ROOT = Path(__file__).resolve().parents[2]

#: What tools/evaluate.py does with a plan, without its report.
RUNNER = """
import sys
from pathlib import Path
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.attempt import alone
from momentum_transfer.suites.local import run_local
suite, weights, output = sys.argv[1:]
with alone(Path(output)) as lock:
    run_local(plan(load_suite(suite), [weights], output), lock=lock)
"""


def wait_for(path: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def test_two_runners_in_one_folder_are_refused_by_number(tmp_path: Path):
    with (
        alone(tmp_path / "out"),
        pytest.raises(InputError, match=f"expected to be alone in .*out, found process {os.getpid()} at work there"),
        alone(tmp_path / "out"),
    ):
        pass
    with alone(tmp_path / "out"):  # free again
        pass


def test_a_full_disk_names_the_lock_that_it_cannot_hold(tmp_path: Path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"No space left on device: .*/\.lock"), alone(tmp_path):
        pass


def test_a_runner_on_another_machine_is_refused_by_name(tmp_path: Path):
    with alone(tmp_path) as lock:
        os.ftruncate(lock, 0)
        os.write(lock, b"12 elsewhere")
        with pytest.raises(InputError, match="found process 12 of elsewhere at work"), alone(tmp_path):
            pass


@pytest.fixture
def orphan(tmp_path: Path):
    """Starts a task that holds the lock for some seconds after its runner has died."""
    started = []

    def start(seconds: float) -> None:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        with alone(tmp_path) as lock:
            os.ftruncate(lock, 0)
            os.write(lock, f"{gone.pid} {os.uname().nodename}".encode())
            command = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
            started.append(subprocess.Popen(command, pass_fds=(lock,)))

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_tasks_of_a_killed_run_are_waited_for(tmp_path: Path, orphan, capsys):
    orphan(1.5)
    began = time.monotonic()
    with alone(tmp_path):
        assert time.monotonic() - began > 0.5
    assert capsys.readouterr().out.count("a task of a killed run is still going") == 1


def test_a_task_that_does_not_end_is_told_after_a_while(tmp_path: Path, orphan):
    orphan(60)
    told = r"still holds .*/\.lock after 0 s; end it \(fuser"
    with pytest.raises(InputError, match=told), alone(tmp_path, patience=0.3):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_no_task_and_the_next_one_has_the_records_of_an_uninterrupted_one(tmp_path, number):
    output = tmp_path / "out put"
    path, weights = write_suite(tmp_path, {}, {"word": "once"}, {}), write_weights(tmp_path)[0]
    command = [sys.executable, "-c", RUNNER, str(path), weights, str(output)]
    runner = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    wait_for(output / "sleeping")
    os.killpg(runner.pid, number)  # the task is in a session of its own
    runner.wait(timeout=60)
    assert words(output) == ["word0"]
    began = time.monotonic()
    with alone(output) as lock:  # once the task, which would sleep for 30 s, has ended
        outcomes = run_local(plan(load_suite(path), [weights], output), lock=lock)
    assert time.monotonic() - began < 20
    assert [outcome.status for outcome in outcomes] == ["done before", "done", "done"]
    assert words(output) == ["word0", "once", "word2"]
