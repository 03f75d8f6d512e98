"""Jobs that Slurm takes as one array, so that a plan of thousands is a few submissions.

Jobs of one task for many checkpoints ask for the same. Job k of an array may begin when job k of another has ended well
(``aftercorr``); so the jobs of an array stand in the order of those that they need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from momentum_transfer.suites.job import Job


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
    """The arrays of jobs, those that others need first, and the place of each job by title.

    A job whose needs stand elsewhere in their arrays than it would in its own makes an array alone.

    Args:
        jobs: needs come before those that need them.
        earlier: places of jobs that an earlier call submitted; a need that is in neither is done.
        longest: jobs of one array.
    """
    made: list[Array] = []
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
            made.append(array)
            if indices <= {0}:
                candidates.append(array)
        places[job.title] = Place(array, len(array.jobs))
        array.jobs.append(job)
    return made, {job.title: places[job.title] for job in jobs}
