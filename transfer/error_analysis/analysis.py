"""The whole analysis of one result file, as a JSON that the report reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer.core.files import write_text
from momentum_transfer.transfer.error_analysis import images as at_thresholds
from momentum_transfer.transfer.error_analysis.classes import Calibration, Operating, calibration, operating_points
from momentum_transfer.transfer.error_analysis.judged import Judged, judge
from momentum_transfer.transfer.error_analysis.kinds import KINDS, Kinds, find_kinds
from momentum_transfer.transfer.scores import lvis
from momentum_transfer.transfer.scores.coco import Results, Source
from momentum_transfer.transfer.scores.inputs import IouType, load_detections, load_ground_truth
from momentum_transfer.transfer.scores.precision import Inputs

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
    kept = at_thresholds.shown(judged, points)
    table = at_thresholds.confusion(judged, kept)
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
        "hardest": [_image(judged, kinds, kept, image) for image in at_thresholds.hardest(judged, kept, HARDEST)],
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


def _image(judged: Judged, kinds: Kinds, kept: np.ndarray, image: at_thresholds.HardImage) -> dict[str, Any]:
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
