"""PASCAL VOC AP, AP50 and AP75, as papers that fine-tune with Detectron2 report them.

AP50 is the VOC metric: 11-point interpolation for VOC 2007, area under the curve for 2010 and later (Everingham et
al., IJCV 2010, section 4.2). AP is the mean over IoU .50 : .05 : .95 and AP75 that at .75, each by the same
interpolation. By falling score each detection belongs to the object that it overlaps most, and only to that: a second
one on the same object is a false positive, one on a difficult object does not count.

Boxes are COCO's [x, y, width, height] from 0, so a VOC object with corners xmin…ymax (from 1, both ends inside) is
[xmin − 1, ymin − 1, xmax − xmin + 1, ymax − ymin + 1].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores.coco import Results, Source
from momentum_transfer.transfer.scores.coco_files import load_detections, load_ground_truth
from momentum_transfer.transfer.scores.greedy_matching import Matches
from momentum_transfer.transfer.scores.precision import ByScore, Outcomes
from momentum_transfer.verdicts.ap_metrics import voc_metrics
from momentum_transfer.verdicts.ranked import Ranked

Interpolation = Literal["11-point", "area"]
IOU_PERCENT = tuple(range(50, 100, 5))
_EPSILON = np.finfo(np.float64).eps


@dataclass(frozen=True)
class VocScores:
    """The scores. A class without objects that count has NaN and is left out of the means."""

    metrics: dict[str, float]  # AP, AP50, AP75 in percent
    per_class: dict[str, float]  # class name → AP (mean over the thresholds) in percent
    per_class_ap50: dict[str, float]
    table: np.ndarray  # [10, K] AP in percent per threshold and category
    items: Ranked  # what became of every detection and object, by image


def evaluate(
    ground_truth: Source, results: Results, interpolation: Interpolation = "11-point", rounded: bool = True
) -> VocScores:
    """Score detections by the VOC rules.

    Args:
        ground_truth: COCO-form JSON, path or object; objects with ``"difficult": 1`` (or ``"ignore": 1``, as
            Detectron2's and torchvision's converters write it) do not count, nor do detections on them.
        results: COCO result JSON with ``bbox``, path or list.
        interpolation: ``11-point`` (VOC 2007) or ``area`` (2010 and later, 2012).
        rounded: round scores to 3 and corners to 1 decimal, as Detectron2 does (the VOC submission format); published
            numbers include this. Equal scores keep the order of the file; Detectron2 leaves it open.

    Raises:
        InputError: a file or an entry is wrong; both are named.
    """
    if interpolation not in ("11-point", "area"):
        raise InputError(
            f"expected interpolation 11-point (VOC 2007) or area (2010 and later), found {interpolation!r}"
        )
    truth = load_ground_truth(ground_truth, "bbox", area=False)
    detections = load_detections(results, truth, "bbox")
    corners = _corners(detections.boxes, round_to=1 if rounded else None)
    objects = _corners(truth.boxes, None)
    score = _decimals(detections.score, 3) if rounded else detections.score
    table = np.full((len(IOU_PERCENT), len(truth.categories)), np.nan)
    outcomes = Outcomes(truth, (max(1, len(detections)),))
    for k in range(len(truth.categories)):
        mine = np.flatnonzero(truth.category == k)
        difficult = (truth.difficult | truth.ignore)[mine]
        if difficult.all():
            _keep(outcomes, np.zeros(0, dtype=np.int64), [], mine[:0], difficult[:0])
            continue
        found = np.flatnonzero(detections.category == k)
        found = found[np.argsort(-score[found], kind="stable")]
        best, overlap = _best_object(corners[found], detections.image[found], objects[mine], truth.image[mine])
        marks = [_marks(best, overlap, difficult, iou / 100.0) for iou in IOU_PERCENT]
        for row, (true, spared) in enumerate(marks):
            hits = np.cumsum(true.astype(np.float64))
            false = np.cumsum((~spared & ~true).astype(np.float64))
            recall, precision = hits / float((~difficult).sum()), hits / np.maximum(hits + false, _EPSILON)
            table[row, k] = _average_precision(recall, precision, interpolation) * 100
        _keep(outcomes, detections.image[found], marks, mine, difficult)
    names = truth.class_names()
    return VocScores(
        metrics=voc_metrics(table),
        per_class=dict(zip(names, table.mean(axis=0).tolist(), strict=True)),
        per_class_ap50=dict(zip(names, table[0].tolist(), strict=True)),
        table=table,
        items=outcomes.ranked(f"voc {interpolation}", len(IOU_PERCENT), 1),
    )


def _keep(
    outcomes: Outcomes,
    image: np.ndarray,
    marks: Sequence[tuple[np.ndarray, np.ndarray]],
    objects: np.ndarray,
    difficult: np.ndarray,
) -> None:
    """Add the detections of one category, in order of score, with their marks at each threshold."""
    words = np.zeros((2, len(image)), dtype=np.int64)
    for bit, pair in enumerate(marks):
        words |= np.stack(pair).astype(np.int64) << bit
    matched = np.flatnonzero(words.any(axis=0))
    matches = Matches(matched, words[0, matched], words[1, matched])
    detections = ByScore(
        image, np.array([0, len(image)]), np.ones((1, len(image)), dtype=bool), np.zeros(len(image), dtype=np.int64)
    )
    outcomes.add(detections, matches, objects, ~difficult[None])


def _decimals(values: np.ndarray, places: int) -> np.ndarray:
    """The values rounded as decimal text (``np.round`` errs in the last bit near halves)."""
    return np.array([float(f"{value:.{places}f}") for value in values.ravel().tolist()]).reshape(values.shape)


@np.errstate(over="ignore")
def _corners(boxes: np.ndarray | None, round_to: int | None) -> np.ndarray:
    """[N, 4] xmin, ymin, xmax, ymax counted from 1, both ends inside."""
    assert boxes is not None
    corners = np.stack((boxes[:, 0] + 1, boxes[:, 1] + 1, boxes[:, 0] + boxes[:, 2], boxes[:, 1] + boxes[:, 3]), axis=1)
    return corners if round_to is None else _decimals(corners, round_to)


def _best_object(
    boxes: np.ndarray, image: np.ndarray, objects: np.ndarray, object_image: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each detection the object of its image that it overlaps most (−1: none; first of equals), and their IoU."""
    best = np.full(len(boxes), -1)
    overlap = np.full(len(boxes), -np.inf)
    by_image = np.argsort(image, kind="stable")
    objects_by_image = np.argsort(object_image, kind="stable")
    common = np.intersect1d(image, object_image)
    bounds = [
        np.searchsorted(values[order], common, side=side)
        for values, order in ((image, by_image), (object_image, objects_by_image))
        for side in ("left", "right")
    ]
    for d0, d1, g0, g1 in zip(*bounds, strict=True):
        d, g = by_image[d0:d1], objects_by_image[g0:g1]
        iou = _iou(boxes[d, None], objects[None, g])
        column = iou.argmax(axis=1)
        best[d], overlap[d] = g[column], iou[np.arange(len(d)), column]
    return best, overlap


