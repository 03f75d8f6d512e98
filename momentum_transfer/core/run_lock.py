"""Allow one run at a time in an output folder.

The run holds ``OUTPUT_DIR/.lock``, which contains its process number and machine. Three signs distinguish a living run
from the remains of a killed one: the system's lock on the file, the process number on this machine, and the file's
time, renewed every ten seconds. So it works where file locks reach other machines, where they do not, and without any.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import lock, naming, remove_leftovers
from momentum_transfer.core.log import say

NAME = ".lock"
#: Seconds between two signs of life, and of silence after which a run elsewhere counts as ended.
BEAT, SILENCE = 10.0, 35.0
#: Seconds to wait for children of a killed run: loader workers notice the end of their parent within seconds.
PATIENCE = 30.0

#: Descriptors that forked children (loader workers) give back at once, so that they never hold a lock.
_private: set[int] = set()


def _leave_to_the_parent() -> None:
    for descriptor in _private:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _private.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)


@dataclass(frozen=True)
class _Owner:
    """Who wrote the lock file. ``began``: start of the process in clock ticks, "" where unknown."""

    process: int
    host: str
    began: str = ""

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    def lives(self) -> bool:
        """Whether that process of this machine runs and is the same one: numbers are reused."""
        try:
            os.kill(self.process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
        state, began = _state_of(self.process)
        return state != "Z" and (not self.began or not began or self.began == began)

    def __str__(self) -> str:
        return f"process {self.process}" + ("" if self.here else f" of {self.host}")


def _state_of(process: int) -> tuple[str, str]:
    """(state letter, start in clock ticks) of a process; empty where unknown."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""


def signature() -> str:
    """What this process writes into a file that is to tell whose it is."""
    return f"{os.getpid()} {socket.gethostname()} {_state_of(os.getpid())[1]}"


def lives_here(text: str) -> bool | None:
    """Whether the process with this ``signature`` runs on this machine; None if it is another's, or unreadable."""
    owner = _owner_in(text)
    return owner.lives() if owner is not None and owner.here else None


def alive(path: Path, *renewed: Path, within: float = 60.0) -> bool:
    """Whether the process that signed a file is at work: one elsewhere if it or what it renews changed lately."""
    here = lives_here(signed(path))
    return path.exists() and silence(path.parent, path, *renewed) < within if here is None else here


def signed(path: Path) -> str:
    """The signature in a file; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def silence(folder: Path, *paths: Path) -> float:
    """Seconds since one of these files of a folder was last written.

    By the clock of the folder's file server: ours may differ, and make a task look alive or silent.
    """
    times = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return time_there(folder) - max(times)


_offsets: dict[int, float] = {}


def time_there(folder: Path) -> float:
    """The time by the clock that stamps files in a folder, measured once for each file system; else by our clock."""
    now = time.time()
    try:
        device = folder.stat().st_dev
    except OSError:
        return now
    if device not in _offsets:
        probe = folder / f".clock.{os.getpid()}"
        try:
            probe.touch()
            _offsets[device] = probe.stat().st_mtime - time.time()
        except OSError:  # a folder that we must not write to
            _offsets[device] = 0.0
        finally:
            with contextlib.suppress(OSError):  # a read-only file system refuses it before it looks
                probe.unlink()
    return now + _offsets[device]


def _owner_in(text: str) -> _Owner | None:
    process, _, rest = text.strip().partition(" ")
    host, _, began = rest.partition(" ")
    return _Owner(int(process), host, began) if process.isdecimal() and len(process) < 12 and host else None


@contextlib.contextmanager
def alone(
    folder: str | Path, *, patience: float = PATIENCE, for_children: bool = False, name: str = NAME
) -> Iterator[int]:
    """Hold the lock ``name`` of ``folder`` within the block; yields its descriptor.

    Removes what a killed run left half written, and at the end folders that were made here and stayed empty. Waits
    ``patience`` seconds for children of a killed run that still hold the lock. With ``for_children``, processes started
    with the descriptor (``Popen(pass_fds=…)``) keep the lock until they end too.

    Raises InputError, naming the other run, if one is at work there.
    """
    folder = Path(folder)
    new_folders = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    descriptor, locked = _taken(path, patience)
    ended, signed = threading.Event(), False
    try:
        if not for_children:
            _private.add(descriptor)
        _sign(path, descriptor, locked)
        signed = True
        threading.Thread(target=_beat, args=(path, ended), daemon=True).start()
        remove_leftovers(folder)
        yield descriptor
    finally:
        ended.set()
        _private.discard(descriptor)
        if signed and not for_children:
            path.unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # not empty
            for one in new_folders:
                one.rmdir()


@contextlib.contextmanager
def alone_in(folder: str | Path) -> Iterator[None]:
    """``alone`` for a run of one or several processes: rank 0 holds the lock."""
    from momentum_transfer.core.distributed import is_main  # here, because it imports torch, which takes seconds

    if is_main():
        with alone(folder):
            yield
    else:
        yield


def _taken(path: Path, patience: float) -> tuple[int, bool]:
    """The open lock file, and whether the system's lock is on it (else there are none on this file system)."""
    deadline, waiting = time.monotonic() + patience, False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            locked = lock(descriptor)
            owner = _owner_in(os.pread(descriptor, 400, 0).decode("utf-8", "replace"))
            if locked is not False:
                if locked and not _same_file(descriptor, path):  # its owner has removed it meanwhile
                    os.close(descriptor)
                    continue
                _refuse_signs_of_life(path, owner, locked=bool(locked))
                return descriptor, bool(locked)
            if owner is not None and (not owner.here or owner.lives()):
                raise _occupied(path, owner)
            if time.monotonic() > deadline:
                raise InputError(
                    f"a task of a killed run still holds {path} after {patience:.0f} s; end it (fuser {path} "
                    "prints its number) and run the same command again"
                )
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        os.close(descriptor)
        if owner is not None and not waiting:
            say(f"{path.parent}: a task of a killed run is still going; waiting until it has ended")
            waiting = True
        time.sleep(0.1)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _refuse_signs_of_life(path: Path, owner: _Owner | None, *, locked: bool) -> None:
    """Raise InputError if the owner lives although the lock was free: it does not reach the owner's machine."""
    if owner is None:
        return
    if owner.here:
        if not locked and owner.lives():
            raise _occupied(path, owner)
        return
    seen = _time_of(path)
    say(f"{path.parent}: {owner} was at work here; waiting up to {SILENCE:.0f} s for a sign of life")
    deadline = time.monotonic() + SILENCE
    while time.monotonic() < deadline:
        if not path.exists():  # it has just ended
            return
        if _time_of(path) != seen:
            raise _occupied(path, owner)
        time.sleep(0.2)


def _time_of(path: Path) -> int:
    """When the lock file was last renewed; opened anew, because network file systems cache."""
    try:
        with open(path, "rb") as stream:
            return os.fstat(stream.fileno()).st_mtime_ns
    except FileNotFoundError:
        return 0


def _occupied(path: Path, owner: _Owner) -> InputError:
    return InputError(
        f"expected to be alone in {path.parent}, found {owner} at work there; wait for its end, or choose another "
        "output folder"
    )


def _sign(path: Path, descriptor: int, locked: bool) -> None:
    """Write who holds the lock. Without the system's lock the last of several that come at once is the owner."""
    text = signature().encode()
    with naming(path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
    if locked:
        return
    time.sleep(0.3)
    found = path.read_bytes()
    if found != text and (owner := _owner_in(found.decode("utf-8", "replace"))) is not None:
        raise _occupied(path, owner)


def _beat(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)
