"""Tools as processes: begun as a scheduler begins them, and ended with all that they have started."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from momentum_transfer.core.shipped import workplace


def begun(words: Sequence[object], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """A command in a process group of its own; what it says goes to ``log``."""
    with open(log, "wb") as stream:
        return subprocess.Popen(
            list(map(str, words)), cwd=workplace(), stdout=stream, stderr=stream, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip


def descendants(process: int) -> list[int]:
    """All that a process has started, and what that has started; sessions of their own do not hide them."""
    told = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in told.splitlines()]
    found = [process]
    for parent in found:
        found += [child for child, above in pairs if above == parent]
    return found[1:]


def kill(process: subprocess.Popen[bytes], others: Sequence[int] = ()) -> None:
    """SIGKILL to it, to its descendants, and to ``others`` that it had before."""
    for number in {*descendants(process.pid), *others, process.pid}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait(timeout=60)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
