"""Columns: a list of JSON objects as arrays, one field at a time, each value checked.

The checks are vectorised; only if one fails is the wrong entry searched for, to name it and its file.
"""

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import rle

_NUMBERS = (int, float, np.number)
_FLAGS = (*_NUMBERS, np.bool_)
_LARGEST_TABLE = 1 << 22
_BOOLEANS = frozenset((bool, np.bool_))


class Columns:
    """The N entries of one list in a file; InputError if one is no object with named fields.

    Args:
        where: the file, for messages.
        kind: the word for one entry in messages.
    """

    def __init__(self, entries: Sequence[dict[str, Any]], where: str, kind: str) -> None:
        self.entries, self.where, self.kind = entries, where, kind
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise InputError(f"{where}: {kind} {index} is {entry!r:.60}; expected an object with named fields")

    def __len__(self) -> int:
        return len(self.entries)

    def fail(self, index: int, found: str, hint: str) -> NoReturn:
        """Raise the InputError that names entry ``index``."""
        entry = self.entries[index]
        known = ", ".join(f"{key} {entry[key]!r}" for key in ("id", "image_id", "category_id") if key in entry)
        raise InputError(f"{self.where}: {self.kind} {index} ({known or 'no ids'}) has {found}; {hint}")

    def values(self, key: str) -> list[Any]:
        """The field ``key`` of every entry, which must have it."""
        try:
            return list(map(itemgetter(key), self.entries))
        except KeyError:
            index = next(index for index, entry in enumerate(self.entries) if key not in entry)
            self.fail(index, f"no {key}", f"expected the field {key} in every {self.kind}")

    def lookup(self, key: str, positions: Mapping[Hashable, int], whose: str) -> np.ndarray:
        """[N] int32: the position of each entry's id ``key``; ``whose`` ids these are, for messages."""
        ids = self.values(key)
        try:
            if not _BOOLEANS.isdisjoint(map(type, ids)):  # true is no id, though it equals 1
                raise KeyError
            return np.array(list(map(positions.__getitem__, ids)), dtype=np.int32)
        except (KeyError, TypeError):
            known = f"{len(positions)} {key.removesuffix('_id')} ids, such as {next(iter(positions), None)!r}"
            hint = f"expected one of the {known}, in {whose}"

            def is_known(one: Any) -> bool:
                return isinstance(one, Hashable) and type(one) not in _BOOLEANS and one in positions

            self._find(ids, is_known, f"the unknown {key}", hint)

    def numbers(self, key: str) -> np.ndarray:
        """[N] float64 of a numeric field. Infinity passes, NaN does not."""
        values = self.values(key)
        column = _as_floats(values)
        if column is None or np.isnan(column).any():
            self._find(values, _is_number, key, f"expected a number as {key}")
        return column

    def boxes(self) -> np.ndarray:
        """[N, 4] float64 of ``bbox``: x, y, width, height, all finite."""
        values = self.values("bbox")
        if np.ndarray in set(map(type, values)):
            values = [box.tolist() if isinstance(box, np.ndarray) else box for box in values]
        boxes = None
        if set(map(type, values)) <= {list, tuple} and set(map(len, values)) <= {4}:
            boxes = _as_floats(list(chain.from_iterable(values)))
        if boxes is None or not np.isfinite(boxes).all():
            self._find(values, _is_box, "the bbox", "expected four finite numbers [x, y, width, height]")
        return boxes.reshape(-1, 4)

    def flags(self, key: str) -> np.ndarray:
        """[N] bool of an optional field that is 0 or 1 (false, true, 0.0 and 1.0 are as well)."""
        values = [entry.get(key, 0) for entry in self.entries]
        if not all(issubclass(kind, _FLAGS) for kind in set(map(type, values))) or not set(values) <= {0, 1}:
            self._find(values, _is_flag, key, f"expected 0 or 1 as {key}")
        return np.array(values, dtype=bool)

    def unique(self, key: str) -> list[Any]:
        """The field ``key`` of every entry: numbers or strings, each only once."""
        values = self.values(key)
        seen = set()
        for index, value in enumerate(values):
            if type(value) in _BOOLEANS or not isinstance(value, (*_NUMBERS, str)) or value != value:
                self.fail(index, f"the {key} {value!r}", "expected a number or a string")
            if value in seen:
                self.fail(index, f"the {key} of an earlier {self.kind}", "expected each only once")
            seen.add(value)
        return values

    def rles(self, sizes: np.ndarray) -> rle.Rles:
        """The masks of ``segmentation`` in images of ``sizes`` [N, 2] (height, width), in any written form."""
        try:
            segmentations = self.values("segmentation")
        except InputError as error:
            raise InputError(f"{error}; to score boxes choose iou_type bbox") from error
        return rle.read(segmentations, sizes, self.fail)

    def _find(self, values: list[Any], good: Callable[[Any], bool], what: str, hint: str) -> NoReturn:
        """Name the first value that is not good."""
        for index, value in enumerate(values):
            if not good(value):
                self.fail(index, f"{what} {value!r:.80}", hint)
        raise AssertionError(f"{self.where}: no {self.kind} is at fault, yet a check failed")


