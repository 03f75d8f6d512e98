"""Provenance: one block a checkpoint, enough to run each number again.

Plan and truth: the GPU hours that a suite's plan expected of each task, and those that were used.

Seconds an iteration of pretraining, ours beside the papers' (Momentum² Teacher, tables 1 to 3).

The conversion report of a checkpoint, as a table: keys used, dropped with the reason, missing.
"""

import contextlib
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.report.aggregate import Results
from momentum_transfer.report.reference import ReferenceTable
from momentum_transfer.report.runs import Curve
from momentum_transfer.report.views import CellView, RowView, TableView
from momentum_transfer.suites.progress import PLAN, Standing, standings


@dataclass(frozen=True)
class Provenance:
    """What the records of one checkpoint say about themselves; each fact is (heading, distinct values)."""

    name: str
    records: int
    facts: tuple[tuple[str, tuple[str, ...]], ...]
    commands: tuple[str, ...]


def provenance(results: Results) -> list[Provenance]:
    """One block for every checkpoint, in the order of the columns."""
    return [_block(name, records) for name, records in results.records.items()]


def _block(name: str, records: Sequence[Mapping[str, Any]]) -> Provenance:
    facts: dict[str, list[Any]] = {
        "weights (SHA-256)": [_hash(record) for record in records],
        "network": [record.get("network") for record in records],
        "architecture": [_by_family(record, "architecture") for record in records],
        "made of it": [change for record in records for change in record.get("changes") or ()],
        "size": [_size(record) for record in records],
        "dataset": [record.get("dataset") for record in records],
        "engine": [record.get("engine") for record in records],
        "protocol": [_by_family(record, "protocol") for record in records],
        "config (hash)": [_by_family(record, "config") for record in records],
        "seed": [record.get("seed") for record in records],
        # Records that were read share their versions: each is spelled once.
        "versions": [
            _versions(one)
            for one in {id(record.get("versions")): record.get("versions") for record in records}.values()
        ],
        "measured": _span([str(record.get("time") or "") for record in records]),
    }
    told = tuple((heading, values) for heading, found in facts.items() if (values := _distinct(found)))
    return Provenance(name, len(records), told, _distinct([record.get("command") for record in records]))


def _distinct(values: Sequence[Any]) -> tuple[str, ...]:
    """Distinct non-empty values as text, in the order of their first appearance."""
    return tuple(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _hash(record: Mapping[str, Any]) -> str:
    sha = str(record["checkpoint"].get("sha256") or "")
    return f"{sha[:16]}… ({str(record['task']).split('/')[0]})" if sha else ""


def _by_family(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return f"{value} ({str(record['task']).split('/')[0]})" if value else ""


def _size(record: Mapping[str, Any]) -> str:
    """Parameters and multiply-adds of a detector or segmentor."""
    if not isinstance(parameters := record.get("parameters"), int):
        return ""
    side = record.get("gflops_side")
    counted = f"{parameters / 1e6:.2f} M parameters, {record.get('trained_parameters', parameters) / 1e6:.2f} M trained"
    return f"{counted}; {record.get('gflops', 0):.2f} G multiply-adds at {side} px ({record.get('protocol')})"


def _versions(versions: Any) -> str:
    if not isinstance(versions, Mapping):
        return ""
    return ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))


def _span(times: Sequence[str]) -> list[str]:
    known = sorted(time for time in times if time)
    if not known:
        return []
    return [known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"]


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


UNIT = "seconds per iteration"


def published_times(tables: Sequence[ReferenceTable]) -> list[tuple[str, str, float]]:
    """(source, row, seconds) of every printed time."""
    found = []
    for table in tables:
        places = [place for place, column in enumerate(table.columns) if column.unit == UNIT]
        labels = [place for place, column in enumerate(table.columns) if column.kind == "label"]
        for row in table.rows:
            label = " · ".join(str(row[place]) for place in labels)
            found += [(table.source, label, float(row[place])) for place in places if row[place] is not None]
    return found


def time_tables(curves: Sequence[Curve], published: Sequence[tuple[str, str, float]]) -> list[TableView]:
    """One table with a row a pretraining; none without pretrainings that logged their time."""
    clocks = [curve for curve in curves if curve.key == "seconds"]
    if not clocks:
        return []
    rows = [
        RowView(
            curve.run, "ours", (CellView(f"{statistics.median(curve.values):.3f}", trials=f"n={len(curve.values)}"),)
        )
        for curve in clocks
    ]
    source = ""
    for origin, label, seconds in published:
        if origin != source:
            rows.append(RowView(origin, "source", ()))
            source = origin
        rows.append(RowView(label, "published", (CellView(f"{seconds:g}", differs=True),)))
    caption = (
        "Median over the log's lines, on the machine that each run had. The papers' are of their own GPUs and batches, "
        "so that only ratios within one source compare."
    )
    return [TableView("Seconds an iteration", caption, "pretraining", ("seconds",), tuple(rows))]


#: Names or reasons listed in a row before the rest is only counted.
LISTED = 4


def conversion_table(run: str, content: Mapping[str, Any]) -> TableView:
    """One row for every entry of the report: collections are counted and begun, the rest is shown as it is."""
    rows = [RowView(str(key).replace("_", " "), "fact", _cells(value)) for key, value in content.items()]
    return TableView(f"Conversion of {run}", "", "entry", ("count", "value"), tuple(rows))


def _cells(value: Any) -> tuple[CellView, CellView]:
    if isinstance(value, Mapping):
        return CellView(str(len(value))), CellView(_mapping(value))
    if isinstance(value, (list, tuple)):
        return CellView(str(len(value))), CellView(_begun([str(item) for item in value]))
    return CellView(""), CellView(str(value))


def _mapping(value: Mapping[str, Any]) -> str:
    """Keys with what became of them; where many keys share a reason, the reasons with their counts."""
    reasons = Counter(str(item) for item in value.values())
    if len(reasons) * 2 <= len(value):
        return _begun([f"{count} × {reason}" for reason, count in reasons.most_common()])
    return _begun([f"{key} → {item}" for key, item in value.items()])


def _begun(items: list[str]) -> str:
    more = f", … ({len(items) - LISTED} more)" if len(items) > LISTED else ""
    return ", ".join(items[:LISTED]) + more
