"""Slurm as an executor, through submitit: one Slurm job a task, in arrays, with dependencies.

How a job ended stands in its folder (``attempt.py``), whether it is still to come in squeue's answer
(``slurm_queue.py``). So accounting is not needed.
"""

import contextlib
import io
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from momentum_transfer.core.errors import InputError, extra
from momentum_transfer.core.log import say
from momentum_transfer.core.shipped import workplace
from momentum_transfer.suites import slurm_queue as queue
from momentum_transfer.suites.attempt import Attempt
from momentum_transfer.suites.executors import Seen, Setup
from momentum_transfer.suites.slurm_queue import Array, Place, arrays

#: Options of sbatch that the plan sets itself.
OURS = ("array", "chdir", "dependency", "error", "job-name", "kill-on-invalid-dep", "nodes", "ntasks",
        "ntasks-per-node", "open-mode", "output", "requeue", "signal", "wrap")  # fmt: skip

#: Seconds before a time limit at which a task is asked to save: of the job's own minutes at most a quarter.
_WARNING = 120
#: How often a job may reach its time limit, save, and go on.
_TIME_LIMITS = 1000


class Slurm:
    """The cluster that sbatch, squeue and scancel speak to; ``executors.Executor`` says what the methods do."""

    name = "Slurm"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def gpus(self) -> int:
        return queue.largest_node(self.setup.options.get("partition", ""))[1]

    def look(self, numbers: Collection[str]) -> Mapping[str, Seen]:
        seen = queue.squeue()
        queue.cancel(number for number in numbers if number in seen and seen[number].reason == queue.NEVER)
        return queue.accounted(number for number in numbers if number not in seen) | seen

    def cancel(self, numbers: Iterable[str]) -> None:
        queue.cancel(numbers)

    def submit(self, attempts: Sequence[Attempt], earlier: Mapping[str, str]) -> Iterator[tuple[str, list[Attempt]]]:
        submitit = extra("submitit", "Slurm jobs")
        cpus, _ = queue.largest_node(self.setup.options.get("partition", ""))
        places = {title: Place(Array([], number=number)) for title, number in earlier.items()}
        by_title = {attempt.job.title: attempt for attempt in attempts}
        new, _ = arrays([attempt.job for attempt in attempts], places, queue.longest_array())
        for array in new:
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

    def _parameters(self, array: Array, attempt: Attempt, cpus: int) -> dict[str, Any]:
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
        gpus = job.gpus(attempt.gpus)
        return {
            "job_name": (f"{job.weights}-{job.task.name}" if len(array.jobs) == 1 else job.task.name)[:60],
            "time": job.task.minutes,
            "cpus_per_task": asked,
            "array_parallelism": self.setup.at_once or len(array.jobs),
            "signal_delay_s": min(_WARNING, job.task.minutes * 15),
            "additional_parameters": more,
            **({"nodes": job.task.nodes, "ntasks_per_node": 1} if job.task.nodes > 1 else {}),
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
