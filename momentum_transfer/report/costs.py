"""Plan and truth: the GPU hours that a suite's plan expected of each task, and those that were used."""

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

from momentum_transfer.core.errors import InputError
from momentum_transfer.report.views import CellView, RowView, TableView
from momentum_transfer.suites.progress import PLAN, Standing, standings

COLUMNS = ("tasks done", "GPU hours planned", "GPU hours used", "used / planned", "hours used")


def cost_tables(results: Sequence[str | Path]) -> list[TableView]:
    """One table for every results file beside which a plan lies; a plan that cannot be read makes none."""
    folders = dict.fromkeys(Path(path).resolve().parent for path in results)
    tables = []
    for folder in folders:
        if (folder / PLAN).is_file():
            with contextlib.suppress(InputError):
                tables.append(_table(folder, standings(folder, {})))
    return tables


def _table(folder: Path, found: Sequence[Standing]) -> TableView:
    groups: dict[str, list[Standing]] = {}
    for one in found:
        groups.setdefault(one.planned.task, []).append(one)
    rows = [_row(name, group) for name, group in groups.items()]
    if len(groups) > 1:
        rows.append(_row("all", found))
    caption = (
        "Planned before the first task began, from measured tasks, records or the suite's own figures; used: the time "
        "of all attempts of a task, those that were stopped and failed too, times the GPUs it held."
    )
    return TableView(f"Plan and truth: {folder.name}", caption, "task", COLUMNS, tuple(rows))


def _row(name: str, group: Sequence[Standing]) -> RowView:
    planned = sum(one.planned.gpu_hours for one in group)
    ended = [one for one in group if one.state == "done"]
    # Like with like: the ratio is of tasks that are done.
    ratio_planned = sum(one.planned.gpu_hours for one in ended)
    ratio = sum(one.gpu_hours for one in ended) / ratio_planned if ratio_planned else math.nan
    used, hours = sum(one.gpu_hours for one in group), sum(one.seconds for one in group) / 3600
    words = (
        f"{len(ended)} of {len(group)}",
        f"{planned:.2f}" if planned else "",
        f"{used:.2f}",
        "" if math.isnan(ratio) else f"{ratio:.2f}",
        f"{hours:.2f}",
    )
    return RowView(name, "ours", tuple(CellView(word) for word in words))
