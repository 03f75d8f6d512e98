"""Greedy matching of detections to objects, for all IoU thresholds and area ranges at once.

The rule is pycocotools' (``COCOeval.evaluateImg``): by falling score each detection of a category in an image takes the
free object of highest IoU at or above the threshold, the last in the file among equals; objects to be ignored (crowds,
or of a size outside the area range) are taken only if no other is left, and a crowd is never used up.

The T thresholds × A area ranges are T·A independent runs of that rule. Run (t, a) is bit ``a·T + t`` of a 64-bit word:
a word per pair says at which thresholds it counts, one per object in which runs it is ignored and in which it is taken,
one per detection in which runs it still looks for an object. One step of the rule is then a few bitwise operations for
all (category, image) groups together.

Only pairs of a detection and an object of its group whose IoU reaches the lowest threshold are kept, so that work and
memory follow the pairs that can match, not images × categories.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType

import numpy as np
from pycocotools import mask as coco_mask

from momentum_transfer.transfer.scores.rle import Rles, kernels

_BLOCK_PAIRS = 1 << 15  # pairs whose overlap is computed at a time: they stay in the processor's cache
_BLOCK_MASKS = 1 << 14  # of masks: their codes are copied, those of large images have thousands of characters
_TOGETHER = 16  # objects in one call of pycocotools


@dataclass(frozen=True)
class Pairs:
    """P pairs, ordered by detection and then by object: positions among the sorted detections and objects."""

    detection: np.ndarray  # [P]
    object: np.ndarray  # [P]
    iou: np.ndarray  # [P] float64


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def box_pairs(
    detection_group: np.ndarray, object_group: np.ndarray, detections: np.ndarray, objects: np.ndarray,
    crowd: np.ndarray, lowest: float,
) -> Pairs:  # fmt: skip
    """Pairs of boxes with an IoU of at least ``lowest`` > 0, in pycocotools' order of operations.

    Groups [D], [G] are sorted; boxes are [D, 4], [G, 4] (x, y, width, height). For a crowd the denominator is the
    detection's area alone. Boxes whose area is too large or too small for a float have an IoU of 0 (pycocotools gets
    NaN and takes it for a match).
    """
    (left, top, *sides), (left_of, top_of, *sides_of) = detections.T, objects.T
    right, bottom, area = sides[0] + left, sides[1] + top, sides[0] * sides[1]
    right_of, bottom_of, area_of = sides_of[0] + left_of, sides_of[1] + top_of, sides_of[0] * sides_of[1]
    found = []
    for d, g in _all_pairs(detection_group, object_group, _BLOCK_PAIRS):
        width = np.minimum(right[d], right_of[g]) - np.maximum(left[d], left_of[g])
        touching = width > 0
        d, g, width = d[touching], g[touching], width[touching]
        height = np.minimum(bottom[d], bottom_of[g]) - np.maximum(top[d], top_of[g])
        shared = width * np.maximum(height, 0)
        union = np.where(crowd[g], area[d], area[d] + area_of[g] - shared)
        iou = np.divide(shared, union, out=np.zeros(len(shared)), where=union > 0)
        keep = iou >= lowest
        found.append((d[keep], g[keep], iou[keep]))
    return _joined(found)


def mask_pairs(
    detection_group: np.ndarray, object_group: np.ndarray, detections: Rles, objects: Rles,
    crowd: np.ndarray, lowest: float,
) -> Pairs:  # fmt: skip
    """Pairs of masks with an IoU of at least ``lowest``, counted on run lengths by the compiled kernels or pycocotools.

    Only masks that may reach it by their sizes and places are compared (``_iou_bound``). pycocotools stops counting
    where both masks have an empty run after runs that end together; to keep its number, masks with empty runs inside
    (``Rles.gap``), which no encoder writes, are always left to it.
    """
    found = []
    for d, g in _all_pairs(detection_group, object_group, _BLOCK_MASKS):
        keep = _iou_bound(detections, objects, d, g, crowd[g]) >= lowest
        d, g = d[keep], g[keep]
        iou = _mask_iou(detections, objects, d, g, crowd)
        keep = iou >= lowest
        found.append((d[keep], g[keep], iou[keep]))
    return _joined(found)


def _iou_bound(detections: Rles, objects: Rles, d: np.ndarray, g: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """[P] upper bounds of the IoU: the intersection is within the smaller mask, and within their common range."""
    area, other = detections.areas[d], objects.areas[g]
    both = np.minimum(detections.end[d], objects.end[g]) - np.maximum(detections.first[d], objects.first[g])
    shared = np.minimum(np.minimum(area, other), np.maximum(both, 0))
    union = np.where(crowd, area, area + other - shared)
    unknown = (detections.gap[d] | objects.gap[g]).astype(np.float64)
    return np.divide(shared, union, out=unknown, where=(shared > 0) & (unknown == 0))


def _mask_iou(detections: Rles, objects: Rles, d: np.ndarray, g: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """[P] IoU of the pairs, by the kernels if they are loaded and count as pycocotools does."""
    compiled = kernels()
    gap = detections.gap[d] | objects.gap[g]
    iou = np.empty(len(d))
    for some, by in ((gap, None), (~gap, compiled)):
        iou[some] = _by_object(detections, objects, d[some], g[some], crowd, by)
    return iou


def _by_object(
    detections: Rles, objects: Rles, d: np.ndarray, g: np.ndarray, crowd: np.ndarray, compiled: ModuleType | None
) -> np.ndarray:
    """[P] IoU of the pairs, worked on object by object."""
    iou = np.zeros(len(d))
    if not len(d):
        return iou
    order = in_order(g)
    starts = np.flatnonzero(np.diff(g[order], prepend=-1))  # of each object's pairs
    columns = g[order[starts]]
    owner = np.repeat(np.arange(len(columns)), np.diff(starts, append=len(g)))
    codes, object_codes = detections.codes_at(d[order]), objects.codes_at(columns)
    if compiled is None:
        iou[order] = _by_pycocotools(codes, object_codes, starts, owner, objects.sizes[columns], crowd[columns])
        return iou
    shared = np.empty(len(d))
    shared[order] = compiled.shared(codes, object_codes, owner)
    area = detections.areas[d]
    union = np.where(crowd[g], area, area + objects.areas[g] - shared)
    return np.divide(shared, union, out=iou, where=shared > 0)


def _by_pycocotools(
    codes: list[bytes], object_codes: list[bytes], starts: np.ndarray, owner: np.ndarray, sizes: np.ndarray,
    crowd: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """[P] IoU of masks, each with the object ``owner`` [P]; those of an object begin at ``starts``.

    A call takes a few objects and all their masks. It compares every mask with every object, but skips two of different
    sizes. So every object gets a width of its own, whatever its image's: where the pixels are follows from the height
    alone. (On masks of equal sizes but unequal numbers of pixels pycocotools never ends.)
    """
    place = np.arange(len(starts)) % _TOGETHER
    apart = np.stack((sizes[:, 0], sizes[:, 1].max() + place), axis=1).tolist()
    masks_apart = [apart[one] for one in owner.tolist()]
    flags, own = crowd.astype(np.uint8), place[owner]
    bounds = np.append(starts[::_TOGETHER], len(codes)).tolist()
    iou = np.empty(len(codes))
    for first, (start, stop) in zip(range(0, len(starts), _TOGETHER), pairwise(bounds), strict=True):
        few, here = slice(first, first + _TOGETHER), slice(start, stop)
        masks, others = (
            [{"size": size, "counts": code} for size, code in zip(sizes, codes, strict=True)]
            for sizes, codes in ((masks_apart[here], codes[here]), (apart[few], object_codes[few]))
        )
        iou[here] = coco_mask.iou(masks, others, flags[few])[np.arange(len(masks)), own[here]]
    return iou


def _joined(found: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Pairs:
    return Pairs(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _all_pairs(
    detection_group: np.ndarray, object_group: np.ndarray, most: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every (detection, object) of a common group, in blocks of about ``most``; at least one block."""
    first = np.searchsorted(object_group, detection_group, side="left")
    number = np.searchsorted(object_group, detection_group, side="right") - first
    paired = np.flatnonzero(number)
    first, number = first[paired], number[paired]
    block = np.cumsum(number) // most
    for chosen in np.split(np.arange(len(paired)), np.flatnonzero(np.diff(block)) + 1):
        count = number[chosen]
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        yield np.repeat(paired[chosen], count), np.repeat(first[chosen], count) + offset


