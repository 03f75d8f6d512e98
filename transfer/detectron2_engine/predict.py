"""Predictions of Detectron2's models as files, through its own data path at test.

A trained model of Detectron2 on images in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from PIL import Image
from torch import nn

from momentum_transfer.core.distributed import barrier, rank, world_size
from momentum_transfer.core.files import atomic_path
from momentum_transfer.core.log import ProgressLine
from momentum_transfer.transfer.config import task_name
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.semantic_datasets import SemanticData, label_file
from momentum_transfer.transfer.detectron2_engine.data import ENGINE, dataset_dicts, test_mapper
from momentum_transfer.transfer.predictions import IouType, Predictions, results_path
from momentum_transfer.transfer.torchvision_engine.detection_run import iou_types, result_entries, write_entries
from momentum_transfer.transfer.torchvision_engine.semantic_data import pictures_of
from momentum_transfer.transfer.torchvision_engine.structures import Detections


def predict(
    cfg: CfgNode, theirs: Any, model: nn.Module, data: DetectionData | SemanticData, out_dir: Path
) -> Predictions:
    """Detections (or label PNGs) of one data set."""
    path, types, seconds = _PREDICT[task_name(cfg)](cfg, theirs, model, data, results_path(out_dir, data.name))
    return Predictions(path, data.name, types, ENGINE, seconds)


_Written = tuple[Path, tuple[IouType, ...], float]
"""The file or folder, what overlaps can be scored in it, seconds per image."""


def _detections(cfg: CfgNode, theirs: Any, model: nn.Module, data: DetectionData, path: Path) -> _Written:
    """Write the detections of every image, one at a time. Several processes share the images."""
    mapper, pictures = test_mapper(theirs), dataset_dicts(data)[rank() :: world_size()]
    model.eval()
    entries: list[dict[str, Any]] = []
    begun = time.monotonic()
    with torch.no_grad(), ProgressLine("predict", len(pictures)) as progress:
        for picture in pictures:
            found = model([mapper(picture)])[0]["instances"]
            masks = found.pred_masks if found.has("pred_masks") else None
            detections = Detections(found.pred_boxes.tensor, found.scores, found.pred_classes, masks)
            entries += result_entries(picture["image_id"], detections, data.category_ids)
            progress.advance()
    seconds = (time.monotonic() - begun) / max(len(pictures), 1)
    write_entries(entries, path)
    return path, iou_types(cfg), seconds


def _labels(cfg: CfgNode, theirs: Any, model: nn.Module, data: SemanticData, path: Path) -> _Written:
    """Write one label PNG an image to a folder of the path's stem. Several processes share the images."""
    folder = path.with_suffix("")
    mapper, pictures = test_mapper(theirs), pictures_of(data)[rank() :: world_size()]
    model.eval()
    begun = time.monotonic()
    with torch.no_grad(), ProgressLine("predict", len(pictures)) as progress:
        for picture in pictures:
            given = {"file_name": str(picture.file), "height": picture.height, "width": picture.width}
            labels = model([mapper(given)])[0]["sem_seg"].argmax(dim=0)
            with atomic_path(label_file(folder, picture.image_id)) as temporary:
                Image.fromarray(labels.cpu().numpy().astype("uint8")).save(temporary)
            progress.advance()
    seconds = (time.monotonic() - begun) / max(len(pictures), 1)
    barrier()
    return folder, (), seconds


_PREDICT: dict[str, Callable[[CfgNode, Any, nn.Module, Any, Path], _Written]] = {
    "detection": _detections,
    "segmentation": _labels,
}


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
        return [_as_detections(one["instances"]) for one in found]

    def _given(self, image: np.ndarray) -> dict[str, Any]:
        pixels = image[:, :, ::-1] if self.format == "BGR" else image
        resized = self.resizing.get_transform(pixels).apply_image(pixels)
        tensor = torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1)))
        return {"image": tensor, "height": image.shape[0], "width": image.shape[1]}


def _as_detections(found: Any) -> Detections:
    masks = found.pred_masks if found.has("pred_masks") else None
    return Detections(found.pred_boxes.tensor, found.scores, found.pred_classes, masks)
