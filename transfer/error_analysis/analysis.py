"""The errors of one result file at IoU 0.5, as a JSON that the report reads.

Kinds of error and their costs; per class precision over recall and the threshold of the best F1; calibration of the
scores; and at those thresholds confusions between classes and the images with the most errors.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer.core.files import write_text
from momentum_transfer.transfer.error_analysis.kinds import (
    FOREGROUND,
    KINDS,
    Kinds,
    Matching,
    find_kinds,
    find_matching,
    precision_at_levels,
)
from momentum_transfer.transfer.scores import lvis
from momentum_transfer.transfer.scores.coco import Results, Source
from momentum_transfer.transfer.scores.coco_files import IouType, load_detections, load_ground_truth
from momentum_transfer.transfer.scores.precision import Inputs

_BINS = 10  # of the score, for calibration


@dataclass(frozen=True)
class _Operating:
    """One class at the threshold of its best F1."""

    objects: int
    detections: int
    ap50: float  # in percent, NaN without objects
    threshold: float  # the highest score whose detections, with all above, give the best F1; NaN if none is right
    precision: float  # in percent at that threshold, like the next two
    recall: float
    f1: float
    curve: np.ndarray  # [101] precision at recall 0, .01 … 1


def _operating(matching: Matching, k: int, positives: int) -> _Operating:
    mine = np.flatnonzero((matching.true | matching.false) & (matching.detections.category == k))
    order = mine[np.argsort(-matching.detections.score[mine], kind="stable")]
    true, score = matching.true[order], matching.detections.score[order]
    curve = precision_at_levels(true, positives)
    hits, number = np.cumsum(true), np.arange(1, len(true) + 1)
    last = np.append(score[1:] != score[:-1], True)[: len(score)]  # a threshold takes all detections of a score
    f1 = np.where(last, 2 * hits / (number + positives), -1.0) if len(true) else np.zeros(0)
    nan = float("nan")
    ap50 = float(np.mean(curve)) * 100 if positives else nan
    if not len(f1) or not positives or f1.max() <= 0:
        return _Operating(
            positives, len(true), ap50, nan, nan, 0.0 if positives else nan, 0.0 if positives else nan, curve
        )
    best = int(f1.argmax())
    precision, recall = float(100 * hits[best] / number[best]), float(100 * hits[best] / positives)
    return _Operating(positives, len(true), ap50, float(score[best]), precision, recall, float(100 * f1[best]), curve)


def _calibration(matching: Matching) -> dict[str, Any]:
    """Whether a score of 0.7 is right in 70 % of cases, in ``_BINS`` bins of equal width.

    ``number`` of detections, mean ``score`` and ``precision`` of each bin; ``error``: the mean of |score − precision|
    over the detections, by bin, in percent (D-ECE of the score alone: Küppers et al., arXiv 2004.13546).
    """
    valid = matching.true | matching.false
    score, true = matching.detections.score[valid], matching.true[valid]
    place = np.clip((score * _BINS).astype(np.int64), 0, _BINS - 1)
    number = np.bincount(place, minlength=_BINS)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(place, weights=score, minlength=_BINS) / number
        precision = np.bincount(place, weights=true, minlength=_BINS) / number
    gaps = np.abs(mean - precision)[number > 0] * number[number > 0]
    error = float(100 * gaps.sum() / number.sum()) if len(gaps) else math.nan
    return {
        "number": number.tolist(), "score": [_number(v) for v in mean],
        "precision": [_number(v) for v in precision], "error": _number(error),
    }  # fmt: skip


def _shown(matching: Matching, points: Sequence[_Operating]) -> np.ndarray:
    """[D] bool, detections at or above the threshold of their class; none of a class without one."""
    thresholds = np.array([point.threshold for point in points])
    with np.errstate(invalid="ignore"):
        above = matching.detections.score >= thresholds[matching.detections.category]
    return above & (matching.true | matching.false)


def _confusion(matching: Matching, kept: np.ndarray) -> np.ndarray:
    """[K + 1, K + 1] objects of class i taken by a detection of class j; last row: detections on background, last
    column: missed objects.

    By falling score each of the ``kept`` detections takes the free object of highest IoU ≥ 0.5, whatever its class.
    """
    classes = len(matching.truth.categories)
    table = np.zeros((classes + 1, classes + 1), dtype=np.int64)
    pairs = matching.pairs
    eligible = kept[pairs.detection] & matching.counts[pairs.object] & (pairs.iou >= FOREGROUND)
    detection, other, iou = pairs.detection[eligible], pairs.object[eligible], pairs.iou[eligible]
    order = np.lexsort((-iou, detection))
    used = np.zeros(len(matching.truth), dtype=bool)
    done = np.zeros(len(matching.detections), dtype=bool)
    for d, g in zip(detection[order].tolist(), other[order].tolist(), strict=True):
        if not done[d] and not used[g]:
            done[d] = used[g] = True
            table[matching.truth.category[g], matching.detections.category[d]] += 1
    table[classes, :-1] = np.bincount(matching.detections.category[kept & ~done], minlength=classes)
    table[:-1, classes] = np.bincount(matching.truth.category[matching.counts & ~used], minlength=classes)
    return table


def _hardest(matching: Matching, kinds: Kinds, kept: np.ndarray, count: int) -> list[dict[str, Any]]:
    """The ``count`` images of lowest F1 (most errors first among equals); images without errors are left out."""
    truth, detections = matching.truth, matching.detections
    images = len(truth.images)
    objects = np.bincount(truth.image[matching.counts], minlength=images)
    right = np.bincount(detections.image[kept & matching.true], minlength=images)
    wrong = np.bincount(detections.image[kept & matching.false], minlength=images)
    f1 = 200.0 * right / np.maximum(objects + right + wrong, 1)
    errors = objects - right + wrong
    hardest = [i for i in np.lexsort((np.arange(images), -errors, f1)).tolist() if errors[i]][:count]
    return [
        {
            "file_name": str(truth.images[i].get("file_name", truth.images[i]["id"])), "objects": int(objects[i]),
            "right": int(right[i]), "wrong": int(wrong[i]), "missed": int(objects[i] - right[i]),
            "f1": _number(f1[i]), "kinds": _count_kinds(kinds, kept & (detections.image == i)),
        }
        for i in hardest
    ]  # fmt: skip


def _count_kinds(kinds: Kinds, chosen: np.ndarray) -> dict[str, int]:
    """How many of the chosen [D] detections are errors of each kind."""
    return {name: int((chosen & (kinds.of_detection == place)).sum()) for place, name in enumerate(KINDS[:-1])}


#: Raised when the meaning of a key changes.
FORMAT = 1
_HARDEST, _CONFUSED = 20, 400  # images, and confused pairs of classes, that are kept
_CURVES = 100  # classes whose own curves are kept; of more only the mean
_LIMIT = 100  # COCO's, on detections of an image and class


def analyse(
    kind: str,
    ground_truth: Source,
    results: Results,
    iou_type: IouType = "bbox",
    max_dets: int = 300,
    per_class: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The errors in a result file, at IoU 0.5; ready for JSON (NaN is null).

    Args:
        kind: ``coco``, ``lvis`` or ``voc``: which objects and detections count. VOC is matched by COCO's rule, with
            difficult objects ignored.
        max_dets: of an LVIS image.
        per_class: class name → AP in percent by the protocol's own scorer.

    Raises:
        InputError: a file or an entry is wrong; both are named.
    """
    matching = find_matching(*_inputs(kind, ground_truth, results, iou_type, max_dets))
    kinds = find_kinds(matching)
    points = [_operating(matching, k, int(positives)) for k, positives in enumerate(matching.positives)]
    curves = [point.curve for point in points if point.objects]
    kept = _shown(matching, points)
    table = _confusion(matching, kept)
    return {
        "format": FORMAT,
        "iou_type": iou_type,
        "ap50": _number(kinds.ap50),
        "kinds": {name: {"number": kinds.number(name), "cost": _number(kinds.cost[name])} for name in KINDS},
        "sides": {name: _number(value) for name, value in kinds.cost.items() if name not in KINDS},
        "classes": [_class(matching, kinds, k, point, per_class or {}) for k, point in enumerate(points)],
        "curve": _rounded(np.mean(curves, axis=0) if curves else np.zeros(0)),
        "confusion": _cells(table),
        "calibration": _calibration(matching),
        "hardest": _hardest(matching, kinds, kept, _HARDEST),
    }