#: IoU .50 : .05 : .95 and recall 0 : .01 : 1, as the references build them (linspace, not arange: other bits).
IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)
AREA_NAMES = ("all", "small", "medium", "large")
AREA_RANGES = ((0.0, 1e5**2), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e5**2))

THRESHOLDS, AREAS = len(IOU_THRESHOLDS), len(AREA_RANGES)
RUNS = THRESHOLDS * AREAS

_ONE_AREA = (1 << THRESHOLDS) - 1
_EVERY_AREA = sum(1 << (area * THRESHOLDS) for area in range(AREAS))
_ALL_RUNS = np.int64(_ONE_AREA * _EVERY_AREA)


@dataclass(frozen=True)
class Matches:
    """The M detections that took an object in at least one run; words of ``RUNS`` bits."""

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
    return np.array([_ONE_AREA << (area * THRESHOLDS) for area in range(AREAS)]) @ flags


def match(pairs: Pairs, group: np.ndarray, ignored: np.ndarray, crowd: np.ndarray, zero_id: np.ndarray) -> Matches:
    """Run the rule for all groups.

    Args:
        pairs: candidates, ordered by detection; detections are ordered by group and, within one, by rank.
        group: [D] group of each detection, ascending.
        ignored: [G] words, the runs in which an object is to be ignored.
        crowd: [G] bool, objects that any number of detections may take (they are ignored in every run).
        zero_id: [G] bool, objects whose annotation id is 0, which the references read as "no match": the object is used
            up, but its detection counts as unmatched unless the object is to be ignored.
    """
    pairs = _by_preference(pairs)
    passing = np.searchsorted(IOU_THRESHOLDS, pairs.iou, side="right")
    runs = ((np.int64(1) << passing) - 1) * np.int64(_EVERY_AREA)
    taken = np.zeros(len(ignored), dtype=np.int64)
    searching = np.full(len(group), _ALL_RUNS)
    reusable = np.where(crowd, _ALL_RUNS, np.int64(0))
    counted, spared = np.zeros_like(runs), np.zeros_like(runs)
    for pair, second in _steps(pairs.detection, group):
        d, g = pairs.detection[pair], pairs.object[pair]
        eligible = np.where(second, ignored[g], ~ignored[g])
        got = runs[pair] & eligible & searching[d] & (~taken[g] | reusable[g])
        searching[d] &= ~got
        taken[g] |= got
        counted[pair] |= np.where(second | zero_id[g], 0, got)
        spared[pair] |= np.where(second, got, 0)
    return _by_detection(pairs.detection, counted, spared)


