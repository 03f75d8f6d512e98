"""Precision-recall curves under many sets of image weights at once: sort once, then weighted cumulative sums.

The curve of a run (category, area range, IoU threshold) changes only at its true positives. So each run is the list of
its true positives in order of score; a block of resamples is a matrix [B, entries], and one pass of cumulative sums
gives true and false positives of every entry in every resample. Weights are whole numbers, so all counts are exact: the
unit weights reproduce the evaluator's numbers bit for bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from momentum_transfer.verdicts.ranked import Ranked

#: Entries × resamples that are worked on at a time; about 40 bytes each.
CHUNK = 1 << 18


@dataclass(frozen=True)
class Part:
    """The runs of the categories [low, high): R = (high − low)·A·T of them, in the order [category, area, threshold].

    E entries, run by run: the detections that take an object, in order of score, then one that closes the run.
    """

    low: int
    high: int
    image: np.ndarray  # [E], ``images`` (of weight 0) for the closing entry
    counted: np.ndarray  # [E] int32, 1 for a true positive
    spared: np.ndarray  # [E] int32, 1 if the match keeps a detection from being a false positive
    first_limit: np.ndarray  # [E] the first limit that keeps it
    run_start: np.ndarray  # [R] first entry of each run
    run_of: np.ndarray  # [E]
    before: np.ndarray  # [E] row of ``blame`` that counts the false positive candidates before the entry
    blame: sparse.csr_matrix  # [rows, images]: detections between an entry's detection and the one before it
    blame_start: np.ndarray  # [starts] rows where the cumulative sum begins anew
    blame_of: np.ndarray  # [rows] which of them
    most: int  # detections and objects in the part
    positives: sparse.csr_matrix  # [(high − low)·A, images] objects that count

    @property
    def last(self) -> np.ndarray:
        """[R] the closing entry of each run."""
        return np.append(self.run_start[1:], len(self.image)) - 1


@dataclass(frozen=True)
class Curves:
    """The curves of a part under B sets of weights, at its entries.

    Attributes:
        true, false: [B, E] true and false positives up to and including the entry.
        positives: [B, (high − low)·A] objects that count.
        weights: [B, E] of the entries.
    """

    part: Part
    true: np.ndarray
    false: np.ndarray
    positives: np.ndarray
    weights: np.ndarray


def parts(ranked: Ranked, resamples: int) -> list[Part]:
    """The categories in parts small enough for a block of ``resamples``."""
    sizes = np.add.reduceat(_popcount(ranked), np.minimum(_match_starts(ranked)[:-1], max(0, len(ranked.match) - 1))) \
        if len(ranked.match) else np.zeros(ranked.categories, dtype=np.int64)  # fmt: skip
    sizes = np.where(np.diff(_match_starts(ranked)) > 0, sizes, 0) + ranked.runs
    found, low = [], 0
    while low < ranked.categories:
        high, total = low + 1, int(sizes[low])
        while high < ranked.categories and (total + int(sizes[high])) * resamples <= CHUNK:
            total += int(sizes[high])
            high += 1
        found.append(_part(ranked, low, high))
        low = high
    return found


def curves(part: Part, weights: np.ndarray) -> Curves:
    """The curves under ``weights`` [B, images], whole numbers of at least 0."""
    # Sums of weights over detections: 32 bits hold them unless there are hundreds of millions.
    kind = np.int32 if int(weights.max(initial=0)) * part.most < 1 << 31 else np.int64
    padded = np.concatenate((weights, np.zeros((len(weights), 1), weights.dtype)), axis=1).astype(kind)
    own = np.take(padded, part.image, axis=1)  # in row order, which padded[:, …] would not be
    true = _since(np.cumsum(own * part.counted.astype(kind), axis=1, dtype=kind), part.run_start, part.run_of)
    spared = _since(np.cumsum(own * part.spared.astype(kind), axis=1, dtype=kind), part.run_start, part.run_of)
    transposed = np.ascontiguousarray(padded[:, :-1].T)
    blame = np.cumsum(np.ascontiguousarray((part.blame.astype(kind) @ transposed).T), axis=1, dtype=kind)
    false = _since(blame, part.blame_start, part.blame_of).take(part.before, axis=1) - spared
    positives = np.ascontiguousarray((part.positives.astype(kind) @ transposed).T)
    return Curves(part, true, false, positives, own)


def envelope(precision: np.ndarray, part: Part) -> np.ndarray:
    """The best precision at or after each entry of a run, in place; ``precision`` [B, E]."""
    ends = np.append(part.run_start[1:], precision.shape[1])
    for start, end in zip(part.run_start.tolist(), ends.tolist(), strict=True):
        if end - start > 2:  # the closing entry has precision 0
            run = precision[:, start:end][:, ::-1]
            np.maximum.accumulate(run, axis=1, out=run)
    return precision


def blocks(weights: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Consecutive rows, ``size`` at a time."""
    for start in range(0, len(weights), size):
        yield weights[start : start + size]


