"""Records that describe weights rather than score them: CKA between two backbones, and the norms of the weights.

``tools/compare.py`` writes them with the stage or the layer as the metric; they are drawn over it (RCF, figure 3), and
never ranked or subtracted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from momentum_transfer.core.files import weights_name
from momentum_transfer.report.views import CellView, RowView, TableView, number

#: Tasks of such records.
TASKS = ("cka", "weight_norm")

#: Lines in one plot; more could not be told apart.
LINES = 8

Lines = dict[str, list[tuple[str, float]]]


def is_analysis(record: Mapping[str, Any]) -> bool:
    """Whether a record describes weights, so that it belongs here and not into the tables of scores."""
    return record["task"] in TASKS


def cka_lines(records: Sequence[Mapping[str, Any]]) -> Lines:
    """Pair of backbones to (stage, CKA in percent); of repeated records the last counts."""
    return _lines(record for record in records if record["task"] == "cka")


def norm_lines(records: Sequence[Mapping[str, Any]]) -> Lines:
    """Backbone to (layer, 2-norm of its weight)."""
    return _lines(record for record in records if record["task"] == "weight_norm")


def _lines(records: Any) -> Lines:
    found: dict[str, dict[str, float]] = {}
    for record in records:
        if record["value"] is not None and abs(record["value"]) < 1e300:  # finite, and no integer beyond a float
            found.setdefault(_label(record), {})[str(record["metric"])] = float(record["value"])
    return {label: list(points.items()) for label, points in list(found.items())[:LINES]}


def _label(record: Mapping[str, Any]) -> str:
    label = _name(record["checkpoint"], record.get("network"))
    reference = record.get("reference")
    if isinstance(reference, Mapping):
        label += f" vs. {_name(reference, reference.get('network'))}"
    return label


def _name(checkpoint: Mapping[str, Any], network: Any) -> str:
    name = weights_name(str(checkpoint.get("name") or "unnamed"))
    return f"{name} ({network})" if network else name


def cka_table(lines: Lines) -> TableView:
    """One row a pair, one column a stage."""
    stages = list(dict.fromkeys(stage for points in lines.values() for stage, _ in points))
    rows = []
    for label, points in lines.items():
        values = dict(points)
        cells = [CellView(number(values[stage])) if stage in values else CellView() for stage in stages]
        rows.append(RowView(label, "ours", tuple(cells)))
    caption = "Linear CKA on the same images, in percent; 100 is equal up to rotation and scale."
    return TableView("Similarity of representations", caption, "pair", tuple(stages), tuple(rows))


def norm_table(lines: Lines) -> TableView:
    """Smallest, mean and largest norm of each backbone; the plot has them all."""
    rows = []
    for label, points in lines.items():
        norms = [value for _, value in points]
        summary = (min(norms), sum(norms) / len(norms), max(norms))
        rows.append(RowView(label, "ours", tuple(CellView(f"{value:.2f}") for value in summary)))
    columns = ("smallest", "mean", "largest")
    return TableView(
        "Norms of the convolutions' weights", "2-norm of each weight tensor.", "weights", columns, tuple(rows)
    )
