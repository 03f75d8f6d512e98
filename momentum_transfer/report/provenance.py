"""Where the page's numbers come from: each checkpoint's records, conversions, and planned and measured costs."""

import contextlib
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.report.aggregate import Record, Results
from momentum_transfer.report.read_inputs import Curve
from momentum_transfer.report.reference import ReferenceTable
from momentum_transfer.report.tables import CellView, RowView, TableView
from momentum_transfer.suites.progress import PLAN, Standing, standings

#: Names or reasons listed in a row before the rest is only counted.
_LISTED = 4


@dataclass(frozen=True)
class Provenance:
    """The facts in the records of one checkpoint; each is (heading, distinct values)."""

    name: str
    records: int
    facts: tuple[tuple[str, tuple[str, ...]], ...]
    commands: tuple[str, ...]


def provenance(results: Results) -> list[Provenance]:
    """One block for every checkpoint, in the order of the columns, enough to run each number again."""
    return [_block(name, records) for name, records in results.records.items()]


def _block(name: str, records: Sequence[Record]) -> Provenance:
    families = [str(record["task"]).split("/")[0] for record in records]
    hashes = [str(record["checkpoint"].get("sha256") or "")[:16] for record in records]

    def of(key: str) -> list[Any]:
        return [record.get(key) for record in records]

    def by_family(values: Sequence[Any], more: str = "") -> list[str]:
        """With the family of the task behind it, for what differs between families."""
        return [f"{value}{more} ({family})" if value else "" for value, family in zip(values, families, strict=True)]

    times = sorted({str(time) for time in of("time") if time})
    facts: dict[str, Sequence[Any]] = {
        "weights (SHA-256)": by_family(hashes, "…"),
        "network": of("network"),
        "architecture": by_family(of("architecture")),
        "made of it": [change for changes in of("changes") for change in changes or ()],
        "size": [_size(record) for record in records],
        "dataset": of("dataset"),
        "labels": [_labels(record) for record in records],
        "engine": of("engine"),
        "protocol": by_family(of("protocol")),
        "config (hash)": by_family(of("config")),
        "seed": of("seed"),
        # Records of one file have the same versions object: each is spelled once.
        "versions": [
            ", ".join(f"{package} {version}" for package, version in sorted(one.items()))
            for one in {id(versions): versions for versions in of("versions")}.values()
            if isinstance(one, Mapping)
        ],
        "measured": [" to ".join(dict.fromkeys((times[0], times[-1])))] if times else [],
    }
    distinct = tuple((heading, values) for heading, found in facts.items() if (values := _distinct(found)))
    return Provenance(name, len(records), distinct, _distinct(of("command")))


