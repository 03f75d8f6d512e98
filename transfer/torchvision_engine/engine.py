"""The torchvision engine: Detectron2's computation from torchvision's parts, wherever PyPI reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch.utils.data import DataLoader

from momentum_transfer import samplers
from momentum_transfer.console import say
from momentum_transfer.devices import choose_device
from momentum_transfer.distributed import barrier, is_main, process_group, rank, world_size
from momentum_transfer.errors import InputError
from momentum_transfer.samplers import Batches, RepeatedPasses
from momentum_transfer.schedules import Schedule, cosine, multi_step, polynomial, times_warmup, with_warmup
from transfer.config import is_semantic
from transfer.data.datasets import get_dataset
from transfer.engine import Finetuned, Predictions, Score, results_path
from transfer.initial_weights import InitialWeights, read_detector, read_initial
from transfer.torchvision_engine import semantic_run, solver, training_state
from transfer.torchvision_engine.best import BestKeeper
from transfer.torchvision_engine.capabilities import unsupported
from transfer.torchvision_engine.data import Mapper, PictureList, TrainingSamples, read_pictures, with_objects
from transfer.torchvision_engine.detectors import Detector
from transfer.torchvision_engine.models import build_detector
from transfer.torchvision_engine.predict import predict
from transfer.torchvision_engine.sampling import repeat_factors
from transfer.torchvision_engine.semantic import Segmentor
from transfer.torchvision_engine.semantic_data import predict_labels
from transfer.torchvision_engine.train import Training, train
from transfer.torchvision_engine.training_state import Position
from transfer.torchvision_engine.weights import export_state, load_backbone, load_detector


class TorchvisionEngine:
    """Fine-tuning and prediction by this project's own detectors."""

    name = "torchvision"

    def unsupported(self, cfg: CfgNode) -> str | None:
        """Why this engine cannot run the config here, or None."""
        return unsupported(cfg)

    def finetune(
        self, cfg: CfgNode, weights: str, seed: int, out_dir: Path, *, resume: bool = False, score: Score | None = None
    ) -> Finetuned:
        """Train; see ``engine.Engine``. Leaves ``model_final.pth``, ``metrics.jsonl`` and the last checkpoint."""
        device = choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")
        with process_group(device):
            return _finetune(cfg, weights, seed, Path(out_dir), resume, device, score)

    def predict(self, cfg: CfgNode, weights: Path, out_dir: Path) -> list[Predictions]:
        """Predict; see ``engine.Engine``. Leaves ``results_<dataset>.json``."""
        device = choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")
        detector = build(cfg)
        load_detector(detector, read_detector(weights), str(weights))
        detector.to(device)
        with process_group(device):
            return [_predict(cfg, detector, name, Path(out_dir)) for name in cfg.DATASETS.TEST]


def _predict(cfg: CfgNode, detector: Detector, name: str, out_dir: Path) -> Predictions:
    """Detections (or label PNGs) of one data set."""
    mapper, path, workers = mapper_of(cfg, train=False), results_path(out_dir, name), cfg.DATALOADER.NUM_WORKERS
    if isinstance(detector, Segmentor):
        folder = path.with_suffix("")
        seconds = predict_labels(detector, semantic_run.open_data(cfg, name), mapper, folder, workers)
        return Predictions(folder, name, ("mIoU",), TorchvisionEngine.name, seconds)
    types = ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",)
    seconds = predict(detector, _pictures(cfg, name), mapper, path, workers)
    return Predictions(path, name, types, TorchvisionEngine.name, seconds)


def build(cfg: CfgNode) -> Detector:
    """The freshly initialised model of a config."""
    return semantic_run.build_segmentor(cfg) if is_semantic(cfg) else build_detector(cfg)


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


def _pictures(cfg: CfgNode, name: str) -> PictureList:
    return read_pictures(get_dataset(name, cfg.DATASETS.ROOT or None))


def training_loader(cfg: CfgNode, seed: int, start: int) -> DataLoader[Any]:
    """Endless batches from iteration ``start`` on."""
    if cfg.SOLVER.IMS_PER_BATCH % world_size():
        raise InputError(f"SOLVER.IMS_PER_BATCH {cfg.SOLVER.IMS_PER_BATCH} does not divide by {world_size()} processes")
    if is_semantic(cfg):
        return semantic_run.training_loader(cfg, mapper_of(cfg, train=True), seed, start)
    lists = [_pictures(cfg, name) for name in cfg.DATASETS.TRAIN]
    pictures = [picture for one in lists for picture in one.pictures]
    if cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS:
        before = len(pictures)
        pictures = with_objects(pictures)
        say(f"training images: {len(pictures)} ({before - len(pictures)} without objects left out)")
    if not pictures:
        raise InputError(f"no image with objects in {', '.join(cfg.DATASETS.TRAIN)}; nothing can be trained")
    factors = torch.ones(len(pictures))
    if cfg.DATALOADER.SAMPLER_TRAIN == "RepeatFactorTrainingSampler":
        classes = [{a.category for a in p.annotations} for p in pictures]
        factors = repeat_factors(classes, cfg.DATALOADER.REPEAT_THRESHOLD, cfg.DATALOADER.REPEAT_SQRT)
    wide = [p.width > p.height for p in pictures] if cfg.DATALOADER.ASPECT_RATIO_GROUPING else None
    order, size = RepeatedPasses(factors, seed), cfg.SOLVER.IMS_PER_BATCH // world_size()
    batches = Batches(order, size, rank=rank(), world=world_size(), start=start, groups=wide)
    samples = TrainingSamples(pictures, mapper_of(cfg, train=True), seed)
    return samplers.training_loader(samples, batches, workers=cfg.DATALOADER.NUM_WORKERS, collate=list)


