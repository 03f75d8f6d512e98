"""The plan of a suite as a table: what is to do, what it is expected to cost in hours and money, and its commands."""

import math
from collections.abc import Mapping, Sequence

from momentum_transfer.core.log import say, table
from momentum_transfer.core.shipped import typed
from momentum_transfer.suites.attempt import full_command
from momentum_transfer.suites.costs import Expected
from momentum_transfer.suites.job import Job

#: Jobs that stand in the table one by one; of more, a line a task and its first command.
LISTED = 200


def show_plan(jobs: Sequence[Job], expected: Mapping[str, Expected], gpus: int, price: float | None) -> None:
    """Every job with its state, expected cost and command; of long plans a line for each task's jobs together.

    Args:
        price: of a GPU hour, in any currency; None shows no money.
    """
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        key = job.title if len(jobs) <= LISTED else f"{job.task.name}, {job.task.gpu_hours}"
        groups.setdefault(key, []).append(job)
    columns = ["task", "state", "GPU hours", "hours", *(["cost"] if price is not None else []), "from", "after"]
    table("plan", columns, [_row(group, expected, price) for group in groups.values()])
    for group in groups.values():
        first = group[0]
        more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
        say(f"{first.title}{more}")
        say(f"  $ {typed(full_command(first, gpus)[1:])}")
    total = sum(one.gpu_hours for one in expected.values())
    unknown = sum(1 for job in jobs if expected[job.title].source == "" and not job.done())
    to_do = sum(not job.done() for job in jobs)
    wall = f", {total / gpus:.1f} hours on {gpus} GPUs" if gpus > 1 else ""
    money = f", cost {total * price:.2f}" if price is not None else ""
    missing = f"; {unknown} of them tell no hours" if unknown else ""
    say(f"{to_do} of {len(jobs)} tasks to do, {total:.1f} GPU hours expected{wall}{money}; "
        f"the suite's header says whence{missing}")  # fmt: skip


def _row(group: Sequence[Job], expected: Mapping[str, Expected], price: float | None) -> list[str]:
    figures = [expected[job.title] for job in group]
    gpu_hours = sum(one.gpu_hours for one in figures)
    hours = [one.hours for one in figures if not math.isnan(one.hours)]
    done = sum(job.done() for job in group)
    state = ("done" if done else "to do") if len(group) == 1 else f"{len(group) - done} of {len(group)} to do"
    sources = ", ".join(dict.fromkeys(one.source for one in figures if one.source))
    known = done or sources  # of a task that tells no hours it is not said that it costs nothing
    money = [f"{gpu_hours * price:.2f}" if known else ""] if price is not None else []
    name = group[0].title if len(group) == 1 else group[0].task.name
    return [name, state, f"{gpu_hours:.2f}" if known else "", f"{sum(hours):.2f}" if hours else "", *money, sources,
            " ".join(group[0].task.needs)]  # fmt: skip
