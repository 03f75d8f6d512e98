"""TIDE: the six kinds of error of a detector, and the AP that each costs (Bolya et al., arXiv 2008.08115).

A false positive is of the first kind that fits, with t_f = 0.5 and t_b = 0.1 (section 2.2, in the order of the
authors' code): localisation (an object of its class at t_b ≤ IoU ≤ t_f), classification (one of another class at
IoU ≥ t_f), duplicate (one of its class at IoU ≥ t_f, taken by a better detection), background (no object at IoU > t_b),
else both (wrong class and badly placed). A missed object is one that no detection takes and no error of the first two
kinds would cover.

What a kind costs is ΔAP50: AP with that kind alone put right, minus AP. Localisation and classification errors become
true positives, where their object is free and no better-scored error of the two points at it, else they vanish;
duplicates, background and both vanish; missed objects are not counted. So the costs do not add up to what is missing.

The numbers of each kind are those of the authors' package ``tidecv``, and so are the costs but for this: recall levels
are COCO's (``linspace``; x / 100 there, which differs in the last bit and so moves AP where recall meets a level: with
its levels costs agree to 1e-13); the mean is over classes that have objects (there a class that is only detected counts
as AP 0); detections are limited by the protocol (COCO: 100 an image and class; there 100 an image); a detection that
falls to a crowd or an ignored object is no error (there it may be one); and unverified LVIS classes are left out.

Detections judged at one IoU threshold: which object each takes, and how it overlaps the others.

The matching is COCO's (``scores/greedy_matching.py`` does it for all thresholds at once and keeps no object): by
falling score within image and class, each takes the free object of highest IoU at or above the threshold; crowds, and
objects to be ignored, are taken only if no other is left, and then the detection counts neither way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from momentum_transfer.transfer.scores.coco_files import Detections, GroundTruth
from momentum_transfer.transfer.scores.greedy_matching import RECALL_THRESHOLDS, Pairs, box_pairs, mask_pairs
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


CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, ON_BACKGROUND, MISSED = KINDS = (
    "classification", "localisation", "both", "duplicate", "background", "missed",
)  # fmt: skip
#: The costs of all false positives and of all false negatives, beside those of the kinds.
SIDES = ("false positives", "false negatives")


@dataclass(frozen=True)
class Kinds:
    """The kind of every error.

    Attributes:
        of_detection: [D] place in ``KINDS``, −1 where a detection is no error.
        target: [D] the object that a classification or localisation error is about, −1 else.
        missed: [G] bool.
        ap50: in percent, mean over the classes that have objects; NaN where none has.
        cost: kind or side to ΔAP50 in points.
    """

    of_detection: np.ndarray
    target: np.ndarray
    missed: np.ndarray
    ap50: float
    cost: dict[str, float]

    def number(self, kind: str) -> int:
        """How many errors of a kind there are."""
        return int(self.missed.sum() if kind == MISSED else (self.of_detection == KINDS.index(kind)).sum())


def find_kinds(judged: Judged) -> Kinds:
    """The kind of every error, and what each kind costs."""
    of_detection, target = _kinds(judged)
    free = (target >= 0) & ~judged.found[target] if len(judged.truth) else np.zeros(len(target), dtype=bool)
    repaired = np.zeros(len(target), dtype=bool)
    repaired[np.flatnonzero(free)[np.unique(target[free], return_index=True)[1]]] = True  # the best-scored of an object
    covered = np.zeros(len(judged.truth), dtype=bool)
    covered[target[free]] = True
    missed = judged.counts & ~judged.found & ~covered
    ap50 = _mean_ap(judged, judged.detections.category, judged.true, judged.true | judged.false, judged.positives)
    cost = {name: value - ap50 for name, value in _repaired_aps(judged, of_detection, target, repaired, missed).items()}
    return Kinds(of_detection, target, missed, ap50, cost)


def _kinds(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Kind and target of every detection."""
    counted, same = judged.counts[judged.pairs.object], judged.same_class
    own, own_object = best_overlap(judged, counted & same)
    other, other_object = best_overlap(judged, counted & ~same)
    repeated, _ = best_overlap(judged, counted & same & judged.found[judged.pairs.object])
    fits = {
        LOCALISATION: (own >= BACKGROUND) & (own <= FOREGROUND),
        CLASSIFICATION: other >= FOREGROUND,
        DUPLICATE: repeated >= FOREGROUND,
        ON_BACKGROUND: np.maximum(own, other) <= BACKGROUND,
        BOTH: np.ones(len(own), dtype=bool),
    }
    kind = np.full(len(own), -1)
    for name, fit in fits.items():
        kind[judged.false & fit & (kind < 0)] = KINDS.index(name)
    target = np.where(kind == KINDS.index(CLASSIFICATION), other_object, -1)
    return kind, np.where(kind == KINDS.index(LOCALISATION), own_object, target)


def _repaired_aps(
    judged: Judged, kind: np.ndarray, target: np.ndarray, repaired: np.ndarray, missed: np.ndarray
) -> dict[str, float]:
    """AP50 with each kind put right alone."""
    category, positives = judged.detections.category, judged.positives
    valid = judged.true | judged.false
    found = {}
    for name in KINDS[:-1]:
        mine = kind == KINDS.index(name)
        true = judged.true | (mine & repaired)
        moved = category
        if name == CLASSIFICATION and len(judged.truth):
            moved = np.where(mine & repaired, judged.truth.category[target], category)
        found[name] = _mean_ap(judged, moved, true, valid & (~mine | repaired), positives)
    classes = judged.truth.category
    fewer = positives - np.bincount(classes[missed], minlength=len(positives))
    found[MISSED] = _mean_ap(judged, category, judged.true, valid, fewer)
    found[SIDES[0]] = _mean_ap(judged, category, judged.true, judged.true, positives)
    reached = positives - np.bincount(classes[judged.counts & ~judged.found], minlength=len(positives))
    found[SIDES[1]] = _mean_ap(judged, category, judged.true, valid, reached)
    return found


def _mean_ap(judged: Judged, category: np.ndarray, true: np.ndarray, valid: np.ndarray, positives: np.ndarray) -> float:
    """AP50 in percent, mean over the classes that have objects.

    Args:
        category, true, valid: [D] the class of each detection, whether it is right, whether it is there at all.
        positives: [K] objects that are to be found.
    """
    values = []
    for k in np.flatnonzero(judged.positives):
        mine = np.flatnonzero(valid & (category == k))
        order = mine[np.argsort(-judged.detections.score[mine], kind="stable")]
        values.append(average_precision(true[order], int(positives[k])))
    return float(np.mean(values)) * 100 if values else float("nan")


def average_precision(true: np.ndarray, positives: int) -> float:
    """COCO's AP of one class: the mean of ``precision_at_levels``."""
    return float(np.mean(precision_at_levels(true, positives)))


def precision_at_levels(true: np.ndarray, positives: int) -> np.ndarray:
    """[101] the best precision at or beyond recall 0, .01 … 1; 0 where that is not reached.

    Args:
        true: [N] bool, detections of one class in order of score. positives: objects that are to be found.
    """
    hits = np.cumsum(true)
    precision = hits / np.maximum(np.arange(1, len(true) + 1), 1)
    envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    if not positives:
        return np.zeros(len(RECALL_THRESHOLDS))
    place: np.ndarray = np.searchsorted(hits / positives, RECALL_THRESHOLDS, side="left")
    return envelope[place]
