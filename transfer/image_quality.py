"""Ranks images by how well a detector did on them, to draw the best and the worst; not a score.

The measure is F1 at IoU 0.5 of the boxes at or above a score: what a person sees when the boxes are drawn. AP of a
single image would count boxes that nobody draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from momentum_transfer.transfer.data.annotations import DetectionData

IOU = 0.5


def image_f1(truth: Sequence[Mapping[str, Any]], detections: Sequence[Mapping[str, Any]]) -> float:
    """F1 in 0 … 1 of ``detections`` against ``truth``, both with ``bbox`` (XYWH) and ``category_id``.

    Detections are matched by falling score, each to the free object of its category with the highest IoU of at least
    0.5. Crowds are no objects, and a detection inside one (its intersection over its own area) counts neither way.
    An image without objects and without detections is perfect.
    """
    objects = [entry for entry in truth if not entry.get("iscrowd") and not entry.get("difficult")]
    crowds = [entry for entry in truth if entry.get("iscrowd") or entry.get("difficult")]
    free = set(range(len(objects)))
    matched = missed = 0
    for found in sorted(detections, key=lambda entry: -entry["score"]):
        same = [index for index in free if objects[index]["category_id"] == found["category_id"]]
        overlaps = _ious([objects[index] for index in same], found, crowd=False)
        if len(overlaps) and overlaps.max() >= IOU:
            free.remove(same[int(overlaps.argmax())])
            matched += 1
        elif not (_ious(crowds, found, crowd=True) >= IOU).any():
            missed += 1
    total = 2 * matched + missed + len(free)
    return 2 * matched / total if total else 1.0


def _ious(objects: Sequence[Mapping[str, Any]], found: Mapping[str, Any], crowd: bool) -> np.ndarray:
    """IoU [len(objects)] of one detection with every object."""
    if not objects:
        return np.zeros(0)
    boxes = np.asarray([entry["bbox"] for entry in objects], dtype=np.float64)
    one = np.asarray([found["bbox"]], dtype=np.float64)
    return np.asarray(coco_mask.iou(one, boxes, [int(crowd)] * len(objects))).reshape(-1)


def best_and_worst(
    data: DetectionData, detections: Mapping[int, Sequence[Mapping[str, Any]]], count: int
) -> tuple[list[int], list[int]]:
    """Ids of the ``count`` images with the highest F1 (most objects first among equals) and with the lowest.

    Images without objects are left out: an empty image is drawn perfectly by drawing nothing. Of an LVIS image only
    the verified categories count, because the others were never annotated.

    Args:
        detections: image id to its detections at or above the score at which they are drawn.
    """
    content = data.load()
    truth: dict[int, list[Mapping[str, Any]]] = {image["id"]: [] for image in content["images"]}
    for entry in content["annotations"]:
        truth[entry["image_id"]].append(entry)
    ranked = []
    for image in content["images"]:
        objects = truth[image["id"]]
        if objects:
            shown = _verified(data, image, objects, detections.get(image["id"], ()))
            ranked.append((image_f1(objects, shown), len(objects), image["id"]))
    ranked.sort(key=lambda item: (-item[0], -item[1], item[2]))
    best = [identity for _, _, identity in ranked[:count]]
    worst = sorted(ranked, key=lambda item: (item[0], -item[1], item[2]))[:count]
    return best, [identity for _, _, identity in worst]


def _verified(
    data: DetectionData,
    image: Mapping[str, Any],
    objects: Sequence[Mapping[str, Any]],
    detections: Sequence[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:
    if data.kind != "lvis":
        return list(detections)
    known = {entry["category_id"] for entry in objects} | set(image.get("neg_category_ids", ()))
    return [entry for entry in detections if entry["category_id"] in known]
