"""Run the jobs of a suite on Slurm through submitit: one Slurm job a task, with dependencies.

Tested with submitit's own submission files against stand-ins for sbatch, sacct and srun, and with its local executor;
no Slurm cluster has run it yet.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from momentum_transfer.console import Stopped, say, stop_signals
from momentum_transfer.extras import extra
from momentum_transfer.files import write_text
from momentum_transfer.shipped import workplace
from momentum_transfer.suites.job import Job
from momentum_transfer.suites.local import AGAIN, Outcome, execute, last_line

#: Options of sbatch that the plan sets itself.
OURS = ("array", "chdir", "dependency", "job-name", "kill-on-invalid-dep", "output", "error", "wrap", "requeue")

#: Remembered for a job that was not started because a needed one had failed.
NOT_RUN = -1


def run_slurm(
    jobs: Sequence[Job], output: Path, *, gpus: int, options: dict[str, str], cluster: str = "slurm", poll: float = 15.0
) -> list[Outcome]:
    """One Slurm job a task through submitit, with dependencies; waits for all, and finds those of an earlier call.

    Args:
        options: further options of sbatch, for example ``{"partition": "gpu", "account": "vision"}``.
        cluster: submitit's executor; ``local`` runs the same path without Slurm.

    Raises:
        Stopped: Ctrl-C or SIGTERM; the submitted jobs go on.
    """
    submitit = extra("submitit", "Slurm jobs")
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


def _parameters(job: Job, gpus: int, options: dict[str, str], handles: dict[str, Any], cluster: str) -> dict[str, Any]:
    """What submitit's executor is told: the task's own needs, the user's options, and the jobs to wait for."""
    asked = gpus if job.task.distributed else min(gpus, 1)
    parameters: dict[str, Any] = {
        "name": f"{job.weights}-{job.task.name}"[:60],
        "timeout_min": job.task.minutes,
        "cpus_per_task": job.task.cpus,
    }
    if asked:
        parameters["gpus_per_node"] = asked
    if cluster != "slurm":
        return parameters
    more = {"chdir": str(workplace()), **options}  # from where the job finds this package, and the task its config
    if before := [handles[need.title].job_id for need in job.needs if need.title in handles]:
        more |= {"dependency": "afterok:" + ":".join(before), "kill-on-invalid-dep": "yes"}
    return {**parameters, "slurm_additional_parameters": more}


def _after(job: Job, gpus: int) -> None:
    """``execute`` for executors without dependencies: waits until the needs have ended, well or not."""
    while not all("exit_code" in need.state() for need in job.needs):
        time.sleep(0.1)
    if any(need.state()["exit_code"] for need in job.needs):
        job.remember(exit_code=NOT_RUN, note="a needed task did not end well")
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
    note = state.get("note") or f"Slurm job {handle.job_id} ended without a word: {handle.state}; {last_line(job.log)}"
    return Outcome(job, "failed", float(state.get("seconds", 0)), note)
