"""A trained model of Detectron2 on images in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from momentum_transfer.transfer.torchvision_engine.structures import Detections


class Detectron2Predictor:
    """Images to what is found in them, by Detectron2's data path at test; see ``engine.Predictor``."""

    def __init__(self, theirs: Any, model: nn.Module) -> None:
        from detectron2.data import transforms as T

        self.model, self.format = model.eval(), theirs.INPUT.FORMAT
        self.resizing = T.ResizeShortestEdge(
            [theirs.INPUT.MIN_SIZE_TEST, theirs.INPUT.MIN_SIZE_TEST], theirs.INPUT.MAX_SIZE_TEST
        )

    def __call__(self, images: Sequence[np.ndarray]) -> list[Detections] | list[np.ndarray]:
        with torch.no_grad():  # one at a time: Detectron2 would pad them to the largest
            found = [self.model([self._given(image)])[0] for image in images]
        if found and "sem_seg" in found[0]:
            return [one["sem_seg"].argmax(dim=0).cpu().numpy().astype(np.uint8) for one in found]
        return [_detections(one["instances"]) for one in found]

    def _given(self, image: np.ndarray) -> dict[str, Any]:
        pixels = image[:, :, ::-1] if self.format == "BGR" else image
        resized = self.resizing.get_transform(pixels).apply_image(pixels)
        tensor = torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1)))
        return {"image": tensor, "height": image.shape[0], "width": image.shape[1]}


def _detections(found: Any) -> Detections:
    masks = found.pred_masks if found.has("pred_masks") else None
    return Detections(found.pred_boxes.tensor, found.scores, found.pred_classes, masks)
