"""Seconds an iteration of pretraining, ours beside the papers' (Momentum² Teacher, tables 1 to 3)."""

import statistics
from collections.abc import Sequence

from momentum_transfer.report.reference import ReferenceTable
from momentum_transfer.report.runs import Curve
from momentum_transfer.report.views import CellView, RowView, TableView

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
