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

Size = list[int]  # height, width
Fail = Callable[[int, str, str], None]

_EXPECTED = "expected polygons or a run-length code of exactly height × width pixels"
_WIDEST = 7  # characters of one value: 35 bits, more than any image has pixels
_NO_CODE = b"\xff"  # stands for an empty code: malformed, but of a length
_BLOCK_BYTES = 1 << 17  # decoded at a time: stays in the processor's cache


@dataclass(frozen=True)
class Rles:
    """N masks: ``counts[i]`` is the compressed code of a mask of ``sizes[i]`` = [height, width]."""

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
        sizes: [height, width] of each object's image.
        fail: called with index, what was found and a hint where a mask is malformed; it raises.
    """
    counts: list[bytes] = []
    for index, (segmentation, size) in enumerate(zip(segmentations, sizes, strict=True)):
        if type(segmentation) is dict and segmentation.get("size") == size and type(segmentation.get("counts")) is str:
            code = segmentation["counts"].encode("utf-8")  # nearly all of them
        else:
            problem, code = _compressed(segmentation, size)
            if problem:
                fail(index, problem, _EXPECTED)
        counts.append(code)
    areas = _checked_areas(counts, np.array([h * w for h, w in sizes], dtype=np.int64), fail)
    return Rles(counts, list(sizes), areas)


def _compressed(segmentation: Any, size: Size) -> tuple[str | None, bytes]:
    """What is wrong, if something is, and the compressed code."""
    if isinstance(segmentation, list):
        problem = _polygon_problem(segmentation)
        return problem, b"" if problem else _from_polygons(segmentation, size)
    if not isinstance(segmentation, dict):
        return f"the segmentation {segmentation!r:.60}", b""
    found, code = segmentation.get("size"), segmentation.get("counts")
    if not isinstance(found, (list, tuple)) or list(found) != size:
        return f"a mask of size {found!r:.40} in an image of height, width {size}", b""
    if isinstance(code, list):
        return _from_run_lengths(code, size)
    if not isinstance(code, (str, bytes)):
        return f"the mask counts {code!r:.60}", b""
    return None, code.encode("utf-8") if isinstance(code, str) else code


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


def _from_run_lengths(runs: list[Any], size: Size) -> tuple[str | None, bytes]:
    if not all(isinstance(run, int) and run >= 0 for run in runs):
        return f"the run lengths {runs!r:.60}", b""
    if sum(runs) != size[0] * size[1]:
        return f"run lengths of {sum(runs)} pixels in an image of {size[0] * size[1]}", b""
    return None, coco_mask.frPyObjects({"size": size, "counts": runs}, *size)["counts"]


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
    codes = [code or _NO_CODE for code in codes]
    lengths = np.array([len(code) for code in codes], dtype=np.int64)
    last = np.cumsum(lengths) - 1
    begin = last - lengths + 1
    # Characters below the alphabet wrap around and lie above it.
    bits = np.frombuffer(b"".join(codes), dtype=np.uint8) - np.uint8(48)
    good = ~np.logical_or.reduceat(bits > 63, begin) & (bits[last] & 0x20 == 0)
    final = bits & 0x20 == 0
    final[last] = True  # a code that promises more than it has spoils itself, not its neighbour
    ends = np.flatnonzero(final)
    number = np.add.reduceat(final, begin, dtype=np.int64)
    values, wide = _values(bits, ends)
    runs, first = _runs(values, number)
    zeros, ones = runs.T
    good &= np.minimum.reduceat(np.minimum(zeros, ones), first) >= 0
    good[np.searchsorted(np.cumsum(number), wide, side="right")] = False
    area = np.add.reduceat(ones, first)
    return np.add.reduceat(zeros, first) + area, area, good


def _values(bits: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stored values [V], and the positions of those that are too wide to be one."""
    starts = np.concatenate(([0], ends[:-1] + 1))
    width = ends - starts + 1
    values = (bits[starts] & 0x1F).astype(np.int64)
    longer = np.flatnonzero(width > 1)
    for digit in range(1, _WIDEST):
        values[longer] |= (bits[starts[longer] + digit] & 0x1F).astype(np.int64) << (5 * digit)
        longer = longer[width[longer] > digit + 1]
    negative = np.flatnonzero(bits[ends] & 0x10)
    values[negative] -= np.int64(1) << (5 * np.minimum(width[negative], _WIDEST))
    return values, longer


def _runs(values: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Run lengths as rows (zeros, ones), and the first row of each code; ``number`` is how many values a code has.

    In rows of two, "add the run two before" is a cumulative sum down each column. The very first run stays out of it.
    """
    rows = (number + 1) // 2
    first = np.cumsum(rows) - rows
    table = np.zeros((int(rows.sum()), 2), dtype=np.int64)
    shift = np.repeat(2 * first - (np.cumsum(number) - number), number)
    table.reshape(-1)[np.arange(len(values)) + shift] = values
    head = table[first, 0]
    table[first, 0] = 0
    summed = np.cumsum(table, axis=0)
    runs = summed - np.repeat(summed[first] - table[first], rows, axis=0)
    runs[first, 0] = head
    unpaired = number % 2 == 1
    runs[(first + rows - 1)[unpaired], 1] = 0
    return runs, first
