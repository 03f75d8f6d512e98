"""Slurm as an executor: one Slurm job a task through submitit, in arrays, with dependencies.

How a job ended stands in its folder (``attempt.py``), whether it is still to come in squeue's answer. So accounting is
not needed. Jobs of one task for many checkpoints ask for the same resources and are one array. Job k of an array may
begin when job k of another has ended well (``aftercorr``); so its jobs stand in the order of those that they need.
"""

import contextlib
import io
import os
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from momentum_transfer.core.errors import InputError, extra
from momentum_transfer.core.log import say
from momentum_transfer.core.shipped import workplace
from momentum_transfer.suites.attempt import Attempt
from momentum_transfer.suites.executors import Seen, Setup
from momentum_transfer.suites.task import Job

#: Options of sbatch that the plan sets itself.
OURS = ("array", "chdir", "dependency", "error", "job-name", "kill-on-invalid-dep", "nodes", "ntasks",
        "ntasks-per-node", "open-mode", "output", "requeue", "signal", "wrap")  # fmt: skip
#: Options that submitit writes itself, so that each stands once in the script.
_NATIVE = ("partition", "account", "qos", "mem", "time", "cpus_per_task", "gpus_per_node", "constraint", "exclude",
           "nodelist", "gres", "comment", "mem_per_cpu", "mem_per_gpu", "mail_type", "mail_user")  # fmt: skip
#: Seconds before a time limit at which a task is asked to save: of the job's own minutes at most a quarter.
_WARNING = 120
#: How often a job may reach its time limit, save, and go on.
_TIME_LIMITS = 1000
#: States after which a job does not come back by itself.
_ENDED = frozenset(("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
                    "PREEMPTED", "REVOKED", "TIMEOUT"))  # fmt: skip
#: The reason of a pending job whose need failed.
_NEVER = "DependencyNeverSatisfied"
#: Reasons of pending jobs (or their beginnings) that may never start -> what may be done.
_STUCK = {
    "BadConstraints": "no node is like that; ask for less with --sbatch",
    "PartitionConfig": "the partition has no such node; ask for less, or for another partition, with --sbatch",
    "PartitionNodeLimit": "more nodes than the partition allows",
    "PartitionTimeLimit": "the suite's minutes are more than the partition allows; --sbatch time=MINUTES",
    "PartitionDown": "the partition is down; --sbatch partition=ANOTHER",
    "PartitionInactive": "the partition is inactive; --sbatch partition=ANOTHER",
    "ReqNodeNotAvail": "the node is down, drained or reserved: sinfo -R shows why",
    "Nodes_required_for_job_are_DOWN": "nodes are down: sinfo -R shows why",
    "JobHeld": "it is held; scontrol release lets it go",
    "launch_failed_requeued_held": "its start failed; look at the node, then scontrol release",
    "InvalidAccount": "--sbatch account=YOURS",
    "InvalidQOS": "--sbatch qos=YOURS",
    "Assoc": "a limit of your account",
    "QOS": "a limit of the quality of service",
    "MaxCpuPerAccount": "a limit of your account",
}


class Slurm:
    """The cluster that sbatch, squeue and scancel speak to; ``executors.Executor`` says what the methods do."""

    name = "Slurm"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def gpus(self) -> int:
        return largest_node(self.setup.options.get("partition", ""))[1]

    def look(self, numbers: Collection[str]) -> Mapping[str, Seen]:
        seen = squeue()
        self.cancel(number for number in numbers if number in seen and seen[number].reason == _NEVER)
        return _accounted([number for number in numbers if number not in seen]) | seen

    def cancel(self, numbers: Iterable[str]) -> None:
        if listed := list(numbers):
            subprocess.run(["scancel", *listed], check=False, capture_output=True)

    def submit(self, attempts: Sequence[Attempt], earlier: Mapping[str, str]) -> Iterator[tuple[str, list[Attempt]]]:
        submitit = extra("submitit", "Slurm jobs")
        cpus, _ = largest_node(self.setup.options.get("partition", ""))
        places = {title: Place(Array([], number=number)) for title, number in earlier.items()}
        by_title = {attempt.job.title: attempt for attempt in attempts}
        for array in arrays([attempt.job for attempt in attempts], places, _longest_array()):
            mine = [by_title[job.title] for job in array.jobs]
            executor = submitit.SlurmExecutor(folder=self.setup.output / "slurm", max_num_timeout=_TIME_LIMITS)
            executor.update_parameters(**self._parameters(array, mine[0], cpus))
            try:
                with contextlib.redirect_stderr(io.StringIO()), executor.batch():  # sbatch's complaint is in the error
                    handles = [executor.submit(attempt) for attempt in mine]
            except (subprocess.CalledProcessError, submitit.core.utils.FailedJobError) as error:
                raise InputError(f"expected sbatch to take {array.jobs[0].title}, found: {_refusal(error)}") from error
            array.number = str(handles[0].job_id).partition("_")[0]
            yield array.number, mine

    def _parameters(self, array: "Array", attempt: Attempt, cpus: int) -> dict[str, Any]:
        """submitit's parameters: the tasks' needs, the user's options, and the jobs to wait for.

        ``cpus`` of the largest node, 0 if unknown; a task that asks for more would wait for ever.
        """
        job, options = attempt.job, self.setup.options
        asked = job.task.cpus
        if 0 < cpus < asked and "cpus-per-task" not in options:
            say(f"{job.task.name}: no node has the {asked} CPUs that the suite asks for; asking for {cpus}")
            asked = cpus
        more: dict[str, Any] = {"chdir": str(workplace()), "requeue": True, **options}
        if dependency := array.dependency():
            more |= {"dependency": dependency, "kill-on-invalid-dep": "yes"}
        native = {key.replace("-", "_"): more.pop(key) for key in list(more) if key.replace("-", "_") in _NATIVE}
        nodes, gpus = job.task.nodes, job.gpus(attempt.gpus)
        return {
            "job_name": (f"{job.weights}-{job.task.name}" if len(array.jobs) == 1 else job.task.name)[:60],
            "time": job.task.minutes,
            "cpus_per_task": asked,
            "array_parallelism": self.setup.at_once or len(array.jobs),
            "signal_delay_s": min(_WARNING, job.task.minutes * 15),
            "additional_parameters": more,
            **({"nodes": nodes, "ntasks_per_node": 1} if nodes > 1 else {}),
            **({"gpus_per_node": gpus} if gpus else {}),
            **native,
        }


