"""Run the jobs of a suite as processes of this machine (``slurm.py``: as one Slurm job each).

A job that fails stops only those that need it. A killed run goes on where it was: each job remembers its end, and the
tools themselves resume and skip records that they have written.
"""

import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

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