@np.errstate(over="ignore", invalid="ignore")  # boxes of 1e200 pixels overlap nothing
def _iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """IoU of boxes [..., 4] whose ends are inside (hence the + 1), in the devkit's order of operations."""
    width = np.maximum(np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0]) + 1.0, 0.0)
    height = np.maximum(np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1]) + 1.0, 0.0)
    shared = width * height

    def area(box: np.ndarray) -> np.ndarray:
        return (box[..., 2] - box[..., 0] + 1.0) * (box[..., 3] - box[..., 1] + 1.0)

    union = area(a) + area(b) - shared
    return np.divide(shared, union, out=np.zeros(shared.shape), where=union > 0)


def _marks(
    best: np.ndarray, overlap: np.ndarray, difficult: np.ndarray, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """[D] bool each, of detections in order of score: a true positive; on a difficult object."""
    hit = overlap > threshold
    on_difficult = hit & difficult[best]
    candidates = np.flatnonzero(hit & ~on_difficult)
    first = candidates[np.unique(best[candidates], return_index=True)[1]]
    true = np.zeros(len(best), dtype=bool)
    true[first] = True
    return true, on_difficult


def _average_precision(recall: np.ndarray, precision: np.ndarray, interpolation: Interpolation) -> float:
    if interpolation == "11-point":
        total = 0.0
        for level in np.arange(0.0, 1.1, 0.1):
            reached = precision[recall >= level]
            total += (reached.max() if len(reached) else 0.0) / 11.0
        return float(total)
    recall = np.concatenate(([0.0], recall, [1.0]))
    envelope = np.maximum.accumulate(np.concatenate(([0.0], precision, [0.0]))[::-1])[::-1]
    rises = np.flatnonzero(recall[1:] != recall[:-1])
    return float(np.sum((recall[rises + 1] - recall[rises]) * envelope[rises + 1]))
