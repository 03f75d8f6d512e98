"""Run the jobs of a suite on Slurm through submitit: one Slurm job a task, in arrays, with dependencies.

How a job ended stands in its folder (``attempt.py``), whether it is still to come in squeue's answer
(``slurm_queue.py``). So accounting is not needed, and a call that finds jobs of an earlier one waits for them.
"""

import collections
import contextlib
import io
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentum_transfer.core.command import Stopped, StopSignal, stop_signals
from momentum_transfer.core.errors import AGAIN, InputError, counted, extra
from momentum_transfer.core.log import PLAIN_INTERVAL, say, warn
from momentum_transfer.core.shipped import workplace
from momentum_transfer.suites import slurm_queue as queue
from momentum_transfer.suites.attempt import Attempt, Outcome, last_lines, last_word
from momentum_transfer.suites.slurm_queue import NEVER, STUCK, Array, Place, Seen, arrays
from momentum_transfer.suites.task import Job

#: Options of sbatch that the plan sets itself.
OURS = ("array", "chdir", "dependency", "error", "job-name", "kill-on-invalid-dep", "open-mode", "output", "requeue",
        "signal", "wrap")  # fmt: skip

#: What was submitted, a line an array, in OUTPUT: {"number", "jobs": [[title, key], …]}.
SUBMITTED = "submitted.jsonl"
#: Seconds before a time limit at which a task is asked to save: of the job's own minutes at most a quarter.
_WARNING = 120
#: How often a job may reach its time limit, save, and go on.
_TIME_LIMITS = 1000
#: Wait this many seconds after squeue reports a job as ended for its exit status to appear: shared file systems lag.
SETTLE = 5.0


def run_slurm(
    jobs: Sequence[Job],
    output: Path,
    *,
    gpus: int,
    options: Mapping[str, str],
    at_once: int | None = None,
    poll: float = 15.0,
) -> list[Outcome]:
    """One Slurm job a task through submitit, with dependencies; waits for all, and finds those of an earlier call.

    Args:
        gpus: of a node, for tasks that are distributed; others take one.
        options: of sbatch, for example ``{"partition": "gpu", "account": "vision"}``.
        at_once: jobs of one array that may run at a time.
        poll: longest pause between two calls of squeue, in seconds.

    Raises:
        InputError: Slurm does not answer or refuses a job, or a job with other settings is at work in a folder.
        Stopped: Ctrl-C or SIGTERM; the submitted jobs go on.
    """
    done = {job.title: Outcome(job, "done before", float(job.state().get("seconds", 0))) for job in jobs if job.done()}
    to_do = [job for job in jobs if job.title not in done]
    with stop_signals("the submitted jobs go on") as stop:
        places = _found(to_do, output) if to_do else {}
        new = [job for job in to_do if job.title not in places]
        if new:
            places |= _Submission(output, gpus, options, at_once).submit(new, places, stop)
        states = _wait({job.title: (job, places[job.title].number) for job in to_do}, stop, poll)
    outcomes = dict(done)
    for job in to_do:
        outcomes[job.title] = _outcome(job, places[job.title].number, states[job.title], outcomes)
    return [outcomes[job.title] for job in jobs]


def _found(jobs: Sequence[Job], output: Path) -> dict[str, Place]:
    """The places of jobs of an earlier call that are still in the queue or running, by title.

    InputError if squeue does not answer, or such a job has other settings.
    """
    numbers = submitted(output)
    known = [(job, *numbers[job.title]) for job in jobs if job.title in numbers]
    if not known:
        return {}
    seen = queue.squeue()
    found = {}
    for job, number, key in known:
        if (slurm_job := seen.get(number)) is None or not slurm_job.alive or _ended(job):
            continue
        if key != job.key:
            raise InputError(
                f"expected no job at work in {job.folder}, found Slurm job {number} there with another command, "
                f"weights or config; wait for its end, or scancel {number}"
            )
        found[job.title] = Place(Array([job], number=number))
    if found:
        numbers_found = [place.number for place in found.values()]
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        say(f"{counted(len(found), 'task')} still in the queue or running: {', '.join(numbers_found[:5])}{more}")
    return found


