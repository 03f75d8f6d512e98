"""Detection from settings: the model, its training batches, its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch.utils.data import DataLoader

from momentum_transfer.core import samplers
from momentum_transfer.core.distributed import rank, world_size
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.core.samplers import Batches, RepeatedPasses
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.predictions import IouType, results_path
from momentum_transfer.transfer.torchvision_engine.data import Mapper, TrainingSamples, read_pictures, with_objects
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from momentum_transfer.transfer.torchvision_engine.predict import predict as predict_boxes
from momentum_transfer.transfer.torchvision_engine.sampling import repeat_factors


def build(cfg: CfgNode) -> Detector:
    """The freshly initialised detector of a config."""
    return build_detector(cfg)


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
    pictures = [picture for one in data for picture in read_pictures(one).pictures]
    if cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS:
        before = len(pictures)
        pictures = with_objects(pictures)
        say(f"training images: {len(pictures)} ({before - len(pictures)} without objects left out)")
    if not pictures:
        names = ", ".join(one.name for one in data)
        raise InputError(f"no image with objects in {names}; nothing can be trained")
    factors = torch.ones(len(pictures))
    if cfg.DATALOADER.SAMPLER_TRAIN == "RepeatFactorTrainingSampler":
        classes = [{a.category for a in p.annotations} for p in pictures]
        factors = repeat_factors(classes, cfg.DATALOADER.REPEAT_THRESHOLD, cfg.DATALOADER.REPEAT_SQRT)
    wide = [p.width > p.height for p in pictures] if cfg.DATALOADER.ASPECT_RATIO_GROUPING else None
    order, size = RepeatedPasses(factors, seed), cfg.SOLVER.IMS_PER_BATCH // world_size()
    batches = Batches(order, size, rank=rank(), world=world_size(), start=start, groups=wide)
    samples = TrainingSamples(pictures, mapper_of(cfg, train=True), seed)
    return samplers.training_loader(samples, batches, workers=cfg.DATALOADER.NUM_WORKERS, collate=list)


def predict(
    cfg: CfgNode, detector: Detector, data: DetectionData, out_dir: Path
) -> tuple[Path, tuple[IouType, ...], float]:
    """Write the detections of one test set; the file, what can be scored in it, seconds per image."""
    path, types = results_path(out_dir, data.name), iou_types(cfg)
    mapper = mapper_of(cfg, train=False)
    seconds = predict_boxes(detector, read_pictures(data), mapper, path, cfg.DATALOADER.NUM_WORKERS)
    return path, types, seconds


def iou_types(cfg: CfgNode) -> tuple[IouType, ...]:
    """What of a detector's predictions can be scored: boxes, and masks where it has them."""
    return ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",)
