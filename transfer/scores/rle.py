"""Masks as COCO run-length codes: any written form → compressed bytes, checked, with their areas.

A compressed code is a string of 6-bit characters (offset 48): five bits of value, one that says "more follows", the
least significant group first, sign-extended; from the fourth run on the difference to the run before the last is stored
(pycocotools ``maskApi.c``). pycocotools does not check what it decodes, so all codes are decoded here, vectorised; only
sums are kept. The pixels of a single mask are ``transfer/data/annotations.py``'s ``decode_mask``.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from momentum_transfer.core.log import warn

_NAME = "momentum_transfer.transfer.scores.kernels"
_WORTH = 1 << 25  # characters of codes; for fewer, importing numba takes longer than the kernels save


def kernels(characters: int = 0) -> ModuleType | None:
    """The module ``kernels``, or None if NumPy and pycocotools are to do its work, with the same numbers.

    Args:
        characters: how many are to be decoded, as far as is known; kernels that are imported already serve any number.
    """
    return _kernels() if characters >= _WORTH else sys.modules.get(_NAME)


@cache
def _kernels() -> ModuleType | None:
    try:
        return importlib.import_module(_NAME)
    except ModuleNotFoundError:  # an extra
        return None
    except Exception as error:  # a NumPy that it does not fit, no folder for its cache, or a cache that is damaged
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warn(f"masks are scored without numba, to the same numbers ({reason:.200})")
        return None


Size = list[int]  # height, width
Fail = Callable[[int, str, str], None]

_EXPECTED = "expected polygons or a run-length code of exactly height × width pixels"
MOST_PIXELS = 1 << 29  # of an image: one more than the longest run of ``WIDEST`` characters
WIDEST = 6  # characters of one value: runs of less than 2^29 pixels, and 32-bit arithmetic as in pycocotools
_MALFORMED = "\x7f"  # stands for a code that is empty or no ASCII: outside the alphabet, but one character long
_FARTHEST = 1_000_000  # pixels: pycocotools walks along every edge, and crashes where 32 bits overflow
_BLOCK = 1 << 17  # characters decoded at a time: stays in the processor's cache


@dataclass(frozen=True)
class Rles:
    """N masks as compressed codes, joined to a few long texts instead of half a million objects."""

    texts: list[bytes]  # those of all masks that were read together
    text: np.ndarray  # [N] int32: position in ``texts``
    start: np.ndarray  # [N] int32: where the code begins in it
    stop: np.ndarray  # [N] int32: and where it ends
    sizes: np.ndarray  # [N, 2] int32: height, width
    areas: np.ndarray  # [N] float64, pixels
    first: np.ndarray  # [N] int32: the first pixel that is set, counted down the columns, or one before it
    end: np.ndarray  # [N] int32: the pixel after the last one that is set, or one after that
    gap: np.ndarray  # [N] bool: a run between the first and the last has no pixels (see ``mask_pairs``)

    def __len__(self) -> int:
        return len(self.text)

    def take(self, which: np.ndarray) -> "Rles":
        """The masks at the positions ``which``."""
        return Rles(self.texts, *(getattr(self, name)[which] for name in _COLUMNS))

    def codes_at(self, which: np.ndarray) -> list[bytes]:
        """The codes of the masks at the positions ``which``."""
        texts = self.texts
        places = (column[which].tolist() for column in (self.text, self.start, self.stop))
        return [texts[text][start:stop] for text, start, stop in zip(*places, strict=True)]


_COLUMNS = ("text", "start", "stop", "sizes", "areas", "first", "end", "gap")


class Decoded(NamedTuple):
    """The sums of N codes, each [N]; int64, flags bool."""

    total: np.ndarray  # pixels in all
    area: np.ndarray  # pixels set
    first: np.ndarray  # as in ``Rles``, like the next two
    end: np.ndarray
    gap: np.ndarray
    good: np.ndarray  # whether the code is well formed; if not, the others mean nothing


def join(parts: Sequence[Rles]) -> Rles:
    """The masks of all parts, one after another."""
    before = accumulate((len(part.texts) for part in parts), initial=0)
    text = np.concatenate([part.text + np.int32(number) for part, number in zip(parts, before, strict=False)])
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS[1:])
    return Rles([text for part in parts for text in part.texts], text, *columns)


def read(segmentations: Sequence[Any], sizes: np.ndarray | Sequence[Size], fail: Fail) -> Rles:
    """Masks from their written forms: polygons, run lengths as a list, or a compressed code.

    Args:
        segmentations: one ``segmentation`` field per object.
        sizes: [N, 2] height, width of each object's image.
        fail: called with index, what was found and a hint if a mask is malformed; it raises.
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
    text, start, stop, first, end = np.zeros((5, len(codes)), dtype=np.int32)
    gap = np.zeros(len(codes), dtype=bool)
    lengths = np.fromiter(map(len, codes), np.int64, len(codes))
    block = np.cumsum(lengths) // _BLOCK
    bounds = np.flatnonzero(np.diff(block, prepend=-1, append=-1)).tolist()
    texts: list[bytes] = []
    compiled = kernels(int(lengths.sum()))
    decoded = decode if compiled is None else compiled.decode
    for low, high in pairwise(bounds):
        here = slice(low, high)
        characters, behind = _text(codes[here], lengths[here])
        total, areas[here], first[here], end[here], gap[here], good = decoded(characters, behind)
        wrong = ~good | (total != pixels[here])
        if wrong.any():
            place = int(wrong.argmax())
            index = low + place
            found = f"code of {total[place]} pixels" if good[place] else "code that cannot be decoded"
            fail(index, f"a run-length {found} ({codes[index]!r:.40}) in an image of {pixels[index]}", _EXPECTED)
        text[here], start[here], stop[here] = len(texts), behind - lengths[here], behind
        texts.append(characters)
    return Rles(texts, text, start, stop, sizes.astype(np.int32), areas, first, end, gap)


