"""A backbone with a linear classifier, its accuracy, and the training loop of linear, finetune and fixmatch."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from momentum_transfer.backbones.batch_statistics import has_batch_norm
from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.trainable import load_trained_state, trained_state
from momentum_transfer.core import checkpoints, distributed
from momentum_transfer.core.checkpoints import CheckpointFolder
from momentum_transfer.core.command import Stopped, stop_signals
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import ProgressLine, say
from momentum_transfer.core.loggers import Metrics
from momentum_transfer.core.optimization import LARS, learning_rate
from momentum_transfer.lowshot.presets import Schedule


def linear_head(features: int, classes: int, seed: int) -> nn.Linear:
    """Random weights N(0, 0.01²) of ``seed``, zero biases."""
    head = nn.Linear(features, classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.normal_(0, 0.01, generator=generator)
        head.bias.zero_()
    return head


class Classifier(nn.Module):
    """images [N, 3, H, W] -> logits [N, classes]."""

    def __init__(self, backbone: Backbone, classes: int, seed: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = linear_head(backbone.num_features, classes, seed)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.backbone(images))
        return logits


@torch.inference_mode()
def accuracy(
    logits_of: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    distributed_test: bool = True,
) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
    """Fractions top1 and top5 (scalars, or [heads]), and whether each image was a hit ([N] or [heads, N] bool).

    Args:
        logits_of: inputs -> logits [N, classes], or [heads, N, classes] of several classifiers at once.
        distributed_test: each process has every world_size-th image, as ``evaluation_batches`` gives them; else all.
    """
    count = torch.zeros((), device=device)
    right = {name: torch.zeros((), device=device) for name in ("top1", "top5")}
    parts: dict[str, list[Tensor]] = {name: [] for name in right}
    for inputs, labels in batches:
        logits, labels = logits_of(inputs.to(device)), labels.to(device)
        ranked = logits.topk(min(5, logits.shape[-1]), dim=-1).indices
        hits = ranked == labels[:, None]
        count = count + len(labels)
        for name, each in (("top1", hits[..., 0]), ("top5", hits.any(-1))):
            right[name] = right[name] + each.sum(-1)
            parts[name].append(each.cpu())
    total = distributed.all_reduce_mean(count)
    fractions = {name: distributed.all_reduce_mean(each) / total for name, each in right.items()}
    own = {name: torch.cat(each, dim=-1) if each else torch.zeros(0, dtype=torch.bool) for name, each in parts.items()}
    return fractions, {name: (_in_order(each) if distributed_test else each).numpy() for name, each in own.items()}


def _in_order(own: Tensor) -> Tensor:
    """Hits [.., N] of all processes, of which each had every world_size-th image."""
    if not distributed.is_distributed():
        return own
    of_ranks: list[Any] = [None] * distributed.world_size()
    torch.distributed.all_gather_object(of_ranks, own)
    whole = torch.zeros(*of_ranks[0].shape[:-1], sum(each.shape[-1] for each in of_ranks), dtype=torch.bool)
    for rank, each in enumerate(of_ranks):
        whole[..., rank :: len(of_ranks)] = each
    return whole


@dataclass(frozen=True)
class Result:
    """Fractions on the test set, and the learning rate (for the preset's batch size) that was used."""

    top1: float
    top5: float
    learning_rate: float
    hits: dict[str, np.ndarray]  # by metric, [N] bool: whether each test image was right
    trained: int = 0  # parameters of the backbone that were trained


@dataclass(frozen=True)
class Setup:
    """What a training takes besides its data and preset."""

    rows: np.ndarray  # [n] labelled rows of the training set
    batch_size: int  # of all processes together; the preset's learning rates are scaled with it
    seed: int
    folder: Path  # of its checkpoints; a killed training resumes from there
    device: torch.device


Batch = TypeVar("Batch")
Loss = Callable[[Batch], tuple[Tensor, dict[str, float]]]
"""A batch -> (loss, further numbers for the log)."""


@dataclass
class Run:
    """One training run: what is trained, how, and where it is kept."""

    modules: dict[str, nn.Module]  # everything whose state a resumed run needs, by name
    groups: list[dict[str, Any]]  # of the optimizer, each with its ``lr`` at the end of the warm-up
    schedule: Schedule
    total: int  # steps
    folder: Path
    nesterov: bool = False
    weight_decay: float = 0.0
    optimizer_name: str = "sgd"
    after_step: Callable[[int], None] = lambda step: None  # takes the step's number, after the optimizer's step
    checkpoint_every: int = 1000
    metrics: Path | None = None  # folder of a metrics.jsonl that gets a line a step, and of the other loggers
    evaluate: Callable[[], dict[str, float]] = dict  # for the log; must leave modules and random numbers as they were
    evaluate_every: int = 0  # steps, and at the end; 0 for never
    optimizer: Optimizer = field(init=False)

    def __post_init__(self) -> None:
        if self.optimizer_name == "lars":
            self.optimizer = LARS(self.groups, lr=0.0, momentum=0.9, weight_decay=self.weight_decay)
        else:
            self.optimizer = SGD(self.groups, momentum=0.9, nesterov=self.nesterov, weight_decay=self.weight_decay)
        self.rates = [group["lr"] for group in self.groups]

    def resume(self) -> int:
        """Load the newest checkpoint of the folder, if there is one; the number of steps that are done."""
        newest = CheckpointFolder(self.folder).last()
        if newest is None:
            return 0
        state = checkpoints.load(newest)
        parts = {"total": int, "step": int, "processes": int, "modules": dict, "optimizer": dict}
        checkpoints.check_parts(state, parts, newest)
        if state["total"] != self.total or set(state["modules"]) != set(self.modules):
            raise InputError(f"{newest} belongs to another run (other settings); delete {self.folder} to start over")
        before, now = state["processes"], distributed.world_size()
        if before != now and any(map(has_batch_norm, self.modules.values())):  # BN sees the images of one process
            raise InputError(
                f"expected {counted(before, 'process')}, as {newest} had, found {now}: BN would see other batches; go "
                f"on with {before}, or delete {self.folder} to start over"
            )
        checkpoints.check_step(state["step"], self.total, newest)
        with checkpoints.fitting(newest):
            for name, module in self.modules.items():
                load_trained_state(module, state["modules"][name])
            checkpoints.load_optimizer(self.optimizer, state["optimizer"], newest)
        return int(state["step"])

    def save(self, step: int) -> None:
        """Write the state after ``step`` steps (rank 0 only)."""
        if distributed.is_main():
            modules = {name: trained_state(module) for name, module in self.modules.items()}
            state = {"format": checkpoints.FORMAT, "step": step, "total": self.total, "modules": modules,
                     "processes": distributed.world_size(), "optimizer": self.optimizer.state_dict()}  # fmt: skip
            CheckpointFolder(self.folder, keep=1).save(step, state)
        distributed.barrier()

    def set_rates(self, step: int) -> None:
        """The learning rate of every group for ``step``."""
        schedule = self.schedule
        warmup = round(self.total * schedule.warmup / schedule.epochs)
        for group, base in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = learning_rate(
                step, total=self.total, base=base, warmup=warmup, schedule=schedule.shape,
                milestones=schedule.milestones,
            )  # fmt: skip


def fit(run: Run, batches: Callable[[int], Iterable[Batch]], loss_of: Loss[Batch], description: str) -> None:
    """Train to the end, from the folder's newest checkpoint on.

    Args:
        batches: the first step -> the batches of that step and all later ones.
        loss_of: gives the loss of one batch; gradients flow into the parameters of ``run.groups``.

    Raises:
        Stopped: by SIGINT or SIGTERM, after saving.
        InputError: the loss is not finite.
    """
    begin = run.resume()
    if begin:
        say(f"{description}: resumed after step {begin} of {run.total}")
    if begin >= run.total:
        return
    with (
        stop_signals() as stop,
        Metrics(run.metrics, begin) if run.metrics else contextlib.nullcontext() as metrics,
        ProgressLine(description, run.total, begin) as line,
    ):
        for step, batch in enumerate(batches(begin), start=begin):
            began = time.monotonic()
            run.set_rates(step)
            loss, numbers = loss_of(batch)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise InputError(f"{description}: the loss is {value} at step {step}; lower the learning rate")
            run.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            run.optimizer.step()
            run.after_step(step)
            done = step + 1
            if run.evaluate_every and (done % run.evaluate_every == 0 or done == run.total):
                numbers = {**numbers, **run.evaluate()}
            if metrics is not None:
                metrics.write(done, {"loss": value, **numbers, "lr": run.optimizer.param_groups[0]["lr"],
                                     "seconds": time.monotonic() - began})  # fmt: skip
            line.advance(note=f"loss {value:.3f}")
            stopping = distributed.any_rank(bool(stop), loss.device)
            if stopping or done == run.total or done % run.checkpoint_every == 0:
                run.save(done)
            if stopping and done < run.total:
                raise Stopped(
                    f"{description}: saved after step {done} in {run.folder}; the same command goes on", stop.exit_code
                )
    for module in run.modules.values():
        for buffer in module.buffers():  # the last step's statistics are each process's own
            distributed.broadcast(buffer)


def shared_over_processes(module: nn.Module, device: torch.device) -> nn.Module:
    """DistributedDataParallel under torchrun, else the module itself.

    Each process normalises with its own batch; the running statistics are rank 0's, as DDP has it.
    """
    if not distributed.is_distributed():
        return module
    devices = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=devices)
