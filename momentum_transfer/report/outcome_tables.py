"""Outcomes per test item that another tool wrote: CSV files, pandas frames, arrays.

A table has a header and a row an item. The item is in the column that is called so (``image id``, ``file_name``, …),
else in the first. Every other column of numbers is a measure; columns without a number, and of labels by their names,
are left out. What pandas writes by itself is taken as it is: its index without a name, quoted names, ``True``.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError, counted, shown
from momentum_transfer.core.files import sha256_of_text
from momentum_transfer.core.untrusted import csv_rows, item_id, read_text
from momentum_transfer.verdicts.outcomes import PerItem

#: Headings of the column that names the item, and of label columns: in lower case, letters alone.
_ITEM = ("imageid", "image", "img", "id", "imgid", "filename", "fname", "file", "path", "imagename", "imagepath",
         "item", "itemid", "sample", "sampleid", "key", "name")  # fmt: skip
_LABEL = ("label", "labels", "target", "class", "category", "y", "ytrue", "truth", "gt", "pred", "prediction", "ypred")
#: pandas' index without a name, as it writes it and as it calls it when it reads that again.
_INDEX = re.compile(r"(Unnamed: \d+)?")

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")

#: Greater values are no measure; their squares would overflow.
_HUGE = 1e100

_Rows = list[tuple[int, list[str]]]  # line and cells
_Table = tuple[list[str], dict[str, np.ndarray]]  # ids of the items, and the columns of numbers, each [N] float64


def read_outcomes(source: Any, where: str, measures: Sequence[str] = ()) -> _Table:
    """Outcomes of a CSV file, a pandas frame, a mapping of measures to arrays [n], or one array [n]; see the module.

    Args:
        measures: the columns that are measures; (): all that hold numbers and are not called as labels are.
    """
    header, rows = _cells(source, where)
    item, others = _roles(header, rows, where)
    if absent := [name for name in measures if name not in header]:
        raise InputError(f"expected a column {absent[0]} in {where}, found {', '.join(header)}")
    ids, columns = _ids(rows, item, where), {}
    for place in others:
        if header[place] not in measures if measures else _called(header[place]) in _LABEL:
            continue
        values = [_number(row[place]) for _, row in rows]
        texts = [row[place] for value, (_, row) in zip(values, rows, strict=True) if value is None]
        commas = bool(texts) and all(map(_DECIMAL_COMMA.fullmatch, texts))
        if texts and not (measures or commas or any(value is not None and math.isfinite(value) for value in values)):
            continue
        for value, (line, row) in zip(values, rows, strict=True):
            if value is None or not abs(value) < _HUGE:
                advice = "write decimal points" if commas else "give it a value, or leave that item out everywhere"
                raise InputError(
                    f"expected a number in {header[place]} of {where}, found {shown(row[place])} in line {line} "
                    f"(item {row[item]}); {advice}"
                )
        columns[header[place]] = np.array(values, dtype=np.float64)
    if not columns:
        raise InputError(f"expected a column of numbers beside {header[item]} in {where}, found {', '.join(header)}")
    return ids, columns


def paired(where: Sequence[str], tables: Sequence[_Table]) -> tuple[list[str], list[PerItem], list[dict[str, float]]]:
    """Ids, and each table's outcomes and scores in the measures that all have, in the order of the first.

    Measures of 0 and 1 are hits and others from 0 to 1 fractions, both in percent; other values stand as they are.
    InputError (with ``where``) if an item is in one table alone, or they have no measure in common.
    """
    ids, columns = tables[0]
    for file, (others, _) in zip(where[1:], tables[1:], strict=True):
        for one, here, there in ((where[0], ids, others), (file, others, ids)):
            if alone := sorted(set(here) - set(there)):
                found = f"{shown(alone[0])} in {one} alone ({counted(len(alone), 'item')} in all)"
                raise InputError(f"expected the same items in {where[0]} and {file}, found {found}")
    names = [name for name in columns if all(name in own for _, own in tables)]
    if not names:
        found = "; ".join(f"{', '.join(own)} in {file}" for file, (_, own) in zip(where, tables, strict=True))
        raise InputError(f"expected a column of the same name in every file, found {found}; rename one")
    sides: list[dict[str, np.ndarray]] = []
    for own_ids, own in tables:
        place = {item: row for row, item in enumerate(own_ids)}
        order = [place[item] for item in ids]
        sides.append({name: own[name][order] for name in names})
    for name in names:
        values = np.concatenate([side[name] for side in sides])
        hits, fractions = np.isin(values, (0, 1)).all(), values.min() >= 0 and values.max() <= 1
        percent = values.max() == 100  # then a side of 0 and 1 is of fractions
        inside = [
            side[name].min() >= 0
            and side[name].max() <= 1
            and bool((side[name] % 1).any() or (percent and side[name].any()))
            for side in sides
        ]
        if not fractions and any(inside):
            one, other = where[inside.index(True)], where[inside.index(False)] if False in inside else where[-1]
            found = f"fractions in {one} and values beyond 1 in {other}"
            raise InputError(f"expected {name} in one unit, found {found}; give both as fractions or both in percent")
        for side in sides:
            side[name] = side[name].astype(bool) if hits else side[name] if fractions else side[name] / 100
    test_set = sha256_of_text("\n".join(ids))
    scores = [{name: 100 * float(values.mean()) for name, values in side.items()} for side in sides]
    return ids, [PerItem(test_set, side) for side in sides], scores


def _cells(source: Any, where: str) -> tuple[list[str], _Rows]:
    """The header and the rows of a table; arrays get their places as items."""
    if not isinstance(source, (str, Path)) and not hasattr(source, "to_csv"):
        given = source if isinstance(source, Mapping) else {"value": source}
        arrays = [np.asarray(values) for values in given.values()]
        if len({array.shape for array in arrays}) != 1 or arrays[0].ndim != 1:
            raise InputError(f"expected arrays [items] of one length in {where}, found {shown(source)}")
        columns = zip(*(array.tolist() for array in arrays), strict=True)
        return ["item", *map(str, given)], [(n, [str(n), *map(str, cells)]) for n, cells in enumerate(columns)]
    text = source.to_csv() if hasattr(source, "to_csv") else read_text(Path(source), "a CSV file with a header")
    rows = csv_rows(text, where)
    if len(rows) < 2:
        raise InputError(f"expected a header and a line for each item in {where}, found {counted(len(rows), 'line')}")
    return rows[0][1], rows[1:]


def _roles(header: Sequence[str], rows: _Rows, where: str) -> tuple[int, list[int]]:
    """The column of the items, and all others but an index without a name.

    No column with an item's name: the first; but an index without a name is one only if no column is of unique texts.
    """
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise InputError(f"expected each column of {where} once, found {twice!r} more often; rename one")
    called = list(map(_called, header))
    item = next((called.index(name) for name in _ITEM if name in called), 0)
    if _INDEX.fullmatch(header[item]):
        texts = [place for place in range(len(header)) if place != item and _are_names([row[place] for _, row in rows])]
        if len(texts) > 1:
            found = ", ".join(header[place] for place in texts)
            raise InputError(
                f"expected one column of item names in {where}, found {found}; call the right one image_id"
            )
        item = texts[0] if texts else item
    return item, [place for place, name in enumerate(header) if place != item and not _INDEX.fullmatch(name)]


def _are_names(cells: Sequence[str]) -> bool:
    return len(set(cells)) == len(cells) and all(cell and _number(cell) is None for cell in cells)


def _called(name: str) -> str:
    return re.sub("[^a-z]", "", name.lower())


def _ids(rows: _Rows, item: int, where: str) -> list[str]:
    lines: dict[str, int] = {}
    for line, row in rows:
        if lines.setdefault(identity := item_id(row[item]), line) != line:
            raise InputError(
                f"expected each item once in {where}, found {shown(identity)} in the lines {lines[identity]} and "
                f"{line}; average its rows, or give each an id of its own"
            )
    return list(lines)


def _number(cell: str) -> float | None:
    """A cell's number: ``0.5``, ``True``, ``tensor(0.5000, device='cuda:0')``; NaN where it is empty, None: a text."""
    if found := re.fullmatch(r"tensor\(([^,)]*).*\)", cell):
        cell = found[1]
    try:
        return None if "_" in cell else float({"": "nan", "true": "1", "false": "0"}.get(cell.lower(), cell))
    except ValueError:
        return None
