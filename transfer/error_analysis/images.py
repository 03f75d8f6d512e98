"""At the thresholds of the best F1: confusions between classes, and the images that go worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from momentum_transfer.transfer.error_analysis.classes import Operating
from momentum_transfer.transfer.error_analysis.judged import FOREGROUND, Judged


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