def write_analysis(path: Path, errors: dict[str, Any]) -> None:
    """Write the result of ``analyse`` for the report."""
    write_text(path, json.dumps(errors, ensure_ascii=False) + "\n")


def _inputs(kind: str, ground_truth: Source, results: Results, iou_type: IouType, max_dets: int) -> tuple[Inputs, int]:
    if kind == "lvis":
        inputs, _ = lvis.read_inputs(ground_truth, results, iou_type, max_dets, "mask")
        return inputs, max(1, len(inputs.detections))
    truth = load_ground_truth(ground_truth, iou_type, area=kind != "voc")
    detections = load_detections(results, truth, iou_type, "mask" if iou_type == "segm" else "file")
    none = np.zeros(len(detections), dtype=bool)
    ignore = truth.difficult | truth.ignore if kind == "voc" else truth.crowd
    crowd = truth.crowd & (kind != "voc")
    return Inputs(truth, detections, crowd, ignore, none), max(1, len(detections)) if kind == "voc" else _LIMIT


def _class(
    matching: Matching, kinds: Kinds, k: int, point: _Operating, per_class: Mapping[str, float]
) -> dict[str, Any]:
    name = matching.truth.class_names()[k]
    mine = matching.detections.category == k
    numbers = _count_kinds(kinds, mine)
    numbers[KINDS[-1]] = int((kinds.missed & (matching.truth.category == k)).sum())
    row = {
        "name": name, "objects": point.objects, "detections": point.detections,
        "ap": _number(per_class.get(name, math.nan)), "ap50": _number(point.ap50),
        "threshold": _number(point.threshold), "precision": _number(point.precision),
        "recall": _number(point.recall), "f1": _number(point.f1), "kinds": numbers,
    }  # fmt: skip
    if len(matching.truth.categories) <= _CURVES:
        row["curve"] = _rounded(point.curve)
    return row


def _cells(table: np.ndarray) -> list[list[int]]:
    """[true class, predicted class, number] of the cells above 0; of too many confused pairs the most frequent."""
    rows, columns = np.nonzero(table)
    cells = [[int(i), int(j), int(table[i, j])] for i, j in zip(rows, columns, strict=True)]
    confused = [cell for cell in cells if cell[0] != cell[1] and max(cell[:2]) < len(table) - 1]
    rare = {tuple(cell) for cell in sorted(confused, key=lambda cell: -cell[2])[_CONFUSED:]}
    return [cell for cell in cells if tuple(cell) not in rare]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 4) for value in values]
