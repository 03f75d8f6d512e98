"""TIDE: the six kinds of error of a detector, and the AP that each costs (Bolya et al., arXiv 2008.08115).

A false positive is of the first kind that fits, with t_f = 0.5 and t_b = 0.1 (section 2.2, in the order of the
authors' code): localisation (an object of its class at t_b ≤ IoU ≤ t_f), classification (one of another class at
IoU ≥ t_f), duplicate (one of its class at IoU ≥ t_f, taken by a better detection), background (no object at IoU > t_b),
else both (wrong class and badly placed). A missed object is one that no detection takes and no error of the first two
kinds would cover.

A kind costs ΔAP50: AP with that kind alone corrected, minus AP. Localisation and classification errors become true
positives if their object is free and no better-scored error of the two points at it, else they vanish; duplicates,
background and both vanish; missed objects are not counted. So the costs do not add up to 100 − AP.

The numbers of each kind are those of the authors' package ``tidecv``, and so are the costs but for this: recall levels
are COCO's (``linspace``; there x / 100, which differs in the last bit and so moves AP where recall meets a level); the
mean is over classes that have objects (there a class that is only detected counts as AP 0); detections are limited by
the protocol (COCO: 100 an image and class; there 100 an image); a detection that matches a crowd or an ignored object
is no error (there it may be one); and unverified LVIS classes are left out.
"""

from dataclasses import dataclass

import numpy as np

from momentum_transfer.transfer.scores.coco_files import Detections, GroundTruth
from momentum_transfer.transfer.scores.greedy_matching import RECALL_THRESHOLDS, Pairs, box_pairs, mask_pairs
from momentum_transfer.transfer.scores.precision import Inputs

#: IoU from which a detection is right (TIDE's t_f), and below which it lies on background (t_b).
FOREGROUND, BACKGROUND = 0.5, 0.1


@dataclass(frozen=True)
class Matching:
    """D detections (by image and falling score) matched to G objects (by image) at IoU 0.5 by COCO's rule.

    ``scores/greedy_matching.py`` applies the rule at all thresholds at once, and keeps no objects.
    """

    truth: GroundTruth
    detections: Detections
    counts: np.ndarray  # [G] bool, an object to be found: no crowd and not to be ignored
    pairs: Pairs  # of IoU ≥ ``BACKGROUND``, whatever their classes
    true: np.ndarray  # [D] bool; neither true nor false: on an ignored object, or its class was not looked for
    false: np.ndarray  # [D] bool
    found: np.ndarray  # [G] bool, a counted object that is taken

    @property
    def same_class(self) -> np.ndarray:
        """[P] bool, the pair is of one class."""
        return self.detections.category[self.pairs.detection] == self.truth.category[self.pairs.object]

    @property
    def positives(self) -> np.ndarray:
        """[K] objects to be found of each class."""
        return np.bincount(self.truth.category[self.counts], minlength=len(self.truth.categories))


def find_matching(inputs: Inputs, limit: int) -> Matching:
    """Match detections, at most ``limit`` of each image and class, to objects."""
    order = np.argsort(inputs.truth.image, kind="stable")
    truth, crowd, ignore = inputs.truth.take(order), inputs.crowd[order], inputs.ignore[order]
    chosen = _within_limit(inputs.detections, limit)
    detections, exempt = inputs.detections.take(chosen), inputs.exempt[chosen]
    pairs = _pairs(detections, truth, crowd)
    counts = ~(crowd | ignore)
    same_class = detections.category[pairs.detection] == truth.category[pairs.object]
    taken = _greedy(pairs, same_class & (pairs.iou >= FOREGROUND), len(detections), counts, crowd)
    true = (taken >= 0) & counts[taken] if len(truth) else np.zeros(len(detections), dtype=bool)
    found = np.zeros(len(truth), dtype=bool)
    found[taken[true]] = True
    return Matching(truth, detections, counts, pairs, true, (taken < 0) & ~exempt, found)


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
    assert detections.rles is not None
    assert truth.rles is not None
    return mask_pairs(*groups, detections.rles, truth.rles, crowd, BACKGROUND)