def _refusal(error: Exception) -> str:
    """The line in which sbatch says why not."""
    lines = [line.strip() for line in str(getattr(error, "stderr", "") or error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "sbatch: error" in line), lines[-1] if lines else "no word")[:300]


def squeue() -> dict[str, Seen]:
    """All jobs of this user that the controller knows, by number (``12``, or ``12_3`` of an array)."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r"]
    found = {}
    for line in _ask(command).splitlines():
        number, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        reason = reason.strip("() ").replace(" ", "_")
        advice = next((_STUCK[key] for key in _STUCK if reason.startswith(key)), "")
        found[number] = Seen(state, reason, state not in _ENDED and reason != _NEVER, advice)
    return found


def _accounted(numbers: Sequence[str]) -> dict[str, Seen]:
    """The states of ended jobs by accounting; empty where there is none."""
    if not numbers:
        return {}
    options = ["--allocations", "--noheader", "--parsable2", "--format=JobID,State"]
    try:
        text = _ask(["sacct", *options, f"--jobs={','.join(numbers)}"])
    except InputError:  # not installed, too
        return {}
    lines = (line.partition("|") for line in text.splitlines())
    states = {number: state.split()[0] for number, _, state in lines if state.strip()}
    return {number: Seen(state, alive=False) for number, state in states.items() if state in _ENDED}


def largest_node(partition: str = "") -> tuple[int, int]:
    """(CPUs, GPUs) of the largest node of a partition, of the whole cluster without one; (0, 0) if unknown."""
    chosen = [f"--partition={partition}"] if partition else []
    cpus = gpus = 0
    for line in _ask(["sinfo", "--noheader", "--Node", *chosen, "--format=%c|%G"]).splitlines():
        count, _, resources = line.strip().partition("|")
        cpus = max(cpus, int(count.rstrip("+")) if count.rstrip("+").isdigit() else 0)
        words = [part.partition("(")[0].split(":") for part in resources.split(",")]  # gpu:a100:8(S:0-1),shard:4
        gpus = max(gpus, sum(int(each[-1]) for each in words if each[0] == "gpu" and each[-1].isdigit()))
    return cpus, gpus


def _longest_array() -> int:
    """How many jobs one array may hold; 1000 where the cluster does not say."""
    for line in _ask(["scontrol", "show", "config"]).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdigit():
            return max(1, int(value))
    return 1000


def _ask(command: list[str]) -> str:
    """The output of one of Slurm's programs; InputError if it is not installed, or fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=True)
    except FileNotFoundError as error:
        found = f"expected Slurm's program {command[0]}, found none; run this where sbatch works, or without --slurm"
        raise InputError(found) from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else "no answer"
        detail = next((line for line in said.splitlines() if line.strip()), "no word")
        raise InputError(f"expected an answer of {command[0]}, found: {detail.strip()}; is Slurm up?") from error
    return ended.stdout


@dataclass
class Array:
    """Jobs that ask for the same, submitted together under one ``number``; ``needs`` are those of the first."""

    jobs: list[Job]
    needs: tuple["Place", ...] = ()
    number: str = ""

    def dependency(self) -> str:
        """sbatch's word for what has to end well before; "" for nothing. Needs have their numbers by then."""
        one = len(self.jobs) == 1
        return ",".join(f"afterok:{need.number}" if one else f"aftercorr:{need.array.number}" for need in self.needs)


@dataclass(frozen=True)
class Place:
    """A job's place: its array, and where in it."""

    array: Array
    index: int = 0

    @property
    def number(self) -> str:
        """Slurm's number of the job."""
        return f"{self.array.number}_{self.index}" if len(self.array.jobs) > 1 else self.array.number


def arrays(jobs: Sequence[Job], earlier: Mapping[str, Place], longest: int) -> list[Array]:
    """The arrays of jobs, at most ``longest`` jobs each, dependencies first.

    aftercorr pairs jobs by index, so a job joins an array only at the index that its dependencies have; otherwise it
    starts a new array. ``jobs`` lists dependencies before their dependents; ``earlier``: places of jobs that an earlier
    call submitted. Dependencies absent from both count as finished.
    """
    new: list[Array] = []
    places = dict(earlier)
    open_arrays: dict[tuple[object, ...], list[Array]] = {}
    for job in jobs:
        needs = tuple(places[need.title] for need in job.needs if need.title in places)
        indices = {place.index for place in needs}
        like = (job.task.name, *(id(place.array) for place in needs))  # of one task all ask for the same
        candidates = open_arrays.setdefault(like, [])
        for array in reversed(candidates):
            if len(array.jobs) < longest and indices <= {len(array.jobs)}:
                break
        else:
            array = Array([], needs)
            new.append(array)
            if indices <= {0}:
                candidates.append(array)
        places[job.title] = Place(array, len(array.jobs))
        array.jobs.append(job)
    return new
