"""Cost of a network by fvcore's counters, and of its training by a few steps that are timed before it starts."""

import gc
import math
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fvcore.common.config import CfgNode
from fvcore.nn import FlopCountAnalysis, parameter_count
from torch import Tensor, nn

from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import counted
from momentum_transfer.core.log import duration, speaking
from momentum_transfer.core.samplers import ordered_loader
from momentum_transfer.transfer.experiment import Experiment
from momentum_transfer.transfer.torchvision_engine import detection_run
from momentum_transfer.transfer.torchvision_engine.capabilities import unsupported
from momentum_transfer.transfer.torchvision_engine.data import TestSamples, annotated_images
from momentum_transfer.transfer.torchvision_engine.dense import RetinaNetHead
from momentum_transfer.transfer.torchvision_engine.detectors import RCNN, Detector, OneStage, train_backbone_only
from momentum_transfer.transfer.torchvision_engine.engine import build, build_training, initialise, training_loader
from momentum_transfer.transfer.torchvision_engine.roi_heads import Res5RoIHeads
from momentum_transfer.transfer.torchvision_engine.segmentors import LinearSegmentor
from momentum_transfer.transfer.torchvision_engine.train import timed_step
from momentum_transfer.transfer.torchvision_engine.training_state import Position

#: Sides of the image that operations are counted for are multiples of this.
_STEP = 32


@dataclass(frozen=True)
class Cost:
    """What a network is made of and needs.

    Multiply-adds (fvcore counts one for both) are of one image with as many regions and detections as are allowed:
    RPN.POST_NMS_TOPK_TEST and TEST.DETECTIONS_PER_IMAGE.
    """

    parameters: int
    trained: int  # parameters that take gradients
    flops: float
    backbone_flops: float  # of backbone and pyramid
    side: int  # of the square image, in pixels

    def __str__(self) -> str:
        return (
            f"{self.parameters / 1e6:.2f} M parameters, {self.trained / 1e6:.2f} M of them trained; "
            f"{self.flops / 1e9:.2f} G multiply-adds an image of {self.side} × {self.side} px, "
            f"{self.backbone_flops / 1e9:.2f} G of them in the backbone"
        )

    def as_record(self) -> dict[str, Any]:
        """Details of a record."""
        counts = {"parameters": self.parameters, "trained_parameters": self.trained}
        return {**counts, "gflops": round(self.flops / 1e9, 3), "gflops_side": self.side}


def cost_of(cfg: CfgNode) -> Cost:
    """Count a config's network, which both engines build alike, by tracing one image on the config's device."""
    device = choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        network = build(cfg).eval().to(device)
    parameters = int(parameter_count(network)[""])
    backbone, step = network.backbone, math.lcm(network.backbone.size_divisibility, _STEP)
    side = backbone.square or math.ceil(cfg.INPUT.MIN_SIZE_TEST / step) * step
    with torch.no_grad():
        image = torch.zeros(1, 3, side, side, device=device)
        maps: dict[str, Tensor] = {}
        kept = backbone.register_forward_hook(lambda _module, _inputs, found: maps.update(found))
        below = _flops(backbone, image)
        kept.remove()
        parts = _heads(cfg, network, image[0], {name: torch.zeros_like(found) for name, found in maps.items()})
        above = sum(times * _flops(part, *inputs) for part, inputs, times in parts)
    train_backbone_only(network, cfg.MODEL.BACKBONE.TRAINABLE, cfg.SEED)  # last: low-rank updates are merged at test
    trained = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    return Cost(parameters, trained, below + above, below, side)


#: A part of a network, inputs of the sizes that it sees, and how often it does.
_Part = tuple[nn.Module, list[Tensor], int]


def _heads(cfg: CfgNode, network: Detector, image: Tensor, maps: dict[str, Tensor]) -> Iterator[_Part]:
    if isinstance(network, RCNN):
        rpn = network.proposal_generator
        yield from ((rpn.rpn_head, [maps[name]], 1) for name in rpn.levels)
        yield from _regions(cfg, network.roi_heads, maps)
    elif isinstance(network, OneStage):
        yield network.heads.head, [maps[name] for name in network.heads.levels], 1
    elif isinstance(network, LinearSegmentor):
        yield network.sem_seg_head.predictor, [network.features(image).flatten(1).T], 1
    else:
        yield network.get_submodule("sem_seg_head"), list(maps.values())[-1:], 1


