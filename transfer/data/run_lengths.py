"""Masks of COCO segmentations as arrays.

pycocotools draws the polygons. Its ``decode`` is not used: under NumPy 2 it warns at every call, because it makes its
array by a protocol that NumPy is about to drop.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask


def decode_mask(segmentation: Any, height: int, width: int) -> NDArray[np.bool_]:
    """Mask [height, width] of a COCO segmentation: polygons, or (un)compressed run lengths.

    Raises:
        ValueError: run lengths that do not sum up to the pixels of the image.
    """
    if isinstance(segmentation, list):
        segmentation = coco_mask.merge(coco_mask.frPyObjects(segmentation, height, width))
    runs = checked_runs(segmentation["counts"], height, width)
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def encode_mask(bitmap: NDArray[np.bool_]) -> dict[str, Any]:
    """COCO's compressed run lengths of a mask [height, width]."""
    runs = coco_mask.encode(np.asfortranarray(bitmap.astype(np.uint8)))
    return {"size": runs["size"], "counts": runs["counts"].decode("ascii")}


def checked_runs(counts: Any, height: int, width: int) -> NDArray[np.int64]:
    """The runs of an RLE's ``counts``, compressed or not, of which it is known that they fill [height, width].

    Raises:
        ValueError: they do not, or they are no whole numbers of at least 0.
    """
    if isinstance(counts, list):
        if not all(type(run) is int and 0 <= run <= height * width for run in counts):
            raise ValueError(f"run lengths need to be whole numbers from 0 to {height} x {width}")
        runs = np.asarray(counts, dtype=np.int64)
    else:
        runs = run_lengths(counts)
    if runs.min(initial=0) < 0 or runs.sum() != height * width:
        raise ValueError(f"run lengths of {runs.sum()} pixels, expected {height} x {width}")
    return runs


def run_lengths(code: Any) -> NDArray[np.int64]:
    """Lengths of the runs of zeros, ones, zeros, …, column after column, from COCO's compressed code.

    A character minus 48 holds five bits of a number, lowest first, and in its sixth whether more follow; the last one's
    fifth bit is the sign. From the fourth number on each is a difference from the one two before (maskApi.c).
    """
    if not isinstance(code, str | bytes):
        raise ValueError(f"expected compressed run lengths, found {code!r:.40}")
    bits = np.frombuffer(code if isinstance(code, bytes) else code.encode("latin-1"), dtype=np.uint8) - np.uint8(48)
    ends = np.flatnonzero(bits & 0x20 == 0)
    digits = np.diff(ends, prepend=-1)
    if not len(ends) or ends[-1] != len(bits) - 1 or digits.max() > 6 or bits.max() > 63:  # 6: runs of up to 2^29
        raise ValueError(f"expected compressed run lengths, found {code!r:.40}")
    begins = ends - digits + 1
    place = np.arange(len(bits)) - np.repeat(begins, digits)
    values = np.add.reduceat((bits & 0x1F).astype(np.int64) << (5 * place), begins)
    values -= (bits[ends] & 0x10 != 0) * (np.int64(1) << (5 * digits))
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values
