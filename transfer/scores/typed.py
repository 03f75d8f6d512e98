"""COCO JSON in its plain form, decoded by msgspec straight into typed objects, a block of the file at a time.

The fast reader for files in which every field that is needed is there and of its type. It accepts only what ``json``
reads, to the same values; for everything else it raises ``Unusual``, and the file is read again by ``columns``, which
knows every form and names what is wrong. One known difference: a whole number of more than 4300 digits in a field that
is not read is passed over.
"""

import json
import os
from collections.abc import Hashable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.untrusted import read_regular
from momentum_transfer.transfer.scores import rle
from momentum_transfer.transfer.scores.columns import Columns, Positions
from momentum_transfer.transfer.scores.rle import kernels

_BLOCK = 1 << 18  # bytes of a file that are decoded at a time: the objects stay in the processor's cache
_SPACE = b" \t\r\n"

_Box = tuple[float, float, float, float]
_T = TypeVar("_T")
_RAW: Any = msgspec.Raw  # a field that stays text, to be decoded by ``_value``


class Unusual(Exception):
    """The file is not in the plain form; it may still be a good one."""


def _entries(path: Path, kind: type[_T]) -> Iterator[list[_T]]:
    """The objects of the list in a file, as instances of a msgspec ``Struct``, in blocks; ``Unusual`` if it is none.

    The file is cut between "}," and "{". A cut inside an object or a string leaves a bracket or a quotation mark open,
    so that both sides decode only if the cut is right.
    """
    decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]  # a type made at run time
    if not os.path.isfile(path):  # a pipe can be read but once, a device without end
        raise Unusual
    opening, rest, size = b"", b"", _BLOCK  # the first block has the file's own bracket
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(size):
                rest += block
                cut = _last_end_of_object(rest)
                if cut:
                    yield _decode(decoder, b"".join((opening, memoryview(rest)[:cut], b"]")))
                    opening, rest, size = b"[", rest[cut + 1 :], _BLOCK
                else:  # one object is larger than that
                    size *= 2
    except OSError as error:
        raise Unusual from error
    last = _decode(decoder, opening + rest)
    if opening and not last:  # a comma, and nothing behind it
        raise Unusual
    yield last


def _struct(name: str, **fields: Any) -> type[Any]:
    """A msgspec ``Struct`` type: name → type for a field that every object must have, or (type, default)."""
    pairs = [(key, *kind) if isinstance(kind, tuple) else (key, kind) for key, kind in fields.items()]
    return msgspec.defstruct(name, pairs, gc=False, kw_only=True)


_NUMBERS = ("image_id", "category_id", "score")  # of a detection
_CORNERS = ("x", "y", "width", "height")


