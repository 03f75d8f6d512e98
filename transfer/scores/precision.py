"""Precision and recall tables of COCO and LVIS from detections and objects.

Categories are computed in chunks, so that memory follows the chunk and not the data set. The curve of a category is
computed in all runs (IoU thresholds × area ranges) at once, and at its matched detections alone: between two true
positives precision falls, so the envelope (the best precision at or after a point) is attained at true positives, and
recall first reaches a level at one. False positives are only counted.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from momentum_transfer.transfer.scores.coco_files import Detections, GroundTruth
from momentum_transfer.transfer.scores.greedy_matching import (
    AREAS,
    IOU_THRESHOLDS,
    RECALL_THRESHOLDS,
    RUNS,
    THRESHOLDS,
    Matches,
    area_words,
    box_pairs,
    in_area,
    in_order,
    mask_pairs,
    match,
)
from momentum_transfer.verdicts.ranked import Ranked, byte_planes


def _unpack(words: np.ndarray) -> np.ndarray:
    """[A, T, N] bool from words [N] with a bit per run."""
    bits = np.unpackbits(byte_planes(words), axis=0, count=RUNS, bitorder="little").view(np.bool_)
    return bits.reshape(AREAS, THRESHOLDS, -1)


def _curve(
    counted: np.ndarray, ignored: np.ndarray, false_candidates: np.ndarray, before: np.ndarray, positives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Precision [A, T, R] and recall [A, T] of one category.

    Args:
        counted, ignored: [A, T, N] bool of each matched detection, in order of score.
        false_candidates: [A, N] bool, it would be a false positive if unmatched.
        before: [A, N] false positive candidates up to and including this one.
        positives: [A] objects that count.
    """
    matched = np.cumsum((counted | ignored) & false_candidates[:, None], axis=2, dtype=np.int32)
    at = np.flatnonzero(counted)  # the true positives, run by run
    found = counted.sum(axis=2)
    run = np.repeat(np.arange(RUNS), found.ravel())
    number = np.arange(1, len(at) + 1) - np.repeat(np.cumsum(found) - found.ravel(), found.ravel())
    false = (before[:, None] - matched).ravel()[at]
    precision = np.zeros((RUNS, found.max() + 1))  # behind a run's last true positive it is 0
    precision[run, number - 1] = number / (false + number + np.spacing(1))
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1].reshape(*found.shape, -1)
    needed = np.stack([_needed(count) for count in positives.tolist()])[:, None]  # [A, 1, R]
    recall = found / np.maximum(positives, 1)[:, None]
    return np.take_along_axis(envelope, np.minimum(needed, found.max()), axis=2), recall


@cache
def _needed(positives: int) -> np.ndarray:
    """[R] how many true positives come before the one with which recall reaches each level."""
    return np.searchsorted(np.arange(1, positives + 1) / max(positives, 1), RECALL_THRESHOLDS, side="left")


@dataclass(frozen=True)
class ByScore:
    """D detections of some categories, by category and score."""

    image: np.ndarray  # [D]
    first: np.ndarray  # [categories + 1] where each category begins
    false_candidates: np.ndarray  # [A, D] bool, a false positive in that area range if nothing matches it
    rank: np.ndarray  # [D] by score within image and category


