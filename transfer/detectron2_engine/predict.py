"""Predictions of Detectron2's models as files, through its own data path at test."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from PIL import Image
from torch import nn

from momentum_transfer.console import ProgressLine
from momentum_transfer.distributed import barrier, rank, world_size
from momentum_transfer.files import atomic_path
from transfer.config import is_semantic
from transfer.data.annotations import DetectionData
from transfer.data.datasets import get_dataset
from transfer.data.semantic_datasets import SemanticData, get_semantic_dataset, label_file
from transfer.detectron2_engine.data import dataset_dicts, test_mapper
from transfer.engine import Predictions, results_path
from transfer.torchvision_engine.predict import result_entries, write_entries
from transfer.torchvision_engine.semantic_data import pictures_of
from transfer.torchvision_engine.structures import Detections

ENGINE = "detectron2"


def predict(cfg: CfgNode, theirs: Any, model: nn.Module, name: str, out_dir: Path) -> Predictions:
    """Detections (or label PNGs) of one data set."""
    path = results_path(out_dir, name)
    if is_semantic(cfg):
        labelled, folder = get_semantic_dataset(name, cfg.DATASETS.ROOT or None), path.with_suffix("")
        return Predictions(folder, name, ("mIoU",), ENGINE, _labels(theirs, model, labelled, folder))
    types = ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",)
    seconds = _detections(theirs, model, get_dataset(name, cfg.DATASETS.ROOT or None), path)
    return Predictions(path, name, types, ENGINE, seconds)


def _detections(theirs: Any, model: nn.Module, data: DetectionData, path: Path) -> float:
    """Write the detections of every image, one at a time; seconds per image. Several processes share the images."""
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
    return seconds


def _labels(theirs: Any, model: nn.Module, data: SemanticData, folder: Path) -> float:
    """Write one label PNG an image to ``folder``; seconds per image. Several processes share the images."""
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
    return seconds
