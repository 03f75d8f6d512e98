"""Run the jobs of a suite as processes of this machine (``slurm.py``: as one Slurm job each).

A job that fails stops only those that need it. A killed run goes on where it was: each job remembers its end, and the
tools themselves resume and skip records that they have written.

Commands in processes that begin with torch already imported: forked from one that imported it once for all.

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
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import TextIO

from momentum_transfer.core.command import Stopped, stop_signals
from momentum_transfer.core.log import say
from momentum_transfer.suites.attempt import note_end, start
from momentum_transfer.suites.task import Job

AGAIN = "finished tasks are kept; run the same command again to go on"


@dataclass(frozen=True)
class Outcome:
    """How it ended: ``done``, ``done before``, ``failed``, ``stopped``, ``cancelled``, ``not run``; ``note``: why."""

    job: Job
    status: str
    seconds: float = 0.0
    note: str = ""

    @property
    def well(self) -> bool:
        return self.status in ("done", "done before")


def run_local(jobs: Sequence[Job], *, parallel: int = 1, gpus: int = 0, lock: int | None = None) -> list[Outcome]:
    """Run jobs as processes of this machine, at most ``parallel`` at a time, each with its own GPU where there are.

    Args:
        lock: descriptor of the suite's lock, for the tasks to inherit.

    Raises:
        Stopped: Ctrl-C or SIGTERM; the running tasks got it too and had time to save.
    """
    outcomes: dict[str, Outcome] = {}
    for job in jobs:
        if job.done():
            outcomes[job.title] = Outcome(job, "done before", float(job.state().get("seconds", 0)))
            say(f"{job.title}: done before")
    waiting = [job for job in jobs if job.title not in outcomes]
    running: dict[int, _Running] = {}
    with stop_signals("waiting for the running tasks to save") as stop:
        try:
            while waiting or running:
                if stop:
                    raise Stopped(f"stopped; {AGAIN}", stop.exit_code)
                for slot, task in list(running.items()):
                    if task.process.poll() is not None:
                        outcomes[task.job.title] = task.outcome()
                        del running[slot]
                for slot in (slot for slot in range(parallel) if slot not in running):
                    if next_one := _next(waiting, outcomes):
                        say(f"{next_one.title}: running, output in {next_one.log}")
                        device = slot % gpus if parallel > 1 and gpus else None
                        locks = () if lock is None else (lock,)
                        process, spent = start(next_one, min(gpus, 1) if parallel > 1 else gpus, device, locks)
                        running[slot] = _Running(next_one, process, time.monotonic(), spent)
                time.sleep(0.05)
        finally:
            _end(running.values())
    return [outcomes[job.title] for job in jobs]


@dataclass(frozen=True)
class _Running:
    """A task's process; began by the monotonic clock, spent in seconds of earlier attempts."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float
    spent: float

    def outcome(self) -> Outcome:
        """How it ended, remembered and said."""
        seconds = time.monotonic() - self.began
        status, note = note_end(self.job, self.process.returncode, seconds, self.spent)
        return Outcome(self.job, status, seconds, note)


def _next(waiting: list[Job], outcomes: dict[str, Outcome]) -> Job | None:
    """The next job that may start; those that cannot run any more get their outcome on the way."""
    for job in list(waiting):
        needs = [outcomes.get(need.title) for need in job.needs]
        if failed := [need.job.task.name for need in needs if need is not None and not need.well]:
            outcomes[job.title] = Outcome(job, "not run", note=f"{failed[0]} did not end well")
        elif None not in needs:
            waiting.remove(job)
            return job
        else:
            continue
        waiting.remove(job)
    return None


def _end(running: Collection[_Running]) -> None:
    """Ask tasks to stop, give them time to save, then insist."""
    for task in running:
        if task.process.poll() is None:
            task.process.terminate()
    for task in running:
        try:
            task.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            task.process.kill()
            task.process.wait()
        task.outcome()


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