def _table(objects: list[Any]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Objects of the float fields ``_NUMBERS`` and then a ``bbox`` as arrays [N] by name and [N, 4] of float64.

    MessagePack puts every number of an object at a fixed place, behind a mark of one byte; so it does with names.
    """
    packed = msgspec.msgpack.encode(objects)
    numbers = [pair for name in _NUMBERS for pair in ((f"_{name}", f"V{len(name) + 2}"), (name, ">f8"))]
    corners = [pair for name in _CORNERS for pair in ((f"_{name}", "V1"), (name, ">f8"))]
    row = np.dtype([("_object", "V1"), *numbers, ("_bbox", "V6"), *corners])
    # The mark of the list itself has 1 to 5 bytes.
    rows = np.frombuffer(packed, row, offset=len(packed) - len(objects) * row.itemsize)
    boxes = np.stack([rows[name] for name in _CORNERS], axis=1, dtype=np.float64)
    return {name: rows[name].astype(np.float64) for name in _NUMBERS}, boxes


def _value(raw: Any) -> Any:
    """The value of a field of the type ``_RAW``."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unusual from error


def _decode(decoder: Any, text: bytes) -> Any:
    try:
        if not text.isascii():
            text.decode("utf-8")  # msgspec does not check the strings that it skips
        return decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unusual from error


def _last_end_of_object(text: bytes) -> int:
    """Position after the last "}" that a comma and a "{" follow, 0 if there is none."""
    end = text.rfind(b"},")
    while end >= 0 and text[end + 2 : end + 200].lstrip(_SPACE)[:1] != b"{":
        end = text.rfind(b"},", 0, end)
    return end + 1


_MASKS = 4096  # of the ground truth, whose polygons are objects of their own at a time


class Plain(Columns):
    """The N entries of one list, or of a block of it, as msgspec structs; what is wrong makes them ``Unusual``."""

    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries

    def fail(self, index: int, found: str, hint: str) -> NoReturn:
        raise Unusual

    def values(self, key: str) -> list[Any]:
        return list(map(attrgetter(key), self.entries))

    def flags(self, key: str) -> np.ndarray:
        values = self.values(key)
        if not set(values) <= {0, 1}:
            raise Unusual
        return np.array(values, dtype=bool)

    def unique(self, key: str) -> list[Any]:
        values = self.values(key)
        if len(set(values)) < len(values):
            raise Unusual
        return values

    def rles(self, sizes: np.ndarray) -> rle.Rles:
        """The masks of ``segmentation`` in images of ``sizes`` [N, 2]: compressed codes, or JSON of any form."""
        found = self.values("segmentation")
        if found and not isinstance(found[0], _RAW):
            return self._codes(found, sizes)
        parts = [range(start, min(start + _MASKS, len(found))) for start in range(0, max(len(found), 1), _MASKS)]
        return rle.join([rle.read([_value(found[index]) for index in part], sizes[part], self.fail) for part in parts])

    def _codes(self, found: list[Any], sizes: np.ndarray) -> rle.Rles:
        try:
            written = np.fromiter(chain.from_iterable(map(attrgetter("size"), found)), np.int64, 2 * len(found))
        except OverflowError as error:
            raise Unusual from error
        if not np.array_equal(written.reshape(-1, 2), sizes):
            raise Unusual
        return rle.from_codes(list(map(attrgetter("counts"), found)), sizes, self.fail)


class Table(Plain):
    """Entries whose fields are all numbers, as columns from the start."""

    def __init__(self, entries: list[Any]) -> None:
        super().__init__(entries)
        self._columns, self._boxes = _table(entries)

    def lookup(self, key: str, positions: Mapping[Hashable, int], whose: str) -> np.ndarray:
        assert isinstance(positions, Positions)
        try:
            return positions.of(self._columns[key])
        except KeyError as error:
            raise Unusual from error

    def numbers(self, key: str) -> np.ndarray:
        return self._columns[key]

    def boxes(self) -> np.ndarray:
        return self._boxes


def ground_truth(path: Path, iou_type: str, area: bool) -> tuple[Columns, Columns, Plain]:
    """Images, categories and annotations of an annotation file; ``Unusual`` unless it is in the plain form."""
    identity, flag = int | str, (bool | int | float, 0)
    annotation = _struct(
        "Annotation",
        id=int | float | str,
        image_id=identity,
        category_id=identity,
        iscrowd=flag,
        ignore=flag,
        difficult=flag,
        **({"area": float} if area else {}),
        **({"bbox": _Box} if iou_type == "bbox" else {"segmentation": _RAW}),
    )
    objects = list[annotation]  # type: ignore[valid-type]  # a type made at run time
    sections = _struct("Sections", images=_RAW, categories=_RAW, annotations=objects)
    try:
        found = _decode(msgspec.json.Decoder(sections), read_regular(path, "annotations", most=None))
        images, categories = (json.loads(bytes(section).decode()) for section in (found.images, found.categories))
    except (InputError, ValueError, RecursionError) as error:  # ValueError: a number of 5000 digits
        raise Unusual from error
    if not isinstance(images, list) or not isinstance(categories, list):
        raise Unusual
    where = str(path)
    return Columns(images, where, "image"), Columns(categories, where, "category"), Plain(found.annotations)


def detections(path: Path, iou_type: str, area_from: str) -> Iterator[tuple[Plain, bool]]:
    """Blocks of a result file, and whether its entries are sized by their boxes; ``Unusual`` as above."""
    return ((block, True) for block in _boxes(path)) if iou_type == "bbox" else _masks(path, area_from == "file")


def _boxes(path: Path) -> Iterator[Plain]:
    blocks = _entries(path, _struct("Detection", **dict.fromkeys(_NUMBERS, float), bbox=_Box))
    try:
        first = next(blocks)
    except Unusual:  # ids that are strings, perhaps
        fields = {"image_id": int | str, "category_id": int | str, "score": float, "bbox": _Box}
        yield from map(Plain, _entries(path, _struct("Detection", **fields)))
    else:
        yield from map(Table, chain((first,), blocks))


def _masks(path: Path, with_boxes: bool) -> Iterator[tuple[Plain, bool]]:
    mask = _struct("Mask", size=tuple[int, int], counts=str)
    fields = {"image_id": int | str, "category_id": int | str, "score": float, "segmentation": mask}
    boxes = {"bbox": (_Box | None, None)} if with_boxes else {}
    kernels(path.stat().st_size if path.is_file() else 0)  # nearly all of it will be codes
    sized_by_box = None
    for block in _entries(path, _struct("Detection", **fields, **boxes)):
        if sized_by_box is None:  # the first entry decides for all
            sized_by_box = with_boxes and bool(block) and block[0].bbox is not None
        yield Plain(block), sized_by_box