def submitted(output: Path) -> dict[str, tuple[str, str]]:
    """Title -> (Slurm's number, key) of the last submission of each job."""
    if not (output / SUBMITTED).is_file():
        return {}
    lines = (output / SUBMITTED).read_bytes().splitlines()
    numbers: dict[str, tuple[str, str]] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            jobs = [(str(title), str(key)) for title, key in entry["jobs"]]
            number = str(entry["number"])
        except (ValueError, TypeError, KeyError, RecursionError):  # the half line of a killed call, or a damaged one
            continue
        for index, (title, key) in enumerate(jobs):
            numbers[title] = (f"{number}_{index}" if len(jobs) > 1 else number, key)
    return numbers


@dataclass(frozen=True)
class _Submission:
    """Where and with which options jobs are submitted, see ``run_slurm``."""

    output: Path
    gpus: int
    options: Mapping[str, str]
    at_once: int | None

    def submit(self, jobs: Sequence[Job], earlier: Mapping[str, Place], stop: StopSignal) -> dict[str, Place]:
        """Submit jobs as arrays; returns the place of each by title."""
        submitit = extra("submitit", "Slurm jobs")
        cpus, _ = queue.largest_node(self.options.get("partition", ""))
        new, places = arrays(jobs, earlier, queue.longest_array())
        for array in new:
            if stop:
                raise Stopped(f"stopped submitting, the submitted jobs go on; {AGAIN}", stop.exit_code)
            for job in array.jobs:
                job.forget_end()
            executor = submitit.SlurmExecutor(folder=self.output / "slurm", max_num_timeout=_TIME_LIMITS)
            executor.update_parameters(**self._parameters(array, cpus))
            try:
                with contextlib.redirect_stderr(io.StringIO()), executor.batch():  # sbatch's complaint is in the error
                    handles = [executor.submit(Attempt(job, self.gpus)) for job in array.jobs]
            except (subprocess.CalledProcessError, submitit.core.utils.FailedJobError) as error:
                raise InputError(f"expected sbatch to take {array.jobs[0].title}, found: {_refusal(error)}") from error
            array.number = str(handles[0].job_id).partition("_")[0]
            entry = {"number": array.number, "jobs": [[job.title, job.key] for job in array.jobs]}
            with open(self.output / SUBMITTED, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry) + "\n")
            last = len(array.jobs) - 1
            more = f" and {last} more: submitted as jobs {array.number}_0 to _{last}"
            say(array.jobs[0].title + (more if last else f": submitted as job {array.number}"))
        return places

    def _parameters(self, array: Array, cpus: int) -> dict[str, Any]:
        """submitit's parameters: the tasks' needs, the user's options, and the jobs to wait for.

        ``cpus`` of the largest node, 0 if unknown; a task that asks for more would wait for ever.
        """
        job = array.jobs[0]
        asked = job.task.cpus
        if 0 < cpus < asked and "cpus-per-task" not in self.options:
            say(f"{job.task.name}: no node has the {asked} CPUs that the suite asks for; asking for {cpus}")
            asked = cpus
        more: dict[str, Any] = {"chdir": str(workplace()), "requeue": True, **self.options}
        if dependency := array.dependency():
            more |= {"dependency": dependency, "kill-on-invalid-dep": "yes"}
        native = {key.replace("-", "_"): more.pop(key) for key in list(more) if key.replace("-", "_") in _NATIVE}
        gpus = job.gpus(self.gpus)
        return {
            "job_name": (f"{job.weights}-{job.task.name}" if len(array.jobs) == 1 else job.task.name)[:60],
            "time": job.task.minutes,
            "cpus_per_task": asked,
            "array_parallelism": self.at_once or len(array.jobs),
            "signal_delay_s": min(_WARNING, job.task.minutes * 15),
            "additional_parameters": more,
            **({"gpus_per_node": gpus} if gpus else {}),
            **native,
        }


#: Options that submitit writes itself, so that each stands once in the script.
_NATIVE = ("partition", "account", "qos", "mem", "time", "cpus_per_task", "gpus_per_node", "constraint", "exclude",
           "nodelist", "gres", "comment", "mem_per_cpu", "mem_per_gpu", "mail_type", "mail_user")  # fmt: skip


def _refusal(error: Exception) -> str:
    """The line in which sbatch says why not."""
    text = str(getattr(error, "stderr", "") or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "sbatch: error" in line), lines[-1] if lines else "no word")[:300]


def _ended(job: Job) -> bool:
    """Whether the job's folder holds an end of its own, under this command, since it was submitted."""
    state = job.state()
    return state.get("key") == job.key and "exit_code" in state