class Outcomes:
    """Collects the detections of consecutive ranges of categories for verdicts; ``ranked`` joins them.

    Args:
        limits: on detections per image and category, ascending; detections beyond the largest are not added.
    """

    def __init__(self, truth: GroundTruth, limits: Sequence[int]) -> None:
        self.truth, self.limits = truth, tuple(limits)
        self._columns: dict[str, list[np.ndarray]] = {}
        self._detections = 0

    def add(self, detections: ByScore, matches: Matches, objects: np.ndarray, counts: np.ndarray) -> None:
        """Add the next categories.

        Args:
            matches: with positions among the detections, ascending.
            objects: [G] positions in the ground truth.
            counts: [A, G] bool, whether an object counts in that area range.
        """
        columns = {
            "image": detections.image.astype(np.int32), "starts": detections.first[:-1] + self._detections,
            "false_candidates": _bits(detections.false_candidates), "match": matches.detection + self._detections,
            "counted": matches.counted, "ignored": matches.ignored,
            "limit": np.searchsorted(self.limits, detections.rank[matches.detection], side="right").astype(np.uint8),
            "object_image": self.truth.image[objects].astype(np.int32),
            "object_category": self.truth.category[objects].astype(np.int32), "object_areas": _bits(counts),
        }  # fmt: skip
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)
        self._detections += len(detections.image)

    def ranked(
        self, rule: str, thresholds: int, areas: int, groups: Mapping[str, Sequence[int]] | None = None
    ) -> Ranked:
        """All that was added; ``groups`` are the categories of each LVIS frequency."""
        columns: dict[str, Any] = {name: np.concatenate(values) for name, values in self._columns.items()}
        columns["starts"] = np.append(columns["starts"], self._detections)
        return Ranked(
            self._test_set(columns), rule, len(self.truth.images), len(self.truth.categories), thresholds, areas,
            self.limits, **columns,
            groups={name: list(chosen) for name, chosen in (groups or {}).items()},
        )  # fmt: skip

    def _test_set(self, columns: Mapping[str, np.ndarray]) -> str:
        """Hash of the ids of images and categories and of the objects that count."""
        ids = [[entry["id"] for entry in entries] for entries in (self.truth.images, self.truth.categories)]
        digest = hashlib.sha256(json.dumps(ids, default=str).encode())
        for name in ("object_image", "object_category", "object_areas"):
            digest.update(columns[name].astype("<i8").tobytes())
        return digest.hexdigest()


def _bits(flags: np.ndarray) -> np.ndarray:
    """[N] uint8, bit a from row a of [A, N], A ≤ 8."""
    return np.bitwise_or.reduce(flags << np.arange(len(flags), dtype=np.uint8)[:, None])


#: Detections of a chunk, unless one category alone has more. Bounds the memory of the evaluation.
CHUNK = 200_000


@dataclass(frozen=True)
class Inputs:
    """Objects and detections, with the flags in which the protocols differ."""

    truth: GroundTruth
    detections: Detections
    crowd: np.ndarray  # [G] bool: overlap by the detection's area, any number of matches
    ignore: np.ndarray  # [G] bool: ignored in every area range
    exempt: np.ndarray  # [D] bool: never a false positive (LVIS: category not exhaustively annotated in the image)