def in_order(keys: np.ndarray) -> np.ndarray:
    """The positions of whole numbers ≥ 0 [N] in ascending order; equal ones stay in order.

    NumPy sorts numbers that all differ many times faster than it sorts stably.
    """
    bits = len(keys).bit_length()
    if int(keys.max(initial=0)) >> (63 - bits):  # no room for the positions beside them
        return np.argsort(keys, kind="stable")
    return np.sort(keys.astype(np.int64) << bits | np.arange(len(keys))) & (1 << bits) - 1


def _by_preference(pairs: Pairs) -> Pairs:
    """Order each detection's pairs by IoU, highest first, and equal ones by object, last first."""
    same = pairs.detection[1:] == pairs.detection[:-1]
    several = np.flatnonzero(np.append(same, False) | np.append(False, same))  # few detections have a choice
    order = np.arange(len(pairs.detection))
    order[several] = several[np.lexsort((-pairs.object[several], -pairs.iou[several], pairs.detection[several]))]
    return Pairs(pairs.detection[order], pairs.object[order], pairs.iou[order])


def _steps(detection: np.ndarray, group: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Steps (pair indices, whether it is the second look), at most one pair of every group in a step.

    Within a group: detection by detection, first all its pairs for counted objects, then again for ignored ones.
    """
    positions = np.arange(len(detection))
    per_detection = np.bincount(detection)
    first_of_detection = (np.cumsum(per_detection) - per_detection)[detection]
    pair_group = group[detection]
    starts = np.flatnonzero(np.diff(pair_group, prepend=-1))
    first_of_group = np.repeat(starts, np.diff(np.append(starts, len(positions))))
    before = first_of_detection - first_of_group
    within = positions - first_of_detection
    step = np.concatenate((2 * before + within, 2 * before + within + per_detection[detection]))
    order = in_order(step)
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
