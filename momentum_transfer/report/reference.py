"""The papers' results tables as data (``configs/reference/*.yaml``).

One YAML is one printed table. A column is a ``label`` (names the row), a ``setting`` (a number that describes it, such
as epochs) or a ``result``; results carry the task, metric, dataset and protocol that a record of ours would carry, so
that the two can stand side by side. ``{Label}`` in those four is filled from the row's label of that name.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, one_line
from momentum_transfer.core.shipped import CONFIGS
from momentum_transfer.core.untrusted import read_mapping

#: Where the transcribed tables are.
REFERENCE_DIR = CONFIGS / "reference"

#: The short name of each paper, as it stands in a published row.
_PAPERS = {"momentum2": "Momentum² Teacher", "rcf": "RCF", "eman": "EMAN", "fsdet": "FsDet's model zoo",
           "fsdet_voc": "FsDet's model zoo, VOC", "unbiased_teacher": "Unbiased Teacher"}  # fmt: skip

_KINDS = ("label", "setting", "result")

#: What a result column says of its numbers, as a record of ours would.
_MEASURE = ("task", "metric", "dataset", "protocol")

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
        """How the table is cited, for example ``EMAN table 5``; one without a number (0) by its paper."""
        return f"{_PAPERS.get(self.paper, self.paper)}" + (f" table {self.number}" if self.number else "")


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
    """Read one table; InputError if a key is missing, a row has another length than the columns, …"""
    path = Path(path)
    try:
        content = read_mapping(path, "columns and rows")
        source = content["source"]
        table = ReferenceTable(
            paper=source["key"],
            arxiv=source["arxiv"],
            number=source["table"],
            caption=content["caption"],
            columns=tuple(Column(**column) for column in content["columns"]),
            rows=tuple(tuple(row) for row in content["rows"]),
            marks=tuple(content.get("marks", ())),
            notes=tuple(content["notes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
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
            kinds: tuple[type, ...] = (int, float, type(None)) if column.kind == "result" else (str, int, type(None))
            if not isinstance(cell, kinds) or isinstance(cell, bool):
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
    cells = list(zip(table.columns, row, strict=True))
    labels = {column.name: str(cell) for column, cell in cells if column.kind == "label"}
    settings = [
        f"{cell} {column.unit or column.name}".strip()
        for column, cell in cells
        if column.kind == "setting" and isinstance(cell, int)
    ]
    method = [*_method(table, labels), *settings]
    results = [
        (column, cell, {key: getattr(column, key).format(**labels) for key in _MEASURE})
        for column, cell in cells
        if column.kind == "result" and column.task and column.metric
    ]
    columns = Counter(tuple(measure.values()) for _, _, measure in results)
    return [
        Published(
            # several columns of one measure (MoCo, BYOL) are named by their headings
            method=", ".join(
                [*method, *[f"{column.group} {column.name}".strip()] * (columns[tuple(measure.values())] > 1)]
            ),
            value=float(cell),
            # `` (a)`` for a column under a heading such as ``(a) Mask R-CNN, 1× schedule``
            source=table.source + (f" {column.group[:3]}" if column.group.startswith("(") else ""),
            mark=_mark(table, labels, column),
            **measure,
        )
        for column, cell, measure in results
        if cell is not None
    ]


def _method(table: ReferenceTable, labels: dict[str, str]) -> list[str]:
    """The labels that say which method a row is: not those which went into the task or the dataset.

    A paper's "Ours" gets the paper's name, because beside our own rows it would be taken for them.
    """
    used = "".join(c.task + c.metric + c.dataset + c.protocol for c in table.columns)
    own = _PAPERS.get(table.paper, table.paper)
    parts: list[str] = []
    for name, label in labels.items():
        if "{" + name + "}" in used or label.lower() in (part.lower() for part in parts):
            continue
        label = re.sub(r"^Ours\b", own, label)
        parts.append(f"{name[:1].lower()}{name[1:]} {label}" if name.lower() in _NAMED else label)
    return parts


def _mark(table: ReferenceTable, labels: dict[str, str], column: Column) -> str:
    for mark in table.marks:
        here = any(label in mark["rows"] for label in labels.values())
        if here and column.name in mark.get("columns", [column.name]) and mark.get("where") in (None, *labels.values()):
            return f"{mark['mark']} {mark['text']}"
    return ""
