"""Commands in processes that begin with torch already imported: forked from one that imported it once for all.

A tool's first seconds go into imports, which on busy cores and a cold file cache are many. Where processes can be
forked (Linux) a command of a chain begins without them; elsewhere it imports for itself. What a command does, prints
and ends with is the same either way.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import runpy
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import TextIO

#: What most tools import. Nothing of it computes or looks for a GPU when it is imported, nor starts threads other than
#: OpenBLAS's, which know of forks: a fork of a process that did could hang.
IMPORTED: tuple[str, ...] = ("numpy", "torch", "torch._dynamo", "torchvision", "sklearn.datasets", "scipy.stats",
                             "matplotlib.figure")  # fmt: skip
_THREADS = "OMP_NUM_THREADS"

#: How many threads the process that forks was started for, which every fork of it has; None: not started.
_forks_have: str | None = None


class WarmCommand:
    """``python SCRIPT ARGUMENTS`` that begins with the imports done; polled, ended and awaited like a Popen.

    Attributes:
        stdout: lines that it prints, on standard output and standard error; the end of file is its end.
        returncode: exit code, minus the signal's number where one ended it; None while it runs.
    """

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        context: ForkServerContext | SpawnContext = multiprocessing.get_context("spawn")
        if _forks(environment):
            context = multiprocessing.get_context("forkserver")
        reads, writes = context.Pipe(duplex=False)
        self._peak, told = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(list(words), folder, dict(environment), writes, told))
        self._process.start()
        writes.close()
        told.close()
        self.stdout: TextIO = os.fdopen(os.dup(reads.fileno()), encoding="utf-8", errors="replace")
        reads.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> None:
        self._process.join()

    def terminate(self) -> None:
        """SIGTERM, at which tools save and leave; nothing where it has ended."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def peak_gib(self) -> float:
        """The most memory that it, or a process of its own, held; 0 where a signal kept it from telling."""
        with suppress(EOFError):
            return self._peak.recv() if self._peak.poll() else 0.0
        return 0.0


def _forks(environment: Mapping[str, str]) -> bool:
    """Whether a fork does for this environment; the process that forks is started at the first call."""
    global _forks_have
    threads = environment.get(_THREADS, "")
    if sys.platform != "linux":
        return False
    if _forks_have is None:
        before, _forks_have = os.environ.get(_THREADS), threads
        forkserver.set_forkserver_preload(list(IMPORTED))
        os.environ[_THREADS] = threads  # read when torch is imported
        try:
            forkserver.ensure_running()
        finally:
            os.environ.pop(_THREADS)
            if before is not None:
                os.environ[_THREADS] = before
    return _forks_have == threads


def _work(words: list[str], folder: Path, environment: dict[str, str], output: Connection, told: Connection) -> None:
    """Be that command: its output, folder, environment and words; a tool ends with sys.exit."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        before.flush()
        os.dup2(output.fileno(), number)
        # Opened anew: a stream that began as a file's asks a pipe for its place, and fails.
        setattr(sys, name, open(number, "w", 1, encoding="utf-8", errors=before.errors, closefd=False))  # noqa: SIM115
    output.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    try:
        # By its whole path: its own processes look for it from the folder that this one began in.
        runpy.run_path(os.path.abspath(words[0]), run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends without them
        most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        with suppress(OSError):
            told.send(most / (2**30 if sys.platform == "darwin" else 2**20))
