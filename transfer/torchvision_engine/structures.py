"""Data structures of detectors: samples with their targets, and detections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class InstanceMasks(Protocol):
    """Ground-truth masks of one image, either bitmaps or polygons (``masks.py``)."""

    def __len__(self) -> int: ...

    def select(self, index: Tensor) -> InstanceMasks:
        """The masks at ``index`` (int64 [M], repeats allowed)."""
        ...

    def crop_and_resize(self, boxes: Tensor, size: int) -> Tensor:
        """Each mask within its own box: ``boxes`` [M, 4] → bool [M, size, size]."""
        ...


@dataclass
class Target:
    """Ground truth of one image, in pixels of the resized image.

    boxes: float32 [G, 4], x1 y1 x2 y2. classes: int64 [G] from 0 to the number of classes − 1.
    masks: G masks, or None where the task has none.
    """

    boxes: Tensor
    classes: Tensor
    masks: InstanceMasks | None = None

    def to(self, device: torch.device) -> Target:
        """Boxes and classes on ``device``; masks stay where they are and are cropped there."""
        return Target(self.boxes.to(device), self.classes.to(device), self.masks)


@dataclass
class Sample:
    """One image on its way into a detector.

    image: uint8 or float [3, H, W] in the channel order of INPUT.FORMAT, resized, not normalised.
    height, width: size of the original image, to which predictions are scaled back.
    labels: int64 [H, W], for semantic segmentation.
    features: float [C, h, w] of a frozen backbone, in the place of the image, whose size is then that of the labels.
    """

    image: Tensor
    image_id: int
    height: int
    width: int
    file_name: str = ""
    target: Target | None = None
    labels: Tensor | None = None
    features: Tensor | None = None


@dataclass
class Detections:
    """Detections of one image, best score first.

    boxes: float32 [D, 4]. scores: float32 [D]. classes: int64 [D].
    masks: probabilities [D, 1, M, M] inside the detector, bool [D, H, W] after ``masks.rescale``, None without masks.
    """

    boxes: Tensor
    scores: Tensor
    classes: Tensor
    masks: Tensor | None = None

    def select(self, keep: Tensor) -> Detections:
        masks = None if self.masks is None else self.masks[keep]
        return Detections(self.boxes[keep], self.scores[keep], self.classes[keep], masks)

    def __len__(self) -> int:
        return len(self.scores)


@dataclass
class Proposals:
    """Candidate boxes of one image, and what they are to become (training only).

    boxes: float32 [R, 4]. classes: int64 [R], the number of classes meaning background, −1 ignored.
    matched: int64 [R], which ground-truth object a proposal was matched with. matched_boxes: its box [R, 4].
    """

    boxes: Tensor
    image_size: tuple[int, int]
    classes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    matched: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    matched_boxes: Tensor = field(default_factory=lambda: torch.empty(0, 4))
