"""COCO JSON decoded straight into typed objects by msgspec, a block of the file at a time.

This is the fast reader for files in their plain form: every field that is asked for is there and of its type. It only
ever accepts what ``json`` reads, to the same values (floats are rounded correctly by both); for everything else it
raises ``Unusual`` and the general reader (``inputs``, ``columns``) decides, which also knows what to say about a wrong
entry. One difference is known: a whole number of more than 4300 digits in a field that nobody reads is passed over.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

try:
    import msgspec
except ImportError:  # a Python for which it has no build: the general reader reads everything
    msgspec = None  # type: ignore[assignment, unused-ignore]  # a Python without a build of it

_BLOCK = 1 << 18  # bytes of a file that are decoded at a time: the objects stay in the processor's cache
_SPACE = b" \t\r\n"

Box = tuple[float, float, float, float]
T = TypeVar("T")
#: A field that stays text, to be decoded by ``value``.
RAW: Any = msgspec.Raw if msgspec is not None else str


class Unusual(Exception):
    """The file is not in the plain form; it may still be a good one."""


def entries(path: Path, kind: type[T]) -> Iterator[list[T]]:
    """The objects of the list in a file, as instances of a msgspec ``Struct``, in blocks.

    The file is cut where an object ends and another begins. A cut inside an object or a string leaves a bracket or a
    quotation mark open, so what decodes on both sides of it is what the file says.

    Raises:
        Unusual: the file is no list of such objects, or not in the plain form.
    """
    decoder = _decoder(list[kind])  # type: ignore[valid-type]  # a type made at run time
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


def document(path: Path, kind: type[T]) -> T:
    """The whole file as an instance of a msgspec ``Struct``; raises ``Unusual`` as ``entries`` does."""
    if not os.path.isfile(path):
        raise Unusual
    try:
        text = path.read_bytes()
    except OSError as error:
        raise Unusual from error
    return _decode(_decoder(kind), text)


def struct(name: str, **fields: Any) -> type[Any]:
    """A msgspec ``Struct`` type: name → type for a field that every object must have, or (type, default)."""
    if msgspec is None:
        raise Unusual
    pairs = [(key, *kind) if isinstance(kind, tuple) else (key, kind) for key, kind in fields.items()]
    return msgspec.defstruct(name, pairs, gc=False, kw_only=True)


def table(objects: list[Any], fields: Sequence[str], box: str) -> tuple[np.ndarray, np.ndarray]:
    """Objects of float fields and one ``Box`` as arrays: they are packed, which puts every number at a fixed place.

    Args:
        objects: structs with exactly ``fields`` (floats) and then ``box``, in that order.

    Returns:
        [fields, N] and [N, 4] float64.
    """
    wide = 9  # bytes of a float in MessagePack: a mark and eight bytes, the most significant first
    begins = np.cumsum([1, *(1 + len(name) + wide for name in fields)])  # behind the object's own mark
    places = [int(begin) + 1 + len(name) + 1 for begin, name in zip(begins, fields, strict=False)]
    corner = int(begins[-1]) + 1 + len(box) + 1  # behind the mark of a list of four
    size = corner + 4 * wide
    packed = msgspec.msgpack.encode(objects)
    start = len(packed) - len(objects) * size  # the mark of the list itself has 1 to 5 bytes
    rows = np.frombuffer(packed, np.uint8, offset=start).reshape(len(objects), size)

    def column(place: int) -> np.ndarray:
        return rows[:, place : place + 8].view(">f8")[:, 0]

    numbers, boxes = np.empty((len(fields), len(objects))), np.empty((len(objects), 4))
    for row, place in zip(numbers, places, strict=True):
        row[:] = column(place)
    for index in range(4):
        boxes[:, index] = column(corner + index * wide + 1)
    return numbers, boxes


def value(raw: Any) -> Any:
    """What a field of the type ``RAW`` says, in Python's own types."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unusual from error


def _decoder(kind: Any) -> Any:
    if msgspec is None:
        raise Unusual
    return msgspec.json.Decoder(kind)


def _decode(decoder: Any, text: bytes) -> Any:
    try:
        if not text.isascii():
            text.decode("utf-8")  # msgspec does not look into the strings that it skips
        return decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unusual from error


def _last_end_of_object(text: bytes) -> int:
    """Position behind the last "}" that a comma and a "{" follow, 0 if there is none."""
    end = text.rfind(b"},")
    while end >= 0 and text[end + 2 : end + 200].lstrip(_SPACE)[:1] != b"{":
        end = text.rfind(b"},", 0, end)
    return end + 1
