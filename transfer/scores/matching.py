"""Greedy matching of detections to objects, for all IoU thresholds and area ranges at once.

The rule is pycocotools' (``COCOeval.evaluateImg``): detections of one category in one image come in order of score;
each takes the free object of highest IoU at or above the threshold, the last one in the file among equals; objects to
be ignored (crowds, or of a size outside the area range) are taken only if no other is left, and a crowd is never used
up.

The T thresholds × A area ranges are T·A independent runs of that rule. Run (t, a) is bit ``a·T + t`` of a 64-bit
word: a word per pair says at which thresholds it counts, one per object in which runs it is ignored and in which it
is taken, one per detection which runs still look for an object. One step of the rule is then a few bitwise
operations, carried out for all (category, image) groups together.
"""

from dataclasses import dataclass

import numpy as np

from momentum_transfer.transfer.scores.overlaps import Pairs

#: IoU .50 : .05 : .95 and recall 0 : .01 : 1, as the references build them (linspace, not arange: other bits).
IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)
AREA_NAMES = ("all", "small", "medium", "large")
AREA_RANGES = ((0.0, 1e5**2), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e5**2))

THRESHOLDS, AREAS = len(IOU_THRESHOLDS), len(AREA_RANGES)
RUNS = THRESHOLDS * AREAS

#: The references accept an IoU of 1 − 1e-10 where the threshold is 1.
EFFECTIVE_THRESHOLDS = np.minimum(IOU_THRESHOLDS, 1 - 1e-10)

_ONE_AREA = (1 << THRESHOLDS) - 1
_EVERY_AREA = sum(1 << (area * THRESHOLDS) for area in range(AREAS))
_ALL_RUNS = np.int64(_ONE_AREA * _EVERY_AREA)


@dataclass(frozen=True)
class Matches:
    """What became of the detections that took an object in at least one run; words of ``RUNS`` bits."""

    detection: np.ndarray  # [M] positions
    counted: np.ndarray  # [M] runs in which the object counts: a true positive
    ignored: np.ndarray  # [M] runs in which the object is to be ignored: neither true nor false

    def take(self, which: np.ndarray | slice) -> "Matches":
        """The matches at the positions ``which``."""
        return Matches(self.detection[which], self.counted[which], self.ignored[which])


def in_area(area: np.ndarray) -> np.ndarray:
    """[A, N] bool: whether each area lies in each range, both ends included."""
    return np.stack([(area >= low) & (area <= high) for low, high in AREA_RANGES])


def area_words(flags: np.ndarray) -> np.ndarray:
    """[N] words from [A, N] bool: all thresholds of an area range where its flag is set."""
    words = np.zeros(flags.shape[1], dtype=np.int64)
    for area, flag in enumerate(flags):
        words |= np.where(flag, np.int64(_ONE_AREA << (area * THRESHOLDS)), np.int64(0))
    return words


def match(pairs: Pairs, group: np.ndarray, ignored: np.ndarray, crowd: np.ndarray, zero_id: np.ndarray) -> Matches:
    """Run the rule for all groups.

    Args:
        pairs: candidates, ordered by detection; detections are ordered by group and, within one, by rank.
        group: [D] group of each detection, ascending.
        ignored: [G] words, the runs in which an object is to be ignored.
        crowd: [G] bool, objects that any number of detections may take (they are ignored in every run).
        zero_id: [G] bool, objects whose annotation id is 0. The references keep the matched id and read 0 as "no
            match": such an object is used up, but its detection counts as unmatched unless the object is to be ignored.
    """
    pairs = _by_preference(pairs)
    passing = np.searchsorted(EFFECTIVE_THRESHOLDS, pairs.iou, side="right")
    wanted = ((np.int64(1) << passing) - 1) * np.int64(_EVERY_AREA)
    taken = np.zeros(len(ignored), dtype=np.int64)
    searching = np.full(len(group), _ALL_RUNS)
    reusable = np.where(crowd, _ALL_RUNS, np.int64(0))
    counted, spared = np.zeros_like(wanted), np.zeros_like(wanted)
    for pair, second in _steps(pairs.detection, group):
        d, g = pairs.detection[pair], pairs.object[pair]
        eligible = np.where(second, ignored[g], ~ignored[g])
        got = wanted[pair] & eligible & searching[d] & (~taken[g] | reusable[g])
        searching[d] &= ~got
        taken[g] |= got
        counted[pair] |= np.where(second | zero_id[g], 0, got)
        spared[pair] |= np.where(second, got, 0)
    return _by_detection(pairs.detection, counted, spared)


def _by_preference(pairs: Pairs) -> Pairs:
    """Order each detection's pairs by IoU, highest first, and equal ones by object, last first."""
    same = pairs.detection[1:] == pairs.detection[:-1]
    several = np.flatnonzero(np.append(same, False) | np.append(False, same))  # few detections have a choice
    order = np.arange(len(pairs.detection))
    order[several] = several[np.lexsort((-pairs.object[several], -pairs.iou[several], pairs.detection[several]))]
    return Pairs(pairs.detection[order], pairs.object[order], pairs.iou[order])


def _steps(detection: np.ndarray, group: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Steps (pair indices, whether it is the second look), at most one pair of every group in a step.

    Within a group: detection by detection, first all its pairs looking at counted objects, then all of them again
    looking at objects to be ignored.
    """
    if not len(detection):
        return []
    positions = np.arange(len(detection))
    per_detection = np.bincount(detection)
    first_of_detection = (np.cumsum(per_detection) - per_detection)[detection]
    pair_group = group[detection]
    starts = np.flatnonzero(np.diff(pair_group, prepend=pair_group[0] - 1))
    first_of_group = np.repeat(starts, np.diff(np.append(starts, len(positions))))
    before = first_of_detection - first_of_group
    within = positions - first_of_detection
    step = np.concatenate((2 * before + within, 2 * before + within + per_detection[detection]))
    order = np.argsort(step, kind="stable")
    pair, second = np.concatenate((positions, positions))[order], order >= len(positions)
    bounds = np.cumsum(np.bincount(step))[:-1]
    return list(zip(np.split(pair, bounds), np.split(second, bounds), strict=True))


def _by_detection(detection: np.ndarray, counted: np.ndarray, ignored: np.ndarray) -> Matches:
    """Join the pairs of a detection: every run is set in at most one of them."""
    starts = np.flatnonzero(np.diff(detection, prepend=-1))
    if not len(starts):
        return Matches(detection, counted, ignored)
    counted, ignored = np.bitwise_or.reduceat(counted, starts), np.bitwise_or.reduceat(ignored, starts)
    kept = (counted | ignored) != 0
    return Matches(detection[starts][kept], counted[kept], ignored[kept])
