"""Builds a run from its settings: images, plan, method and optimizer, on the device and among the processes."""

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import Dataset

from momentum_transfer.backbones.norms import use_fused_sync
from momentum_transfer.backbones.trainable import describe_trained
from momentum_transfer.core import distributed
from momentum_transfer.core.checkpoints import CheckpointFolder
from momentum_transfer.core.devices import workers_without_measuring
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import ProgressLine, say, warn
from momentum_transfer.core.machine import keep_freed_memory
from momentum_transfer.core.neighbours import majority_top1
from momentum_transfer.core.samplers import ordered_loader
from momentum_transfer.images.content import fingerprint
from momentum_transfer.images.datasets import LabelledImages
from momentum_transfer.images.subsets import unselected, without_class
from momentum_transfer.pretrain.budget import settle_budget
from momentum_transfer.pretrain.methods import Method, build_method
from momentum_transfer.pretrain.optimizers import build_optimizer
from momentum_transfer.pretrain.pipeline import (
    EvaluationImages,
    TrainingBatches,
    build_images,
    evaluation_images,
    settle_views,
)
from momentum_transfer.pretrain.plan import PretrainingPlan, concerns, describe, make_plan
from momentum_transfer.pretrain.start import Start, estimate_statistics, read_start

_BANK = 20_000  # training images that vote; enough to compare epochs with each other


def shuffled_subset(images: EvaluationImages, count: int, seed: int) -> Dataset:
    """At most ``count`` of the images, sampled with the seed."""
    order = np.random.default_rng(seed).permutation(len(images))[:count]
    return torch.utils.data.Subset(images, order.tolist())


