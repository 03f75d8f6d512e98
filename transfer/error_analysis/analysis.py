"""The whole analysis of one result file, as a JSON that the report reads.

Per class: precision and recall over thresholds, and the threshold of the best F1; calibration of all scores.

At the thresholds of the best F1: confusions between classes, and the images that go worst.
"""

from __future__ import annotations

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
    Judged,
    Kinds,
    find_kinds,
    judge,
    precision_at_levels,
)
from momentum_transfer.transfer.scores import lvis
from momentum_transfer.transfer.scores.coco import Results, Source
from momentum_transfer.transfer.scores.coco_files import IouType, load_detections, load_ground_truth
from momentum_transfer.transfer.scores.precision import Inputs

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


def shown(judged: Judged, points: Sequence[Operating]) -> np.ndarray:
    """[D] bool: detections at or above the threshold of their class; a class without one shows nothing."""
    thresholds = np.array([point.threshold for point in points])
    with np.errstate(invalid="ignore"):
        above = judged.detections.score >= thresholds[judged.detections.category]
    return above & (judged.true | judged.false)


def confusion(judged: Judged, kept: np.ndarray) -> np.ndarray:
    """[K + 1, K + 1] objects of class i that are taken by a detection of class j; the last row are detections on
    background, the last column objects that are missed.

    By falling score each of the ``kept`` detections takes the free object of highest IoU ≥ 0.5, whatever its class.
    """
    classes = len(judged.truth.categories)
    table = np.zeros((classes + 1, classes + 1), dtype=np.int64)
    wanted = kept[judged.pairs.detection] & judged.counts[judged.pairs.object] & (judged.pairs.iou >= FOREGROUND)
    detection, other, iou = (
        column[wanted] for column in (judged.pairs.detection, judged.pairs.object, judged.pairs.iou)
    )
    order = np.lexsort((-iou, detection))
    used = np.zeros(len(judged.truth), dtype=bool)
    done = np.zeros(len(judged.detections), dtype=bool)
    for d, g in zip(detection[order].tolist(), other[order].tolist(), strict=True):
        if not done[d] and not used[g]:
            done[d] = used[g] = True
            table[judged.truth.category[g], judged.detections.category[d]] += 1
    table[classes, :-1] = np.bincount(judged.detections.category[kept & ~done], minlength=classes)
    table[:-1, classes] = np.bincount(judged.truth.category[judged.counts & ~used], minlength=classes)
    return table


@dataclass(frozen=True)
class HardImage:
    """An image with what went wrong on it. f1: in percent."""

    position: int
    objects: int
    right: int
    wrong: int
    f1: float

    @property
    def missed(self) -> int:
        return self.objects - self.right


def hardest(judged: Judged, kept: np.ndarray, count: int) -> list[HardImage]:
    """The ``count`` images of lowest F1 at IoU 0.5 (most errors first among equals); images that are right are none."""
    images = len(judged.truth.images)
    objects = np.bincount(judged.truth.image[judged.counts], minlength=images)
    right = np.bincount(judged.detections.image[kept & judged.true], minlength=images)
    wrong = np.bincount(judged.detections.image[kept & judged.false], minlength=images)
    total = objects + right + wrong
    f1 = 200.0 * right / np.maximum(total, 1)
    errors = objects - right + wrong
    order = np.lexsort((np.arange(images), -errors, f1))
    chosen = [i for i in order.tolist() if errors[i]][:count]
    return [HardImage(i, int(objects[i]), int(right[i]), int(wrong[i]), float(f1[i])) for i in chosen]


