"""The torchvision engine: Detectron2's computation from torchvision's parts, without Detectron2."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode

from momentum_transfer.backbones.trainable import ALL, describe_trained
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.distributed import barrier, is_main, process_group, rank, world_size
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.core.optimization import Schedule, cosine, multi_step, polynomial, times_warmup, with_warmup
from momentum_transfer.transfer.any_backbone import group_rules
from momentum_transfer.transfer.config import task_name
from momentum_transfer.transfer.experiment import Experiment, Finetuned
from momentum_transfer.transfer.initial_weights import InitialWeights
from momentum_transfer.transfer.predictions import Predictions, Score
from momentum_transfer.transfer.tasks.task import Task
from momentum_transfer.transfer.torchvision_engine import detection_run, semantic_run, solver, training_state
from momentum_transfer.transfer.torchvision_engine.capabilities import unsupported
from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage, Mapper, output_size, resize
from momentum_transfer.transfer.torchvision_engine.detectors import (
    Detector,
    export_state,
    load_backbone,
    load_detector,
    train_backbone_only,
    with_class_rows,
)
from momentum_transfer.transfer.torchvision_engine.mean_teacher import MeanTeacher
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Sample
from momentum_transfer.transfer.torchvision_engine.train import Training, train
from momentum_transfer.transfer.torchvision_engine.training_state import BestKeeper, Position
from momentum_transfer.transfer.torchvision_engine.unlabelled import unlabelled_images


class TorchvisionPredictor:
    """Images to what is found in them; see ``experiment.Predictor``.

    Only images that have one size after resizing form a batch: a smaller one would be padded to the larger, which its
    features at the border would feel.
    """

    def __init__(self, network: Detector, mapper: Mapper) -> None:
        self.network, self.mapper = network.eval(), mapper

    def __call__(self, images: Sequence[np.ndarray]) -> list[Detections] | list[np.ndarray]:
        batches: dict[tuple[int, ...], list[Sample]] = {}
        for number, image in enumerate(images):
            sample = self._sample(number, image)
            batches.setdefault(tuple(sample.image.shape), []).append(sample)
        found: dict[int, Any] = {}
        with torch.no_grad():
            for batch in batches.values():
                for sample, one in zip(batch, self.network(batch), strict=True):
                    labels = isinstance(one, torch.Tensor)
                    found[sample.image_id] = one.cpu().numpy().astype(np.uint8) if labels else one
        return [found[number] for number in range(len(images))]

    def _sample(self, number: int, image: np.ndarray) -> Sample:
        height, width = image.shape[:2]
        size = output_size(height, width, self.mapper.short_edges[0], self.mapper.long_edge)
        return self.mapper.sample(AnnotatedImage(Path(), number, height, width), resize(image, size, flip=False), None)


class TorchvisionEngine:
    """Fine-tuning and prediction by this project's own detectors; see ``experiment.Engine``."""

    name = "torchvision"

    def unsupported(self, cfg: CfgNode) -> str | None:
        """Why this engine cannot run the config here, or None."""
        return unsupported(cfg)

    def finetune(
        self, experiment: Experiment, seed: int, out_dir: Path, *, resume: bool = False, score: Score | None = None
    ) -> Finetuned:
        """Train. Leaves ``model_final.pth``, ``metrics.jsonl`` and ``checkpoints/``."""
        with process_group(choose_device(experiment.cfg.MODEL.DEVICE, "MODEL.DEVICE")):
            return _finetune(experiment, seed, Path(out_dir), resume, score)

    def predict(self, experiment: Experiment, out_dir: Path) -> list[Predictions]:
        """Predict. Leaves ``results_<dataset>.json``."""
        cfg = experiment.cfg
        network = _trained(cfg, experiment.initial)
        with process_group(network.device):
            return [_predict(cfg, network, data, Path(out_dir)) for data in experiment.task.test]

    def predictor(self, cfg: CfgNode, detector: InitialWeights) -> TorchvisionPredictor:
        """A detector for images in memory."""
        return TorchvisionPredictor(_trained(cfg, detector), detection_run.mapper_of(cfg, train=False))


#: Task.name -> its part of this engine: training_loader, predict.
_RUNS: dict[str, Any] = {"detection": detection_run, "segmentation": semantic_run}


def build(cfg: CfgNode) -> Detector:
    """The freshly initialised model of a config."""
    detector = build_detector(cfg) if task_name(cfg) == "detection" else semantic_run.build(cfg)
    return detector.train_last_layers() if cfg.FEW_SHOT.TRAINED == "last" else detector


