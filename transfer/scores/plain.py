"""Columns of COCO files in their plain form, from typed objects instead of dicts.

``Plain`` answers what ``columns.Columns`` answers. Where an entry is not as expected it raises ``Unusual``: the file is
then read again by ``Columns``, which knows every written form and names what is wrong.
"""

import json
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from momentum_transfer.transfer.scores import masks, typed
from momentum_transfer.transfer.scores.columns import Columns
from momentum_transfer.transfer.scores.compiled import kernels
from momentum_transfer.transfer.scores.positions import Positions
from momentum_transfer.transfer.scores.typed import Unusual

_NUMBERS = ("image_id", "category_id", "score")  # of a detection
_MASKS = 4096  # of the ground truth, whose polygons are objects of their own at a time


class Plain:
    """The N entries of one list, or of a block of it, as msgspec structs."""

    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def values(self, key: str) -> list[Any]:
        """The field ``key`` of every entry."""
        return list(self._each(key))

    def _each(self, key: str) -> Iterator[Any]:
        return map(attrgetter(key), self.entries)

    def lookup(self, key: str, positions: Positions, whose: str) -> np.ndarray:
        """[N] int32: the position of each entry's id ``key``."""
        try:
            return np.fromiter(map(positions.__getitem__, self._each(key)), np.int32, len(self))
        except KeyError as error:
            raise Unusual from error

    def numbers(self, key: str) -> np.ndarray:
        """[N] float64 of a numeric field."""
        return np.fromiter(self._each(key), np.float64, len(self))

    def boxes(self) -> np.ndarray:
        """[N, 4] float64 of ``bbox``."""
        try:
            return np.fromiter(chain.from_iterable(self._each("bbox")), np.float64, 4 * len(self)).reshape(-1, 4)
        except TypeError as error:  # some have none
            raise Unusual from error

    def flags(self, key: str) -> np.ndarray:
        """[N] bool of a field that is 0 or 1."""
        values = self.values(key)
        if not set(values) <= {0, 1}:
            raise Unusual
        return np.array(values, dtype=bool)

    def unique(self, key: str) -> list[Any]:
        """The field ``key`` of every entry, each only once."""
        values = self.values(key)
        if len(set(values)) < len(values):
            raise Unusual
        return values

    def rles(self, sizes: np.ndarray) -> masks.Rles:
        """The masks of ``segmentation`` in images of ``sizes`` [N, 2]: compressed codes, or JSON of any form."""
        found = self.values("segmentation")
        if found and not isinstance(found[0], typed.RAW):
            return self._codes(found, sizes)
        parts = [range(start, min(start + _MASKS, len(found))) for start in range(0, max(len(found), 1), _MASKS)]
        return masks.join(
            [masks.read([typed.value(found[index]) for index in part], sizes[part], self._fail) for part in parts]
        )

    def _codes(self, found: list[Any], sizes: np.ndarray) -> masks.Rles:
        try:
            written = np.fromiter(chain.from_iterable(map(attrgetter("size"), found)), np.int64, 2 * len(found))
        except OverflowError as error:
            raise Unusual from error
        if not np.array_equal(written.reshape(-1, 2), sizes):
            raise Unusual
        return masks.from_codes(list(map(attrgetter("counts"), found)), sizes, self._fail)

    def _fail(self, *_: Any) -> NoReturn:
        raise Unusual


class Table(Plain):
    """Entries whose fields are all numbers, as columns from the start."""

    def __init__(self, entries: list[Any]) -> None:
        super().__init__(entries)
        numbers, self._boxes = typed.table(entries, _NUMBERS, "bbox")
        self._columns = dict(zip(_NUMBERS, numbers, strict=True))

    def lookup(self, key: str, positions: Positions, whose: str) -> np.ndarray:
        """[N] int32: the position of each entry's id ``key``."""
        try:
            return positions.of(self._columns[key])
        except KeyError as error:
            raise Unusual from error

    def numbers(self, key: str) -> np.ndarray:
        """[N] float64 of a field."""
        return self._columns[key]

    def boxes(self) -> np.ndarray:
        """[N, 4] float64 of ``bbox``."""
        return self._boxes


def ground_truth(path: Path, iou_type: str, area: bool) -> tuple[Columns, Columns, Plain]:
    """Images, categories and annotations of an annotation file; raises ``Unusual`` unless it is in the plain form."""
    identity, flag = int | str, (bool | int | float, 0)
    annotation = typed.struct(
        "Annotation",
        id=int | float | str,
        image_id=identity,
        category_id=identity,
        iscrowd=flag,
        ignore=flag,
        difficult=flag,
        **({"area": float} if area else {}),
        **({"bbox": typed.Box} if iou_type == "bbox" else {"segmentation": typed.RAW}),
    )
    objects = list[annotation]  # type: ignore[valid-type]  # a type made at run time
    sections = typed.struct("Sections", images=typed.RAW, categories=typed.RAW, annotations=objects)
    found = typed.document(path, sections)
    try:
        images, categories = (json.loads(bytes(section).decode()) for section in (found.images, found.categories))
    except (ValueError, RecursionError) as error:  # ValueError: a number of 5000 digits
        raise Unusual from error
    if not isinstance(images, list) or not isinstance(categories, list):
        raise Unusual
    where = str(path)
    return Columns(images, where, "image"), Columns(categories, where, "category"), Plain(found.annotations)


def detections(path: Path, iou_type: str, area_from: str) -> Iterator[tuple[Plain, bool]]:
    """Blocks of a result file, and whether its entries are sized by their boxes; ``Unusual`` as above."""
    if iou_type == "bbox":
        yield from ((block, True) for block in _boxes(path))
    else:
        yield from _masks(path, area_from == "file")


def _boxes(path: Path) -> Iterator[Plain]:
    blocks = typed.entries(path, typed.struct("Detection", **dict.fromkeys(_NUMBERS, float), bbox=typed.Box))
    try:
        first = next(blocks)
    except Unusual:  # ids that are strings, perhaps
        fields = {"image_id": int | str, "category_id": int | str, "score": float, "bbox": typed.Box}
        yield from map(Plain, typed.entries(path, typed.struct("Detection", **fields)))
    else:
        yield from map(Table, chain((first,), blocks))


def _masks(path: Path, with_boxes: bool) -> Iterator[tuple[Plain, bool]]:
    mask = typed.struct("Mask", size=tuple[int, int], counts=str)
    fields = {"image_id": int | str, "category_id": int | str, "score": float, "segmentation": mask}
    boxes = {"bbox": (typed.Box | None, None)} if with_boxes else {}
    kernels(path.stat().st_size if path.is_file() else 0)  # nearly all of it will be codes
    sized_by_box = None
    for block in typed.entries(path, typed.struct("Detection", **fields, **boxes)):
        if sized_by_box is None:  # the first entry says it for all
            sized_by_box = with_boxes and bool(block) and block[0].bbox is not None
        yield Plain(block), sized_by_box
