"""Precision and recall tables from detections and objects: what COCO and LVIS share.

The categories are worked on in chunks, so that memory follows the chunk and not the dataset.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from momentum_transfer.transfer.scores.curves import curve, unpack
from momentum_transfer.transfer.scores.inputs import Detections, GroundTruth
from momentum_transfer.transfer.scores.matching import (
    AREAS,
    IOU_THRESHOLDS,
    RECALL_THRESHOLDS,
    THRESHOLDS,
    Matches,
    area_words,
    in_area,
    match,
)
from momentum_transfer.transfer.scores.outcomes import Outcomes
from momentum_transfer.transfer.scores.overlaps import box_pairs, mask_pairs

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


def tabulate(inputs: Inputs, max_dets: Sequence[int], outcomes: Outcomes | None = None) -> Tables:
    """Precision and recall for each limit of ``max_dets`` (ascending; per image and category, by score).

    Args:
        outcomes: gathers what was matched.
    """
    categories = len(inputs.truth.categories)
    tables = Tables(
        precision=np.full((THRESHOLDS, len(RECALL_THRESHOLDS), categories, AREAS, len(max_dets)), -1.0),
        recall=np.full((THRESHOLDS, categories, AREAS, len(max_dets)), -1.0),
    )
    for low, high, detections, objects in _chunks(inputs.detections.category, inputs.truth.category, categories):
        _Chunk(inputs, detections, objects, max_dets).fill(tables, low, high, outcomes)
    return tables


def _chunks(
    detection_category: np.ndarray, object_category: np.ndarray, categories: int
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Ranges [low, high) of categories with the detections and objects in them, each in file order by category."""
    by_category = [_stably(np.arange(len(of)), of) for of in (detection_category, object_category)]
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


def _stably(which: np.ndarray, key: np.ndarray) -> np.ndarray:
    """``which`` in ascending order of ``key[which]``; equal ones stay in order. Keys are ≥ 0."""
    keys = key[which]
    if (keys[1:] >= keys[:-1]).all():  # as where a file goes image by image
        return which
    if keys.max() < 1 << 16:  # NumPy sorts these by radix, many times faster
        keys = keys.astype(np.uint16)
    return which[np.argsort(keys, kind="stable")]


class _Chunk:
    """The categories that are worked on together."""

    def __init__(self, inputs: Inputs, detections: np.ndarray, objects: np.ndarray, max_dets: Sequence[int]) -> None:
        self.inputs, self.max_dets = inputs, max_dets
        self.detections, self.rank, self.by_score = self._ranked(detections)
        self.group = self._groups(inputs.detections, self.detections)
        object_group = self._groups(inputs.truth, objects)
        order = np.argsort(object_group, kind="stable")
        self.objects, self.object_group = objects[order], object_group[order]
        self.object_ignored = ~in_area(inputs.truth.area[self.objects]) | inputs.ignore[self.objects]

    def _ranked(self, detections: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Detections by category, image and score, up to the limit in each image; their ranks in it; and their order by
        category and score.

        Equal scores keep the order of images and, in an image, that of the file, as with the references' mergesort.
        """
        columns = self.inputs.detections
        detections = _stably(detections, columns.image)
        detections = detections[np.argsort(-columns.score[detections], kind="stable")]
        detections = _stably(detections, columns.category)
        place = _stably(np.arange(len(detections)), columns.image[detections])
        place = _stably(place, columns.category[detections])  # of each in the order by score
        group = self._groups(columns, detections[place])
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        rank = np.arange(len(group)) - np.repeat(starts, np.diff(starts, append=len(group)))
        kept = rank < self.max_dets[-1]
        place, rank = place[kept], rank[kept]
        position = np.full(len(detections), -1)
        position[place] = np.arange(len(place))
        return detections[place], rank, position[position >= 0]

    def _groups(self, columns: Detections | GroundTruth, which: np.ndarray) -> np.ndarray:
        """A number for each (category, image)."""
        return columns.category[which].astype(np.int64) * len(self.inputs.truth.images) + columns.image[which]

    def fill(self, tables: Tables, low: int, high: int, outcomes: Outcomes | None) -> None:
        """Write the results of the categories [low, high) into ``tables``, and the matches into ``outcomes``."""
        order, first = self._score_order(low, high)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        found = self._match()
        found = found.take(np.argsort(place[found.detection]))
        # From here on detections are known by their places in that order.
        matches = Matches(place[found.detection], found.counted, found.ignored)
        bounds = np.searchsorted(matches.detection, first)
        positives = self._positives(low, high)
        # A detection in range is a false positive if nothing matches it.
        ordered, rank = self.detections[order], self.rank[order]
        blamed = in_area(self.inputs.detections.area[ordered]) & ~self.inputs.exempt[ordered]
        if outcomes is not None:
            image = self.inputs.detections.image[ordered]
            outcomes.add(image, first, blamed, rank, matches, self.objects, ~self.object_ignored)
        # [A, D + 1]: how many detections before a place would be blamed if unmatched.
        before = np.zeros((AREAS, len(order) + 1), dtype=np.int32)
        for m, limit in enumerate(self.max_dets):
            np.cumsum((blamed & (rank < limit)).view(np.uint8), axis=1, dtype=np.int32, out=before[:, 1:])
            for k in np.flatnonzero(positives.any(axis=1)).tolist():
                mine = matches.take(slice(bounds[k], bounds[k + 1]))
                if limit < self.max_dets[-1]:
                    mine = mine.take(np.flatnonzero(rank[mine.detection] < limit))
                precision, recall = curve(
                    unpack(mine.counted),
                    unpack(mine.ignored),
                    blamed[:, mine.detection],
                    before[:, mine.detection + 1] - before[:, first[k], None],
                    positives[k],
                )
                seen = positives[k] > 0
                tables.precision[:, :, low + k, seen, m] = precision[seen].transpose(1, 2, 0)
                tables.recall[:, low + k, seen, m] = recall[seen].T

    def _score_order(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Order of the detections by category and score, and where each category begins in it."""
        category = self.inputs.detections.category[self.detections]
        return self.by_score, np.searchsorted(category, np.arange(low, high + 1))

    def _positives(self, low: int, high: int) -> np.ndarray:
        """[categories, A] objects that count."""
        bounds = np.searchsorted(self.inputs.truth.category[self.objects], np.arange(low, high + 1))
        return np.array([(~self.object_ignored[:, a:b]).sum(axis=1) for a, b in pairwise(bounds)])

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
