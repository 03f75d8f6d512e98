"""The training loop of the torchvision engine, top to bottom."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from fvcore.nn import get_bn_modules, update_bn_stats
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from momentum_transfer.core.command import Stopped, stop_signals
from momentum_transfer.core.distributed import any_rank, is_distributed, world_size
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import ProgressLine, say
from momentum_transfer.core.loggers import Metrics
from momentum_transfer.transfer.torchvision_engine import training_state
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.mean_teacher import MeanTeacher, rates
from momentum_transfer.transfer.torchvision_engine.solver import GradientClipper, GradientWatch
from momentum_transfer.transfer.torchvision_engine.structures import Sample
from momentum_transfer.transfer.torchvision_engine.training_state import Position

#: Iterations between two lines of metrics.jsonl, as in Detectron2.
METRICS_PERIOD = 20


@dataclass
class Training:
    """All that moves while a detector trains. schedule: learning rate at a step. teacher: labels images (SEMI).
    base: digest of the weights that hold what is not trained; "" where all is."""

    detector: Detector
    optimizer: torch.optim.Optimizer
    scaler: Any
    schedule: Callable[[int], float]
    position: Position
    clipper: GradientClipper | None = None
    autocast: torch.dtype | None = None
    teacher: MeanTeacher | None = None
    base: str = ""
    watch: GradientWatch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = GradientWatch(self.scaler.is_enabled())


def train(
    training: Training, batches: Iterable[Sequence[Sample]], cfg: CfgNode, out_dir: Path,
    evaluate: Callable[[Position], None] | None = None
) -> tuple[Position, float]:  # fmt: skip
    """Train to SOLVER.MAX_ITER, then recompute BN statistics if TEST.PRECISE_BN asks for it.

    ``evaluate`` is called every TEST.EVAL_PERIOD iterations. Returns the final position, and the mean seconds per
    iteration.

    Raises:
        Stopped: a signal came; the state is saved. InputError: the loss is not finite.
    """
    detector, optimizer = training.detector, training.optimizer
    detector.train()
    model: nn.Module = detector
    if is_distributed():
        ids = [detector.device.index] if detector.device.type == "cuda" else None
        model = DistributedDataParallel(detector, device_ids=ids, broadcast_buffers=False)
    position, total = training.position, cfg.SOLVER.MAX_ITER
    stream, begun, first = iter(batches), time.monotonic(), position.step
    with (
        stop_signals() as stop,
        Metrics(out_dir, first) as metrics,
        ProgressLine("train", total, start=first) as progress,
    ):
        log = Log(metrics, position)
        for step in range(first, total):
            before = time.monotonic()
            samples = next(stream)
            data_seconds = time.monotonic() - before
            losses = _step(model, samples, training, step)
            times = {"seconds": time.monotonic() - before, "data_seconds": data_seconds}
            log.add(step, losses, optimizer.param_groups[0]["lr"], last=step + 1 == total, **times)
            position = Position(step + 1, position.loaded, position.new, log.window)
            progress.advance(note=f"loss {log.loss:.3f}")
            ending = any_rank(bool(stop), detector.device)
            if ending or (step + 1) % cfg.SOLVER.CHECKPOINT_PERIOD == 0 or step + 1 == total:
                teacher = training.teacher.network if training.teacher else None
                state = detector, optimizer, training.scaler, position, cfg
                training_state.save(out_dir, *state, teacher=teacher, base=training.base)
            if evaluate is not None and not ending and (step + 1) % cfg.TEST.EVAL_PERIOD == 0:
                evaluate(position)
            if ending:
                raise Stopped(
                    f"stopped after iteration {step + 1}; go on with the same command and --resume", stop.exit_code
                )
    training.watch.read()
    seconds = (time.monotonic() - begun) / max(total - first, 1)
    of_student = training.teacher is None or cfg.SEMI.RESULT == "student"  # a teacher's statistics are its method's
    if cfg.TEST.PRECISE_BN.ENABLED and get_bn_modules(detector) and of_student:
        say(f"recomputing BN statistics over {cfg.TEST.PRECISE_BN.NUM_ITER} batches")
        weak = (samples[: cfg.SOLVER.IMS_PER_BATCH // world_size()] for samples in stream)  # labelled, as at test
        update_bn_stats(_normalising(detector, model), weak, cfg.TEST.PRECISE_BN.NUM_ITER)
    return position, seconds


def _normalising(detector: Detector, model: nn.Module) -> nn.Module:
    """What BN statistics need: the backbone, at half the time, where no head has BN; else all of the model."""
    return _Features(detector) if get_bn_modules(detector) == get_bn_modules(detector.backbone) else model


class _Features(nn.Module):
    """The backbone's maps of a batch of samples, without the heads."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        images, _ = self.detector.batch([sample.image for sample in samples])
        features: dict[str, Tensor] = self.detector.backbone(images)
        return features


