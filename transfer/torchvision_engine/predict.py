"""Detections of a data set as a COCO result file."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from momentum_transfer.core.distributed import barrier, is_main, rank, world_size
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import ProgressLine
from momentum_transfer.core.samplers import ordered_loader
from momentum_transfer.transfer.data.run_lengths import encode_mask
from momentum_transfer.transfer.torchvision_engine.data import Mapper, PictureList, TestSamples
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.structures import Detections


def predict(detector: Detector, data: PictureList, mapper: Mapper, path: Path, workers: int) -> float:
    """Write the detections of every image, one image at a time as Detectron2 does; seconds per image.

    With several processes each takes every n-th image, and the first one merges what they wrote.
    """
    detector.eval()
    mine = data.pictures[rank() :: world_size()]
    loader = ordered_loader(TestSamples(mine, mapper), 1, workers=workers, collate=list)
    entries: list[dict[str, Any]] = []
    begun = time.monotonic()
    with torch.no_grad(), ProgressLine("predict", len(mine)) as progress:
        for samples in loader:
            for sample, found in zip(samples, detector(samples), strict=True):
                entries += result_entries(sample.image_id, found, data.category_ids)
            progress.advance(len(samples))
    seconds = (time.monotonic() - begun) / max(len(mine), 1)
    write_entries(entries, path)
    return seconds


def result_entries(image_id: int, found: Detections, category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """One image's detections in COCO's result form: box x y width height, mask as compressed RLE."""
    boxes, scores, classes = found.boxes.cpu().numpy(), found.scores.tolist(), found.classes.tolist()
    entries = []
    for index, (box, score, label) in enumerate(zip(boxes.astype(np.float64), scores, classes, strict=True)):
        x1, y1, x2, y2 = box.tolist()
        entry: dict[str, Any] = {
            "image_id": image_id, "category_id": category_ids[label], "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score
        }  # fmt: skip
        if found.masks is not None:
            entry["segmentation"] = encode_mask(found.masks[index].cpu().numpy())
        entries.append(entry)
    return entries


def write_entries(entries: list[dict[str, Any]], path: Path) -> None:
    """Write the entries of all processes to one file, ordered by image; every process has to call this."""
    parts = [path.with_name(f"{path.stem}.part{index}.json") for index in range(world_size())]
    if len(parts) == 1:
        write_text(path, json.dumps(entries))
        return
    write_text(parts[rank()], json.dumps(entries))
    barrier()
    if is_main():
        merged = [entry for part in parts for entry in json.loads(part.read_text(encoding="utf-8"))]
        merged.sort(key=lambda entry: entry["image_id"])  # stable, so that an image's detections stay in their order
        write_text(path, json.dumps(merged))
        for part in parts:
            part.unlink()
    barrier()