def _since(totals: np.ndarray, start: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Cumulative sums [B, E] that begin anew at each ``start`` [R]; entry e belongs to the run ``of[e]``, in place."""
    base = totals[:, start - 1]
    base[:, start == 0] = 0
    totals -= base.take(of, axis=1)
    return totals


def _match_starts(ranked: Ranked) -> np.ndarray:
    return np.searchsorted(ranked.match, ranked.starts)


def _popcount(ranked: Ranked) -> np.ndarray:
    words = ranked.counted | ranked.ignored
    return sum(((words >> run) & 1 for run in range(ranked.runs)), start=np.zeros(len(words), dtype=np.int64))


def _part(ranked: Ranked, low: int, high: int) -> Part:
    starts = _match_starts(ranked)
    matches = slice(int(starts[low]), int(starts[high]))
    match = ranked.match[matches]
    category = np.searchsorted(ranked.starts, match, side="right") - 1 - low
    # [A, T, M]
    shifts = np.arange(ranked.runs, dtype=np.int64).reshape(ranked.areas, ranked.thresholds, 1)
    counted = ((ranked.counted[matches] >> shifts) & 1).astype(bool)
    ignored = ((ranked.ignored[matches] >> shifts) & 1).astype(bool)
    fp_candidate = ((ranked.fp_candidate[match] >> np.arange(ranked.areas)[:, None]) & 1).astype(bool)[:, None]
    spared = (counted | ignored) & fp_candidate
    area, threshold, place = np.nonzero(counted | spared)
    run = (category[place] * ranked.areas + area) * ranked.thresholds + threshold
    order = np.argsort(run, kind="stable")  # places ascend within a run
    area, threshold, place, run = area[order], threshold[order], place[order], run[order]
    runs = (high - low) * ranked.runs
    ends = np.searchsorted(run, np.arange(runs), side="right")

    def closed(values: np.ndarray, closing: int) -> np.ndarray:
        return np.insert(values, ends, closing)

    lengths = np.diff(ends, prepend=0) + 1
    blame, blame_start, blame_of, rows = _blame(ranked, low, high, match, category)
    before = area * rows + place
    return Part(
        low,
        high,
        image=closed(ranked.image[match[place]], ranked.images),
        counted=closed(counted[area, threshold, place].astype(np.int32), 0),
        spared=closed(spared[area, threshold, place].astype(np.int32), 0),
        first_limit=closed(ranked.limit[matches][place], 0),
        run_start=np.cumsum(lengths) - lengths,
        run_of=np.repeat(np.arange(runs), lengths),
        before=closed(before, 0),
        blame=blame,
        blame_start=blame_start,
        blame_of=blame_of,
        most=ranked.areas * (int(ranked.starts[high] - ranked.starts[low]) + len(ranked.object_image) + len(run)),
        positives=_positives(ranked, low, high),
    )


def _blame(
    ranked: Ranked, low: int, high: int, match: np.ndarray, category: np.ndarray
) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray, int]:
    """False positive candidates, by area range and by the next matched detection of their category.

    Returns:
        [A·rows, images] counts, rows where a category begins, which of those each row belongs to, rows per area range.
    """
    rows = max(1, len(match))
    span = np.arange(int(ranked.starts[low]), int(ranked.starts[high]))
    owner = np.searchsorted(ranked.starts, span, side="right") - 1 - low
    following = np.searchsorted(match, span)
    kept = following < len(match)
    kept[kept] = category[following[kept]] == owner[kept]
    span, following = span[kept], following[kept]
    which = [np.flatnonzero((ranked.fp_candidate[span] >> area) & 1) for area in range(ranked.areas)]
    row = np.concatenate([following[found] + area * rows for area, found in enumerate(which)])
    image = np.concatenate([ranked.image[span[found]] for found in which])
    counts = sparse.csr_matrix(
        (np.ones(len(row), dtype=np.int64), (row, image)), shape=(ranked.areas * rows, ranked.images)
    )
    start, of = np.unique(category, return_inverse=True)
    start = np.searchsorted(category, start) if len(category) else np.zeros(1, dtype=np.int64)
    of = of if len(category) else np.zeros(1, dtype=np.int64)
    starts = np.concatenate([start + area * rows for area in range(ranked.areas)])
    groups = np.concatenate([of + area * len(start) for area in range(ranked.areas)])
    return counts, starts, groups, rows


def _positives(ranked: Ranked, low: int, high: int) -> sparse.csr_matrix:
    mine = np.flatnonzero((ranked.object_category >= low) & (ranked.object_category < high))
    which = [mine[((ranked.object_areas[mine] >> area) & 1).astype(bool)] for area in range(ranked.areas)]
    row = np.concatenate(
        [(ranked.object_category[found] - low) * ranked.areas + area for area, found in enumerate(which)]
    )
    image = np.concatenate([ranked.object_image[found] for found in which])
    return sparse.csr_matrix(
        (np.ones(len(row), dtype=np.int64), (row, image)), shape=((high - low) * ranked.areas, ranked.images)
    )