#: Raised when the meaning of a key changes.
FORMAT = 1
#: Hard images, and confused pairs of classes, that are kept.
HARDEST, CONFUSED = 20, 400
#: Classes whose own curves are kept; of more only the mean.
CURVES = 100
#: COCO's limit on detections of an image and class.
_LIMIT = 100


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
        kind: ``coco``, ``lvis`` or ``voc``: which objects count and which detections are judged. VOC is matched by
            COCO's rule, difficult objects left out.
        max_dets: of an LVIS image.
        per_class: class name to AP in percent by the protocol's own scorer, to stand beside the rest.

    Raises:
        InputError: a file or an entry is wrong; both are named.
    """
    judged = judge(*_inputs(kind, ground_truth, results, iou_type, max_dets))
    kinds, points = find_kinds(judged), operating_points(judged)
    kept = shown(judged, points)
    table = confusion(judged, kept)
    return {
        "format": FORMAT,
        "iou_type": iou_type,
        "ap50": _number(kinds.ap50),
        "kinds": {name: {"number": kinds.number(name), "cost": _number(kinds.cost[name])} for name in KINDS},
        "sides": {name: _number(value) for name, value in kinds.cost.items() if name not in KINDS},
        "classes": [_class(judged, kinds, k, point, per_class or {}) for k, point in enumerate(points)],
        "curve": _rounded(_mean_curve(points)),
        "confusion": _cells(table),
        "calibration": _calibration(calibration(judged)),
        "hardest": [_image(judged, kinds, kept, image) for image in hardest(judged, kept, HARDEST)],
    }


def write_analysis(path: Path, found: dict[str, Any]) -> None:
    """Write an analysis for the report."""
    write_text(path, json.dumps(found, ensure_ascii=False) + "\n")


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


def _class(judged: Judged, kinds: Kinds, k: int, point: Operating, per_class: Mapping[str, float]) -> dict[str, Any]:
    name = judged.truth.class_names()[k]
    mine = judged.detections.category == k
    numbers = {name: int((mine & (kinds.of_detection == place)).sum()) for place, name in enumerate(KINDS[:-1])}
    numbers[KINDS[-1]] = int((kinds.missed & (judged.truth.category == k)).sum())
    found = {
        "name": name, "objects": point.objects, "detections": point.detections,
        "ap": _number(per_class.get(name, math.nan)), "ap50": _number(point.ap50),
        "threshold": _number(point.threshold), "precision": _number(point.precision),
        "recall": _number(point.recall), "f1": _number(point.f1), "kinds": numbers,
    }  # fmt: skip
    if len(judged.truth.categories) <= CURVES:
        found["curve"] = _rounded(point.curve)
    return found


def _mean_curve(points: list[Operating]) -> np.ndarray:
    curves = [point.curve for point in points if point.objects]
    return np.mean(curves, axis=0) if curves else np.zeros(0)


def _cells(table: np.ndarray) -> list[list[int]]:
    """[true class, predicted class, number] of the cells above 0; of very many confused pairs the most frequent."""
    rows, columns = np.nonzero(table)
    cells = [[int(i), int(j), int(table[i, j])] for i, j in zip(rows, columns, strict=True)]
    inner = [cell for cell in cells if cell[0] != cell[1] and max(cell[:2]) < len(table) - 1]
    if len(inner) > CONFUSED:
        kept = {tuple(cell) for cell in sorted(inner, key=lambda cell: -cell[2])[:CONFUSED]}
        dropped = {tuple(cell) for cell in inner} - kept
        cells = [cell for cell in cells if tuple(cell) not in dropped]
    return cells


def _calibration(found: Calibration) -> dict[str, Any]:
    return {
        "number": found.number.tolist(), "score": [_number(v) for v in found.score],
        "precision": [_number(v) for v in found.precision], "error": _number(found.error),
    }  # fmt: skip


def _image(judged: Judged, kinds: Kinds, kept: np.ndarray, image: HardImage) -> dict[str, Any]:
    entry = judged.truth.images[image.position]
    mine = kept & (judged.detections.image == image.position)
    numbers = {name: int((mine & (kinds.of_detection == place)).sum()) for place, name in enumerate(KINDS[:-1])}
    return {
        "file_name": str(entry.get("file_name", entry["id"])), "objects": image.objects, "right": image.right,
        "wrong": image.wrong, "missed": image.missed, "f1": _number(image.f1), "kinds": numbers,
    }  # fmt: skip


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 4) for value in values]
