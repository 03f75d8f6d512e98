"""What the matcher found, kept per image: the outcomes that verdicts resample (``verdicts.ranked.Ranked``)."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from momentum_transfer.transfer.scores.inputs import GroundTruth
from momentum_transfer.transfer.scores.matching import Matches
from momentum_transfer.verdicts.ranked import Ranked


class Outcomes:
    """Gathers the detections of consecutive ranges of categories; ``ranked`` joins them.

    Args:
        limits: on detections per image and category, ascending; detections beyond the largest are not given.
    """

    def __init__(self, truth: GroundTruth, limits: Sequence[int]) -> None:
        self.truth, self.limits = truth, tuple(limits)
        self._columns: dict[str, list[np.ndarray]] = {}
        self._detections = 0

    def add(
        self,
        image: np.ndarray,
        first: np.ndarray,
        blamed: np.ndarray,
        rank: np.ndarray,
        matches: Matches,
        objects: np.ndarray,
        counts: np.ndarray,
    ) -> None:
        """The next categories.

        Args:
            image, rank: [D] of the detections, by category and score; rank within image and category.
            first: [categories + 1] where each category begins among them.
            blamed: [A, D] bool, a false positive in that area range if nothing matches it.
            matches: with positions among the D, ascending.
            objects: [G] positions in the ground truth. counts: [A, G] bool, whether it counts in that area range.
        """
        columns = {
            "image": image.astype(np.int32), "starts": first[:-1] + self._detections, "blamed": _bits(blamed),
            "match": matches.detection + self._detections, "counted": matches.counted, "ignored": matches.ignored,
            "limit": np.searchsorted(self.limits, rank[matches.detection], side="right").astype(np.uint8),
            "object_image": self.truth.image[objects].astype(np.int32),
            "object_category": self.truth.category[objects].astype(np.int32), "object_areas": _bits(counts),
        }  # fmt: skip
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)
        self._detections += len(image)

    def ranked(
        self, rule: str, thresholds: int, areas: int, groups: Mapping[str, Sequence[int]] | None = None
    ) -> Ranked:
        """All that was added."""
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
    """[N] uint8, bit a from row a of [A, N]."""
    words = np.zeros(flags.shape[1], dtype=np.uint8)
    for bit, row in enumerate(flags):
        words |= row.astype(np.uint8) << bit
    return words
