"""The published rows nearest to ours, each marked where its protocol or its data are not those of our rows."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from momentum_transfer.images.published_sets import published_counts, same_dataset
from momentum_transfer.report.aggregate import Measure
from momentum_transfer.report.reference import Published
from momentum_transfer.report.views import CellView, RowView, number

#: Published rows shown below one table; the others stay in configs/reference/.
SHOWN = 6


@dataclass
class _Row:
    """One printed row: the cells that our columns have, by column."""

    first: Published
    place: int
    cells: dict[int, Published] = field(default_factory=dict)


def published_rows(
    measures: Sequence[Measure], published: Sequence[Published], data: Mapping[str, Any] | None = None
) -> tuple[list[RowView], int]:
    """Rows for the columns ``measures``, under a heading for each printed table, and how many more there are.

    Args:
        data: counts of ``images`` and ``classes`` that our rows were tested on.

    Nearest means: the same protocol first, then the same data, then the protocol with most words in common (FCOS beside
    FCOS), then the paper's own numbers before those that it quotes, then most columns filled. Among equals the rows of
    one printed table stay together, so that its baselines come with its methods.
    """
    columns = {(measure.task, measure.metric): index for index, measure in enumerate(measures)}
    places: dict[tuple[str, str], int] = {}
    rows: dict[tuple[str, ...], _Row] = {}
    for item in published:
        index = columns.get((item.task, item.metric))
        if index is None:
            continue
        place = places.setdefault((item.source, item.protocol), len(places))
        key = (item.source, item.method, item.dataset, item.protocol)
        rows.setdefault(key, _Row(item, place)).cells[index] = item
    ours = measures[0]
    nearest = sorted(
        rows.values(),
        key=lambda row: (
            *_differences(row.first, ours, data or {}),
            -_alike(row.first, ours),
            _quoted(row.first),
            -len(row.cells),
            row.place,
        ),
    )
    count = min(SHOWN, len(nearest))
    if 1 < count < len(nearest) and nearest[count - 1].place not in (nearest[count - 2].place, nearest[0].place):
        count -= 1  # a single row of a further table says little
    shown: list[RowView] = []
    for _, group in itertools.groupby(nearest[:count], key=lambda row: (row.place, row.first.dataset)):
        same_table = list(group)
        shown.append(_source(same_table, ours, data or {}))
        shown += [_view(row, measures, data or {}) for row in same_table]
    return shown, len(nearest) - count


def _differences(item: Published, ours: Measure, data: Mapping[str, Any]) -> tuple[bool, bool]:
    return (item.protocol != ours.protocol, bool(_other_data(item, ours, data)))


def _other_data(item: Published, ours: Measure, data: Mapping[str, Any]) -> str:
    """Why our images are not, or not known to be, those of a published number; "" where counts show that they are."""
    if not same_dataset(item.dataset, ours.dataset):
        return f"other data: {item.dataset}"
    wanted = published_counts(item.dataset)
    found = (data.get("images"), data.get("classes"))
    if wanted is None or None in found:
        return f"data not known to be {item.dataset}: the records do not say how many images and classes were tested"
    if found != wanted:
        return (
            f"other data: {item.dataset} has {wanted[0]} images of {wanted[1]} classes, "
            f"here are {found[0]} images of {found[1]}"
        )
    return ""


def _alike(item: Published, ours: Measure) -> int:
    """Words that the names of the two protocols share: ``fcos_1x`` and ``fcos_smoke`` share one."""
    one, other = (set(re.split(r"[^a-z0-9]+", name.lower())) for name in (item.protocol, ours.protocol))
    return len(one & other - {""})


def _quoted(item: Published) -> bool:
    """Whether the paper took the number from elsewhere, by its footnote sign (a ¶ is an own baseline)."""
    return item.mark[:1] in ("§", "†", "‡", "*") and bool(item.mark)


def _reasons(item: Published, ours: Measure, data: Mapping[str, Any]) -> list[str]:
    other = _other_data(item, ours, data)
    reasons = [f"other protocol: {item.protocol or 'not named'}"] if item.protocol != ours.protocol else []
    return [*reasons, other] if other else reasons


def _source(rows: Sequence[_Row], ours: Measure, data: Mapping[str, Any]) -> RowView:
    """The heading above the rows of one printed table: what differs from ours, and what its footnote signs mean."""
    first = rows[0].first
    reasons = _reasons(first, ours, data)
    marks = {item.mark for row in rows for item in row.cells.values() if item.mark}
    told = ["≠ " + ", ".join(reasons) if reasons else "same protocol and data", *sorted(marks)]
    return RowView(f"published: {first.source}", "source", (), note="; ".join(told))


def _view(row: _Row, measures: Sequence[Measure], data: Mapping[str, Any]) -> RowView:
    differs = bool(_reasons(row.first, measures[0], data))
    cells = []
    for index in range(len(measures)):
        item = row.cells.get(index)
        cells.append(CellView(number(item.value), mark=item.mark[:1], differs=differs) if item else CellView())
    return RowView(row.first.method, "published", tuple(cells))
