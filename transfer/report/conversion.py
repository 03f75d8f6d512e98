"""The conversion report of a checkpoint, as a table: keys used, dropped and missing."""

from collections.abc import Mapping
from typing import Any

from transfer.report.views import CellView, RowView, TableView

#: Names listed in a row before the rest is only counted.
LISTED = 6


def conversion_table(run: str, content: Mapping[str, Any]) -> TableView:
    """One row for every entry of the report: lists are counted and begun, numbers and words shown as they are."""
    rows = [RowView(str(key).replace("_", " "), "fact", _cells(value)) for key, value in content.items()]
    return TableView(f"Conversion of {run}", "", "entry", ("count", "value"), tuple(rows))


def _cells(value: Any) -> tuple[CellView, CellView]:
    if isinstance(value, (list, tuple, Mapping)):
        names = [f"{key} → {item}" if isinstance(item, str) else str(key) for key, item in value.items()] if isinstance(
            value, Mapping
        ) else [str(item) for item in value]  # fmt: skip
        more = f", … ({len(names) - LISTED} more)" if len(names) > LISTED else ""
        return CellView(str(len(names))), CellView(", ".join(names[:LISTED]) + more)
    return CellView(""), CellView(str(value))