def _trained(cfg: CfgNode, detector: InitialWeights) -> Detector:
    network = build(cfg)
    load_detector(network, detector.detector, detector.name)
    return network.to(choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE"))


def training_loader(
    cfg: CfgNode, task: Task[Any], seed: int, start: int, network: Detector | None = None
) -> Iterable[list[Sample]]:
    """Endless batches of ``task.train`` from iteration ``start`` on; of features for a linear probe's ``network``."""
    for section in ("SOLVER", "SEMI") if cfg.SEMI.TEACHER else ("SOLVER",):
        if (images := cfg[section].IMS_PER_BATCH) % world_size():
            raise InputError(f"{section}.IMS_PER_BATCH {images} does not divide by {world_size()} processes")
    loader: Iterable[list[Sample]] = _RUNS[task.name].training_loader(cfg, task, seed, start, network)
    return loader


def _predict(cfg: CfgNode, network: Detector, data: Any, out_dir: Path) -> Predictions:
    path, types, seconds = _RUNS[task_name(cfg)].predict(cfg, network, data, out_dir)
    return Predictions(path, data.name, types, TorchvisionEngine.name, seconds)


def initialise(detector: Detector, initial: InitialWeights) -> Position:
    """Give a fresh detector its weights."""
    if initial.detector:
        state = initial.detector if initial.places is None else with_class_rows(export_state(detector), initial)
        load_detector(detector, state, initial.name)
        say(f"weights: the whole detector from {initial.name}")
        return Position(0, tuple(sorted(initial.detector)), ())
    if not initial.backbone:
        say("weights: none, so the whole detector starts at random, its backbone too")
        return Position(0, (), tuple(sorted(export_state(detector))))
    loaded, new = load_backbone(detector, initial.backbone, initial.name, initial.architecture)
    say(f"weights: {len(loaded)} backbone tensors from {initial.name}; {len(new)} detector tensors are new")
    return Position(0, tuple(loaded), tuple(new))


def build_training(cfg: CfgNode, detector: Detector, position: Position) -> Training:
    """Optimizer, schedule, clipping and precision of a config."""
    s = cfg.SOLVER
    optimizer = solver.build_optimizer(cfg, detector, group_rules(cfg))
    schedule = schedule_of(cfg)
    clip = s.CLIP_GRADIENTS
    clipper = solver.GradientClipper(clip.CLIP_TYPE, clip.CLIP_VALUE, clip.NORM_TYPE) if clip.ENABLED else None
    half = s.AMP.ENABLED and s.AMP.PRECISION == "float16"
    scaler = torch.amp.GradScaler(detector.device.type, enabled=half)
    autocast = getattr(torch, s.AMP.PRECISION) if s.AMP.ENABLED else None
    teacher = MeanTeacher(detector.train(), cfg.SEMI) if cfg.SEMI.TEACHER else None

    def rate(step: int) -> float:
        return s.BASE_LR * schedule(step)

    return Training(detector, optimizer, scaler, rate, position, clipper, autocast, teacher)


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


def _draw_labels(cfg: CfgNode, task: Task[Any], teacher: MeanTeacher, seed: int, folder: Path) -> None:
    """Draw what the teacher finds on the first images without labels."""
    images = unlabelled_images(cfg, task.train, task.test, seed)[: cfg.TEST.VISUALS]
    mapper = detection_run.mapper_of(cfg, train=True)
    samples = [mapper.train(image, np.random.default_rng(seed)) for image in images]
    for path in teacher.draw(samples, folder, task.train[0].classes, cfg.INPUT.FORMAT == "BGR"):
        say(f"wrote {path}")


def _finetune(experiment: Experiment, seed: int, out_dir: Path, resume: bool, score: Score | None) -> Finetuned:
    cfg, task = experiment.cfg, experiment.task
    out_dir.mkdir(parents=True, exist_ok=True)
    final, last = out_dir / "model_final.pth", training_state.last(out_dir)
    if resume and final.is_file():
        position = training_state.read_final(final)
        say(f"{final} is finished already")
        return Finetuned(final, position.loaded, position.new)
    if not resume and last is not None:
        raise InputError(f"{out_dir} holds a training already; go on with --resume, or choose another OUTPUT_DIR")
    part, initial = cfg.MODEL.BACKBONE.TRAINABLE, experiment.initial
    if part != ALL and not initial.sha256:
        raise InputError(f"expected weights with MODEL.BACKBONE.TRAINABLE {part}, found none; give --weights some")
    torch.manual_seed(seed)
    detector = build(cfg)
    position = initialise(detector, initial) if last is None or part != ALL else Position(0, (), ())
    if part != ALL:
        train_backbone_only(detector, part, seed)
        say(f"backbone, {part}: {describe_trained(detector.backbone.parameters())}, the neck among them")
    training = build_training(cfg, detector.to(choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")), position)
    training.base = initial.sha256 if part != ALL else ""
    torch.manual_seed(seed + rank())  # every process samples its own proposals
    teacher = training.teacher
    if last is not None:
        network = teacher.network if teacher else None
        training.position = training_state.resume(
            last, detector, training.optimizer, training.scaler, cfg, teacher=network, base=training.base
        )
        say(f"going on after iteration {training.position.step} of {last}")
    if teacher is not None:
        teacher.begun = training.position.step > cfg.SEMI.BURN_IN
    scored = teacher if cfg.SEMI.RESULT == "teacher" else None

    def result() -> Detector:
        return detector if scored is None else scored.result()

    loader = training_loader(cfg, task, seed, training.position.step, detector)
    evaluate = None
    if score is not None and cfg.TEST.EVAL_PERIOD > 0:
        first = task.test[0]
        evaluate = BestKeeper(result(), lambda folder: _predict(cfg, result(), first, folder), score, out_dir)
        if last is not None:
            evaluate.catch_up(training.position, cfg.TEST.EVAL_PERIOD)
    position, seconds = train(training, loader, cfg, out_dir, evaluate)
    if is_main():
        training_state.save_weights(final, result(), position)
        if teacher is not None and cfg.TEST.VISUALS:
            _draw_labels(cfg, task, teacher, seed, out_dir / "visuals")
    barrier()
    return Finetuned(final, position.loaded, position.new, seconds)
