"""Attempts at jobs: processes of this machine, several side by side (``run_local``), or one on a Slurm node.

A job that fails stops only those that need it. A stop by signal is no end: SIGTERM (preemption, ``scontrol requeue``,
``scancel``) lets the task save and leave, and no exit code is written, so that the requeued job, or the same command
later, goes on. Before a time limit submitit is warned by SIGUSR2: :meth:`Attempt.checkpoint` lets the task save, and
submitit puts the job into the queue again.

The runner holds the lock of its folder (``core.run_lock``), and its tasks inherit it; the system gives it up when the
last of them ends. So two suites never write the same folder, and after a ``kill -9`` the next run waits for the tasks
that still run.
"""

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from momentum_transfer.core import run_lock
from momentum_transfer.core.command import Stopped, stop_signals
from momentum_transfer.core.errors import AGAIN, InputError, extra
from momentum_transfer.core.log import say, speaking
from momentum_transfer.core.records import SPENT
from momentum_transfer.core.shipped import started, workplace
from momentum_transfer.suites.task import Job

#: Seconds that a run waits for the tasks of a killed one, which save and end.
_LOCK_PATIENCE = 150.0

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def alone(
    output: Path, patience: float = _LOCK_PATIENCE, name: str = run_lock.NAME
) -> contextlib.AbstractContextManager[int]:
    """Hold the lock of ``output`` within the block; yields its descriptor, for the tasks to inherit.

    InputError after ``patience`` seconds in which another runner, or tasks of a killed one, have not ended.
    """
    return run_lock.alone(output, patience=patience, for_children=True, name=name)


#: Exit codes of a task that a signal stopped, as Python's subprocess and as a shell report them -> the signal.
_STOPS = {
    code: number
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
    for code in (-number, 128 + number)
}
#: The lock of a job's folder; the task's own run in it has another (``run_lock.NAME``).
JOB_LOCK = ".job.lock"
#: Seconds that a job waits for another's processes in its folder: those of a node that came back are being killed.
_PATIENCE = 600.0


def full_command(job: Job, gpus: int) -> list[str]:
    """The command with its interpreter: torchrun for a distributed task on several GPUs, else this Python."""
    several = job.task.distributed and gpus > 1
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"] if several else []
    return [sys.executable, *torchrun, *started(job.command)]


def start(
    job: Job, gpus: int, device: int | None = None, locks: tuple[int, ...] = ()
) -> tuple[subprocess.Popen[bytes], float]:
    """Start a job's process with its output in ``job.log``; returns it, and the seconds that earlier attempts took.

    Args:
        device: the one GPU that it sees; None shows all.
        locks: descriptors of locks, which it holds until its own end.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    spent = job.begin(job.gpus(gpus))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", SPENT: f"{spent:.1f}"}
    if device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(device)
    command = full_command(job, gpus)
    with open(job.log, "ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        # A session of its own: Ctrl-C reaches it once, through us, because a second signal would mean "at once".
        process = subprocess.Popen(
            command, cwd=workplace(), env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            pass_fds=locks, preexec_fn=_in_the_child(os.getpid()),
        )  # fmt: skip
    return process, spent


def _in_the_child(parent: int) -> Callable[[], None]:
    """What a task's process does before its command.

    It leaves Slurm's warning to the parent, and on Linux gets SIGTERM as soon as the parent is gone, even killed.
    """
    libc = _LIBC

    def act() -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        if libc is not None:
            libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
            if os.getppid() != parent:  # gone before the signal was set
                os._exit(128 + signal.SIGTERM)

    return act


def note_end(job: Job, code: int, seconds: float, spent: float = 0.0) -> tuple[str, str]:
    """Note and log how a job's process ended; returns the status and a note on it."""
    if code == 0:
        job.end(spent + seconds, exit_code=0)
        say(f"{job.title}: done in {seconds:.0f} s")
        return "done", ""
    if code in _STOPS:
        name = signal.Signals(_STOPS[code]).name
        job.end(spent + seconds, stopped=name)
        say(f"{job.title}: stopped by {name} after {seconds:.0f} s, which is no end; the next attempt goes on")
        return "stopped", f"stopped by {name}; the same command goes on"
    how = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
    how += " (out of memory?)" if -code == signal.SIGKILL else ""
    note = f"{how}: {last_word(last_lines(job.log))}"
    job.end(spent + seconds, exit_code=code, note=note)
    say(f"{job.title}: FAILED, {note} (all of it in {job.log})")
    return "failed", note


