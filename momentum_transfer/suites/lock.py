"""One runner at a time in the folder of a suite, and no task that outlives its runner unseen.

The runner holds a lock on ``OUTPUT/.lock``, and its tasks inherit it; the system gives it up when the last of them
ends, however that happens. So two suites never write the same folder, and after a ``kill -9`` the next run waits for
what is still going instead of starting it a second time.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from momentum_transfer.console import say
from momentum_transfer.errors import InputError

#: How long a run waits for the tasks of a killed one; they have been told to save and end.
PATIENCE = 150.0

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@contextlib.contextmanager
def alone(output: Path, patience: float = PATIENCE) -> Iterator[int]:
    """Hold the lock of ``output`` within the block; yields its descriptor, for the tasks to inherit.

    Raises:
        InputError: another runner is at work there, or tasks of a killed one have not ended after ``patience`` seconds.
    """
    output.mkdir(parents=True, exist_ok=True)
    with open(output / ".lock", "a+", encoding="utf-8") as file:
        deadline, told = time.monotonic() + patience, False
        while not _locked(file.fileno()):
            file.seek(0)
            _refuse_living(file.read(), output)
            if not told:
                say(f"{output}: a task of a killed run is still going; waiting until it has saved and ended")
                told = True
            if time.monotonic() > deadline:
                raise InputError(
                    f"a task of a killed run still holds {output}/.lock after {patience:.0f} s; "
                    f"end it (fuser {output}/.lock tells its number) and run the same command again"
                )
            time.sleep(0.2)
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}")
        file.flush()
        yield file.fileno()


def _locked(descriptor: int) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuse_living(owner: str, output: Path) -> None:
    """An InputError where the runner that wrote ``owner`` is alive, or on another machine, where we cannot know."""
    number, _, host = owner.partition(" ")
    here = host == socket.gethostname()
    if here and number.isdigit() and not _alive(int(number)):
        return
    if owner:
        where = "" if here else f" of {host}"
        raise InputError(
            f"expected to be alone in {output}, found process {number}{where} evaluating there; "
            "wait for its end, or choose another --output"
        )


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end_with_parent() -> Callable[[], None] | None:
    """For ``Popen(preexec_fn=…)``: on Linux the task gets SIGTERM as soon as this process is gone, even killed."""
    if _LIBC is None:
        return None
    parent, libc = os.getpid(), _LIBC

    def ask() -> None:
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:  # gone before it could be asked for
            os._exit(128 + signal.SIGTERM)

    return ask
