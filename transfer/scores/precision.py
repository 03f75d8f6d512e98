"""Precision and recall tables from detections and objects: what COCO and LVIS share.

Only true positives shape a precision-recall curve. Between two of them precision falls, so the envelope (the best
precision at or after a point) is attained at true positives; and recall first reaches a level at one. So the long
list of false positives is only counted, once per area range, and the curve is computed at the matched detections
alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from transfer.scores.inputs import Detections, GroundTruth
from transfer.scores.matching import (
    AREAS,
    IOU_THRESHOLDS,
    RECALL_THRESHOLDS,
    RUNS,
    THRESHOLDS,
    Matches,
    area_words,
    in_area,
    match,
)
from transfer.scores.overlaps import box_pairs, mask_pairs

#: Detections worked on at a time, unless one category alone has more. Bounds the memory of the evaluation.
CHUNK = 200_000


@dataclass(frozen=True)
class Tables:
    """As the references' ``eval``: −1 where a category has no object that counts.

    T 10 IoU thresholds, R 101 recall levels, K categories, A 4 area ranges, M limits on detections per image.
    """

    precision: np.ndarray  # [T, R, K, A, M]
    recall: np.ndarray  # [T, K, A, M]


@dataclass(frozen=True)
class Inputs:
    """Objects and detections, with the flags in which the protocols differ."""

    truth: GroundTruth
    detections: Detections
    crowd: np.ndarray  # [G] bool: overlap by the detection's area, any number of matches
    ignore: np.ndarray  # [G] bool: ignored in every area range
    exempt: np.ndarray  # [D] bool: never a false positive (LVIS: category not exhaustively annotated in the image)


def tabulate(inputs: Inputs, max_dets: Sequence[int]) -> Tables:
    """Precision and recall for each limit of ``max_dets`` (ascending; per image and category, by score)."""
    categories = len(inputs.truth.categories)
    tables = Tables(
        precision=np.full((THRESHOLDS, len(RECALL_THRESHOLDS), categories, AREAS, len(max_dets)), -1.0),
        recall=np.full((THRESHOLDS, categories, AREAS, len(max_dets)), -1.0),
    )
    for low, high, detections, objects in _chunks(inputs.detections.category, inputs.truth.category, categories):
        _Chunk(inputs, detections, objects, max_dets).fill(tables, low, high)
    return tables


def _chunks(
    detection_category: np.ndarray, object_category: np.ndarray, categories: int
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Ranges [low, high) of categories with the detections and objects in them, each in file order by category."""
    by_category = np.argsort(detection_category, kind="stable"), np.argsort(object_category, kind="stable")
    ends = [
        np.concatenate(([0], np.cumsum(np.bincount(of, minlength=categories))))
        for of in (detection_category, object_category)
    ]
    low = 0
    while low < categories:
        high = max(low + 1, int(np.searchsorted(ends[0], ends[0][low] + CHUNK, side="right")) - 1)
        high = min(high, categories)
        detections, objects = (order[end[low] : end[high]] for order, end in zip(by_category, ends, strict=True))
        yield low, high, detections, objects
        low = high


