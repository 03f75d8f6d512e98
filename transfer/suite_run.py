"""Run the jobs of a suite: as processes of this machine, or as one Slurm job each through submitit.

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
from typing import Any

from pretrain.console import Stopped, say, stop_signals
from pretrain.errors import InputError
from pretrain.files import write_text
from transfer.suite import ROOT, Job

#: Remembered for a job that was not started because a needed one had failed.
NOT_RUN = -1

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
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}", *job.command]
    return [sys.executable, *job.command]


def start(job: Job, gpus: int, device: int | None = None) -> subprocess.Popen[bytes]:
    """Start a job's process with its output in ``job.log``; ``device`` shows it one GPU only."""
    job.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(device)
    command = full_command(job, gpus)
    with open(job.log, "ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        # A session of its own: Ctrl-C reaches it once, through us, because a second signal would mean "at once".
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def execute(job: Job, gpus: int) -> None:
    """Run a job to its end and remember it: what a Slurm job does on its node.

    Raises:
        RuntimeError: the task failed; so Slurm starts nothing that depends on it.
    """
    began = time.time()
    code = start(job, gpus).wait()
    job.remember(exit_code=code, seconds=round(time.time() - began, 1))
    if code:
        raise RuntimeError(f"{job.title}: exit code {code}, see {job.log}")


def run_local(jobs: Sequence[Job], *, parallel: int = 1, gpus: int = 0) -> list[Outcome]:
    """Run jobs as processes of this machine, at most ``parallel`` at a time, each with its own GPU where there are.

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
                        running[slot] = (job, start(job, 1 if parallel > 1 else gpus, device), time.time())
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
    job.remember(exit_code=code, seconds=round(seconds, 1))
    if code == 0:
        say(f"{job.title}: done in {seconds:.0f} s")
        return Outcome(job, "done", seconds)
    note = f"exit code {code}: {last_line(job.log)}"
    say(f"{job.title}: FAILED, {note} (all of it in {job.log})")
    return Outcome(job, "failed", seconds, note)


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


def run_slurm(
    jobs: Sequence[Job], output: Path, *, gpus: int, options: dict[str, Any], cluster: str = "slurm", poll: float = 15.0
) -> list[Outcome]:
    """One Slurm job a task through submitit, with dependencies; waits for all, and finds those of an earlier call.

    Args:
        options: further parameters of submitit's executor, for example ``slurm_partition``.
        cluster: submitit's executor; ``local`` runs the same path without Slurm.

    Raises:
        Stopped: Ctrl-C or SIGTERM; the submitted jobs go on.
    """
    submitit = _submitit()
    outcomes: dict[str, Outcome] = {}
    handles: dict[str, Any] = {}
    for job in jobs:
        if job.done():
            outcomes[job.title] = Outcome(job, "done before", float(job.state().get("seconds", 0)))
            continue
        handle = _earlier(submitit, job, output, cluster)
        if handle is None:
            executor = submitit.AutoExecutor(folder=output / "slurm" / "%j", cluster=cluster)
            executor.update_parameters(**_parameters(job, gpus, options, handles, cluster))
            job.remember()  # forgets an earlier end before the job can have its own
            handle = executor.submit(_after if cluster == "local" else execute, job, gpus)
            write_text(job.folder / "slurm_job.txt", f"{job.key} {handle.job_id}\n")
            say(f"{job.title}: submitted as job {handle.job_id}")
        handles[job.title] = handle
    with stop_signals() as stop:
        while not all(handle.done() for handle in handles.values()):
            if stop:
                raise Stopped(f"stopped waiting, the submitted jobs go on; {AGAIN}", stop.exit_code)
            time.sleep(poll)
    for job in jobs:
        if job.title in handles:
            outcomes[job.title] = _slurm_outcome(job, handles[job.title], outcomes)
    return [outcomes[job.title] for job in jobs]


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise InputError("Slurm jobs need submitit: pip install 'momentum-transfer[slurm]'") from error
    return submitit


def _parameters(job: Job, gpus: int, options: dict[str, Any], handles: dict[str, Any], cluster: str) -> dict[str, Any]:
    asked = gpus if job.task.distributed else min(gpus, 1)
    parameters = {
        "name": f"{job.weights}-{job.task.name}"[:60],
        "timeout_min": job.task.minutes,
        "cpus_per_task": job.task.cpus,
        "gpus_per_node": asked,
        **options,
    }
    before = [handles[need.title].job_id for need in job.needs if need.title in handles]
    if before and cluster == "slurm":
        parameters["slurm_additional_parameters"] = {
            "dependency": "afterok:" + ":".join(before),
            "kill-on-invalid-dep": "yes",
        }
    return parameters


def _after(job: Job, gpus: int) -> None:
    """``execute`` for executors without dependencies: waits until the needs have ended, well or not."""
    while not all("exit_code" in need.state() for need in job.needs):
        time.sleep(0.1)
    if any(need.state()["exit_code"] for need in job.needs):
        job.remember(exit_code=NOT_RUN)
        raise RuntimeError(f"{job.title}: a needed task did not end well")
    execute(job, gpus)


def _earlier(submitit: Any, job: Job, output: Path, cluster: str) -> Any:
    """The handle of a job that an earlier call submitted and that has not ended, or None."""
    note = job.folder / "slurm_job.txt"
    if cluster != "slurm" or not note.is_file() or "exit_code" in job.state():
        return None
    key, _, number = note.read_text(encoding="utf-8").strip().partition(" ")
    if key != job.key:
        return None
    handle = submitit.SlurmJob(folder=output / "slurm" / number, job_id=number)
    if handle.done():
        return None
    say(f"{job.title}: still in the queue or running as job {number}")
    return handle


def _slurm_outcome(job: Job, handle: Any, outcomes: dict[str, Outcome]) -> Outcome:
    if any(not outcomes[need.title].well for need in job.needs):
        return Outcome(job, "not run", note="a needed task did not end well")
    state = job.state()
    code = state.get("exit_code")
    if code == 0:
        return Outcome(job, "done", float(state.get("seconds", 0)))
    note = (
        f"exit code {code}: {last_line(job.log)}" if code is not None else f"Slurm job {handle.job_id}: {handle.state}"
    )
    return Outcome(job, "failed", float(state.get("seconds", 0)), note)
