"""What a suite is expected to cost, by task: measured where something like it ran before, else the suite's figures.

GPU hours of a task are its hours times the GPUs that it held, all attempts together.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.records import read
from momentum_transfer.core.shipped import COMMAND
from momentum_transfer.suites.job import Job


@dataclass(frozen=True)
class Expected:
    """GPU hours and hours of one task still to be spent, and where the figures come from; hours NaN where unknown."""

    gpu_hours: float
    hours: float
    source: str


def expected(
    jobs: Sequence[Job], gpus: int, measured: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, Expected]:
    """What each job, by title, is expected to cost.

    A job that is done costs nothing more; one that ended well under other settings, or whose task ended well for
    another checkpoint of this suite, costs what that did (the median of several); else what records elsewhere tell of
    a task with the same configs; else what the suite says.

    Args:
        gpus: those of a task that is distributed.
        measured: configs of a command -> (GPU hours, hours), as :func:`read_measured` gives it.
    """
    of_task: dict[str, list[tuple[float, float]]] = {}
    states = {job.title: job.state() for job in jobs}
    done = {job.title for job in jobs if job.done()}
    for job in jobs:
        if (figure := _measured_in(states[job.title])) is not None:
            of_task.setdefault(job.task.name, []).append(figure)
    found = {}
    for job in jobs:
        own = _measured_in(states[job.title])
        others = of_task.get(job.task.name, [])
        elsewhere = (measured or {}).get(configs_of(job.command), None)
        if job.title in done:
            figure, source = (0.0, 0.0), ""
        elif own is not None:
            figure, source = own, "measured"
        elif others:
            figure, source = (median(one[0] for one in others), median(one[1] for one in others)), "measured, others"
        elif elsewhere is not None:
            figure, source = elsewhere, "records"
        else:
            hours = job.task.gpu_hours / max(1, job.gpus(gpus)) if job.task.gpu_hours else float("nan")
            figure, source = (job.task.gpu_hours, hours), "suite" if job.task.gpu_hours else ""
        found[job.title] = Expected(*figure, source)
    return found


def _measured_in(state: Mapping[str, Any]) -> tuple[float, float] | None:
    """(GPU hours, hours) of a task that ended well."""
    if state.get("exit_code") != 0 or not isinstance(state.get("seconds"), (int, float)):
        return None
    hours = state["seconds"] / 3600
    return hours * int(state.get("gpus", 0) or 0), hours


def configs_of(command: Iterable[str]) -> str:
    """What tells a command's cost: its tool, evaluation and configs, whatever the weights and folders."""
    tool, *words = command
    evaluation = [word for word in words[:1] if not word.startswith("-")]
    return " ".join([Path(tool).stem, *evaluation, *(word for word in words if word.endswith((".yaml", ".yml")))])


def read_measured(paths: Sequence[str | Path]) -> dict[str, tuple[float, float]]:
    """Configs of a command -> (GPU hours, hours), the median over the commands whose records the files hold.

    The cost of a command is the highest of its records', which tell the hours until each was written.

    Raises:
        InputError: a file is missing, or none of their records tells hours.
    """
    spent: dict[str, tuple[float, float]] = {}
    for path in paths:
        for record in read(path)[0]:
            gpu_hours, hours, command = (record.get(key) for key in ("gpu_hours", "hours", "command"))
            if isinstance(gpu_hours, (int, float)) and isinstance(hours, (int, float)) and isinstance(command, str):
                before = spent.get(command, (0.0, 0.0))
                spent[command] = (max(before[0], gpu_hours), max(before[1], hours))
    if not spent:
        listed = ", ".join(map(str, paths))
        raise InputError(f"expected records with gpu_hours and hours in {listed}, found none; leave --measured out")
    grouped: dict[str, list[tuple[float, float]]] = {}
    for command, (gpu_hours, hours) in spent.items():
        try:
            words = [word for word in shlex.split(command) if word not in ("python", COMMAND)]
        except ValueError:
            continue
        if words:
            grouped.setdefault(configs_of(words), []).append((gpu_hours, hours))
    return {
        key: (median(one[0] for one in figures), median(one[1] for one in figures)) for key, figures in grouped.items()
    }
