"""How long a training will take and how much memory, from a few timed steps before it starts."""

from __future__ import annotations

import gc
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from fvcore.common.config import CfgNode

from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import counted
from momentum_transfer.core.log import duration, speaking
from momentum_transfer.core.samplers import ordered_loader
from momentum_transfer.transfer.initial_weights import InitialWeights
from momentum_transfer.transfer.tasks import Task
from momentum_transfer.transfer.torchvision_engine import detection_run
from momentum_transfer.transfer.torchvision_engine.capabilities import unsupported
from momentum_transfer.transfer.torchvision_engine.data import TestSamples, read_pictures
from momentum_transfer.transfer.torchvision_engine.engine import build, build_training, training_loader
from momentum_transfer.transfer.torchvision_engine.train import timed_step
from momentum_transfer.transfer.torchvision_engine.training_state import Position
from momentum_transfer.transfer.torchvision_engine.weights import load_backbone, load_detector

#: Steps that are timed after one that warms up, fewer where they take long together; images that are predicted on.
STEPS, SECONDS, IMAGES = 6, 20.0, 2


@dataclass(frozen=True)
class Estimate:
    """What a training costs here.

    Attributes:
        step: seconds an iteration, the median of the timed ones. image: seconds to predict on one image.
        steps, statistics, images: iterations, batches that recompute BN statistics, images that test.
        memory: bytes at the peak so far, of the process (CPU) or of the GPU.
        device: "cpu" or "cuda".
    """

    step: float
    image: float
    steps: int
    statistics: int
    images: int
    memory: float
    device: str

    @property
    def seconds(self) -> float:
        """Training, BN statistics (a forward pass: a third of a step) and predictions."""
        return self.steps * self.step + self.statistics * self.step / 3 + self.images * self.image

    def line(self) -> str:
        """For people."""
        where = "of the GPU's memory" if self.device == "cuda" else "of memory"
        return (
            f"about {duration(self.seconds)} on {self.device}: {counted(self.steps, 'iteration')} of {self.step:.2f} s "
            f"and {counted(self.images, 'test image')} of {self.image:.2f} s; {self.memory / 2**30:.1f} GiB {where} "
            "(from a few timed steps)"
        )

    def steps_within(self, seconds: float) -> int:
        """How many iterations fit into so many seconds, predictions and all; at least one."""
        rest = seconds - self.statistics * self.step / 3 - self.images * self.image
        return max(1, int(rest / self.step))


def estimate(cfg: CfgNode, task: Task[Any], initial: InitialWeights) -> Estimate | None:
    """Time a few steps and images of a detector's training, by the torchvision engine; None for other tasks.

    Nothing is left behind: no file, and no change to the generators of random numbers.
    """
    if task.name != "detection" or unsupported(cfg) is not None:
        return None
    device = choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")
    devices = [device] if device.type == "cuda" else []
    with speaking(quiet=True), torch.random.fork_rng(devices=devices):
        if devices:
            torch.cuda.reset_peak_memory_stats(device)
        step, image = _timed(cfg, task, initial, device)
        memory = float(torch.cuda.max_memory_allocated(device)) if devices else peak_memory()
    gc.collect()
    if devices:
        torch.cuda.empty_cache()
    images = sum(len(data.load()["images"]) for data in task.test)
    batches = cfg.TEST.PRECISE_BN.NUM_ITER if cfg.TEST.PRECISE_BN.ENABLED else 0
    return Estimate(step, image, cfg.SOLVER.MAX_ITER, batches, images, memory, device.type)


def peak_memory() -> float:
    """Bytes that this process has held at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else 1024 * peak)


def _timed(cfg: CfgNode, task: Task[Any], initial: InitialWeights, device: torch.device) -> tuple[float, float]:
    """Median seconds of a step, and of an image."""
    detector = build(cfg)
    if initial.detector:
        load_detector(detector, initial.detector, initial.name)
    elif initial.backbone:
        load_backbone(detector, initial.backbone, initial.name, initial.architecture)
    training = build_training(cfg, detector.to(device), Position(0, (), ()))
    detector.train()
    batches = iter(training_loader(cfg, task, cfg.SEED, 0))
    steps: list[float] = []
    begun = time.monotonic()
    for number in range(1 + STEPS):
        steps.append(timed_step(training, batches, number))
        if time.monotonic() - begun > SECONDS and number:
            break
    del batches
    detector.eval()
    pictures = read_pictures(task.test[0]).pictures[:IMAGES]
    loader = ordered_loader(
        TestSamples(pictures, detection_run.mapper_of(cfg, train=False)), 1, workers=0, collate=list
    )
    images = []
    with torch.no_grad():
        for samples in loader:
            before = time.monotonic()
            detector(samples)
            _wait(device)
            images.append(time.monotonic() - before)
    return statistics.median(steps[1:]), min(images)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
