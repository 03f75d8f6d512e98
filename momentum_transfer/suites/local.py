"""Run the jobs of a suite as processes of this machine: alone, or as one of several shards that share its folder.

A job is taken by a file ``.claim.N`` in its folder, which only one process of all machines can create, whatever locks
the file system has. The next number is free once its owner is gone: a process of this machine that has ended, or one
elsewhere whose job's lock is not renewed any more. So shards take over what a killed one leaves.
"""

import contextlib
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from momentum_transfer.core import run_lock
from momentum_transfer.core.command import Stopped, StopSignal, stop_signals
from momentum_transfer.core.errors import AGAIN, InputError
from momentum_transfer.core.log import say
from momentum_transfer.suites.attempt import JOB_LOCK, Outcome, alone, note_end, start
from momentum_transfer.suites.progress import SILENCE, silence
from momentum_transfer.suites.shards import Shard
from momentum_transfer.suites.task import Job

_CLAIM = ".claim"
#: Seconds between two looks at jobs that others run.
_LOOK = 0.5


def run_local(
    jobs: Sequence[Job], *, parallel: int = 1, gpus: int = 0, lock: int | None = None, shard: Shard | None = None
) -> list[Outcome]:
    """Run jobs as processes of this machine, at most ``parallel`` at a time, each on its own GPU where there are GPUs.

    A job that another process (of a shard, or an engine's) has taken is waited for. A ``shard`` begins at its own part
    of the jobs, goes on with what is left of the others', and repeats no job that failed.

    Args:
        lock: descriptor of the suite's lock, which the tasks inherit.

    Raises:
        Stopped: Ctrl-C or SIGTERM came; the running tasks got it too and had time to save.
    """
    run = _Run(parallel, gpus, lock, shard)
    for job in jobs:
        if job.done():
            run.outcomes[job.title] = Outcome(job, "done before", float(job.state().get("seconds", 0)))
            say(f"{job.title}: done before")
    first = shard.first(len(jobs)) if shard else 0
    run.waiting = [job for job in (*jobs[first:], *jobs[:first]) if job.title not in run.outcomes]
    with stop_signals("waiting for the running tasks to save") as stop:
        try:
            run.to_the_end(stop)
        finally:
            run.end_running()
    return [run.outcomes[job.title] for job in jobs]


@dataclass
class _Run:
    """One call of ``run_local``: the ``running`` task of each slot, and the ``outcomes`` by title."""

    parallel: int
    gpus: int
    lock: int | None
    shard: Shard | None
    waiting: list[Job] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    running: dict[int, "_Running"] = field(default_factory=dict)

    def to_the_end(self, stop: StopSignal) -> None:
        """Start jobs as slots are free until all have ended."""
        next_look = 0.0
        while self.waiting or self.running:
            if stop:
                raise Stopped(f"stopped; {AGAIN}", stop.exit_code)
            for slot, task in list(self.running.items()):
                if task.process.poll() is not None:
                    self.outcomes[task.job.title] = task.outcome()
                    del self.running[slot]
                    next_look = 0.0
            if time.monotonic() >= next_look:
                for slot in (slot for slot in range(self.parallel) if slot not in self.running):
                    if not self._start_next(slot):
                        next_look = time.monotonic() + _LOOK
                        break
            time.sleep(0.05)

    def _start_next(self, slot: int) -> bool:
        """Start the next job that may be; those that cannot run any more get their outcome on the way."""
        for job in list(self.waiting):
            needs = [self.outcomes.get(need.title) for need in job.needs]
            if failed := [need.job.task.name for need in needs if need is not None and not need.well]:
                self._leave(job, Outcome(job, "not run", note=f"{failed[0]} did not end well"))
            elif None not in needs and not self._ended_elsewhere(job):
                with contextlib.ExitStack() as held:
                    descriptor = _take(job, held)
                    if descriptor is None or self._ended_elsewhere(job):  # its owner has just ended
                        continue
                    self._start(job, slot, descriptor, held)
                    return True
        return False

    def _start(self, job: Job, slot: int, descriptor: int, held: contextlib.ExitStack) -> None:
        say(f"{job.title}: running, output in {job.log}")
        device = slot % self.gpus if self.parallel > 1 and self.gpus else None
        locks = (descriptor,) if self.lock is None else (descriptor, self.lock)
        process, spent = start(job, min(self.gpus, 1) if self.parallel > 1 else self.gpus, device, locks)
        self.running[slot] = _Running(job, process, time.monotonic(), spent, held.pop_all())
        self.waiting.remove(job)

    def _leave(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job.title] = outcome
        self.waiting.remove(job)

    def _ended_elsewhere(self, job: Job) -> bool:
        """Whether another process has run the job to its end, which is then its outcome here."""
        state = job.state()
        if job.done():
            status = "done"
        elif self.shard and state.get("key") == job.key and state.get("exit_code", 0) != 0:
            status = "failed"
        else:
            return False
        self._leave(job, Outcome(job, status, float(state.get("seconds", 0)), str(state.get("note", ""))))
        say(f"{job.title}: {status} elsewhere")
        return True

    def end_running(self) -> None:
        """Ask the running tasks to stop, give them time to save, then insist."""
        with contextlib.ExitStack() as ends:  # of each, whatever becomes of the others
            for task in self.running.values():
                if task.process.poll() is None:
                    task.process.terminate()
                ends.callback(task.end)


@dataclass(frozen=True)
class _Running:
    """A task's process; ``began`` by the monotonic clock, ``spent``: seconds of earlier attempts; its claim is held."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float
    spent: float
    held: contextlib.ExitStack

    def end(self) -> None:
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.outcome()

    def outcome(self) -> Outcome:
        """Note and log how it ended."""
        with self.held:
            seconds = time.monotonic() - self.began
            status, note = note_end(self.job, self.process.returncode, seconds, self.spent)
            return Outcome(self.job, status, seconds, note)


def _take(job: Job, held: contextlib.ExitStack) -> int | None:
    """Take a job until ``held`` is closed; returns the descriptor of its lock, None while another process has it."""
    job.folder.mkdir(parents=True, exist_ok=True)
    found = {int(path.suffix[1:]): path for path in job.folder.glob(f"{_CLAIM}.*") if path.suffix[1:].isdecimal()}
    number = max(found, default=0)
    if number and _alive(found[number]):
        return None
    claim = job.folder / f"{_CLAIM}.{number + 1}"
    try:
        with open(claim, "x", encoding="utf-8") as stream:
            held.callback(claim.unlink, missing_ok=True)  # also where the disk is full
            stream.write(run_lock.signature())
    except FileExistsError:
        return None
    try:
        descriptor = held.enter_context(alone(job.folder, patience=0.0, name=JOB_LOCK))
    except InputError:  # an engine's attempt, or a task of a killed run that still saves
        return None
    for path in found.values():
        path.unlink(missing_ok=True)
    return descriptor


def _alive(claim: Path) -> bool:
    """Whether the process that made the claim is at work, as far as can be seen from here."""
    try:
        here = run_lock.lives_here(claim.read_text(encoding="utf-8", errors="replace"))
    except OSError:  # it has just been given back
        return True
    return silence(claim.parent, claim, claim.with_name(JOB_LOCK)) < SILENCE if here is None else here