def initialise(detector: Detector, initial: InitialWeights) -> Position:
    """Give a fresh detector its weights; what was loaded and what stays new is returned."""
    if initial.detector:
        load_detector(detector, initial.detector, initial.name)
        say(f"weights: the whole detector from {initial.name}")
        return Position(0, tuple(sorted(initial.detector)), ())
    if not initial.backbone:
        say("weights: none, so the whole detector starts at random, its backbone too")
        return Position(0, (), tuple(sorted(export_state(detector))))
    loaded, new = load_backbone(detector, initial.backbone, initial.name)
    say(f"weights: {len(loaded)} backbone tensors from {initial.name}; {len(new)} detector tensors are new")
    return Position(0, tuple(loaded), tuple(new))


def build_training(cfg: CfgNode, detector: Detector, position: Position) -> Training:
    """Optimiser, schedule, clipping and precision of a config."""
    s = cfg.SOLVER
    groups = solver.parameter_groups(detector, s.WEIGHT_DECAY, s.WEIGHT_DECAY_NORM)
    optimizer = torch.optim.SGD(groups, lr=s.BASE_LR, momentum=s.MOMENTUM, nesterov=s.NESTEROV, foreach=True)
    schedule = schedule_of(cfg)
    clip = s.CLIP_GRADIENTS
    clipper = solver.GradientClipper(clip.CLIP_TYPE, clip.CLIP_VALUE, clip.NORM_TYPE) if clip.ENABLED else None
    half = s.AMP.ENABLED and s.AMP.PRECISION == "float16"
    scaler = torch.amp.GradScaler(detector.device.type, enabled=half)
    autocast = getattr(torch, s.AMP.PRECISION) if s.AMP.ENABLED else None
    return Training(detector, optimizer, scaler, lambda step: s.BASE_LR * schedule(step), position, clipper, autocast)


def schedule_of(cfg: CfgNode) -> Schedule:
    """Factor of the learning rate at a step, as Detectron2 builds it (and its DeepLab project WarmupPolyLR)."""
    s = cfg.SOLVER
    warm = min(s.WARMUP_ITERS, s.MAX_ITER), s.WARMUP_FACTOR, s.WARMUP_METHOD
    if s.LR_SCHEDULER_NAME == "WarmupMultiStepLR":
        return with_warmup(multi_step(s.MAX_ITER, s.STEPS, s.GAMMA), *warm)
    if s.LR_SCHEDULER_NAME == "WarmupCosineLR":
        return with_warmup(cosine(s.MAX_ITER, s.BASE_LR_END / s.BASE_LR), *warm)
    if s.LR_SCHEDULER_NAME == "WarmupPolyLR":  # its warm-up may be longer than the run
        falling = polynomial(s.MAX_ITER, s.POLY_LR_POWER)
        return times_warmup(falling, s.WARMUP_ITERS, s.WARMUP_FACTOR, s.WARMUP_METHOD, s.POLY_LR_CONSTANT_ENDING)
    raise ValueError(f"unknown SOLVER.LR_SCHEDULER_NAME {s.LR_SCHEDULER_NAME}")


def _finetune(
    cfg: CfgNode, weights: str, seed: int, out_dir: Path, resume: bool, device: torch.device, score: Score | None
) -> Finetuned:
    out_dir.mkdir(parents=True, exist_ok=True)
    final, last = out_dir / "model_final.pth", training_state.last(out_dir)
    if resume and final.is_file():
        _, position = training_state.read_final(final)
        say(f"{final} is finished already")
        return Finetuned(final, position.loaded, position.new)
    if not resume and last is not None:
        raise InputError(f"{out_dir} holds a training already; go on with --resume, or choose another OUTPUT_DIR")
    torch.manual_seed(seed)
    detector = build(cfg)
    position = initialise(detector, read_initial(weights)) if last is None else Position(0, (), ())
    training = build_training(cfg, detector.to(device), position)
    torch.manual_seed(seed + rank())  # every process draws its own proposals
    if last is not None:
        training.position = training_state.resume(last, detector, training.optimizer, training.scaler, cfg, device)
        say(f"going on after iteration {training.position.step} of {last}")
    loader = training_loader(cfg, seed, training.position.step)
    evaluate = None
    if score is not None and cfg.TEST.EVAL_PERIOD > 0:
        first = cfg.DATASETS.TEST[0]
        evaluate = BestKeeper(detector, lambda folder: _predict(cfg, detector, first, folder), score, out_dir)
        if last is not None:
            evaluate.catch_up(training.position, cfg.TEST.EVAL_PERIOD)
    position, seconds = train(training, loader, cfg, out_dir, evaluate)
    if is_main():
        training_state.save_weights(final, detector, position)
    barrier()
    return Finetuned(final, position.loaded, position.new, seconds)
