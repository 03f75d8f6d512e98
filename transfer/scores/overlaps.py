"""Candidate pairs: which detections overlap which objects of the same category in the same image, and how much.

Everything is sparse. A detection whose category has no object in its image has no pair, and a pair below the lowest
threshold is dropped at once, so work and memory follow the pairs that can match, not images × categories.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType

import numpy as np
from pycocotools import mask as coco_mask

from momentum_transfer.transfer.scores.compiled import kernels
from momentum_transfer.transfer.scores.masks import Rles, compressed

_BLOCK_PAIRS = 1 << 17  # pairs whose overlap is computed at a time
_BLOCK_MASKS = 1 << 14  # of masks: their codes are copied, those of large images have thousands of characters
_TOGETHER = 16  # objects in one call of pycocotools


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
    for d, g in _all_pairs(detection_group, object_group, _BLOCK_PAIRS):
        iou = box_iou(detections[d], objects[g], crowd[g])
        keep = iou >= lowest
        found.append((d[keep], g[keep], iou[keep]))
    return _joined(found)


def mask_pairs(
    detection_group: np.ndarray, object_group: np.ndarray, detections: Rles, objects: Rles,
    crowd: np.ndarray, lowest: float,
) -> Pairs:  # fmt: skip
    """Pairs of masks with an IoU of at least ``lowest``; the overlap itself is counted on run lengths, by the compiled
    kernels or by pycocotools (C).

    Only masks that may reach it by their sizes and places are handed over (``_iou_bound``). pycocotools stops counting
    where both masks have an empty run behind runs that end together, and its number is the one that scores mean: masks
    with such runs inside (``Rles.gap``), which no encoder writes, are always its own.
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
    """[P] at least the IoU of each pair: the masks share no more than the smaller one, nor than where both may be."""
    area, other = detections.areas[d], objects.areas[g]
    both = np.minimum(detections.end[d], objects.end[g]) - np.maximum(detections.first[d], objects.first[g])
    shared = np.minimum(np.minimum(area, other), np.maximum(both, 0))
    union = np.where(crowd, area, area + other - shared)
    unknown = (detections.gap[d] | objects.gap[g]).astype(np.float64)
    return np.divide(shared, union, out=unknown, where=(shared > 0) & (unknown == 0))


def _mask_iou(detections: Rles, objects: Rles, d: np.ndarray, g: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """[P] IoU of the pairs, by the kernels where they are there and count as pycocotools does."""
    compiled = kernels()
    if compiled is None:
        return _by_object(detections, objects, d, g, crowd, None)
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
    order = np.argsort(g, kind="stable")
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
    """[P] IoU of masks, each with the object ``owner`` [P]; those of an object begin at ``starts``. A call takes a few
    objects and all their masks.

    Such a call goes through every mask with every object, but passes over two of different sizes. So the widths it is
    told differ from object to object, whatever their images' are (on masks of the same told size and of unequal numbers
    of pixels it never ends); where the pixels are follows from the height alone.
    """
    place = np.arange(len(starts)) % _TOGETHER
    apart = np.stack((sizes[:, 0], sizes[:, 1].max() + place), axis=1).tolist()
    masks_apart = [apart[one] for one in owner.tolist()]
    flags, own = crowd.astype(np.uint8), place[owner]
    bounds = np.append(starts[::_TOGETHER], len(codes)).tolist()
    iou = np.empty(len(codes))
    for first, (start, stop) in zip(range(0, len(starts), _TOGETHER), pairwise(bounds), strict=True):
        few, here = slice(first, first + _TOGETHER), slice(start, stop)
        masks, others = compressed(codes[here], masks_apart[here]), compressed(object_codes[few], apart[few])
        iou[here] = coco_mask.iou(masks, others, flags[few])[np.arange(len(masks)), own[here]]
    return iou


def _joined(found: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Pairs:
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return Pairs(none, none, np.zeros(0))
    detection, object_, iou = (np.concatenate(column) for column in zip(*found, strict=True))
    return Pairs(detection, object_, iou)


def _all_pairs(
    detection_group: np.ndarray, object_group: np.ndarray, most: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every (detection, object) of a common group, in blocks of about ``most``."""
    first = np.searchsorted(object_group, detection_group, side="left")
    number = np.searchsorted(object_group, detection_group, side="right") - first
    paired = np.flatnonzero(number)
    first, number = first[paired], number[paired]
    block = np.cumsum(number) // most
    for chosen in np.split(np.arange(len(paired)), np.flatnonzero(np.diff(block)) + 1):
        count = number[chosen]
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        yield np.repeat(paired[chosen], count), np.repeat(first[chosen], count) + offset