def _distinct(values: Sequence[Any]) -> tuple[str, ...]:
    """Distinct non-empty values as text, in the order of their first appearance."""
    return tuple(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _labels(record: Record) -> str:
    """Which images a detector with few labels learnt from."""
    found = record.get("labels")
    if not isinstance(found, Mapping):
        return ""
    rest = f", {found['unlabelled']} more that its teacher labelled" if found.get("unlabelled") else ""
    return f"{found.get('labelled')} training images with labels{rest} ({record.get('protocol')})"


def _size(record: Record) -> str:
    """Parameters and multiply-adds of a detector or segmentor."""
    if not isinstance(parameters := record.get("parameters"), int):
        return ""
    trained = record.get("trained_parameters", parameters)
    return (
        f"{parameters / 1e6:.2f} M parameters, {trained / 1e6:.2f} M trained; {record.get('gflops', 0):.2f} G "
        f"multiply-adds at {record.get('gflops_side')} px ({record.get('protocol')})"
    )


def cost_tables(results: Sequence[str | Path]) -> list[TableView]:
    """GPU hours planned and used, for every results file with a plan beside it; a damaged plan is left out."""
    tables = []
    for folder in dict.fromkeys(Path(path).resolve().parent for path in results):
        if (folder / PLAN).is_file():
            with contextlib.suppress(InputError):
                tables.append(_cost_table(folder.name, standings(folder)))
    return tables


def _cost_table(name: str, found: Sequence[Standing]) -> TableView:
    groups: dict[str, list[Standing]] = {}
    for one in found:
        groups.setdefault(one.planned.task, []).append(one)
    rows = [_cost_row(task, group) for task, group in groups.items()]
    if len(groups) > 1:
        rows.append(_cost_row("all", found))
    caption = (
        "Planned before the first task began, from measured tasks, records or the suite's own figures; used: the time "
        "of all attempts of a task, those that were stopped and failed too, times the GPUs it held."
    )
    columns = ("tasks done", "GPU hours planned", "GPU hours used", "used / planned", "hours used")
    return TableView(f"Plan and truth: {name}", caption, "task", columns, tuple(rows))


def _cost_row(name: str, group: Sequence[Standing]) -> RowView:
    planned, used = sum(one.planned.gpu_hours for one in group), sum(one.gpu_hours for one in group)
    ended = [one for one in group if one.state == "done"]
    # Like with like: the ratio is of tasks that are done, and whose hours were known.
    known = [one for one in ended if one.planned.gpu_hours]
    ended_planned = sum(one.planned.gpu_hours for one in known)
    ratio = sum(one.gpu_hours for one in known) / ended_planned if ended_planned else math.nan
    cells = (
        f"{len(ended)} of {len(group)}",
        f"{planned:.2f}" if planned else "",
        f"{used:.2f}",
        "" if math.isnan(ratio) else f"{ratio:.2f}",
        f"{sum(one.seconds for one in group) / 3600:.2f}",
    )
    return RowView(name, "ours", tuple(map(CellView, cells)))


def published_times(tables: Sequence[ReferenceTable]) -> list[tuple[str, str, float]]:
    """(source, row, seconds) of every printed time of a pretraining iteration (Momentum² Teacher, tables 1 to 3)."""
    found = []
    for table in tables:
        times = [place for place, column in enumerate(table.columns) if column.unit == "seconds per iteration"]
        labels = [place for place, column in enumerate(table.columns) if column.kind == "label"]
        for row in table.rows:
            label = " · ".join(str(row[place]) for place in labels)
            found += [(table.source, label, float(row[place])) for place in times if row[place] is not None]
    return found


def time_tables(curves: Sequence[Curve], published: Sequence[tuple[str, str, float]]) -> list[TableView]:
    """One table with a row a pretraining; none without pretrainings that logged their time."""
    rows = []
    for curve in curves:
        if curve.key == "seconds":
            cell = CellView(f"{statistics.median(curve.values):.3f}", trials=f"n={len(curve.values)}")
            rows.append(RowView(curve.run, "ours", (cell,)))
    if not rows:
        return []
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


def conversion_table(run: str, content: Mapping[str, Any]) -> TableView:
    """One row for every entry of a conversion report: collections are counted and begun, the rest shown as it is."""
    rows = []
    for key, value in content.items():
        count, text = str(len(value)) if isinstance(value, (Mapping, list, tuple)) else "", str(value)
        if isinstance(value, Mapping):
            text = _mapping(value)
        elif count:
            text = _begun([str(item) for item in value])
        rows.append(RowView(str(key).replace("_", " "), "fact", (CellView(count), CellView(text))))
    return TableView(f"Conversion of {run}", "", "entry", ("count", "value"), tuple(rows))


def _mapping(value: Mapping[str, Any]) -> str:
    """Keys with what became of them; where many keys have one reason, the reasons with their counts."""
    reasons = Counter(str(item) for item in value.values())
    if len(reasons) * 2 <= len(value):
        return _begun([f"{count} × {reason}" for reason, count in reasons.most_common()])
    return _begun([f"{key} → {item}" for key, item in value.items()])


def _begun(items: list[str]) -> str:
    return ", ".join(items[:_LISTED]) + f", … ({len(items) - _LISTED} more)" * (len(items) > _LISTED)
