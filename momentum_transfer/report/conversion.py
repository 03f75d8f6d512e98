"""The conversion report of a checkpoint, as a table: keys used, dropped with the reason, missing."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from momentum_transfer.report.views import CellView, RowView, TableView

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