def tabulate(inputs: Inputs, outcomes: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    """Precision [T, R, K, A, M] and recall [T, K, A, M], −1 for a category without objects that count.

    T 10 IoU thresholds, R 101 recall levels, K categories, A 4 area ranges, M limits of ``outcomes``, to which the
    matches are added.
    """
    categories, limits = len(inputs.truth.categories), outcomes.limits
    precision = np.full((THRESHOLDS, len(RECALL_THRESHOLDS), categories, AREAS, len(limits)), -1.0)
    recall = np.full((THRESHOLDS, categories, AREAS, len(limits)), -1.0)
    for low, high, detections, objects in _chunks(inputs.detections.category, inputs.truth.category, categories):
        _Chunk(inputs, detections, objects, limits, low).fill(precision[:, :, low:high], recall[:, low:high], outcomes)
    return precision, recall


def _chunks(
    detection_category: np.ndarray, object_category: np.ndarray, categories: int
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Ranges [low, high) of categories with the detections and objects in them, each in file order by category."""
    both = detection_category, object_category
    by_category = [in_order(of) for of in both]
    ends = [np.concatenate(([0], np.cumsum(np.bincount(of, minlength=categories)))) for of in both]
    low = 0
    while low < categories:
        high = max(low + 1, int(np.searchsorted(ends[0], ends[0][low] + CHUNK, side="right")) - 1)
        high = min(high, categories)
        detections, objects = (order[end[low] : end[high]] for order, end in zip(by_category, ends, strict=True))
        yield low, high, detections, objects
        low = high


class _Chunk:
    """Categories from ``low`` on that are computed together."""

    def __init__(
        self, inputs: Inputs, detections: np.ndarray, objects: np.ndarray, max_dets: Sequence[int], low: int
    ) -> None:
        self.inputs, self.max_dets, self.low = inputs, max_dets, low
        self.detections, self.rank, self.by_score = self._ranked(detections)
        self.group = self._groups(inputs.detections, self.detections)
        object_group = self._groups(inputs.truth, objects)
        order = in_order(object_group)
        self.objects, self.object_group = objects[order], object_group[order]
        self.object_ignored = ~in_area(inputs.truth.area[self.objects]) | inputs.ignore[self.objects]

    def _ranked(self, detections: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Detections by category, image and score, up to the limit in each image; their ranks in it; and their order by
        category and score.

        Equal scores keep the order of images and, in an image, that of the file, as with the references' mergesort.
        """
        columns, number = self.inputs.detections, len(detections)
        detections = detections[in_order(columns.image[detections])]
        score = columns.score[detections]
        falling = np.argsort(-score)
        score, step = score[falling], np.zeros(number, dtype=np.int64)  # whole numbers in place of scores
        step[falling[1:]] = np.cumsum(score[1:] != score[:-1])
        detections = detections[in_order((columns.category[detections] - self.low) * np.int64(number) + step)]
        place = in_order(self._groups(columns, detections))  # of each in the order by score
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

    def fill(self, precision: np.ndarray, recall: np.ndarray, outcomes: Outcomes) -> None:
        """Write the results of the chunk's categories into their tables and into ``outcomes``."""
        columns, order = self.inputs.detections, self.by_score
        categories = np.arange(self.low, self.low + recall.shape[1] + 1)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        found = self._match()
        found = found.take(np.argsort(place[found.detection]))
        # From here on detections are known by their places in that order.
        matches = Matches(place[found.detection], found.counted, found.ignored)
        first = np.searchsorted(columns.category[self.detections], categories)
        bounds = np.searchsorted(matches.detection, first)
        ends = np.searchsorted(self.inputs.truth.category[self.objects], categories)
        # [categories, A] objects that count
        positives = np.array([(~self.object_ignored[:, a:b]).sum(axis=1) for a, b in pairwise(ends)])
        ordered, rank = self.detections[order], self.rank[order]
        false_candidates = in_area(columns.area[ordered]) & ~self.inputs.exempt[ordered]
        detections = ByScore(columns.image[ordered], first, false_candidates, rank)
        outcomes.add(detections, matches, self.objects, ~self.object_ignored)
        # [A, D + 1]: false positive candidates before each place.
        before = np.zeros((AREAS, len(order) + 1), dtype=np.int32)
        for m, limit in enumerate(self.max_dets):
            np.cumsum((false_candidates & (rank < limit)).view(np.uint8), axis=1, dtype=np.int32, out=before[:, 1:])
            for k in np.flatnonzero(positives.any(axis=1)).tolist():
                mine = matches.take(slice(bounds[k], bounds[k + 1]))
                if limit < self.max_dets[-1]:
                    mine = mine.take(np.flatnonzero(rank[mine.detection] < limit))
                points, found_of_all = _curve(
                    _unpack(mine.counted),
                    _unpack(mine.ignored),
                    false_candidates[:, mine.detection],
                    before[:, mine.detection + 1] - before[:, first[k], None],
                    positives[k],
                )
                seen = positives[k] > 0
                precision[:, :, k, seen, m] = points[seen].transpose(1, 2, 0)
                recall[:, k, seen, m] = found_of_all[seen].T

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