def _as_floats(values: list[Any]) -> np.ndarray | None:
    """The values as float64; None if one is no number (bools and strings, which NumPy would convert, are none)."""
    if any(kind is bool or not issubclass(kind, _NUMBERS) for kind in set(map(type, values))):
        return None
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:  # a whole number beyond the range of floats
        return None


def _is_number(value: Any) -> bool:
    column = _as_floats([value])
    return column is not None and not np.isnan(column[0])


def _is_flag(value: Any) -> bool:
    return isinstance(value, _FLAGS) and value in (0, 1)


def _is_box(box: Any) -> bool:
    column = _as_floats(list(box)) if isinstance(box, (list, tuple)) and len(box) == 4 else None
    return column is not None and bool(np.isfinite(column).all())


class Positions(dict[Hashable, int]):
    """Id → its position in ``ordered``, ids in ascending order: all numbers or all strings."""

    def __init__(self, ordered: Sequence[Any]) -> None:
        super().__init__(zip(ordered, range(len(ordered)), strict=True))

    @cached_property
    def _numbers(self) -> np.ndarray:
        """The ids as float64, ascending; empty if a float does not hold them all exactly."""
        exact = all(isinstance(one, (int, float)) and abs(one) < 1 << 53 for one in self)
        return np.array(list(self) if exact else [], dtype=np.float64)

    @cached_property
    def _table(self) -> np.ndarray:
        """[largest id + 1] the positions, faster than a search; empty unless all ids are small whole numbers."""
        known = self._numbers
        if not len(known) or known[0] < 0 or known[-1] >= _LARGEST_TABLE or (known % 1).any():
            return np.zeros(0, dtype=np.int32)
        table = np.zeros(int(known[-1]) + 1, dtype=np.int32)
        table[known.astype(np.int64)] = np.arange(len(known))
        return table

    def of(self, ids: np.ndarray) -> np.ndarray:
        """[N] int32 positions of the ids [N] float64; KeyError if one is unknown, or floats do not hold all ids."""
        known = self._numbers
        if not len(ids):
            return np.zeros(0, dtype=np.int32)
        if not len(known):
            raise KeyError(ids[0])
        if len(self._table):
            with np.errstate(invalid="ignore"):  # an id of 1e300, which is unknown
                found = self._table.take(ids.astype(np.int64), mode="clip")
        else:
            found = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        unknown = known[found] != ids
        if unknown.any():
            raise KeyError(ids[int(unknown.argmax())])
        return found.astype(np.int32)


@contextmanager
def paused_collector() -> Iterator[None]:
    """No garbage collection meanwhile: it would walk again and again through millions of objects that all stay."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
