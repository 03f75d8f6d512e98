"""Per class: precision and recall over thresholds, and the threshold of the best F1; calibration of all scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from momentum_transfer.transfer.error_analysis.judged import Judged
from momentum_transfer.transfer.error_analysis.kinds import precision_at_levels

#: Bins of the score in which calibration is told.
BINS = 10


@dataclass(frozen=True)
class Operating:
    """One class at the threshold of its best F1, at IoU 0.5.

    Attributes:
        objects, detections: how many there are. ap50: in percent, NaN without objects.
        threshold: detections from this score on give the best F1 (the highest such score); NaN without a right one.
        precision, recall, f1: in percent at that threshold.
        curve: [101] precision at recall 0, .01 … 1.
    """

    objects: int
    detections: int
    ap50: float
    threshold: float
    precision: float
    recall: float
    f1: float
    curve: np.ndarray


def operating_points(judged: Judged) -> list[Operating]:
    """Every class, in the order of the categories."""
    return [_operating(judged, k, int(positives)) for k, positives in enumerate(judged.positives)]


def _operating(judged: Judged, k: int, positives: int) -> Operating:
    mine = np.flatnonzero((judged.true | judged.false) & (judged.detections.category == k))
    order = mine[np.argsort(-judged.detections.score[mine], kind="stable")]
    true, score = judged.true[order], judged.detections.score[order]
    curve = precision_at_levels(true, positives)
    hits, number = np.cumsum(true), np.arange(1, len(true) + 1)
    last = np.append(score[1:] != score[:-1], True)[: len(score)]  # a threshold takes all detections of a score
    f1 = np.where(last, 2 * hits / (number + positives), -1.0) if len(true) else np.zeros(0)
    nan = float("nan")
    ap50 = float(np.mean(curve)) * 100 if positives else nan
    if not len(f1) or not positives or f1.max() <= 0:
        return Operating(
            positives, len(true), ap50, nan, nan, 0.0 if positives else nan, 0.0 if positives else nan, curve
        )
    best = int(f1.argmax())
    precision, recall = float(100 * hits[best] / number[best]), float(100 * hits[best] / positives)
    return Operating(positives, len(true), ap50, float(score[best]), precision, recall, float(100 * f1[best]), curve)


@dataclass(frozen=True)
class Calibration:
    """Whether a score of 0.7 is right in 70 % of cases, at IoU 0.5, in ``BINS`` bins of equal width.

    Attributes:
        number: [BINS] detections. score, precision: [BINS] mean score and share of right ones, NaN in empty bins.
        error: mean of |score − precision| over the detections, by bin, in percent (expected calibration error of
            precision: Küppers et al., arXiv 2004.13546, D-ECE of the score alone).
    """

    number: np.ndarray
    score: np.ndarray
    precision: np.ndarray
    error: float


def calibration(judged: Judged) -> Calibration:
    """Of all detections that are right or wrong."""
    valid = judged.true | judged.false
    score, true = judged.detections.score[valid], judged.true[valid]
    place = np.clip((score * BINS).astype(np.int64), 0, BINS - 1)
    number = np.bincount(place, minlength=BINS)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(place, weights=score, minlength=BINS) / number
        precision = np.bincount(place, weights=true, minlength=BINS) / number
    gaps = np.abs(mean - precision)[number > 0] * number[number > 0]
    return Calibration(number, mean, precision, float(100 * gaps.sum() / number.sum()) if len(gaps) else float("nan"))
