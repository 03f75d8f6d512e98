"""Chains of commands: what waits for what, several side by side, finished ones remembered, lines with their titles."""

import atexit
import json
import multiprocessing
import os
import resource
import runpy
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Annotated, TextIO

import msgspec

from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import AGAIN, InputError
from momentum_transfer.core.files import sha256_of_text, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.machine import available_cores
from momentum_transfer.core.shipped import started, typed, workplace
from momentum_transfer.core.untrusted import read_json

_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]


@dataclass(frozen=True)
class Step:
    """A command, and the titles of those whose files it reads; ``always``: run again in every call, like a report."""

    title: str
    command: list[str]
    needs: tuple[str, ...] = ()
    always: bool = False

    @property
    def key(self) -> str:
        """What a finished step is remembered by: its command."""
        return sha256_of_text(json.dumps(self.command))[:12]


def run_chain(chain: list[Step], memory: Path, jobs: int) -> float:
    """Run what is not yet done, at most ``jobs`` steps at a time; returns the most memory that a process held, GiB.

    Args:
        memory: JSON file of the finished steps, seconds by key, for a second call.

    Raises:
        InputError: a step failed; those beside it are ended, after they saved.
        Stopped: by a signal, which the steps got too.
    """
    finished = _finished(memory)
    done = {step.title for step in chain if step.key in finished and not step.always}
    for step in chain:
        if step.title in done:
            say(f"{step.title}: done before")
    waiting, peak = [step for step in chain if step.title not in done], 0.0
    running: list[_Running] = []
    try:
        while waiting or running:
            for step in [step for step in waiting if done.issuperset(step.needs)][: jobs - len(running)]:
                waiting.remove(step)
                say(f"[{len(chain) - len(waiting)}/{len(chain)}] {step.title}" if chain[1:] else step.title)
                say(f"  $ {typed(step.command)}")
                running.append(_Running(step, jobs))
            time.sleep(0.05)
            for ended in [one for one in running if one.process.exitcode is not None]:
                running.remove(ended)
                finished[ended.step.key] = ended.seconds()
                peak = max(peak, ended.command.peak_gib())
                write_text(memory, json.dumps(finished, indent=1))
                done.add(ended.step.title)
    except KeyboardInterrupt:  # the terminal sent it to the steps too, which save and leave
        _wait(running)
        raise Stopped(f"stopped during {', '.join(one.step.title for one in running)}; {AGAIN}", 130) from None
    finally:
        for one in running:
            one.process.terminate()
        _wait(running)
    return peak


class _Running:
    """A step's process; a thread logs its lines, each after the title."""

    def __init__(self, step: Step, jobs: int) -> None:
        self.step, self._began = step, time.monotonic()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // jobs)))
        self.command = WarmCommand(started(step.command), workplace(), environment)
        self.process = self.command.process
        self.lines = threading.Thread(target=self._say_lines, daemon=True)
        self.lines.start()

    def _say_lines(self) -> None:
        for line in self.command.stdout:
            say(f"{self.step.title} | {line.rstrip()}")

    def seconds(self) -> float:
        """How long the process, which has ended, took; raises where it did not end well."""
        self.lines.join()
        code, taken = self.process.exitcode, round(time.monotonic() - self._began, 1)
        if code in (130, 143):
            raise Stopped(f"stopped during {self.step.title}; {AGAIN}", code)
        if code:
            raise InputError(f"the step {self.step.title} ended with exit code {code} (see above); {AGAIN}")
        say(f"{self.step.title}: {taken} s")
        return taken


def _wait(running: list[_Running]) -> None:
    for one in running:
        one.process.join()
        one.lines.join()


def _finished(memory: Path) -> dict[str, float]:
    if not memory.is_file():
        return {}
    try:
        return msgspec.convert(read_json(memory, "seconds by step"), dict[str, _Seconds])
    except msgspec.ValidationError as error:
        raise InputError(f"expected seconds by step in {memory}, found {error}; remove it to start over") from error


#: What most tools import. None of it computes, looks for a GPU, or starts threads other than OpenBLAS's, which survive
#: forks, when it is imported: a fork of a process that did could hang.
IMPORTED: tuple[str, ...] = ("numpy", "torch", "torch._dynamo", "torchvision", "sklearn.datasets", "scipy.stats",
                             "matplotlib.figure")  # fmt: skip
_THREADS = "OMP_NUM_THREADS"
#: OMP_NUM_THREADS of the process that forks, and so of every fork; None: not started.
_forks_have: str | None = None


class WarmCommand:
    """``python SCRIPT ARGUMENTS`` with torch already imported, in a ``process`` of multiprocessing.

    Where processes can be forked (Linux) it is a fork of one that did the imports, which take seconds; elsewhere it
    imports for itself. What the command does, prints (``stdout``, with standard error) and ends with is the same.
    """

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        context: ForkServerContext | SpawnContext = multiprocessing.get_context("spawn")
        if _forks(environment):
            context = multiprocessing.get_context("forkserver")
        reads, writes = context.Pipe(duplex=False)
        self._peak, peak = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(list(words), folder, dict(environment), writes, peak))
        self.process.start()
        writes.close()
        peak.close()
        self.stdout: TextIO = os.fdopen(os.dup(reads.fileno()), encoding="utf-8", errors="replace")
        reads.close()

    def peak_gib(self) -> float:
        """The most memory that it, or a process of its own, held; 0 where a signal ended it before it reported."""
        with suppress(EOFError):
            return self._peak.recv() if self._peak.poll() else 0.0
        return 0.0


def _forks(environment: Mapping[str, str]) -> bool:
    """Whether this environment allows a fork; the process that forks is started at the first call."""
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


def _work(words: list[str], folder: Path, environment: dict[str, str], output: Connection, peak: Connection) -> None:
    """Run the command in this process, with its output, folder, environment and arguments; it ends with sys.exit."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        before.flush()
        os.dup2(output.fileno(), number)
        # Opened anew: a stream that began as a file's asks a pipe for its position, and fails.
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
            peak.send(most / (2**30 if sys.platform == "darwin" else 2**20))
