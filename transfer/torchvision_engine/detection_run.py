"""Detection from settings: the model, its training batches, its predictions as a COCO result file."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch.utils.data import DataLoader

from momentum_transfer.core import samplers
from momentum_transfer.core.distributed import barrier, is_main, rank, world_size
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import ProgressLine, say
from momentum_transfer.core.samplers import Batches, RepeatedPasses, ordered_loader
from momentum_transfer.transfer.data.annotations import DetectionData, encode_mask
from momentum_transfer.transfer.predictions import IouType, iou_types, results_path
from momentum_transfer.transfer.tasks.task import Task
from momentum_transfer.transfer.torchvision_engine.data import (
    AnnotatedImage,
    Mapper,
    TestSamples,
    TrainingSamples,
    annotated_images,
)
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Sample
from momentum_transfer.transfer.torchvision_engine.unlabelled import split_labels, training_images, unlabelled_images


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


#: Between the seed of the labelled images' order and that of the others.
_OTHERS = 1_000_003


def training_loader(
    cfg: CfgNode, task: Task[DetectionData], seed: int, start: int, network: Any = None
) -> Iterable[list[Sample]]:
    """Endless batches of a task's training sets from iteration ``start`` on.

    With a teacher, from SEMI.BURN_IN on, a batch ends with images to label, which have a ``strong`` view.
    """
    every, mapper, semi = training_images(cfg, task.train), mapper_of(cfg, train=True), cfg.SEMI
    if cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS:
        without = sum(len(one.load()["images"]) for one in task.train) - len(every)
        say(f"training images: {len(every)} ({without} without objects left out)")
    images, _ = split_labels(cfg, every, seed)
    factors = torch.ones(len(images))
    if cfg.DATALOADER.SAMPLER_TRAIN == "RepeatFactorTrainingSampler":
        classes = [{a.category for a in image.annotations} for image in images]
        factors = repeat_factors(classes, cfg.DATALOADER.REPEAT_THRESHOLD, cfg.DATALOADER.REPEAT_SQRT)
    samples = TrainingSamples(images, mapper, seed, semi.STRONG_LABELLED)
    labelled = _loader(cfg, samples, factors, cfg.SOLVER.IMS_PER_BATCH, start)
    if not semi.TEACHER:
        return map(_weak_then_strong, labelled) if semi.STRONG_LABELLED else labelled
    others = unlabelled_images(cfg, task.train, task.test, seed)
    samples = TrainingSamples(others, mapper, seed + _OTHERS, True)
    first = max(start - semi.BURN_IN, 0)
    return _joined(cfg, labelled, _loader(cfg, samples, torch.ones(len(others)), semi.IMS_PER_BATCH, first), start)


def _loader(
    cfg: CfgNode, samples: TrainingSamples, factors: torch.Tensor, images: int, start: int
) -> DataLoader[list[Sample]]:
    """Endless batches of ``images``, over all processes, from one on."""
    wide = [image.width > image.height for image in samples.images] if cfg.DATALOADER.ASPECT_RATIO_GROUPING else None
    order, size = RepeatedPasses(factors, samples.seed), images // world_size()
    batches = Batches(order, size, rank=rank(), world_size=world_size(), start=start, groups=wide)
    return samplers.training_loader(samples, batches, workers=cfg.DATALOADER.NUM_WORKERS, collate=list)


def _weak_then_strong(samples: Sequence[Sample]) -> list[Sample]:
    """Labelled images in both views."""
    views = [(s, s.image) for s in samples] + [(s, s.strong) for s in samples if s.strong is not None]
    return [replace(sample, image=view, strong=None) for sample, view in views]


def _joined(
    cfg: CfgNode, labelled: Iterable[list[Sample]], unlabelled: Iterable[list[Sample]], start: int
) -> Iterator[list[Sample]]:
    """Batches with labels; from SEMI.BURN_IN on with images to label after them."""
    others = iter(unlabelled)
    for step, batch in enumerate(labelled, start):
        known = _weak_then_strong(batch) if cfg.SEMI.STRONG_LABELLED else batch
        yield known + next(others) if step >= cfg.SEMI.BURN_IN else known


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