def _greedy(pairs: Pairs, eligible: np.ndarray, detections: int, counts: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """[D] the object that each detection takes, −1 for none; of equal overlaps the last object of the file.

    Args:
        eligible: [P] bool, pairs that may match; detections choose in the order of the pairs.
    """
    taken = np.full(detections, -1, dtype=np.int64)
    used = np.zeros(len(counts), dtype=bool)
    best: tuple[bool, float] = (False, 0.0)
    chosen = current = -1
    columns = (pairs.detection[eligible].tolist(), pairs.object[eligible].tolist(), pairs.iou[eligible].tolist())
    for detection, candidate, iou in [*zip(*columns, strict=True), (-2, -1, 0.0)]:
        if detection != current:
            if chosen >= 0:
                taken[current] = chosen
                used[chosen] = True
            current, chosen, best = detection, -1, (False, 0.0)
        if candidate >= 0 and (not used[candidate] or crowd[candidate]):
            rank = (bool(counts[candidate]), iou)  # one that counts comes before one to be ignored
            if chosen < 0 or rank >= best:
                chosen, best = candidate, rank
    return taken


def _best_overlap(matching: Matching, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Highest IoU [D] of each detection over the pairs ``which`` [P] (0 for none), and that object [D] (−1), the first
    among equals."""
    pairs = matching.pairs
    detection, other, iou = pairs.detection[which], pairs.object[which], pairs.iou[which]
    order = np.lexsort((other, -iou, detection))
    first = order[np.flatnonzero(np.diff(detection[order], prepend=-1))]
    value, place = np.zeros(len(matching.detections)), np.full(len(matching.detections), -1, dtype=np.int64)
    value[detection[first]], place[detection[first]] = iou[first], other[first]
    return value, place


CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, ON_BACKGROUND, MISSED = KINDS = (
    "classification", "localisation", "both", "duplicate", "background", "missed",
)  # fmt: skip
#: The costs of all false positives and of all false negatives, beside those of the kinds.
SIDES = ("false positives", "false negatives")


@dataclass(frozen=True)
class Kinds:
    """The kind of every error."""

    of_detection: np.ndarray  # [D] place in ``KINDS``, −1 for no error
    missed: np.ndarray  # [G] bool
    ap50: float  # in percent, mean over the classes that have objects; NaN without any
    cost: dict[str, float]  # kind or side → ΔAP50 in points

    def number(self, kind: str) -> int:
        """How many errors of a kind there are."""
        return int(self.missed.sum() if kind == MISSED else (self.of_detection == KINDS.index(kind)).sum())


def find_kinds(matching: Matching) -> Kinds:
    """The kind of every error, and what each kind costs."""
    of_detection, target = _kinds(matching)
    free = (target >= 0) & ~matching.found[target] if len(matching.truth) else np.zeros(len(target), dtype=bool)
    repaired = np.zeros(len(target), dtype=bool)
    repaired[np.flatnonzero(free)[np.unique(target[free], return_index=True)[1]]] = True  # the best-scored of an object
    covered = np.zeros(len(matching.truth), dtype=bool)
    covered[target[free]] = True
    missed = matching.counts & ~matching.found & ~covered
    valid = matching.true | matching.false
    ap50 = _mean_ap(matching, matching.detections.category, matching.true, valid, matching.positives)
    aps = _repaired_aps(matching, of_detection, target, repaired, missed)
    cost = {name: value - ap50 for name, value in aps.items()}
    return Kinds(of_detection, missed, ap50, cost)


def _kinds(matching: Matching) -> tuple[np.ndarray, np.ndarray]:
    """[D] the kind of every detection, and the object that a localisation or classification error is about (−1)."""
    counted, same = matching.counts[matching.pairs.object], matching.same_class
    own, own_object = _best_overlap(matching, counted & same)
    other, other_object = _best_overlap(matching, counted & ~same)
    repeated, _ = _best_overlap(matching, counted & same & matching.found[matching.pairs.object])
    fits = {
        LOCALISATION: (own >= BACKGROUND) & (own <= FOREGROUND),
        CLASSIFICATION: other >= FOREGROUND,
        DUPLICATE: repeated >= FOREGROUND,
        ON_BACKGROUND: np.maximum(own, other) <= BACKGROUND,
        BOTH: np.ones(len(own), dtype=bool),
    }
    kind = np.full(len(own), -1)
    for name, fit in fits.items():
        kind[matching.false & fit & (kind < 0)] = KINDS.index(name)
    target = np.where(kind == KINDS.index(CLASSIFICATION), other_object, -1)
    return kind, np.where(kind == KINDS.index(LOCALISATION), own_object, target)


def _repaired_aps(
    matching: Matching, kind: np.ndarray, target: np.ndarray, repaired: np.ndarray, missed: np.ndarray
) -> dict[str, float]:
    """AP50 with each kind alone corrected."""
    category, positives = matching.detections.category, matching.positives
    valid = matching.true | matching.false
    found = {}
    for name in KINDS[:-1]:
        mine = kind == KINDS.index(name)
        true = matching.true | (mine & repaired)
        moved = category
        if name == CLASSIFICATION and len(matching.truth):
            moved = np.where(mine & repaired, matching.truth.category[target], category)
        found[name] = _mean_ap(matching, moved, true, valid & (~mine | repaired), positives)
    classes = matching.truth.category
    fewer = positives - np.bincount(classes[missed], minlength=len(positives))
    found[MISSED] = _mean_ap(matching, category, matching.true, valid, fewer)
    found[SIDES[0]] = _mean_ap(matching, category, matching.true, matching.true, positives)
    reached = positives - np.bincount(classes[matching.counts & ~matching.found], minlength=len(positives))
    found[SIDES[1]] = _mean_ap(matching, category, matching.true, valid, reached)
    return found


def _mean_ap(
    matching: Matching, category: np.ndarray, true: np.ndarray, valid: np.ndarray, positives: np.ndarray
) -> float:
    """AP50 in percent, mean over the classes that have objects.

    Args:
        category, true, valid: [D] the class of each detection, whether it is right, whether it is there at all.
        positives: [K] objects to be found.
    """
    values = []
    for k in np.flatnonzero(matching.positives):
        mine = np.flatnonzero(valid & (category == k))
        order = mine[np.argsort(-matching.detections.score[mine], kind="stable")]
        values.append(np.mean(precision_at_levels(true[order], int(positives[k]))))
    return float(np.mean(values)) * 100 if values else float("nan")


def precision_at_levels(true: np.ndarray, positives: int) -> np.ndarray:
    """[101] the best precision at or beyond recall 0, .01 … 1 (COCO's AP is its mean); 0 if that is not reached.

    Args:
        true: [N] bool, detections of one class in order of score.
        positives: objects to be found.
    """
    hits = np.cumsum(true)
    precision = hits / np.maximum(np.arange(1, len(true) + 1), 1)
    envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    if not positives:
        return np.zeros(len(RECALL_THRESHOLDS))
    place: np.ndarray = np.searchsorted(hits / positives, RECALL_THRESHOLDS, side="left")
    return envelope[place]