class _Chunk:
    """The categories that are worked on together."""

    def __init__(self, inputs: Inputs, detections: np.ndarray, objects: np.ndarray, max_dets: Sequence[int]) -> None:
        self.inputs, self.max_dets = inputs, max_dets
        images = len(inputs.truth.images)
        group = inputs.detections.category[detections] * images + inputs.detections.image[detections]
        # Stable: equal scores keep the order of the file, as the references' mergesort does.
        order = np.lexsort((-inputs.detections.score[detections], group))
        group = group[order]
        rank = np.arange(len(group)) - np.searchsorted(group, group, side="left")
        kept = rank < max_dets[-1]
        self.detections, self.group, self.rank = detections[order][kept], group[kept], rank[kept]
        object_group = inputs.truth.category[objects] * images + inputs.truth.image[objects]
        order = np.argsort(object_group, kind="stable")
        self.objects, self.object_group = objects[order], object_group[order]
        self.object_ignored = ~in_area(inputs.truth.area[self.objects]) | inputs.ignore[self.objects]

    def fill(self, tables: Tables, low: int, high: int) -> None:
        """Write the results of the categories [low, high) into ``tables``."""
        truth, all_detections = self.inputs.truth, self.inputs.detections
        matches = self._match()
        category = all_detections.category[self.detections]
        score_order = np.lexsort((-all_detections.score[self.detections], category))
        place = np.empty_like(score_order)
        place[score_order] = np.arange(len(score_order))
        by_place = np.argsort(place[matches.detection])
        matches = Matches(*(column[by_place] for column in (matches.detection, matches.counted, matches.ignored)))
        # A detection in range is a false positive if nothing matches it.
        blamed = in_area(all_detections.area[self.detections]) & ~self.inputs.exempt[self.detections]
        first = np.searchsorted(category[score_order], np.arange(low, high + 1))
        bounds = np.searchsorted(place[matches.detection], first)
        object_category = truth.category[self.objects]
        object_bounds = np.searchsorted(object_category, np.arange(low, high + 1))
        positives = [(~self.object_ignored[:, a:b]).sum(axis=1) for a, b in pairwise(object_bounds)]
        for m, limit in enumerate(self.max_dets):
            within = self.rank < limit
            # [A, D + 1]: how many detections before a place would be blamed if unmatched.
            before = np.zeros((AREAS, len(place) + 1), dtype=np.int64)
            np.cumsum((blamed & within)[:, score_order], axis=1, out=before[:, 1:])
            for k in range(low, high):
                if not positives[k - low].any():
                    continue
                of_category = slice(bounds[k - low], bounds[k - low + 1])
                d = matches.detection[of_category]
                inside = within[d]
                d = d[inside]
                precision, recall = _curve(
                    _bits(matches.counted[of_category][inside]),
                    _bits(matches.ignored[of_category][inside]),
                    blamed[:, d],
                    before[:, place[d] + 1] - before[:, first[k - low], None],
                    positives[k - low],
                )
                seen = positives[k - low] > 0
                tables.precision[:, :, k, seen, m] = precision[seen].transpose(1, 2, 0)
                tables.recall[:, k, seen, m] = recall[seen].T

    def _match(self) -> Matches:
        truth, detections = self.inputs.truth, self.inputs.detections
        crowd = self.inputs.crowd[self.objects]
        groups = self.group, self.object_group
        if detections.rles is not None and truth.rles is not None:
            masks = detections.rles.take(self.detections), truth.rles.take(self.objects)
            pairs = mask_pairs(*groups, *masks, crowd, IOU_THRESHOLDS[0])
        else:
            assert detections.boxes is not None
            assert truth.boxes is not None
            boxes = detections.boxes[self.detections], truth.boxes[self.objects]
            pairs = box_pairs(*groups, *boxes, crowd, IOU_THRESHOLDS[0])
        return match(pairs, self.group, area_words(self.object_ignored), crowd, truth.zero_id[self.objects])


def _bits(words: np.ndarray) -> np.ndarray:
    """[A, T, N] 0/1 from words [N]."""
    shifts = np.arange(RUNS, dtype=np.int64).reshape(AREAS, THRESHOLDS, 1)
    return ((words >> shifts) & 1).astype(np.int32)


def _curve(
    counted: np.ndarray, ignored: np.ndarray, blamed: np.ndarray, before: np.ndarray, positives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Precision [A, T, R] and recall [A, T] of one category.

    Args:
        counted, ignored: [A, T, N] what each matched detection is, in order of score.
        blamed: [A, N] it would be a false positive if unmatched.
        before: [A, N] detections up to and including this one that would be false positives if unmatched.
        positives: [A] objects that count.
    """
    true = np.cumsum(counted, axis=2)
    matched = np.cumsum((counted | ignored) * blamed[:, None], axis=2)
    false = before[:, None] - matched
    precision = true / (false + true + np.spacing(1))
    envelope = np.maximum.accumulate(precision[:, :, ::-1], axis=2)[:, :, ::-1].reshape(RUNS, -1)
    found = counted.sum(axis=2)
    recall = found / np.maximum(positives, 1)[:, None]
    # Place of the j-th true positive of each run: row by row in the flattened table.
    run, place = np.nonzero(counted.reshape(RUNS, -1))
    first = np.searchsorted(run, np.arange(RUNS))
    wanted = np.repeat(np.stack([_needed(int(n)) for n in positives]), THRESHOLDS, axis=0)
    reached = wanted < found.reshape(RUNS, 1)
    sampled = np.zeros(wanted.shape)
    rows, levels = np.nonzero(reached)
    sampled[rows, levels] = envelope[rows, place[first[rows] + wanted[rows, levels]]]
    return sampled.reshape(AREAS, THRESHOLDS, -1), recall


def _needed(positives: int) -> np.ndarray:
    """[R] how many true positives come before the one with which recall reaches each level."""
    return np.searchsorted(np.arange(1, positives + 1) / max(positives, 1), RECALL_THRESHOLDS, side="left")
