"""Masks as COCO run-length codes: any written form → compressed bytes, checked, with their areas.

A compressed code is a string of 6-bit characters (offset 48): five bits of value, one that says "more follows", the
least significant group first, sign-extended; from the fourth run on the difference to the run before the last is stored
(pycocotools ``maskApi.c``). pycocotools does not check what it decodes, so all codes are decoded here, vectorised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

Size = list[int]  # height, width
Fail = Callable[[int, str, str], None]

_EXPECTED = "expected polygons or a run-length code of exactly height × width pixels"
MOST_PIXELS = 1 << 29  # of an image: the longest run of ``_WIDEST`` characters
_WIDEST = 6  # characters of one value: runs of up to 2^29 pixels, and 32-bit arithmetic as in pycocotools
_MALFORMED = "\x7f"  # stands for a code that is empty or no ASCII: outside the alphabet, but one character long
_FARTHEST = 1_000_000  # pixels: pycocotools walks along every edge, and crashes where 32 bits overflow
_BLOCK = 1 << 17  # characters decoded at a time: stays in the processor's cache


@dataclass(frozen=True)
class Rles:
    """N masks as compressed codes."""

    codes: list[str]  # those of all masks that were read together
    index: np.ndarray  # [N] int32: position in ``codes``
    sizes: np.ndarray  # [N, 2] int32: height, width
    areas: np.ndarray  # [N] float64, pixels
    first: np.ndarray  # [N] int32: the first pixel that is set, counted down the columns, or one before it
    end: np.ndarray  # [N] int32: the pixel behind the last one that is set, or one behind that

    def __len__(self) -> int:
        return len(self.index)

    def take(self, which: np.ndarray) -> "Rles":
        """The masks at the positions ``which``."""
        return Rles(self.codes, *(getattr(self, name)[which] for name in _COLUMNS))

    def objects(self) -> list[dict[str, Any]]:
        """The masks as pycocotools takes them."""
        same = (self.sizes[1:] == self.sizes[:-1]).all(axis=1)  # neighbours are of one image mostly, and share a list
        starts = np.flatnonzero(np.concatenate(([True], ~same))) if len(self) else np.zeros(0, dtype=np.int64)
        lists = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(self))).tolist()
        known, codes = self.sizes[starts].tolist(), self.codes
        return [
            {"size": known[at], "counts": codes[place]} for at, place in zip(lists, self.index.tolist(), strict=True)
        ]


_COLUMNS = ("index", "sizes", "areas", "first", "end")


def join(parts: Sequence[Rles]) -> Rles:
    """The masks of all parts, one after another."""
    codes = [part.codes[place] for part in parts for place in part.index.tolist()]
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS[1:])
    return Rles(codes, np.arange(len(codes), dtype=np.int32), *columns)


def read(segmentations: Sequence[Any], sizes: np.ndarray | Sequence[Size], fail: Fail) -> Rles:
    """Masks from their written forms: polygons, run lengths as a list, or a compressed code.

    Args:
        segmentations: one ``segmentation`` field per object.
        sizes: [N, 2] height, width of each object's image.
        fail: called with index, what was found and a hint where a mask is malformed; it raises.
    """
    sizes = np.asarray(sizes, dtype=np.int64).reshape(-1, 2)
    expected: list[Size] = sizes.tolist()
    if _all_compressed(segmentations, expected):
        return from_codes([entry["counts"] for entry in segmentations], sizes, fail)
    codes = []
    for index, (segmentation, size) in enumerate(zip(segmentations, expected, strict=True)):
        problem, code = _compressed(segmentation, size)
        if problem:
            fail(index, problem, _EXPECTED)
        codes.append(code)
    return from_codes(codes, sizes, fail)


def from_codes(codes: list[str], sizes: np.ndarray, fail: Fail) -> Rles:
    """Masks from compressed codes, each checked to be well formed and to cover its image exactly."""
    pixels = sizes[:, 0] * sizes[:, 1]
    areas = np.zeros(len(codes))
    first, end = np.zeros((2, len(codes)), dtype=np.int32)
    lengths = np.fromiter(map(len, codes), np.int64, len(codes))
    block = np.cumsum(lengths) // _BLOCK
    bounds = np.flatnonzero(np.diff(block, prepend=-1, append=-1)).tolist()
    for start, stop in pairwise(bounds):
        here = slice(start, stop)
        total, areas[here], first[here], end[here], good = _decode(codes[here], lengths[here])
        wrong = ~good | (total != pixels[here])
        if wrong.any():
            place = int(wrong.argmax())
            index = start + place
            found = f"code of {total[place]} pixels" if good[place] else "code that cannot be decoded"
            fail(index, f"a run-length {found} ({codes[index]!r:.40}) in an image of {pixels[index]}", _EXPECTED)
    return Rles(codes, np.arange(len(codes), dtype=np.int32), sizes.astype(np.int32), areas, first, end)


def _all_compressed(segmentations: Sequence[Any], sizes: Sequence[Size]) -> bool:
    """Whether every mask is a compressed code of the right size already, as detectors write them."""
    if set(map(type, segmentations)) != {dict}:
        return False
    found, codes = ([entry.get(key) for entry in segmentations] for key in ("size", "counts"))
    return found == list(sizes) and set(map(type, codes)) == {str}


def _compressed(segmentation: Any, size: Size) -> tuple[str | None, str]:
    """What is wrong, if something is, and the compressed code."""
    if isinstance(segmentation, list):
        problem = _polygon_problem(segmentation, size)
        return problem, "" if problem else _from_polygons(segmentation, size)
    if not isinstance(segmentation, dict):
        return f"the segmentation {segmentation!r:.60}", ""
    found, code = segmentation.get("size"), segmentation.get("counts")
    if not isinstance(found, (list, tuple)) or list(found) != size:
        return f"a mask of size {found!r:.40} in an image of height, width {size}", ""
    if isinstance(code, list):
        return _from_run_lengths(code, size)
    if not isinstance(code, (str, bytes)):
        return f"the mask counts {code!r:.60}", ""
    return None, code.decode("latin-1") if isinstance(code, bytes) else code


def _polygon_problem(polygons: list[Any], size: Size) -> str | None:
    if not polygons:
        return "an empty list of polygons"
    farthest = min(10 * max(size) + 1000, _FARTHEST)
    for polygon in polygons:
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            return f"the polygon {polygon!r:.60} (it takes three or more x, y pairs)"
        if not all(isinstance(x, (int, float)) and abs(x) < float("inf") for x in polygon):
            return f"a polygon with a coordinate that is no finite number: {polygon!r:.60}"
        if max(map(abs, polygon)) > farthest:
            return f"a polygon more than {farthest} pixels from an image of height, width {size}: {polygon!r:.60}"
    return None


def _from_polygons(polygons: list[list[float]], size: Size) -> str:
    code: bytes = coco_mask.merge(coco_mask.frPyObjects(polygons, *size))["counts"]
    return code.decode("ascii")


def _from_run_lengths(runs: list[Any], size: Size) -> tuple[str | None, str]:
    if not all(isinstance(run, int) and run >= 0 for run in runs):
        return f"the run lengths {runs!r:.60}", ""
    if sum(runs) != size[0] * size[1]:
        return f"run lengths of {sum(runs)} pixels in an image of {size[0] * size[1]}", ""
    return None, coco_mask.frPyObjects({"size": size, "counts": runs}, *size)["counts"].decode("ascii")


def _decode(codes: list[str], lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each code: pixels in all, pixels set, where these begin and end, and whether it is well formed."""
    text = "".join(codes)
    if not (text.isascii() and lengths.all()):
        codes = [code if code and code.isascii() else _MALFORMED for code in codes]
        return _decode(codes, np.fromiter(map(len, codes), np.int64, len(codes)))
    last = np.cumsum(lengths) - 1
    # Characters below the alphabet wrap around and lie above it.
    bits = np.frombuffer(text.encode("ascii"), dtype=np.uint8) - np.uint8(48)
    good = bits[last] & 0x20 == 0
    if bits.max() > 63:
        good &= ~np.logical_or.reduceat(bits > 63, last + 1 - lengths)
    final = bits & 0x20 == 0
    final[last] = True  # a code that promises more than it has spoils itself, not its neighbour
    leading = np.flatnonzero(~final)
    behind = last + 1 - np.searchsorted(leading, last)  # values up to the end of each code
    values, wide = _values(bits, final, leading)
    good[np.searchsorted(behind, wide, side="right")] = False
    number = np.diff(behind, prepend=0)
    zeros, ones, first = _runs(values, number)
    if min(zeros.min(), ones.min()) < 0:
        good &= np.minimum.reduceat(np.minimum(zeros, ones), first) >= 0
    area = np.add.reduceat(ones, first, dtype=np.int64)
    total = np.add.reduceat(zeros, first, dtype=np.int64) + area
    trailing = np.where(number % 2 == 1, zeros[first + (number - 1) // 2], 0)  # a code may end in zeros
    return total, area, zeros[first], total - trailing, good


def _values(bits: np.ndarray, final: np.ndarray, leading: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stored values [V], and the positions of those that are too wide to be one.

    Nearly all have one character, the signed last one (``final``); ``leading`` are the places of the characters before.
    """
    values = (((bits[final] & 0x1F) ^ 0x10).view(np.int8) - np.int8(0x10)).astype(np.int32)
    if not len(leading):
        return values, leading
    owner = leading - np.arange(len(leading))  # as many values end before it
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    owners, number = owner[first], np.diff(first, append=len(owner))
    digit = np.minimum(np.arange(len(leading)) - np.repeat(first, number), _WIDEST - 1)
    low = (bits[leading] & 0x1F).astype(np.int32) << (5 * digit).astype(np.int32)
    values[owners] <<= (5 * np.minimum(number, _WIDEST - 1)).astype(np.int32)
    values[owners] += np.add.reduceat(low, first)
    return values, owners[number >= _WIDEST]


def _runs(values: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run lengths of zeros and of ones, and where those of each code begin; ``number`` is how many values a code has.

    With zeros and ones in columns of their own, "add the run two before" is a cumulative sum down the column, from
    which what earlier codes have summed up is taken off. The very first run of a code stays out of it.
    """
    rows = (number + 1) // 2
    first = np.cumsum(rows) - rows
    unpaired = (first + rows - 1)[number % 2 == 1]  # a code that ends in zeros: no ones beside its last run
    table = np.zeros(2 * int(rows.sum()), dtype=values.dtype)
    filled = np.ones(len(table), dtype=bool)
    filled[2 * unpaired + 1] = False
    table[filled] = values
    zeros, ones = table[0::2].copy(), table[1::2].copy()
    head = zeros[first]
    zeros[first] = 0
    for column in (zeros, ones):
        own = column[first]
        np.cumsum(column, out=column)
        column -= np.repeat(column[first] - own, rows)
    zeros[first] = head
    ones[unpaired] = 0
    return zeros, ones, first
