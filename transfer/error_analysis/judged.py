"""Detections judged at one IoU threshold: which object each takes, and how it overlaps the others.

The matching is COCO's (``transfer/scores/matching.py`` does it for all thresholds at once and keeps no object): by
falling score within image and class, each takes the free object of highest IoU at or above the threshold; crowds, and
objects to be ignored, are taken only if no other is left, and then the detection counts neither way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from momentum_transfer.transfer.scores.inputs import Detections, GroundTruth
from momentum_transfer.transfer.scores.overlaps import Pairs, box_pairs, mask_pairs
from momentum_transfer.transfer.scores.precision import Inputs

#: IoU from which a detection is right (TIDE's t_f), and below which it lies on background (t_b).
FOREGROUND, BACKGROUND = 0.5, 0.1


@dataclass(frozen=True)
class Judged:
    """D detections by image and falling score, G objects by image.

    Attributes:
        counts: [G] an object to be found: no crowd and not to be ignored.
        pairs: overlaps of at least ``BACKGROUND`` of detections and objects of an image, whatever their classes.
        taken: [D] the object that a detection takes, −1 for none.
        true, false: [D] bool; neither where it takes an ignored object, or its class was not looked for in the image.
        found: [G] bool, a counted object that is taken.
    """

    truth: GroundTruth
    detections: Detections
    counts: np.ndarray
    pairs: Pairs
    taken: np.ndarray
    true: np.ndarray
    false: np.ndarray
    found: np.ndarray

    @property
    def same_class(self) -> np.ndarray:
        """[P] bool: the pair is of one class."""
        return self.detections.category[self.pairs.detection] == self.truth.category[self.pairs.object]

    @property
    def positives(self) -> np.ndarray:
        """[K] objects to be found of each class."""
        return np.bincount(self.truth.category[self.counts], minlength=len(self.truth.categories))


def judge(inputs: Inputs, limit: int) -> Judged:
    """Judge detections against objects.

    Args:
        inputs: objects and detections with the flags of their protocol.
        limit: detections that count of each image and class.
    """
    order = np.argsort(inputs.truth.image, kind="stable")
    truth, crowd, ignore = inputs.truth.take(order), inputs.crowd[order], inputs.ignore[order]
    chosen = _within_limit(inputs.detections, limit)
    detections, exempt = inputs.detections.take(chosen), inputs.exempt[chosen]
    pairs = _pairs(detections, truth, crowd)
    counts = ~(crowd | ignore)
    mine = detections.category[pairs.detection] == truth.category[pairs.object]
    taken = _greedy(pairs, mine & (pairs.iou >= FOREGROUND), len(detections), counts, crowd)
    true = (taken >= 0) & counts[taken] if len(truth) else np.zeros(len(detections), dtype=bool)
    found = np.zeros(len(truth), dtype=bool)
    found[taken[true]] = True
    return Judged(truth, detections, counts, pairs, taken, true, (taken < 0) & ~exempt, found)


def _within_limit(detections: Detections, limit: int) -> np.ndarray:
    """Positions by image and falling score (equal ones as in the file), the best ``limit`` of each image and class."""
    order = np.lexsort((-detections.score, detections.category, detections.image))
    image, category = detections.image[order], detections.category[order]
    new = np.append(True, (image[1:] != image[:-1]) | (category[1:] != category[:-1]))[: len(order)]
    first = np.flatnonzero(new)
    rank = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    kept = np.sort(order[rank < limit])
    return kept[np.lexsort((-detections.score[kept], detections.image[kept]))]


def _pairs(detections: Detections, truth: GroundTruth, crowd: np.ndarray) -> Pairs:
    groups = detections.image.astype(np.int64), truth.image.astype(np.int64)
    if detections.boxes is not None and truth.boxes is not None:
        return box_pairs(*groups, detections.boxes, truth.boxes, crowd, BACKGROUND)
    if detections.rles is None or truth.rles is None:
        raise ValueError("expected boxes or masks of both detections and objects")
    return mask_pairs(*groups, detections.rles, truth.rles, crowd, BACKGROUND)


def _greedy(pairs: Pairs, wanted: np.ndarray, detections: int, counts: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """[D] the object that each detection takes, −1 for none; of equal overlaps the last object of the file.

    Args:
        wanted: [P] pairs that may match; detections are in the order in which they choose.
    """
    taken = np.full(detections, -1, dtype=np.int64)
    used = np.zeros(len(counts), dtype=bool)
    best: tuple[bool, float] = (False, 0.0)
    chosen = current = -1
    columns = (pairs.detection[wanted].tolist(), pairs.object[wanted].tolist(), pairs.iou[wanted].tolist())
    for detection, candidate, iou in [*zip(*columns, strict=True), (-2, -1, 0.0)]:
        if detection != current:
            if chosen >= 0:
                taken[current] = chosen
                used[chosen] = True
            current, chosen, best = detection, -1, (False, 0.0)
        if candidate >= 0 and (not used[candidate] or crowd[candidate]):
            rank = (bool(counts[candidate]), iou)  # one that counts goes before one to be ignored
            if chosen < 0 or rank >= best:
                chosen, best = candidate, rank
    return taken


def best_overlap(judged: Judged, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Highest IoU [D] of each detection over some pairs (0 for none), and that object [D] (−1), the first among equals.

    Args:
        which: [P] bool.
    """
    detection, other, iou = (
        column[which] for column in (judged.pairs.detection, judged.pairs.object, judged.pairs.iou)
    )
    order = np.lexsort((other, -iou, detection))
    first = order[np.flatnonzero(np.diff(detection[order], prepend=-1))]
    value, place = np.zeros(len(judged.detections)), np.full(len(judged.detections), -1, dtype=np.int64)
    value[detection[first]], place[detection[first]] = iou[first], other[first]
    return value, place
