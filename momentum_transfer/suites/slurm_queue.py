"""Query Slurm's jobs and nodes (squeue, sinfo, sacct), and submit thousands of jobs as a few arrays.

Jobs of one task for many checkpoints ask for the same resources. Job k of an array may begin when job k of another has
ended well (``aftercorr``); so the jobs of an array stand in the order of those that they need.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.executors import Seen
from momentum_transfer.suites.task import Job

#: States after which a job does not come back by itself.
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
     "TIMEOUT")
)  # fmt: skip
#: The reason of a pending job whose need failed.
NEVER = "DependencyNeverSatisfied"
#: Reasons of pending jobs (or their beginnings) that may never start -> what may be done.
STUCK = {
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


def squeue() -> dict[str, Seen]:
    """All jobs of this user that the controller knows, by number (``12``, or ``12_3`` of an array)."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r"]
    found = {}
    for line in _ask(command).splitlines():
        number, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        reason = reason.strip("() ").replace(" ", "_")
        advice = next((STUCK[key] for key in STUCK if reason.startswith(key)), "")
        found[number] = Seen(state, reason, state not in ENDED and reason != NEVER, advice)
    return found


def accounted(jobs: Iterable[str]) -> dict[str, Seen]:
    """The states of ended jobs by accounting; empty where there is none."""
    numbers = ",".join(jobs)
    if not numbers or shutil.which("sacct") is None:
        return {}
    try:
        text = _ask(
            ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State", f"--jobs={numbers}"]
        )
    except InputError:
        return {}
    lines = (line.partition("|") for line in text.splitlines())
    states = {number: state.split()[0] for number, _, state in lines if state.strip()}
    return {number: Seen(state, alive=False) for number, state in states.items() if state in ENDED}


def largest_node(partition: str = "") -> tuple[int, int]:
    """(CPUs, GPUs) of the largest node of a partition, of the whole cluster without one; (0, 0) if unknown."""
    chosen = [f"--partition={partition}"] if partition else []
    cpus = gpus = 0
    for line in _ask(["sinfo", "--noheader", "--Node", *chosen, "--format=%c|%G"]).splitlines():
        count, _, resources = line.strip().partition("|")
        cpus = max(cpus, int(count.rstrip("+")) if count.rstrip("+").isdigit() else 0)
        gpus = max(gpus, _gpus_in(resources))
    return cpus, gpus


def longest_array() -> int:
    """How many jobs one array may hold; 1000 where the cluster does not say."""
    for line in _ask(["scontrol", "show", "config"]).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdigit():
            return max(1, int(value))
    return 1000


def cancel(jobs: Iterable[str]) -> None:
    """Remove jobs that can never start from the queue, if they are still there."""
    if numbers := list(jobs):
        subprocess.run(["scancel", *numbers], check=False, capture_output=True)


def _gpus_in(resources: str) -> int:
    """GPUs of a node's generic resources: ``gpu:a100:8(S:0-1),shard:4``."""
    total = 0
    for part in resources.split(","):
        words = part.partition("(")[0].split(":")
        if words[0] == "gpu" and len(words) > 1 and words[-1].isdigit():
            total += int(words[-1])
    return total


def _ask(command: list[str]) -> str:
    """The output of one of Slurm's programs; InputError if it is not installed, or fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    except FileNotFoundError as error:
        raise InputError(
            f"expected Slurm's program {command[0]}, found none; run this where sbatch works, or without --slurm"
        ) from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = error.stderr or "no answer"
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        detail = next((line for line in text.splitlines() if line.strip()), "no word")
        raise InputError(f"expected an answer of {command[0]}, found: {detail.strip()}; is Slurm up?") from error
    return answer


@dataclass
class Array:
    """Jobs that ask for the same, submitted together under one ``number``; ``needs`` are those of the first."""

    jobs: list[Job]
    needs: tuple["Place", ...] = ()
    number: str = ""

    def dependency(self) -> str:
        """sbatch's word for what has to end well before; "" for nothing. Needs have their numbers by then."""
        if len(self.jobs) > 1:
            return ",".join(f"aftercorr:{place.array.number}" for place in self.needs)
        return ",".join(f"afterok:{place.number}" for place in self.needs)


@dataclass(frozen=True)
class Place:
    """A job's place: its array, and where in it."""

    array: Array
    index: int = 0

    @property
    def number(self) -> str:
        """Slurm's number of the job."""
        return f"{self.array.number}_{self.index}" if len(self.array.jobs) > 1 else self.array.number


def arrays(jobs: Sequence[Job], earlier: Mapping[str, Place], longest: int) -> tuple[list[Array], dict[str, Place]]:
    """The arrays of jobs, at most ``longest`` jobs each, dependencies first, and the place of each job by title.

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
        task = job.task
        like = (task.name, task.cpus, task.minutes, task.distributed, *(id(place.array) for place in needs))
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
    return new, {job.title: places[job.title] for job in jobs}
