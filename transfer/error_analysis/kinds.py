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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from momentum_transfer.transfer.error_analysis.judged import BACKGROUND, FOREGROUND, Judged, best_overlap
from momentum_transfer.transfer.scores.matching import RECALL_THRESHOLDS

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
