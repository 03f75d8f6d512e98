"""Detection from settings: the model, its training batches, its predictions as a COCO result file."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch.utils.data import DataLoader

from momentum_transfer.core import samplers
from momentum_transfer.core.distributed import barrier, is_main, rank, world_size
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import ProgressLine, say
from momentum_transfer.core.samplers import Batches, RepeatedPasses, ordered_loader
from momentum_transfer.transfer.data.annotations import DetectionData, encode_mask
from momentum_transfer.transfer.predictions import IouType, iou_types, results_path
from momentum_transfer.transfer.torchvision_engine.data import (
    AnnotatedImage,
    Mapper,
    TestSamples,
    TrainingSamples,
    annotated_images,
    with_objects,
)
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Sample


def predict_each(
    network: Detector, images: Sequence[AnnotatedImage], cfg: CfgNode, handle: Callable[[Sample, Any], None]
) -> float:
    """Predict one image at a time, as Detectron2 does, and hand on what is found in each; seconds per image.

    Of several processes each takes every n-th image.
    """
    network.eval()
    mine = images[rank() :: world_size()]
    samples = TestSamples(mine, mapper_of(cfg, train=False))
    loader = ordered_loader(samples, 1, workers=cfg.DATALOADER.NUM_WORKERS, collate=list)
    begun = time.monotonic()
    with torch.no_grad(), ProgressLine("predict", len(mine)) as progress:
        for batch in loader:
            for sample, found in zip(batch, network(batch), strict=True):
                handle(sample, found)
            progress.advance(len(batch))
    return (time.monotonic() - begun) / max(len(mine), 1)


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


def repeat_factors(classes_of_images: Sequence[set[int]], threshold: float, sqrt: bool = True) -> torch.Tensor:
    """How often each image comes in a pass, float32 [N]; LVIS (arXiv 1908.03195), appendix B.2.

    A class that fewer than ``threshold`` of the images hold is repeated by max(1, sqrt(threshold / its frequency)); an
    image by its rarest class.
    """
    count = Counter(c for classes in classes_of_images for c in classes)
    total = len(classes_of_images)
    repeats = {}
    for name, images in count.items():
        ratio = threshold / (images / total)
        repeats[name] = max(1.0, math.sqrt(ratio) if sqrt else ratio)
    factors = [max((repeats[c] for c in classes), default=1.0) for classes in classes_of_images]
    return torch.tensor(factors, dtype=torch.float32)


def mapper_of(cfg: CfgNode, train: bool) -> Mapper:
    """The data path of a config, for training or for test."""
    return Mapper(
        cfg.INPUT.MIN_SIZE_TRAIN if train else (cfg.INPUT.MIN_SIZE_TEST,),
        cfg.INPUT.MAX_SIZE_TRAIN if train else cfg.INPUT.MAX_SIZE_TEST,
        bgr=cfg.INPUT.FORMAT == "BGR",
        mask_format=cfg.INPUT.MASK_FORMAT if cfg.MODEL.MASK_ON and train else None,
        flip=cfg.INPUT.RANDOM_FLIP == "horizontal",
        size_range=cfg.INPUT.MIN_SIZE_TRAIN_SAMPLING == "range",
    )


def training_loader(
    cfg: CfgNode, data: Sequence[DetectionData], seed: int, start: int, network: Any = None
) -> DataLoader[Any]:
    """Endless batches of the training sets ``data`` from iteration ``start`` on."""
    images = [image for one in data for image in annotated_images(one)]
    if cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS:
        before = len(images)
        images = with_objects(images)
        say(f"training images: {len(images)} ({before - len(images)} without objects left out)")
    if not images:
        names = ", ".join(one.name for one in data)
        raise InputError(f"no image with objects in {names}; nothing can be trained")
    factors = torch.ones(len(images))
    if cfg.DATALOADER.SAMPLER_TRAIN == "RepeatFactorTrainingSampler":
        classes = [{a.category for a in image.annotations} for image in images]
        factors = repeat_factors(classes, cfg.DATALOADER.REPEAT_THRESHOLD, cfg.DATALOADER.REPEAT_SQRT)
    wide = [image.width > image.height for image in images] if cfg.DATALOADER.ASPECT_RATIO_GROUPING else None
    order, size = RepeatedPasses(factors, seed), cfg.SOLVER.IMS_PER_BATCH // world_size()
    batches = Batches(order, size, rank=rank(), world_size=world_size(), start=start, groups=wide)
    samples = TrainingSamples(images, mapper_of(cfg, train=True), seed)
    return samplers.training_loader(samples, batches, workers=cfg.DATALOADER.NUM_WORKERS, collate=list)


def predict(
    cfg: CfgNode, detector: Detector, data: DetectionData, out_dir: Path
) -> tuple[Path, tuple[IouType, ...], float]:
    """Write the detections of one test set; the file, what can be scored in it, seconds per image."""
    path, entries = results_path(out_dir, data.name), []

    def keep(sample: Sample, found: Detections) -> None:
        entries.extend(result_entries(sample.image_id, found, data.category_ids))

    seconds = predict_each(detector, annotated_images(data), cfg, keep)
    write_entries(entries, path)
    return path, iou_types(cfg.MODEL.MASK_ON), seconds
