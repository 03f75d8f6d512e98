"""Run-length codes decoded and compared in machine code by numba, as ``rle`` and ``greedy_matching`` do without it.

Only ``rle.kernels`` imports this, if it saves time. The functions are compiled once and cached on disk beside this file
(or in the user's cache folder).
"""

import numpy as np
from numba import boolean, int32, int64, njit, types, void

from momentum_transfer.transfer.scores.rle import WIDEST, Decoded

_TEXT = types.Array(types.uint8, 1, "C", readonly=True)
_ENDS, _RUNS = int64[::1], int32[::1]


def decode(text: bytes, ends: np.ndarray) -> Decoded:
    """As ``rle.decode``."""
    numbers, flags = np.empty((4, len(ends)), dtype=np.int64), np.empty((2, len(ends)), dtype=bool)
    _decode(np.frombuffer(text, np.uint8), ends, *numbers, *flags)
    return Decoded(*numbers, *flags)


def shared(codes: list[bytes], others: list[bytes], which: np.ndarray) -> np.ndarray:
    """[P] int64 pixels that each of P masks has in common with that of ``others`` at ``which`` [P], sorted."""
    text, start = _joined(codes)
    other_text, other_start = _joined(others)
    longest = max(map(len, (*codes, *others)), default=0)
    found = np.empty(len(codes), dtype=np.int64)
    bounds, other_bounds = np.empty((2, longest), dtype=np.int32)
    _shared(text, start, other_text, other_start, which, bounds, other_bounds, found)
    return found


def _joined(codes: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The codes joined, and where each begins and the last ends."""
    ends = np.cumsum(np.fromiter(map(len, codes), np.int64, len(codes)))
    return np.frombuffer(b"".join(codes), np.uint8), np.append(0, ends)


@njit(void(_TEXT, _ENDS, _ENDS, _ENDS, _ENDS, _ENDS, boolean[::1], boolean[::1]), cache=True)
def _decode(text, ends, total, area, first, end, gap, good):
    place = 0
    for code in range(len(ends)):
        number, last, before, ones, pixels, head = 0, int64(0), int64(0), int64(0), int64(0), int64(0)
        empty, fine = False, True
        while place < ends[code]:
            value, shift = int64(0), 0
            while True:
                bits = int64(text[place]) - 48
                place += 1
                fine = fine and 0 <= bits <= 63
                if not bits & 0x20:
                    value |= ((bits & 0x0F) - (bits & 0x10)) << shift
                    break
                value |= (bits & 0x1F) << shift
                shift += 5
                if shift == 5 * WIDEST or place == ends[code]:  # too wide a value, or one without an end
                    fine = False
                    break
            if number > 2:
                value = int64(int32(value + before))
            fine = fine and value >= 0
            empty = empty or (number > 1 and last == 0)
            last, before = value, last
            pixels += value
            if number == 0:
                head = value
            if number % 2:
                ones += value
            number += 1
        total[code], area[code], first[code] = pixels, ones, head
        gap[code], good[code] = empty, fine
        end[code] = pixels - last if number % 2 else pixels


@njit  # a part of ``_shared``
def _bounds(text, place, stop, bounds):
    """Where the runs of a good code end, and how many there are."""
    number, position, last, before = 0, int64(0), int64(0), int64(0)
    while place < stop:
        value, shift = int64(0), 0
        bits = int64(text[place]) - 48
        place += 1
        while bits & 0x20:
            value |= (bits & 0x1F) << shift
            shift += 5
            bits = int64(text[place]) - 48
            place += 1
        value |= ((bits & 0x0F) - (bits & 0x10)) << shift
        if number > 2:
            value = int64(int32(value + before))
        last, before = value, last
        position += value
        bounds[number] = position
        number += 1
    return number


@njit(void(_TEXT, _ENDS, _TEXT, _ENDS, _ENDS, _RUNS, _RUNS, _ENDS), cache=True)
def _shared(text, start, other_text, other_start, which, bounds, other_bounds, found):
    known, others = -1, 0
    for pair in range(len(which)):
        if which[pair] != known:
            known = which[pair]
            others = _bounds(other_text, other_start[known], other_start[known + 1], other_bounds)
        own = _bounds(text, start[pair], start[pair + 1], bounds)
        here, there, pixels = 0, 0, int64(0)
        while here + 1 < own and there + 1 < others:  # runs of ones lie between an even bound and the next
            end, other_end = bounds[here + 1], other_bounds[there + 1]
            pixels += max(min(end, other_end) - max(bounds[here], other_bounds[there]), 0)
            here += 2 * (end <= other_end)
            there += 2 * (other_end <= end)
        found[pair] = pixels