def last_word(lines: Sequence[str]) -> str:
    """The last line that is not empty, shortened."""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no output")


def last_lines(log: Path) -> list[str]:
    """The lines at the end of a log; none where it cannot be read."""
    try:
        if not log.is_file():  # a pipe would be waited for
            return []
        with open(log, "rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - 65536))
            return stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


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
    """Run jobs as processes of this machine, at most ``parallel`` at a time, each on its own GPU where there are GPUs.

    The tasks inherit ``lock``, the descriptor of the suite's lock. Stopped: Ctrl-C or SIGTERM came; the running tasks
    got it too and had time to save.
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
    """A task's process; ``began`` by the monotonic clock, ``spent``: seconds of earlier attempts."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float
    spent: float

    def outcome(self) -> Outcome:
        """Note and log how it ended."""
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


class Attempt:
    """What a Slurm job runs: ``Attempt(job, gpus)()``; ``patience``: seconds to wait for another in its folder."""

    def __init__(self, job: Job, gpus: int, patience: float = _PATIENCE) -> None:
        self.job, self.gpus, self.patience = job, gpus, patience
        self._process = 0  # its id; 0 for none
        self._began, self._spent = 0.0, 0.0

    def __call__(self) -> None:
        """Run the job to its end and note that.

        RuntimeError if the task failed, so that Slurm starts nothing that depends on it; SystemExit if a signal stopped
        it; InputError if another process stays at work in the job's folder.
        """
        self._began = time.monotonic()  # not before: it is made on another machine
        with speaking():
            deadline = time.monotonic() + self.patience
            while True:
                try:
                    with alone(self.job.folder, name=JOB_LOCK) as lock:
                        self._run(lock)
                    return
                except InputError as error:
                    if time.monotonic() > deadline:
                        raise
                    say(f"{error}; waiting")
                    time.sleep(min(5.0, self.patience))

    def checkpoint(self) -> Any:
        """Called by submitit before a time limit: let the task save and end, then submit the same again."""
        self._stop()
        while self._alive():
            time.sleep(0.1)
        self.job.end(self._spent + time.monotonic() - self._began, stopped="the time limit")
        return extra("submitit", "Slurm jobs").helpers.DelayedSubmission(Attempt(self.job, self.gpus, self.patience))

    def _run(self, lock: int) -> None:
        if self.job.done():  # by another job that was in the folder before
            say(f"{self.job.title}: done before")
            return
        self._began = time.monotonic()
        before = signal.signal(signal.SIGTERM, self._stop)
        try:
            process, self._spent = start(self.job, self.gpus, locks=(lock,))
            self._process = process.pid
            # Not wait(): its lock is held while it waits, and the handlers above look at the process too.
            while (code := process.poll()) is None:
                time.sleep(0.1)
            self._process = 0
            status, note = note_end(self.job, code, time.monotonic() - self._began, self._spent)
        finally:
            signal.signal(signal.SIGTERM, before)
        if status == "stopped":
            sys.exit(128 + _STOPS[code])
        if status == "failed":
            raise RuntimeError(f"{self.job.title}: {note}, see {self.job.log}")

    def _stop(self, _number: int = signal.SIGTERM, _frame: FrameType | None = None) -> None:
        """Ask the task to save and end; it counts this and Slurm's own signal as one."""
        if process := self._alive():
            os.kill(process, signal.SIGTERM)

    def _alive(self) -> int:
        """The id of the task's process while it runs, else 0."""
        if not self._process:
            return 0
        try:
            ended = os.waitid(os.P_PID, self._process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0
        return 0 if ended else self._process