@torch.no_grad()
def features(
    backbone: nn.Module, images: Dataset, device: torch.device, batch: int, workers: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pooled features [N, C] and labels [N], in evaluation mode; the mode is put back."""
    training = backbone.training
    backbone.eval()
    parts, labels = [], []
    for tensors, targets in ordered_loader(images, batch, workers=workers):
        parts.append(backbone(tensors.to(device)).float().cpu())
        labels.append(targets)
    backbone.train(training)
    return torch.cat(parts).numpy(), torch.cat(labels).numpy()


class KnnMonitor:
    """kNN top-1 of a backbone: training images (``bank``) vote on held-out ones, as in ``lowshot`` by preset eman."""

    def __init__(
        self, bank: EvaluationImages, held_out: EvaluationImages, device: torch.device, *, batch: int, workers: int
    ) -> None:
        self.bank, self.held_out = shuffled_subset(bank, _BANK, seed=0), held_out
        self.device, self.batch, self.workers = device, batch, workers

    def top1(self, backbone: nn.Module) -> float:
        """Percent of the held-out images classified correctly."""
        bank = features(backbone, self.bank, self.device, self.batch, self.workers)
        held_out = features(backbone, self.held_out, self.device, self.batch, self.workers)
        return majority_top1(*bank, *held_out, device=self.device)


def compile_networks(method: Method, device: torch.device) -> None:
    """Compiles student and teacher in place, so that names in the state stay; the first step compiles.

    On the CPU it takes a C++ compiler; InputError if there is none.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None and shutil.which("clang++") is None:
        raise InputError(f"expected a C++ compiler for RUN.COMPILE True on the CPU, found no {compiler}; install one "
                         "(Debian: g++), or set RUN.COMPILE False")  # fmt: skip
    for network in method.networks().values():
        network.compile()


@contextlib.contextmanager
def compile_errors() -> Iterator[None]:
    """Turns a failure of the compiler within the block into an InputError that names its cause."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        causes = [line for line in lines if "error:" in line or "Error:" in line] or lines or [type(error).__name__]
        note = "" if any("error:" in line for line in causes) else " (without a message: it was ended from outside)"
        raise InputError(
            f"expected the networks to compile under RUN.COMPILE True, found: {causes[-1][:300]}{note}; "
            "repair the compiler, or set RUN.COMPILE False and go on with another OUTPUT_DIR"
        ) from error


@dataclass
class Run:
    """What the loop works with."""

    cfg: CfgNode
    device: torch.device
    plan: PretrainingPlan
    images: LabelledImages
    batches: TrainingBatches
    method: Method
    optimizer: Optimizer
    scaler: GradScaler
    start: Start | None  # the weights that it starts from
    knn: KnnMonitor | None
    unlogged: dict[str, list[float]] = field(default_factory=dict)  # metrics since the last line of the log

    @cached_property
    def images_key(self) -> dict[str, str]:
        """`fingerprint` of the images as the run began."""
        return fingerprint(self.images)


def _check_precision(cfg: CfgNode, device: torch.device) -> None:
    smallest = 32 if cfg.MODEL.STEM == "imagenet" else 8
    if device.type == "cpu" and cfg.RUN.PRECISION == "bf16" and smallest >= cfg.DATA.IMAGE_SIZE:
        raise InputError(
            f"expected RUN.PRECISION float32 for images of {cfg.DATA.IMAGE_SIZE} px on the CPU, found bf16: "
            "where a 3x3 filter meets a map of one pixel, oneDNN leaves part of its gradient uninitialised; "
            f"use images above {smallest} px or float32"
        )


def prepare(cfg: CfgNode, device: torch.device, checkpoints: CheckpointFolder, preset: CfgNode | None = None) -> Run:
    """Data, plan, model and optimizer of the settings, on the device; logs the plan and what is unusual in it."""
    _check_precision(cfg, device)
    start = read_start(cfg, preset)
    cfg = start.cfg if start else cfg
    images = build_images(cfg, cfg.DATA.SPLIT)
    cfg = settle_budget(cfg, preset, images, device, checkpoints)
    if start:
        start.check(evaluation_images(cfg, images), device)
    plan = make_plan(cfg, len(images), len(unselected(images)[0]), distributed.world_size())
    cfg = settle_views(cfg, images, plan.micro_batch, device, checkpoints)
    batches = TrainingBatches(cfg, images, plan, device)
    if cfg.METHOD.NAME != "random":
        for line in describe(plan, cfg, distributed.world_size()):
            say(line)
        for line in concerns(plan, cfg, distributed.world_size(), preset):
            warn(line)
    torch.manual_seed(cfg.SEED)  # the same weights on every process
    method = build_method(cfg, len(images.classes)).to(device)
    if device.type == "cuda":
        use_fused_sync(method)
    else:
        keep_freed_memory()
    if start:
        if cfg.NORM.WEIGHTS_STATISTICS == "estimated" and checkpoints.last() is None:
            estimate(cfg, images, start.network.to(device), device)
        start.give(method)
        start.freeze(method)
        say(f"student and teacher start from {start.source.name}; "
            f"backbone: {describe_trained(method.backbone('student').parameters())}")  # fmt: skip
    if cfg.RUN.CHANNELS_LAST:
        method = method.to(memory_format=torch.channels_last)
    torch.manual_seed(cfg.SEED + 1 + distributed.rank())
    solver = cfg.SOLVER
    optimizer = build_optimizer(
        method, solver.OPTIMIZER, lr=plan.base_lr, momentum=solver.MOMENTUM, weight_decay=solver.WEIGHT_DECAY,
        eta=solver.ETA, fixed_lr="predictor" if solver.FIXED_PREDICTOR_LR else "",
        factors=start.factors() if start else None,
    )  # fmt: skip
    scaler = GradScaler(device.type, enabled=cfg.RUN.PRECISION == "fp16")
    monitor = _knn_monitor(cfg, images, device)
    return Run(cfg, device, plan, images, batches, method, optimizer, scaler, start, monitor)


def estimate(cfg: CfgNode, images: LabelledImages, network: nn.Module, device: torch.device) -> int:
    """Set a network's BN statistics to those of RUN.CALIBRATION_BATCHES batches; returns how many images that were."""
    batch = cfg.SOLVER.BATCH_SIZE
    count = min(cfg.RUN.CALIBRATION_BATCHES, len(images) // batch)
    subset = shuffled_subset(evaluation_images(cfg, images), batch * count, cfg.SEED)
    loader = ordered_loader(subset, batch, workers=workers_without_measuring(cfg.DATA.WORKERS))
    with ProgressLine("BN statistics of the new images: batches", count) as line:

        def batches() -> Iterator[Tensor]:
            for tensors, _ in loader:
                line.advance()
                yield tensors.to(device)

        estimate_statistics(network, batches(), count)
    return batch * count


def _knn_monitor(cfg: CfgNode, images: LabelledImages, device: torch.device) -> KnnMonitor | None:
    if cfg.RUN.KNN_EVERY <= 0:
        return None
    if cfg.DATA.NAME in ("filelist", "images"):
        raise InputError(f"expected RUN.KNN_EVERY 0 with DATA.NAME {cfg.DATA.NAME}, which has no held-out part; score "
                         "the exported backbone with tools/lowshot.py knn")  # fmt: skip
    bank = evaluation_images(cfg, without_class(images, "unlabeled"))  # STL-10's unlabelled images cannot vote
    if (voting := len(np.unique(bank.images.labels))) < 2:  # one class alone is always right
        raise InputError(f"expected training images of two classes or more for RUN.KNN_EVERY, found {voting} in "
                         f"{cfg.DATA.NAME} {cfg.DATA.SPLIT}; set it to 0, or name a labelled DATA.SPLIT")  # fmt: skip
    held_out = evaluation_images(cfg, build_images(cfg, cfg.RUN.KNN_SPLIT, held_out=True))
    pairs = zip(bank.images.classes, held_out.images.classes, strict=False)
    if other := next((pair for pair in pairs if pair[0] != pair[1]), None):
        raise InputError(f"expected the same classes in both parts for RUN.KNN_EVERY, found {other[0]} in the training "
                         f"set where {cfg.RUN.KNN_SPLIT} has {other[1]}; set it to 0")  # fmt: skip
    workers = workers_without_measuring(cfg.DATA.WORKERS)
    return KnnMonitor(bank, held_out, device, batch=cfg.SOLVER.BATCH_SIZE, workers=workers)


def distribute(run: Run) -> nn.Module:
    """The method as the loop calls it: compiled and under DDP where the settings and torchrun ask for it."""
    if run.cfg.RUN.COMPILE:
        compile_networks(run.method, run.device)
    if not distributed.is_distributed():
        return run.method
    with warnings.catch_warnings():
        # Newer torch asks for forward_sync_buffers instead, which still overwrites every process's BN statistics at
        # the start; they are each process's own (the student's by the paper's design, the teacher's by NORM.POLICY).
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        devices = [run.device.index] if run.device.type == "cuda" else None
        return DistributedDataParallel(run.method, device_ids=devices, broadcast_buffers=False)
