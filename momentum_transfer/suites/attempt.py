"""Attempts at jobs: processes of this machine (``local.py``), or one called by an engine (``executors.py``) on a node.

A job that fails stops only those that need it. A stop by signal is no end: SIGTERM (preemption, ``scontrol requeue``,
``scancel``, a node that is drained) lets the task save and leave, and no exit code is written, so that the requeued
job, or the same command later, goes on.

A task on several nodes is an attempt on each: that of node 0 notes begin and end, and in the state where torchrun's
processes meet (``rendezvous``); the others join it there. It begins once all others hold their lock; a failure in which
one of these is lost is no end either.

The runner holds the lock of its folder (``core.run_lock``), and its tasks inherit it; the system gives it up when the
last of them ends. So two suites never write the same folder, and after a ``kill -9`` the next run waits for the tasks
that still run.
"""

import contextlib
import ctypes
import os
import pickle
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from momentum_transfer.core import run_lock
from momentum_transfer.core.command import handled
from momentum_transfer.core.errors import InputError, extra
from momentum_transfer.core.log import say, speaking
from momentum_transfer.core.loggers import OF_THE_SUITE
from momentum_transfer.core.machine import visible_gpus
from momentum_transfer.core.records import SPENT
from momentum_transfer.core.shipped import started, workplace
from momentum_transfer.suites.task import Job

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

#: Hold the lock of a folder, whose descriptor tasks inherit; waits for those of a killed runner, which save and end.
alone = partial(run_lock.alone, patience=150.0, for_children=True)
#: Exit codes of a task that a signal stopped, as Python's subprocess and as a shell report them -> the signal.
_STOPS = {
    code: number
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
    for code in (-number, 128 + number)
}
#: What a node's part in a job on several runs.
_PART = "import pickle, sys\ntry:\n    pickle.load(sys.stdin.buffer)()\nexcept RuntimeError:\n    sys.exit(1)"
#: The lock of a job's folder; the task's own run in it has another (``run_lock.NAME``).
JOB_LOCK = ".job.lock"
#: Seconds that a job waits for another's processes in its folder: those of a node that came back are being killed.
_PATIENCE = 600.0


def node_lock(node: int) -> str:
    """The lock of a node's part in a task on several."""
    return f"{JOB_LOCK}.{node}" if node else JOB_LOCK


def full_command(job: Job, gpus: int, node: int = 0, rendezvous: str = "") -> list[str]:
    """The command with its interpreter: torchrun for a distributed task on several GPUs, else this Python.

    ``rendezvous``: HOST:PORT at which the nodes of a task on several meet, of which this is number ``node``.
    """
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={max(1, gpus)}"]
    if rendezvous:
        host, _, port = rendezvous.rpartition(":")
        torchrun += [f"--nnodes={job.task.nodes}", f"--node-rank={node}"]
        torchrun += [f"--master-addr={host}", f"--master-port={port}"]
    elif job.task.distributed and gpus > 1:
        torchrun.insert(2, "--standalone")
    else:
        torchrun = []
    return [sys.executable, *torchrun, *started(job.command)]


def start(
    job: Job, gpus: int, device: int | None = None, locks: tuple[int, ...] = (), rendezvous: str = "",
    environment: Mapping[str, str] = {},
) -> tuple[subprocess.Popen[bytes], float]:  # fmt: skip
    """Start a job's process with its output in ``job.log``; returns it, and the seconds that earlier attempts took.

    Args:
        device: the one GPU that it sees, of those that this process sees; None shows all.
        locks: descriptors of locks, which it holds until its own end.
        rendezvous: HOST:PORT of a task on several nodes, of which this is the first.
        environment: variables beside this process's own.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    nodes = job.task.nodes if rendezvous else 1
    spent = job.begin(job.gpus(gpus) * nodes, **({"rendezvous": rendezvous} if rendezvous else {}))
    environment = {**environment, SPENT: f"{spent:.1f}"}
    if device is not None:
        visible = visible_gpus(os.environ)
        environment["CUDA_VISIBLE_DEVICES"] = visible[device] if visible else str(device)
    return _logged(full_command(job, gpus, rendezvous=rendezvous), job.log, locks, environment), spent


def _logged(
    command: list[str], path: Path, locks: tuple[int, ...], environment: Mapping[str, str] = {}
) -> subprocess.Popen[bytes]:
    """Start a command with its output at the end of a log, holding ``locks``."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    with open(path, "ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        return _process(command, env=environment, stdout=log, stderr=subprocess.STDOUT, pass_fds=locks)


