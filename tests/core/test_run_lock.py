"""One run in an output folder: a second is refused by number and machine, and the rest of a killed one never is."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from momentum_transfer.core import files, run_lock
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.run_lock import alone

HOLDER = """
import sys, time
from pathlib import Path
from momentum_transfer.core.run_lock import alone
with alone(sys.argv[1]):
    Path(sys.argv[1], "ready").touch()
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of ``out``."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "out")])
    while not (tmp_path / "out" / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


def local_locks_only(*_):
    """As on a network file system whose locks end at the machine: always granted."""


@pytest.mark.parametrize("flock", [None, no_locks, local_locks_only])
def test_a_living_run_is_named_and_a_killed_one_is_no_obstacle(tmp_path, holder, monkeypatch, flock):
    out = tmp_path / "out"
    if flock is local_locks_only:
        elsewhere(out, monkeypatch)  # on one machine the system's lock is enough
    if flock is not None:
        monkeypatch.setattr(files.fcntl, "flock", flock)
    beating = None
    if flock is local_locks_only:
        beating = subprocess.Popen([sys.executable, "-c", BEATS, str(out / ".lock")])
    with (
        pytest.raises(InputError, match=rf"found process {holder.pid}( of elsewhere)? at work there; wait"),
        alone(out),
    ):
        pass
    if beating is not None:
        beating.kill()
        beating.wait()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with alone(out):
        assert (out / ".lock").read_text().startswith(f"{os.getpid()} ")


BEATS = "import os, sys, time\nwhile True: os.utime(sys.argv[1]); time.sleep(0.1)"


def elsewhere(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the owner one of another machine, and the wait for its signs of life short."""
    process = (out / ".lock").read_text().split()[0]
    (out / ".lock").write_text(f"{process} elsewhere 1")
    monkeypatch.setattr(run_lock, "SILENCE", 1.0)


def test_a_number_that_was_given_to_another_process_since_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    host = os.uname().nodename
    (tmp_path / ".lock").write_text(f"{os.getppid()} {host} 1")  # started at another time
    with alone(tmp_path):
        pass
    (tmp_path / ".lock").write_text(f"{os.getppid()} {host}")
    with pytest.raises(InputError, match=f"found process {os.getppid()} at work"), alone(tmp_path):
        pass


def test_forked_workers_do_not_hold_the_lock(tmp_path):
    with alone(tmp_path):
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
    began = time.monotonic()
    with alone(tmp_path):
        assert time.monotonic() - began < 2
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("rest", ["", "nonsense", "\x00\x01", "12", "99999999999999 here 3"])
def test_whatever_stands_in_a_lock_that_nobody_holds_is_no_obstacle(tmp_path, rest):
    (tmp_path / ".lock").write_text(rest)
    with alone(tmp_path):
        pass


def test_a_refused_run_leaves_no_folder_and_a_run_leaves_no_lock(tmp_path):
    with pytest.raises(InputError), alone(tmp_path / "out"):
        raise InputError("refused")
    assert not (tmp_path / "out").exists()
    with alone(tmp_path / "out"):
        (tmp_path / "out" / "file").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["file"]


def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    for name in (".last.ab12cd34.tmp", "data/.digits_example_1.ab12cd34.tmp.png", ".any thing.ab12cd34.tmp.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"half")
    kept = [tmp_path / name for name in (".notes.settings.yaml", "data/a.ab12cd34.png", ".hidden")]
    for file in kept:
        file.touch()
    with alone(tmp_path):
        found = {path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
        assert found == set(kept)