def timed_step(training: Training, batches: Iterator[Sequence[Sample]], step: int) -> float:
    """One iteration with its batch, as ``train`` makes it; seconds."""
    before = time.monotonic()
    samples = next(batches)
    _step(training.detector, samples, training, step)  # its losses are read, which waits for the device
    return time.monotonic() - before


def _step(model: nn.Module, samples: Sequence[Sample], training: Training, step: int) -> dict[str, float]:
    """One iteration: losses, gradients, parameters. The losses as numbers, their sum as ``loss``."""
    optimizer, scaler, teacher = training.optimizer, training.scaler, training.teacher
    for group in optimizer.param_groups:
        group["lr"] = training.schedule(step) * group.get("lr_scale", 1.0)
    with _autocast(training):
        if teacher is not None:
            samples = teacher.label(samples, step)
        try:
            losses: dict[str, Tensor] = model(samples)
        except FloatingPointError as error:
            raise _diverged(step, samples, str(error)) from error
        losses = losses if teacher is None else teacher.weighted(losses)
        total = torch.stack(list(losses.values())).sum()
    numbers = {"loss": float(total.detach()), **{name: float(value.detach()) for name, value in losses.items()}}
    training.watch.read()  # of the step before: reading the loss has waited for it
    if not math.isfinite(numbers["loss"]):
        bad = ", ".join(f"{name} {value}" for name, value in numbers.items() if not math.isfinite(value))
        raise _diverged(step, samples, bad)
    optimizer.zero_grad()
    scaler.scale(total).backward()
    scaler.unscale_(optimizer)
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    training.watch.measure(step, trained)
    if training.clipper is not None:
        training.clipper(trained)
    scaler.step(optimizer)
    scaler.update()
    if teacher is not None:
        teacher.follow()
        numbers |= teacher.numbers
    return numbers


def _autocast(training: Training) -> contextlib.AbstractContextManager[Any]:
    if training.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(training.detector.device.type, dtype=training.autocast)


def _diverged(step: int, samples: Sequence[Sample], what: str) -> InputError:
    images = ", ".join(str(sample.image_id) for sample in samples)
    return InputError(
        f"the loss is not finite at iteration {step + 1} ({what}) on the images {images}; lower SOLVER.BASE_LR "
        "or lengthen SOLVER.WARMUP_ITERS, or look at these images' annotations"
    )


class Log:
    """Every ``METRICS_PERIOD`` iterations, and at the end, one line of metrics.jsonl: the means since the last one."""

    def __init__(self, metrics: Metrics, position: Position) -> None:
        self.metrics = metrics
        self.loss = float("nan")
        self._since: list[dict[str, float]] = list(position.window)

    @property
    def window(self) -> tuple[dict[str, float], ...]:
        """What the next line will be the mean of, so far."""
        return tuple(self._since)

    def add(
        self, step: int, losses: dict[str, float], lr: float, *, seconds: float, data_seconds: float, last: bool
    ) -> None:
        """Count one iteration; write a line when it is time."""
        self.loss = losses["loss"]
        self._since.append({**losses, "seconds": seconds, "data_seconds": data_seconds})
        if step % METRICS_PERIOD and step != 0 and not last:
            return
        keys = dict.fromkeys(key for entry in self._since for key in entry)  # a teacher's come after its burn-in
        means = {key: sum(entry.get(key, 0.0) for entry in self._since) / len(self._since) for key in keys}
        self._since.clear()
        self.metrics.write(step + 1, {"lr": lr, **means, **rates(means)})