def _regions(cfg: CfgNode, heads: Any, maps: dict[str, Tensor]) -> Iterator[_Part]:
    """Region heads on one region each."""
    regions, detections = cfg.MODEL.RPN.POST_NMS_TOPK_TEST, cfg.TEST.DETECTIONS_PER_IMAGE
    if isinstance(heads, Res5RoIHeads):
        pooled = _region(maps[heads.level], heads.pooler)
        found = heads.res5(pooled)
        yield heads.res5, [pooled], regions + (detections if heads.mask_head is not None else 0)
        yield heads.box_predictor, [found.mean(dim=[2, 3])], regions
        if heads.mask_head is not None:
            yield heads.mask_head, [found], detections
        return
    level = maps[heads.levels[0]]
    pooled, several = _region(level, heads.box_pooler), isinstance(heads.box_head, nn.ModuleList)
    boxes, predictors = ((part if several else [part]) for part in (heads.box_head, heads.box_predictor))
    for head, predictor in zip(boxes, predictors, strict=True):
        yield head, [pooled], regions
        yield predictor, [head(pooled)], regions
    if heads.mask_head is not None:
        yield heads.mask_head, [_region(level, heads.mask_pooler)], detections


def _region(level: Tensor, pooler: Any) -> Tensor:
    return level.new_zeros(1, level.shape[1], pooler.resolution, pooler.resolution)


class _Traceable(nn.Module):
    """A part whose results are one flat tuple; towers of dense detectors take their maps as one list."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(_tensors(self.part(list(inputs)) if isinstance(self.part, RetinaNetHead) else self.part(*inputs)))


def _tensors(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    parts: Sequence[Any] = list(found.values()) if isinstance(found, dict) else list(found)
    return [tensor for part in parts for tensor in _tensors(part)]


def _flops(part: nn.Module, *inputs: Tensor) -> float:
    counted = FlopCountAnalysis(_Traceable(part), inputs)
    counted.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    counted.tracer_warnings("none")
    counted.set_op_handle("aten::scaled_dot_product_attention", _attention)
    return float(counted.total())


def _attention(inputs: list[Any], outputs: list[Any]) -> float:
    """Queries [N, heads, L, d] with keys [N, heads, S, d], then weights with values: 2 N heads L S d."""
    query, key = (value.type().sizes() for value in inputs[:2])
    return float(2 * math.prod(query) * key[-2])


#: Steps that are timed after one that warms up, fewer where they take long together; images that are predicted on.
STEPS, SECONDS, IMAGES = 6, 20.0, 2


@dataclass(frozen=True)
class Estimate:
    """What a training costs on this machine."""

    step: float  # seconds an iteration, the median of the timed ones
    image: float  # seconds to predict on one image
    steps: int  # iterations
    statistics: int  # batches that recompute BN statistics
    images: int  # test images
    memory: float  # bytes at the peak so far, of the process (CPU) or of the GPU
    device: str  # "cpu" or "cuda"

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
        """How many iterations fit into ``seconds``, predictions included; at least one."""
        rest = seconds - self.statistics * self.step / 3 - self.images * self.image
        return max(1, int(rest / self.step))


def estimate(experiment: Experiment) -> Estimate | None:
    """Time a few steps and images of a detector's training, by the torchvision engine; None for other tasks.

    Nothing is left behind: no file, and no change to the generators of random numbers.
    """
    cfg, task = experiment.cfg, experiment.task
    if task.name != "detection" or unsupported(cfg) is not None:
        return None
    device = choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")
    devices = [device] if device.type == "cuda" else []
    with speaking(quiet=True), torch.random.fork_rng(devices=devices):
        if devices:
            torch.cuda.reset_peak_memory_stats(device)
        step, image = _timed(experiment, device)
        # Linux counts in KiB, macOS in bytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        memory = float(torch.cuda.max_memory_allocated(device) if devices else peak)
    gc.collect()
    if devices:
        torch.cuda.empty_cache()
    images = sum(len(data.load()["images"]) for data in task.test)
    batches = cfg.TEST.PRECISE_BN.NUM_ITER if cfg.TEST.PRECISE_BN.ENABLED else 0
    return Estimate(step, image, cfg.SOLVER.MAX_ITER, batches, images, memory, device.type)


def _timed(experiment: Experiment, device: torch.device) -> tuple[float, float]:
    """Median seconds of a step, and of an image."""
    cfg, task = experiment.cfg, experiment.task
    detector = build(cfg)
    initialise(detector, experiment.initial)
    train_backbone_only(detector, cfg.MODEL.BACKBONE.TRAINABLE, cfg.SEED)
    training = build_training(cfg, detector.to(device), Position(0, (), ()))
    detector.train()
    first = cfg.SEMI.BURN_IN if cfg.SEMI.TEACHER else 0  # after the burn-in steps are longest
    batches = iter(training_loader(cfg, task, cfg.SEED, first))
    steps: list[float] = []
    begun = time.monotonic()
    for number in range(1 + STEPS):
        steps.append(timed_step(training, batches, first + number))
        if time.monotonic() - begun > SECONDS and number:
            break
    del batches
    detector.eval()
    shown = TestSamples(annotated_images(task.test[0])[:IMAGES], detection_run.mapper_of(cfg, train=False))
    loader = ordered_loader(shown, 1, workers=0, collate=list)
    images = []
    with torch.no_grad():
        for samples in loader:
            before = time.monotonic()
            detector(samples)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            images.append(time.monotonic() - before)
    return statistics.median(steps[1:]), min(images)
