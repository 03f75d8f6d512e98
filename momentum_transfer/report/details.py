"""The detail tables: one row a checkpoint, one column a metric, as the papers print them.

Below the checkpoints stand their differences from the baselines and the nearest published rows, each marked where its
protocol or data are not those of our rows.
"""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from momentum_transfer.images.published_counts import published_counts, same_dataset
from momentum_transfer.report import tables
from momentum_transfer.report.aggregate import Measure
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.reference import Published
from momentum_transfer.report.tables import CellView, RowView, TableView, number

_PARTS = {"bbox": "boxes", "segm": "masks"}

#: Published rows shown below one table; the others stay in configs/reference/.
_SHOWN = 6


def detail_tables(
    comparisons: Comparisons, published: Sequence[Published], colours: Mapping[str, int]
) -> list[TableView]:
    """One table for every (family, dataset, protocol, engine); detection has one for boxes and one for masks."""
    groups: dict[tuple[str, ...], list[Measure]] = {}
    for measure in sorted(comparisons.results.cells, key=tables.measure_order):
        part = measure.task if measure.family in tables.DETECTION else measure.family
        groups.setdefault((part, *measure[2:]), []).append(measure)
    titles = Counter(_title(measures[0].task) for measures in groups.values())
    views = []
    for measures in groups.values():
        title = _title(measures[0].task)
        if titles[title] > 1 and measures[0].protocol:
            title = f"{title} · {measures[0].protocol}"
        views.append(_detail_table(comparisons, title, measures, published, colours))
    return views


def _detail_table(
    comparisons: Comparisons,
    title: str,
    measures: Sequence[Measure],
    published: Sequence[Published],
    colours: Mapping[str, int],
) -> TableView:
    results = comparisons.results
    counted = all("=" in measure.task for measure in measures)
    if counted:  # svm/k=1, svm/k=2, … stand side by side for each metric, as the papers print them
        metrics = list(dict.fromkeys(measure.metric for measure in measures))
        measures = sorted(measures, key=lambda measure: metrics.index(measure.metric))
    columns = tuple(m.task.partition("/")[2] if counted else m.metric for m in measures)
    above = itertools.groupby(measure.metric if counted else measure.task for measure in measures)
    groups = tuple((heading, len(list(same))) for heading, same in above)
    present = [name for name in results.checkpoints if any(name in results.cells[m] for m in measures)]
    counts = {cell.trials for m in measures for cell in results.cells[m].values()}
    columns_of_cells = [tables.cell_views(results, measure, present, counted=len(counts) > 1) for measure in measures]
    rows = [
        RowView(name, "ours", cells, colour=colours[name])
        for name, cells in zip(present, zip(*columns_of_cells, strict=True), strict=True)
    ]
    for name, base in tables.compared(results):
        changes = [comparisons.of(measure, name, base) for measure in measures]
        if any(changes):
            rows.append(RowView(f"{name} − {base}", "difference", tuple(map(tables.difference_view, changes))))
    beside, left_out = published_rows(measures, published, results.data.get(measures[0], {}))
    notes = (f"{left_out} more published rows of these measures are in configs/reference/.",) if left_out else ()
    facts = groups[0][0] if len(groups) == 1 else "", tables.context(measures[0]), _trials(counts)
    caption = " · ".join(part for part in facts if part)
    return TableView(title, caption, "weights", columns, tuple(rows + beside), groups, notes)


def _trials(counts: set[int]) -> str:
    if len(counts) > 1:
        return "mean ± std over n trials"
    (count,) = counts
    return "a single trial" if count == 1 else f"mean ± std over {count} trials each"


def _title(task: str) -> str:
    family, _, part = task.partition("/")
    heading = tables.FAMILIES.get(family, family)
    return f"{heading}: {_PARTS.get(part, part)}" if family in tables.DETECTION and part else heading


@dataclass
class _Row:
    """One printed row: the cells that our columns have, by column."""

    first: Published
    place: int
    cells: dict[int, Published] = field(default_factory=dict)


def published_rows(
    measures: Sequence[Measure], published: Sequence[Published], data: Mapping[str, Any]
) -> tuple[list[RowView], int]:
    """Rows for the columns ``measures``, under a heading for each printed table, and how many more there are.

    The nearest come first: of the same protocol, then of the same data, then of a protocol with most words in common
    (FCOS beside FCOS), then the paper's own numbers before those that it quotes, then most columns filled. Among equals
    the rows of one table stay together. ``data`` are counts of ``images`` and ``classes`` that our rows were tested on.
    """
    columns = {(measure.task, measure.metric): index for index, measure in enumerate(measures)}
    places: dict[tuple[str, str], int] = {}
    rows: dict[tuple[str, ...], _Row] = {}
    for item in published:
        if (index := columns.get((item.task, item.metric))) is not None:
            place = places.setdefault((item.source, item.protocol), len(places))
            key = (item.source, item.method, item.dataset, item.protocol)
            rows.setdefault(key, _Row(item, place)).cells[index] = item
    ours = measures[0]

    def distance(row: _Row) -> tuple[float, ...]:
        item = row.first
        quoted = item.mark[:1] in ("§", "†", "‡", "*") and bool(item.mark)  # a ¶ is a baseline of the paper itself
        other = item.protocol != ours.protocol, bool(_other_data(item, ours, data))
        one, two = (set(re.split(r"[^a-z0-9]+", name.lower())) for name in (item.protocol, ours.protocol))
        return *other, -len(one & two - {""}), quoted, -len(row.cells), row.place

    nearest = sorted(rows.values(), key=distance)
    count = min(_SHOWN, len(nearest))
    if 1 < count < len(nearest) and nearest[count - 1].place not in (nearest[count - 2].place, nearest[0].place):
        count -= 1  # a single row of a further table says little
    shown: list[RowView] = []
    for _, group in itertools.groupby(nearest[:count], key=lambda row: (row.place, row.first.dataset)):
        same_table = list(group)
        first = same_table[0].first
        reasons = [f"other protocol: {first.protocol or 'not named'}"] if first.protocol != ours.protocol else []
        reasons += [other] if (other := _other_data(first, ours, data)) else []
        marks = {item.mark for row in same_table for item in row.cells.values() if item.mark}
        note = "; ".join(["≠ " + ", ".join(reasons) if reasons else "same protocol and data", *sorted(marks)])
        shown.append(RowView(f"published: {first.source}", "source", (), note=note))
        for row in same_table:
            cells = [CellView()] * len(measures)
            for index, item in row.cells.items():
                cells[index] = CellView(number(item.value), mark=item.mark[:1], differs=bool(reasons))
            shown.append(RowView(row.first.method, "published", tuple(cells)))
    return shown, len(nearest) - count


def _other_data(item: Published, ours: Measure, data: Mapping[str, Any]) -> str:
    """Why our images are not, or not known to be, those of a published number; "" where counts show that they are."""
    if not same_dataset(item.dataset, ours.dataset):
        return f"other data: {item.dataset}"
    expected, found = published_counts(item.dataset), (data.get("images"), data.get("classes"))
    if expected is None or None in found:
        return f"data not known to be {item.dataset}: the records do not say how many images and classes were tested"
    if found != expected:
        return (
            f"other data: {item.dataset} has {expected[0]} images of {expected[1]} classes, "
            f"here are {found[0]} images of {found[1]}"
        )
    return ""
