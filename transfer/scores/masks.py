"""Masks as COCO run-length codes: any written form → compressed bytes, checked, with their areas.

A compressed code is a string of 6-bit characters (offset 48): five bits of value, one that says "more follows", the
least significant group first, sign-extended; from the fourth run on the difference to the run before the last is stored
(pycocotools ``maskApi.c``). pycocotools does not check what it decodes, so all codes are decoded here, vectorised.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

Size = tuple[int, int]  # height, width
Fail = Callable[[int, str, str], None]

_EXPECTED = "expected polygons or a run-length code of exactly height × width pixels"
_BLOCK_BYTES = 1 << 20  # decoded at a time: stays in the processor's cache


@dataclass(frozen=True)
class Rles:
    """N masks: ``counts[i]`` is the compressed code of a mask of ``sizes[i]`` = (height, width)."""

    counts: list[bytes]
    sizes: list[Size]
    areas: np.ndarray  # [N] float64, pixels

    def area(self) -> np.ndarray:
        """[N] float64: number of pixels."""
        return self.areas

    def take(self, which: np.ndarray) -> "Rles":
        """The masks at the positions ``which``."""
        positions = which.tolist()
        return Rles([self.counts[i] for i in positions], [self.sizes[i] for i in positions], self.areas[which])

    def objects(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Masks ``start``…``stop`` in the form that pycocotools takes."""
        pairs = zip(self.counts[start:stop], self.sizes[start:stop], strict=True)
        return [{"size": size, "counts": counts} for counts, size in pairs]


def read(segmentations: Sequence[Any], sizes: Sequence[Size], fail: Fail) -> Rles:
    """Masks from their written forms: polygons, run lengths as a list, or a compressed code.

    Args:
        segmentations: one ``segmentation`` field per object.
        sizes: (height, width) of each object's image.
        fail: called with index, what was found and a hint where a mask is malformed; it raises.
    """
    counts: list[bytes] = []
    for index, (segmentation, size) in enumerate(zip(segmentations, sizes, strict=True)):
        problem = None
        if isinstance(segmentation, dict):
            problem = _size_problem(segmentation, size)
            code = segmentation.get("counts")
        elif isinstance(segmentation, list):
            problem = _polygon_problem(segmentation)
            code = None if problem else _from_polygons(segmentation, size)
        else:
            problem = f"the segmentation {segmentation!r:.60}"
        if problem is None and isinstance(code, list):
            problem, code = _from_run_lengths(code, size)
        if problem is None and not isinstance(code, (str, bytes)):
            problem = f"the mask counts {code!r:.60}"
        if problem is not None:
            fail(index, problem, _EXPECTED)
        counts.append(code.encode("utf-8") if isinstance(code, str) else code)  # type: ignore[union-attr,arg-type]
    areas = _checked_areas(counts, np.array([h * w for h, w in sizes], dtype=np.int64), fail)
    return Rles(counts, list(sizes), areas)


def _size_problem(segmentation: dict[str, Any], size: Size) -> str | None:
    found = segmentation.get("size")
    if isinstance(found, (list, tuple)) and tuple(found) == size:
        return None
    return f"a mask of size {found!r:.40} in an image of height, width {size}"


def _polygon_problem(polygons: list[Any]) -> str | None:
    if not polygons:
        return "an empty list of polygons"
    for polygon in polygons:
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            return f"the polygon {polygon!r:.60} (it takes three or more x, y pairs)"
        if not all(isinstance(x, (int, float)) and np.isfinite(x) for x in polygon):
            return f"a polygon with a coordinate that is no finite number: {polygon!r:.60}"
    return None


def _from_polygons(polygons: list[list[float]], size: Size) -> bytes:
    code: bytes = coco_mask.merge(coco_mask.frPyObjects(polygons, *size))["counts"]
    return code


def _from_run_lengths(runs: list[Any], size: Size) -> tuple[str | None, bytes | None]:
    if not all(isinstance(run, int) and run >= 0 for run in runs):
        return f"the run lengths {runs!r:.60}", None
    if sum(runs) != size[0] * size[1]:
        return f"run lengths of {sum(runs)} pixels in an image of {size[0] * size[1]}", None
    return None, coco_mask.frPyObjects({"size": list(size), "counts": runs}, *size)["counts"]


def _checked_areas(counts: list[bytes], pixels: np.ndarray, fail: Fail) -> np.ndarray:
    areas = np.zeros(len(counts))
    for start, stop in _blocks(counts):
        total, area, good = _decode(counts[start:stop])
        wrong = ~good | (total != pixels[start:stop])
        if wrong.any():
            first = int(wrong.argmax())
            index = start + first
            found = (
                f"a run-length code of {total[first]} pixels"
                if good[first]
                else "a run-length code that cannot be decoded"
            )
            fail(index, f"{found} ({counts[index][:40]!r}) in an image of {pixels[index]}", _EXPECTED)
        areas[start:stop] = area
    return areas


def _blocks(counts: list[bytes]) -> Iterator[tuple[int, int]]:
    start = total = 0
    for index, code in enumerate(counts):
        total += len(code)
        if total > _BLOCK_BYTES:
            yield start, index + 1
            start, total = index + 1, 0
    if start < len(counts):
        yield start, len(counts)


def _decode(codes: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels in all, pixels set, and whether each code is well formed: three arrays [len(codes)]."""
    lengths = np.array([len(code) for code in codes], dtype=np.int64)
    last = np.cumsum(lengths) - 1
    # A character outside the alphabet, or a last one that promises more, spoils its own code only: as the final byte
    # is forced to end a value, the codes stay apart.
    raw = np.frombuffer(b"".join(code or b"p" for code in codes), dtype=np.uint8)
    if not lengths.all():
        lengths = np.maximum(lengths, 1)
        last = np.cumsum(lengths) - 1
    bits = raw.astype(np.int64) - 48
    alien = (bits < 0) | (bits > 63)
    more = (bits & 0x20) != 0
    owner_start = last - lengths + 1
    good = ~(np.logical_or.reduceat(alien, owner_start) | more[last])
    more[last] = False

    ends = np.flatnonzero(~more)
    starts = np.concatenate(([0], ends[:-1] + 1))
    width = ends - starts + 1
    group = np.arange(len(bits)) - np.repeat(starts, width)
    too_wide = width > 7  # 35 bits: more than any image has pixels
    values = np.add.reduceat((bits & 0x1F) << np.minimum(5 * group, 40), starts)
    values -= np.where(bits[ends] & 0x10, np.int64(1) << np.minimum(5 * width, 45), 0)

    first = np.searchsorted(ends, owner_start)  # first value of each code
    number = np.diff(np.append(first, len(values)))
    order = np.arange(len(values)) - np.repeat(first, number)
    runs = _undo_differences(values, order, first, number)
    good &= ~np.logical_or.reduceat(too_wide | (runs < 0), first)
    return np.add.reduceat(runs, first), np.add.reduceat(np.where(order % 2 == 1, runs, 0), first), good


def _undo_differences(values: np.ndarray, order: np.ndarray, first: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Run lengths from stored values: runs 0, 1, 2 stand as they are, later ones add the run two before."""
    runs = values.copy()
    for parity in (1, 0):
        chain = (order % 2 == parity) & (order > 0)
        summed = np.cumsum(np.where(chain, values, 0))
        runs[chain] = (summed - np.repeat(summed[first], number))[chain]
    return runs
