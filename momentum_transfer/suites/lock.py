"""One runner at a time in the folder of a suite, and no task that outlives its runner unseen.

The runner holds the lock of the folder (``core.run_lock``), and its tasks inherit it; the system gives it up when the
last of them ends, however that happens. So two suites never write the same folder, and after a ``kill -9`` the next run
waits for what is still going instead of starting it a second time.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from momentum_transfer.core import run_lock

#: How long a run waits for the tasks of a killed one; they have been told to save and end.
PATIENCE = 150.0

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def alone(
    output: Path, patience: float = PATIENCE, name: str = run_lock.NAME
) -> contextlib.AbstractContextManager[int]:
    """Hold the lock of ``output`` within the block; yields its descriptor, for the tasks to inherit.

    Raises:
        InputError: another runner is at work there, or tasks of a killed one have not ended after ``patience`` seconds.
    """
    return run_lock.alone(output, patience=patience, for_children=True, name=name)


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
