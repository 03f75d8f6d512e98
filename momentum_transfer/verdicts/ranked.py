"""Detections of one test set in order of score with their matches: all that the bootstrap of AP needs.

Resampling whole images changes neither the matching within an image nor the order of the detections by score, only how
often each detection and each object counts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError

_RULES = ("coco", "lvis", "voc 11-point", "voc area")

#: Bits of a word: T thresholds × A area ranges.
_MOST_RUNS = 63


@dataclass(frozen=True)
class Ranked:
    """D detections ordered by category and, within one, by score; G objects.

    "Run" (t, a) is one of the T IoU thresholds with one of the A area ranges; it is bit ``a·T + t`` of a word.

    Attributes:
        images, categories, thresholds, areas: n, K, T, A.
        limits: limits on detections per image and category, ascending; the largest has been applied.
        image: [D] of each detection. starts: [K + 1] where each category begins.
        false_candidates: [D] bit a is set where the detection would be a false positive in area range a if unmatched.
        match: [M] ascending positions of the detections that took an object in some run.
        counted: [M] words, runs in which that is a true positive.
        ignored: [M] words, runs in which the object is to be ignored: neither true nor false.
        limit: [M] the first of ``limits`` that keeps the detection.
        object_image, object_category: [G]. object_areas: [G] bit a is set where the object counts in area range a.
        groups: name to the categories of a group (LVIS: r, c, f).
        test_set: hash of the images, categories and objects; only outcomes of one test set are ever paired.
        rule: ``coco``, ``lvis``, ``voc 11-point`` or ``voc area``: how curves become numbers.
    """

    test_set: str
    rule: str
    images: int
    categories: int
    thresholds: int
    areas: int
    limits: tuple[int, ...]
    image: np.ndarray
    starts: np.ndarray
    false_candidates: np.ndarray
    match: np.ndarray
    counted: np.ndarray
    ignored: np.ndarray
    limit: np.ndarray
    object_image: np.ndarray
    object_category: np.ndarray
    object_areas: np.ndarray
    groups: dict[str, list[int]]
    clusters: np.ndarray | None = None

    @property
    def runs(self) -> int:
        return self.thresholds * self.areas

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields as the smallest arrays that hold them, for a file; ``from_arrays`` reads them."""
        small = np.uint16 if self.images <= 1 << 16 else np.uint32
        place = np.uint16 if self.categories <= 1 << 16 else np.uint32
        names = list(self.groups)
        member = np.zeros(self.categories, dtype=np.uint8)  # 0: of no group
        for number, name in enumerate(names, start=1):
            member[self.groups[name]] = number
        return {
            "test_set": np.array(self.test_set),
            "rule": np.array(self.rule),
            "shape": np.array([self.images, self.categories, self.thresholds, self.areas], dtype=np.int64),
            "limits": np.array(self.limits, dtype=np.int64),
            "image": self.image.astype(small),
            "starts": self.starts.astype(np.int64),
            "false_candidates": self.false_candidates.astype(np.uint8),
            "match": np.diff(self.match, prepend=0).astype(np.uint32),
            "counted": byte_planes(self.counted),
            "ignored": byte_planes(self.ignored),
            "limit": self.limit.astype(np.uint8),
            "object_image": self.object_image.astype(small),
            "object_category": self.object_category.astype(place),
            "object_areas": self.object_areas.astype(np.uint8),
            "group_names": np.array(names, dtype=np.str_),
            "group": member,
        }

    @classmethod
    def from_arrays(cls, found: dict[str, Any]) -> "Ranked":
        """Read back what ``arrays`` returned; InputError if an array is missing or they do not fit each other."""
        try:
            images, categories, thresholds, areas = (int(value) for value in found["shape"])
            names = [str(name) for name in found["group_names"]]
            ranked = cls(
                str(found["test_set"]), str(found["rule"]), images, categories, thresholds, areas,
                tuple(int(n) for n in found["limits"]),
                image=found["image"].astype(np.int64), starts=found["starts"].astype(np.int64),
                false_candidates=found["false_candidates"],
                match=np.cumsum(found["match"].astype(np.int64)), counted=_words(found["counted"]),
                ignored=_words(found["ignored"]), limit=found["limit"],
                object_image=found["object_image"].astype(np.int64),
                object_category=found["object_category"].astype(np.int64), object_areas=found["object_areas"],
                groups={name: np.flatnonzero(found["group"] == n).tolist() for n, name in enumerate(names, start=1)},
            )  # fmt: skip
        except (KeyError, ValueError, IndexError) as error:
            raise InputError(f"expected the outcomes of detections, found a file without {error}") from error
        ranked._check()
        return ranked

    def _check(self) -> None:
        whole = (
            self.rule in _RULES
            and len(self.false_candidates) == len(self.image)
            and len(self.counted) == len(self.ignored) == len(self.limit) == len(self.match)
            and len(self.object_category) == len(self.object_areas) == len(self.object_image)
            and len(self.starts) == self.categories + 1
            and 0 < self.runs <= _MOST_RUNS
            and _inside(self.image, self.images)
            and _inside(self.object_image, self.images)
            and _inside(self.object_category, self.categories)
            and _inside(self.match, len(self.image))
            and (np.diff(self.match) > 0).all()
            and (np.diff(self.starts, prepend=0, append=len(self.image)) >= 0).all()
        )
        if not whole:
            raise InputError("expected outcomes of detections whose arrays fit each other, found a damaged set")


def _inside(values: np.ndarray, end: int) -> bool:
    return not len(values) or (int(values.min()) >= 0 and int(values.max()) < end)


def byte_planes(words: np.ndarray) -> np.ndarray:
    """[8, N] the words byte by byte: equal bytes side by side compress well."""
    return np.ascontiguousarray(words.astype("<i8").view(np.uint8).reshape(-1, 8).T)


def _words(planes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(planes.T).view("<i8").reshape(-1).astype(np.int64)
