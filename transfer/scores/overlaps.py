"""Candidate pairs: which detections overlap which objects of the same category in the same image, and how much.

Everything is sparse. A detection whose category has no object in its image has no pair, and a pair below the lowest
threshold is dropped at once, so work and memory follow the pairs that can match, not images × categories.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pycocotools import mask as coco_mask

from transfer.scores.collector import paused_collector
from transfer.scores.masks import Rles

_BLOCK_PAIRS = 1 << 17  # pairs whose overlap is computed at a time


@dataclass(frozen=True)
class Pairs:
    """P pairs, ordered by detection and then by object: positions among the sorted detections and objects."""

    detection: np.ndarray  # [P]
    object: np.ndarray  # [P]
    iou: np.ndarray  # [P] float64


@np.errstate(over="ignore", invalid="ignore")
def box_iou(detections: np.ndarray, objects: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """IoU [P] of boxes [P, 4] (x, y, width, height) taken pair by pair, in pycocotools' order of operations.

    For a crowd object the denominator is the detection's area alone. Boxes that only touch have 0, and so have
    boxes whose area is too large or too small for a float (pycocotools gets NaN there and takes it for a match).
    """
    d, g = detections.T, objects.T
    width = np.minimum(d[2] + d[0], g[2] + g[0]) - np.maximum(d[0], g[0])
    height = np.minimum(d[3] + d[1], g[3] + g[1]) - np.maximum(d[1], g[1])
    area = d[2] * d[3]
    shared = width * height
    union = np.where(crowd, area, area + g[2] * g[3] - shared)
    touching = (width > 0) & (height > 0)
    return np.divide(shared, union, out=np.zeros(len(shared)), where=touching & (union > 0))


def box_pairs(
    detection_group: np.ndarray, object_group: np.ndarray, detections: np.ndarray, objects: np.ndarray,
    crowd: np.ndarray, lowest: float,
) -> Pairs:  # fmt: skip
    """Pairs of boxes with an IoU of at least ``lowest``. Groups [D], [G] are sorted; boxes are [D, 4], [G, 4]."""
    found = []
    for d, g in _all_pairs(detection_group, object_group):
        iou = box_iou(detections[d], objects[g], crowd[g])
        keep = iou >= lowest
        found.append((d[keep], g[keep], iou[keep]))
    return _joined(found)


def mask_pairs(
    detection_group: np.ndarray, object_group: np.ndarray, detections: Rles, objects: Rles,
    crowd: np.ndarray, lowest: float,
) -> Pairs:  # fmt: skip
    """Pairs of masks with an IoU of at least ``lowest``; the overlap itself is pycocotools' (C, on run lengths).

    Only masks that may reach it by their sizes and places are handed over (``_mask_iou_bound``).
    """
    found = []
    for d, g in _all_pairs(detection_group, object_group):
        keep = _iou_bound(detections, objects, d, g, crowd[g]) >= lowest
        d, g = d[keep], g[keep]
        iou = _mask_iou(detection_group, detections, objects, d, g, crowd)
        keep = iou >= lowest
        found.append((d[keep], g[keep], iou[keep]))
    return _joined(found)


def _iou_bound(detections: Rles, objects: Rles, d: np.ndarray, g: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """[P] at least the IoU of each pair: the masks share no more than the smaller one, nor than where both may be."""
    area, other = detections.areas[d], objects.areas[g]
    both = np.minimum(detections.end[d], objects.end[g]) - np.maximum(detections.first[d], objects.first[g])
    shared = np.minimum(np.minimum(area, other), np.maximum(both, 0))
    union = np.where(crowd, area, area + other - shared)
    return np.divide(shared, union, out=np.zeros(len(shared)), where=shared > 0)


def _mask_iou(
    group: np.ndarray, detections: Rles, objects: Rles, d: np.ndarray, g: np.ndarray, crowd: np.ndarray
) -> np.ndarray:
    """[P] IoU of pairs in order of ``d``, by one call for every group: of all its masks that are in a pair."""
    if not len(d):
        return np.zeros(0)
    (rows, row), (columns, column) = _numbered(d, len(detections)), _numbered(g, len(objects))
    starts = np.flatnonzero(np.diff(group[d], prepend=-1))  # of the groups, in the pairs
    row_ends = np.append(row[starts[1:]], len(rows))
    column_ends = np.maximum.reduceat(column, starts) + 1
    row_starts, column_starts = (np.concatenate(([0], ends[:-1])) for ends in (row_ends, column_ends))
    flags = crowd[columns].astype(np.uint8).tolist()
    bounds = zip(*(ends.tolist() for ends in (row_starts, row_ends, column_starts, column_ends)), strict=True)
    with paused_collector():
        masks, others = detections.take(rows).objects(), objects.take(columns).objects()
        tables = [coco_mask.iou(masks[a:b], others[c:e], flags[c:e]).ravel() for a, b, c, e in bounds]
    width = column_ends - column_starts
    table = np.cumsum([0, *map(len, tables[:-1])])
    which = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(d))))
    return np.concatenate(tables)[
        table[which] + (row - row_starts[which]) * width[which] + column - column_starts[which]
    ]


def _numbered(which: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """As ``np.unique`` with the inverse, of whole numbers below ``size``; without sorting."""
    there = np.zeros(size, dtype=bool)
    there[which] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[which]


def _joined(found: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Pairs:
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return Pairs(none, none, np.zeros(0))
    detection, object_, iou = (np.concatenate(column) for column in zip(*found, strict=True))
    return Pairs(detection, object_, iou)


def _all_pairs(detection_group: np.ndarray, object_group: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every (detection, object) of a common group, in blocks."""
    first = np.searchsorted(object_group, detection_group, side="left")
    number = np.searchsorted(object_group, detection_group, side="right") - first
    paired = np.flatnonzero(number)
    first, number = first[paired], number[paired]
    block = np.cumsum(number) // _BLOCK_PAIRS
    for chosen in np.split(np.arange(len(paired)), np.flatnonzero(np.diff(block)) + 1):
        count = number[chosen]
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        yield np.repeat(paired[chosen], count), np.repeat(first[chosen], count) + offset