def _all_compressed(segmentations: Sequence[Any], sizes: Sequence[Size]) -> bool:
    """Whether every mask is a compressed code of the right size, as detectors write them."""
    if set(map(type, segmentations)) != {dict}:
        return False
    found, codes = ([entry.get(key) for entry in segmentations] for key in ("size", "counts"))
    return found == list(sizes) and set(map(type, codes)) == {str}


def _compressed(segmentation: Any, size: Size) -> tuple[str | None, str]:
    """What is wrong, if anything, and the compressed code."""
    if isinstance(segmentation, list):
        if problem := _polygon_problem(segmentation, size):
            return problem, ""
        return None, coco_mask.merge(coco_mask.frPyObjects(segmentation, *size))["counts"].decode("ascii")
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


def _from_run_lengths(runs: list[Any], size: Size) -> tuple[str | None, str]:
    if not all(isinstance(run, int) and run >= 0 for run in runs):
        return f"the run lengths {runs!r:.60}", ""
    if sum(runs) != size[0] * size[1]:
        return f"run lengths of {sum(runs)} pixels in an image of {size[0] * size[1]}", ""
    return None, coco_mask.frPyObjects({"size": size, "counts": runs}, *size)["counts"].decode("ascii")


def _text(codes: list[str], lengths: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The codes joined, and where each ends."""
    text = "".join(codes)
    if not (text.isascii() and lengths.all()):
        codes = [code if code and code.isascii() else _MALFORMED for code in codes]
        return _text(codes, np.fromiter(map(len, codes), np.int64, len(codes)))
    return text.encode("ascii"), np.cumsum(lengths)


def decode(text: bytes, ends: np.ndarray) -> Decoded:
    """The sums of the codes in ``text``, which end before ``ends`` [N]."""
    last = ends - 1
    # Characters below the alphabet wrap around and lie above it.
    bits = np.frombuffer(text, dtype=np.uint8) - np.uint8(48)
    final = bits & 0x20 == 0
    good = final[last]
    if bits.max() > 63:
        good &= ~np.logical_or.reduceat(bits > 63, np.append(0, ends[:-1]))
    final[last] = True  # a code that promises more than it has spoils itself, not its neighbour
    leading = np.flatnonzero(~final)
    behind = ends - np.searchsorted(leading, last)  # values up to the end of each code
    values, wide = _values(bits, final, leading)
    good[np.searchsorted(behind, wide, side="right")] = False
    head, zeros, ones, trailing, gap, negative = _sums(values, behind)
    total = head + zeros + ones
    return Decoded(total, ones, head, total - trailing, gap, good & ~negative)


def _values(bits: np.ndarray, final: np.ndarray, leading: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stored values [V] int32, and the positions of those that are too wide.

    Nearly all have one character, the signed last one (``final``); ``leading`` are the places of the others.
    """
    signed = bits[final]
    signed &= 0x1F
    signed ^= 0x10
    signed -= 0x10
    values = signed.view(np.int8).astype(np.int32)
    if not len(leading):
        return values, leading
    owner = leading - np.arange(len(leading))  # as many values end before it
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    owners, number = owner[first], np.diff(first, append=len(owner))
    digit = np.minimum(np.arange(len(leading)) - np.repeat(first, number), WIDEST - 1)
    low = (bits[leading] & 0x1F).astype(np.int32) << (5 * digit).astype(np.int32)
    values[owners] <<= (5 * np.minimum(number, WIDEST - 1)).astype(np.int32)
    values[owners] += np.add.reduceat(low, first, dtype=np.int32)
    return values, owners[number >= WIDEST]


def _sums(values: np.ndarray, behind: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of each code: its first run, the sums of its other runs of zeros and of ones, the zeros in which it ends, whether
    a run inside is empty, and whether one is negative. Its values end before ``behind``; the array is changed.

    Every run but the first is stored as the difference to the run before the last: a cumulative sum over every second
    value, in two columns, each of which restarts with every code.
    """
    number = np.diff(behind, prepend=0)
    alone = number == 1
    if alone.any():  # one value, thus nothing in one of the columns: no ones behind it say the same
        values = np.insert(values, behind[alone], 0)
        number = number + alone
        behind = np.cumsum(number)
    begin = behind - number
    head = values[begin].astype(np.int64)
    values[begin] = 0
    negative = head < 0
    odd = begin % 2 == 1  # its zeros stand in the second column
    gap = np.zeros(len(behind), dtype=bool)
    last, sums = [], []
    for parity in (0, 1):
        starts = (begin + 1 - parity) // 2
        column = values[parity::2]
        end = np.add.reduceat(column, starts, dtype=np.int32)
        column[starts[1:]] -= end[:-1]
        runs = np.cumsum(column, dtype=np.int32)
        lowest, highest = int(runs.min()), int(runs.max())
        if lowest < 0:
            negative |= np.minimum.reduceat(runs, starts) < 0
        narrow = lowest >= 0 and highest * int(number.max()) < 1 << 31
        sums.append(np.add.reduceat(runs, starts, dtype=np.int32 if narrow else np.int64))
        last.append(end)
        empty = np.flatnonzero(runs == 0) * 2 + parity
        owner = np.searchsorted(behind, empty, side="right")
        gap[owner[(empty > begin[owner]) & (empty < behind[owner] - 1)]] = True
    zeros, ones = np.where(odd, sums[::-1], sums).astype(np.int64)
    trailing = np.where(number % 2 == 1, np.where(odd, *last[::-1]), np.where(alone, head, 0))
    return head, zeros, ones, trailing, gap, negative
