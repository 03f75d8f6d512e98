"""The papers' results tables as data (``configs/reference/*.yaml``), and their numbers as published rows.

One YAML is one printed table. A column is a ``label`` (names the row), a ``setting`` (a number that describes it, such
as epochs) or a ``result``; results carry the task, metric, dataset and protocol that a record of ours would carry, so
that the two can stand side by side. ``{Label}`` in those four is filled from the row's label of that name.

The published rows nearest to ours, each marked where its protocol or its data are not those of our rows.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from momentum_transfer.core.errors import InputError, one_line
from momentum_transfer.core.shipped import CONFIGS
from momentum_transfer.images.published import published_counts, same_dataset
from momentum_transfer.report.aggregate import Measure
from momentum_transfer.report.views import CellView, RowView, number

#: Where the transcribed tables are.
REFERENCE_DIR = CONFIGS / "reference"

#: The short name of each paper, as it stands in a published row.
PAPERS = {"momentum2": "Momentum² Teacher", "rcf": "RCF", "eman": "EMAN"}

_KINDS = ("label", "setting", "result")

#: Label columns whose words say nothing without the column's name (student BN, teacher EMAN).
_NAMED = ("student", "teacher", "asymmetry", "pretrained", "schd.", "α", "α_base", "w_s")


@dataclass(frozen=True)
class Column:
    """One column of a printed table; ``task``, ``metric``, ``dataset`` and ``protocol`` only for results."""

    name: str
    kind: str
    group: str = ""
    unit: str = ""
    task: str = ""
    metric: str = ""
    dataset: str = ""
    protocol: str = ""


@dataclass(frozen=True)
class ReferenceTable:
    """A printed table. ``rows`` hold strings in labels and numbers or None (not printed) elsewhere."""

    paper: str
    arxiv: str
    number: int
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    marks: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    @property
    def source(self) -> str:
        """How the table is cited, for example ``EMAN table 5``."""
        return f"{PAPERS.get(self.paper, self.paper)} table {self.number}"


@dataclass(frozen=True)
class Published:
    """One published number in the terms of our records; ``mark`` is the printed footnote sign and its meaning."""

    method: str
    task: str
    metric: str
    value: float
    dataset: str
    protocol: str
    source: str
    mark: str = ""


def load_table(path: str | Path) -> ReferenceTable:
    """Read one table.

    Raises:
        InputError: the file is not such a table (a key is missing, a row has another length than the columns, …).
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        source = content["source"]
        columns = tuple(Column(**column) for column in content["columns"])
        table = ReferenceTable(
            paper=source["key"],
            arxiv=source["arxiv"],
            number=source["table"],
            caption=content["caption"],
            columns=columns,
            rows=tuple(tuple(row) for row in content["rows"]),
            marks=tuple(content.get("marks", ())),
            notes=tuple(content["notes"]),
        )
    except (yaml.YAMLError, KeyError, TypeError, ValueError, OSError, RecursionError, AttributeError) as error:
        raise InputError(
            f"{path} is not a reference table ({one_line(error)}); its keys are listed in configs/README.md"
        ) from error
    _check(path, table)
    return table


def _check(path: Path, table: ReferenceTable) -> None:
    for column in table.columns:
        if column.kind not in _KINDS:
            raise InputError(f"{path}: column {column.name!r} is of kind {column.kind!r}; expected one of {_KINDS}")
    for line, row in enumerate(table.rows, start=1):
        if len(row) != len(table.columns):
            raise InputError(f"{path}: row {line} has {len(row)} cells, expected {len(table.columns)}")
        for column, cell in zip(table.columns, row, strict=True):
            wanted: tuple[type, ...] = (int, float, type(None)) if column.kind == "result" else (str, int, type(None))
            if not isinstance(cell, wanted) or isinstance(cell, bool):
                raise InputError(f"{path}: row {line}, column {column.name!r}: unexpected {cell!r}")


def load_tables(folder: str | Path = REFERENCE_DIR) -> list[ReferenceTable]:
    """All tables of a folder, sorted by paper and number; an empty folder is an InputError."""
    paths = sorted(Path(folder).glob("*.yaml"))
    if not paths:
        raise InputError(f"no reference tables in {folder}; expected configs/reference/*.yaml")
    return [load_table(path) for path in paths]


def published(tables: Sequence[ReferenceTable]) -> list[Published]:
    """Every printed number that has a task and a metric of ours, in the order of the tables."""
    return [number for table in tables for row in table.rows for number in _published_row(table, row)]


def _published_row(table: ReferenceTable, row: tuple[Any, ...]) -> list[Published]:
    labels = {c.name: str(cell) for c, cell in zip(table.columns, row, strict=True) if c.kind == "label"}
    settings = [
        f"{cell} {column.unit or column.name}".strip()
        for column, cell in zip(table.columns, row, strict=True)
        if column.kind == "setting" and isinstance(cell, int)
    ]
    numbers = []
    for column, cell in zip(table.columns, row, strict=True):
        if column.kind != "result" or cell is None or not column.task or not column.metric:
            continue
        filled = {key: getattr(column, key).format(**labels) for key in ("task", "metric", "dataset", "protocol")}
        numbers.append(
            Published(
                method=", ".join([*_method(table, labels), *settings]),
                value=float(cell),
                source=f"{table.source}{_part(column)}",
                mark=_mark(table, labels, column),
                **filled,
            )
        )
    return numbers


def _method(table: ReferenceTable, labels: dict[str, str]) -> list[str]:
    """The labels that say which method a row is: not those which went into the task or the dataset.

    A paper's "Ours" gets the paper's name, because beside our own rows it would be taken for them.
    """
    used = "".join(c.task + c.metric + c.dataset + c.protocol for c in table.columns)
    own = PAPERS.get(table.paper, table.paper)
    parts: list[str] = []
    for name, label in labels.items():
        if "{" + name + "}" in used or label.lower() in (part.lower() for part in parts):
            continue
        said = re.sub(r"^Ours\b", own, label)
        parts.append(f"{name[:1].lower()}{name[1:]} {said}" if name.lower() in _NAMED else said)
    return parts


def _part(column: Column) -> str:
    """`` (a)`` for a column under a heading such as ``(a) Mask R-CNN, 1× schedule``."""
    return f" {column.group[:3]}" if column.group.startswith("(") else ""


def _mark(table: ReferenceTable, labels: dict[str, str], column: Column) -> str:
    for mark in table.marks:
        here = any(label in mark["rows"] for label in labels.values())
        if here and column.name in mark.get("columns", [column.name]) and mark.get("where") in (None, *labels.values()):
            return f"{mark['mark']} {mark['text']}"
    return ""


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
