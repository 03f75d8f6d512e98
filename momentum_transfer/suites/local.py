"""Run the jobs of a suite as processes of this machine (``slurm.py``: as one Slurm job each).

A job that fails stops only those that need it. A killed run goes on where it was: each job remembers its end, and the
tools themselves resume and skip records that they have written.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from momentum_transfer.console import Stopped, say, speaking, stop_signals
from momentum_transfer.shipped import started, workplace
from momentum_transfer.suites.job import Job
from momentum_transfer.suites.lock import end_with_parent

AGAIN = "finished tasks are kept; run the same command again to go on"


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``done``, ``done before``, ``failed`` or ``not run``; ``note`` says why."""

    job: Job
    status: str
    seconds: float = 0.0
    note: str = ""

    @property
    def well(self) -> bool:
        return self.status in ("done", "done before")


def full_command(job: Job, gpus: int) -> list[str]:
    """The command with its interpreter: torchrun for a distributed task on several GPUs, else this Python."""
    if job.task.distributed and gpus > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
        return [sys.executable, *torchrun, *started(job.command)]
    return [sys.executable, *started(job.command)]


def start(job: Job, gpus: int, device: int | None = None, lock: int | None = None) -> subprocess.Popen[bytes]:
    """Start a job's process with its output in ``job.log``.

    Args:
        device: shows it this one GPU only.
        lock: descriptor of the suite's lock (``suite_lock.alone``), which it holds until its own end.
    """
    job.remember()  # forgets an earlier end
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(device)
    command = full_command(job, gpus)
    with open(job.log, "ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        # A session of its own: Ctrl-C reaches it once, through us, because a second signal would mean "at once".
        return subprocess.Popen(
            command, cwd=workplace(), env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            pass_fds=() if lock is None else (lock,), preexec_fn=end_with_parent(),
        )  # fmt: skip


def execute(job: Job, gpus: int) -> None:
    """Run a job to its end and remember it: what a Slurm job does on its node.

    Raises:
        RuntimeError: the task failed; so Slurm starts nothing that depends on it.
    """
    began = time.time()
    with speaking():
        outcome = _ended(job, start(job, gpus).wait(), time.time() - began)
    if not outcome.well:
        raise RuntimeError(f"{job.title}: {outcome.note}, see {job.log}")


def run_local(jobs: Sequence[Job], *, parallel: int = 1, gpus: int = 0, lock: int | None = None) -> list[Outcome]:
    """Run jobs as processes of this machine, at most ``parallel`` at a time, each with its own GPU where there are.

    Args:
        lock: descriptor of the suite's lock, for the tasks to inherit.

    Raises:
        Stopped: Ctrl-C or SIGTERM; the running tasks got it too and had time to save.
    """
    outcomes: dict[str, Outcome] = {}
    running: dict[int, tuple[Job, subprocess.Popen[bytes], float]] = {}
    waiting = list(jobs)
    with stop_signals() as stop:
        try:
            while waiting or running:
                if stop:
                    _end(process for _, process, _ in running.values())
                    raise Stopped(f"stopped; {AGAIN}", stop.exit_code)
                for slot, (ended, process, began) in list(running.items()):
                    if process.poll() is not None:
                        outcomes[ended.title] = _ended(ended, process.returncode, time.time() - began)
                        del running[slot]
                for slot in (slot for slot in range(parallel) if slot not in running):
                    if job := _next(waiting, outcomes):
                        say(f"{job.title}: running, output in {job.log}")
                        device = slot % gpus if parallel > 1 and gpus else None
                        running[slot] = (job, start(job, 1 if parallel > 1 else gpus, device, lock), time.time())
                time.sleep(0.05)
        finally:
            _end(process for _, process, _ in running.values())
    return [outcomes[job.title] for job in jobs]


def _next(waiting: list[Job], outcomes: dict[str, Outcome]) -> Job | None:
    """The next job that may start; those that are done, or cannot run any more, get their outcome on the way."""
    for job in list(waiting):
        needs = [outcomes.get(need.title) for need in job.needs]
        if job.done():
            outcomes[job.title] = Outcome(job, "done before", float(job.state().get("seconds", 0)))
            say(f"{job.title}: done before")
        elif failed := [need.job.task.name for need in needs if need is not None and not need.well]:
            outcomes[job.title] = Outcome(job, "not run", note=f"{failed[0]} did not end well")
        elif None not in needs:
            waiting.remove(job)
            return job
        else:
            continue
        waiting.remove(job)
    return None


def _ended(job: Job, code: int, seconds: float) -> Outcome:
    """Remember how a job ended, and say it."""
    if code == 0:
        job.remember(exit_code=0, seconds=round(seconds, 1))
        say(f"{job.title}: done in {seconds:.0f} s")
        return Outcome(job, "done", seconds)
    note = f"{how_it_ended(code)}: {last_line(job.log)}"
    job.remember(exit_code=code, seconds=round(seconds, 1), note=note)
    say(f"{job.title}: FAILED, {note} (all of it in {job.log})")
    return Outcome(job, "failed", seconds, note)


def how_it_ended(code: int) -> str:
    """An exit code in words; a negative one is the signal that ended the process."""
    if code >= 0:
        return f"exit code {code}"
    why = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"ended by {signal.Signals(-code).name}{why}"


def last_line(log: Path) -> str:
    """The last line of a log that says something, shortened."""
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no output"
    return lines[-1].strip()[:300] if lines else "no output"


def _end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ask processes to stop, give them time to save, then insist."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        process.send_signal(signal.SIGTERM)
    for process in alive:
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