def _wait(jobs: Mapping[str, tuple[Job, str]], stop: StopSignal, poll: float) -> dict[str, str]:
    """Wait until every job has ended; returns the last state that Slurm gave for each by title, "" for none."""
    last: dict[str, Seen] = {}
    waiting, doubted = dict(jobs), dict.fromkeys(jobs, 0.0)
    progress, began = _Progress(len(jobs)), time.monotonic()
    while waiting:
        answer = _look()
        if answer is not None:
            now = time.monotonic()
            for title, (job, number) in list(waiting.items()):
                seen = answer.get(number)
                last[title] = seen or last.get(title, Seen(""))
                if _ended(job) and (seen is None or not seen.alive):
                    del waiting[title]
                elif seen is not None and seen.reason == NEVER:
                    queue.cancel([number])
                    del waiting[title]
                elif seen is None or not seen.alive:
                    doubted[title] = doubted[title] or now
                    if now - doubted[title] >= SETTLE:
                        del waiting[title]
                else:
                    doubted[title] = 0.0
            progress.show(jobs, waiting, answer)
        _pause(min(poll, max(1.0, (time.monotonic() - began) / 20)), stop, waiting)
    gone = [number for title, (_, number) in jobs.items() if last[title].state not in queue.ENDED]
    words = queue.accounted(gone)
    return {title: words.get(number) or last[title].state for title, (_, number) in jobs.items()}


def _pause(seconds: float, stop: StopSignal, waiting: Mapping[str, Any]) -> None:
    deadline = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline:
        if stop:
            raise Stopped(f"stopped waiting, the submitted jobs go on; {AGAIN}", stop.exit_code)
        time.sleep(0.1)


def _look() -> dict[str, Seen] | None:
    """The queue; None, with a warning, while the controller does not answer."""
    try:
        return queue.squeue()
    except InputError as error:
        warn(f"{error} Asking again.")
        time.sleep(5.0)
        return None


class _Progress:
    """A line on how many tasks are where, whenever that changes, and a warning for jobs that may never start."""

    def __init__(self, total: int) -> None:
        self.total, self._said, self._at = total, "", -PLAIN_INTERVAL
        self._warned: set[str] = set()

    def show(self, jobs: Mapping[str, tuple[Job, str]], waiting: Mapping[str, Any], seen: Mapping[str, Seen]) -> None:
        """Log it, at most every ten seconds."""
        here = [(title, seen.get(jobs[title][1], Seen("LEAVING"))) for title in waiting]
        pending = [(title, one) for title, one in here if one.state == "PENDING"]
        reasons = collections.Counter(one.reason for _, one in pending)
        listed = ", ".join(f"{reason or 'no reason yet'} {count}" for reason, count in reasons.most_common())
        others = collections.Counter(one.state.lower() for _, one in here if one.state != "PENDING")
        parts = [f"{self.total - len(waiting)} of {self.total} ended"]
        parts += [f"{count} {state}" for state, count in others.items()]
        parts += [f"{len(pending)} queued ({listed})"] if pending else []
        line = f"Slurm: {', '.join(parts)}"
        if line != self._said and (time.monotonic() - self._at >= PLAIN_INTERVAL or not waiting):
            self._said, self._at = line, time.monotonic()
            say(line)
        for title, one in pending:
            advice = next((STUCK[key] for key in STUCK if one.reason.startswith(key)), "")
            if advice and one.reason not in self._warned:
                self._warned.add(one.reason)
                warn(f"{title}: job {jobs[title][1]} is queued and may stay so: {one.reason}: {advice}")


def _outcome(job: Job, number: str, slurm_state: str, outcomes: Mapping[str, Outcome]) -> Outcome:
    """How a job ended: by its own folder, else by the last state that Slurm gave."""
    if failed := [need for need in job.needs if not outcomes[need.title].well]:
        return Outcome(job, "not run", note=f"{failed[0].task.name} did not end well")
    state = job.state()
    seconds = float(state.get("seconds", 0))
    if _ended(job):
        return Outcome(job, "done" if state["exit_code"] == 0 else "failed", seconds, str(state.get("note", "")))
    if slurm_state.startswith("CANCELLED"):
        note = f"Slurm job {number} was cancelled; the same command submits it again"
        return Outcome(job, "cancelled", seconds, note)
    how = f"ended as {slurm_state}" if slurm_state else "is gone from the queue"
    stopped = f", stopped by {state['stopped']}" if "stopped" in state else ""
    last = last_word(last_lines(job.log))
    return Outcome(job, "failed", seconds, f"Slurm job {number} {how}{stopped}; its last line: {last}")