def start_part(job: Job, gpus: int, node: int) -> subprocess.Popen[bytes]:
    """Start a node's part in a job on several, which notes by itself how it ended."""
    process = _process([sys.executable, "-c", _PART], stdin=subprocess.PIPE)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:
        pickle.dump(Attempt(job, gpus, node=node), process.stdin)
    return process


def _process(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A process that leaves Slurm's warning to us, and on Linux gets SIGTERM as soon as we are gone, even killed."""
    parent = os.getpid()

    def in_the_child() -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        if _LIBC is not None:
            _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
            if os.getppid() != parent:  # gone before the signal was set
                os._exit(128 + signal.SIGTERM)

    # A session of its own: Ctrl-C reaches it once, through us, because a second signal would mean "at once".
    return subprocess.Popen(command, cwd=workplace(), start_new_session=True, preexec_fn=in_the_child, **options)


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


def noted(job: Job, status: str, note: str = "") -> Outcome:
    """The outcome of a job with the seconds, and unless given the note, that its folder holds."""
    state = job.state()
    return Outcome(job, status, float(state.get("seconds", 0)), note or str(state.get("note", "")))


def done_before(jobs: Iterable[Job]) -> dict[str, Outcome]:
    """The outcomes of jobs that an earlier call has done, by title."""
    return {job.title: noted(job, "done before") for job in jobs if job.done()}


def note_end(job: Job, code: int, seconds: float, spent: float) -> Outcome:
    """Note and log how a job's process ended, after ``seconds`` and the ``spent`` ones of earlier attempts."""
    if code == 0:
        job.end(spent + seconds, exit_code=0)
        say(f"{job.title}: done in {seconds:.0f} s")
        return Outcome(job, "done", seconds)
    if code in _STOPS:
        name = signal.Signals(_STOPS[code]).name
        job.end(spent + seconds, stopped=name)
        say(f"{job.title}: stopped by {name} after {seconds:.0f} s, which is no end; the next attempt goes on")
        return Outcome(job, "stopped", seconds, f"stopped by {name}; the same command goes on")
    how = f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
    how += " (out of memory?)" if -code == signal.SIGKILL else ""
    note = f"{how}: {last_word(last_lines(job.log))}"
    job.end(spent + seconds, exit_code=code, note=note)
    say(f"{job.title}: FAILED, {note} (all of it in {job.log})")
    return Outcome(job, "failed", seconds, note)


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


class Attempt:
    """What an engine calls on a node: ``Attempt(job, gpus)()``.

    Args:
        gpus: of a node, for a distributed task; others take one.
        node: number of this node, from 0, of a task on several; None for Slurm's.
    """

    def __init__(self, job: Job, gpus: int, node: int | None = None) -> None:
        self.job, self.gpus, self.node = job, gpus, node
        self._suite = {name: os.environ[name] for name in OF_THE_SUITE if name in os.environ}  # where it is made
        self._process: subprocess.Popen[bytes] | None = None
        self._began, self._spent, self._stopped = 0.0, 0.0, False

    def __call__(self) -> None:
        """Run the job to its end and note that.

        RuntimeError if the task failed, so that nothing that depends on it is started; SystemExit if a signal stopped
        it; InputError if another process stays at work in the job's folder.
        """
        self._began = time.monotonic()  # not before: it is made on another machine
        several = self.job.task.nodes > 1
        node = int(os.environ.get("SLURM_NODEID", "0")) if self.node is None and several else self.node
        with speaking():
            while True:
                try:
                    with alone(self.job.folder, name=node_lock(node or 0)) as lock:
                        return self._join(node, lock) if node else self._run(lock)
                except InputError as error:
                    if time.monotonic() > self._began + _PATIENCE:
                        raise
                    say(f"{error}; waiting")
                    time.sleep(5.0)

    def checkpoint(self) -> Any:
        """Called by submitit before a time limit: let the task save and end, then submit the same again."""
        self._stop()
        if self._process is not None:
            with contextlib.suppress(ChildProcessError):  # not wait(): `_wait`, which is interrupted, may hold its lock
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self.job.end(self._spent + time.monotonic() - self._began, stopped="the time limit")
        return extra("submitit", "Slurm jobs").helpers.DelayedSubmission(Attempt(self.job, self.gpus))

    def _run(self, lock: int) -> None:
        if self.job.done():  # by another job that was in the folder before
            say(f"{self.job.title}: done before")
            return
        with self._stopping():
            others = self._others()
            self._began = time.monotonic()
            rendezvous = _meeting_place() if self.job.task.nodes > 1 else ""
            process, self._spent = start(
                self.job, self.gpus, locks=(lock,), rendezvous=rendezvous, environment=self._suite
            )
            code = self._wait(process)
            if code not in (0, *_STOPS) and _gone(others):
                say(f"{self.job.title}: another node is gone")
                code = -signal.SIGTERM
            outcome = note_end(self.job, code, time.monotonic() - self._began, self._spent)
        if outcome.status == "stopped":
            sys.exit(128 + _STOPS[code])
        if outcome.status == "failed":
            raise RuntimeError(f"{self.job.title}: {outcome.note}, see {self.job.log}")

    def _others(self) -> dict[Path, str]:
        """The locks of the other nodes, once all of them are held, and what is in them; SystemExit if it is stopped."""
        paths = [self.job.folder / node_lock(node) for node in range(1, self.job.task.nodes)]
        while not all(run_lock.alive(path) for path in paths):
            if self._stopped:
                sys.exit(128 + signal.SIGTERM)
            time.sleep(0.2)
        return {path: run_lock.signed(path) for path in paths}

    def _join(self, node: int, lock: int) -> None:
        """Take part as a further node until the job's folder holds an end; the output is in ``log.NODE.txt``.

        A process that ends while node 0 still runs joins its next attempt, at another rendezvous; so does one whose
        rendezvous is that of a node 0 that was lost.
        """
        joined = ""
        log = self.job.log.with_suffix(f".{node}{self.job.log.suffix}")
        with self._stopping():
            while not self._stopped:
                state = self.job.state()
                if "exit_code" in state:
                    return
                rendezvous = str(state.get("rendezvous", ""))
                if rendezvous in ("", joined):
                    time.sleep(0.2)
                    continue
                joined = rendezvous
                command = full_command(self.job, self.gpus, node, rendezvous)
                self._wait(_logged(command, log, (lock,)), rendezvous)
        sys.exit(128 + signal.SIGTERM)

    def _stopping(self) -> contextlib.AbstractContextManager[None]:
        """Pass SIGTERM, and SIGINT, by which Ray cancels, on to the task within the block."""
        return handled(self._stop, signal.SIGTERM, signal.SIGINT)

    def _wait(self, process: subprocess.Popen[bytes], rendezvous: str = "") -> int:
        """The exit code of the task's process, once it has ended; it is ended where node 0 is at another rendezvous."""
        self._process = process
        if self._stopped:  # while it was being started
            process.terminate()
        while (code := process.poll()) is None:
            time.sleep(1.0 if rendezvous else 0.1)
            if rendezvous and self.job.state().get("rendezvous", rendezvous) != rendezvous:
                process.terminate()
                rendezvous = ""
        return code

    def _stop(self, _number: int = signal.SIGTERM, _frame: FrameType | None = None) -> None:
        """Ask the task to save and end; it counts this and Slurm's own signal as one."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()


def _gone(locks: Mapping[Path, str]) -> bool:
    """Whether one of these locks has another owner by now, or one that gives no sign of life."""
    if any(run_lock.lives_here(text) is None for text in locks.values()):  # on another machine
        time.sleep(run_lock.SILENCE)
    return any(run_lock.signed(path) != text or not run_lock.alive(path, within=run_lock.SILENCE)
               for path, text in locks.items())  # fmt: skip


def _meeting_place() -> str:
    """HOST:PORT of this machine, by its address, since pods of Kubernetes do not know each other by name."""
    with socket.socket() as free, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        free.bind(("", 0))
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737); nothing is sent
            host = probe.getsockname()[0]
        except OSError:  # no route
            host = socket.gethostname()
        return f"{host}:{free.getsockname()[1]}"
