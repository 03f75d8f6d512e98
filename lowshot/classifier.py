"""A backbone with a linear classifier, and its top-1 and top-5 accuracy.

The training loop that linear, finetune and fixmatch share: step, schedule, checkpoint, resume, stop.
"""

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

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.core import distributed
from momentum_transfer.core.checkpoints import (
    FORMAT,
    CheckpointFolder,
    check_parts,
    check_step,
    fitting,
    load,
    load_optimizer,
)
from momentum_transfer.core.command import Stopped, stop_signals
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import ProgressLine, say
from momentum_transfer.core.loggers import Metrics
from momentum_transfer.core.optimization import LARS, learning_rate
from momentum_transfer.lowshot.presets import Schedule


def linear_head(features: int, classes: int, seed: int) -> nn.Linear:
    """Weights N(0, 0.01²) drawn with ``seed``, zero biases."""
    head = nn.Linear(features, classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.normal_(0, 0.01, generator=generator)
        head.bias.zero_()
    return head


class Classifier(nn.Module):
    """images [N, 3, H, W] -> logits [N, classes].

    Args:
        backbone: of ``momentum_transfer.backbones.build.build_backbone``.
    """

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
    kept: dict[str, list[Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Fractions top1 and top5, over the batches of all processes.

    Args:
        logits_of: inputs -> logits [N, classes], or [heads, N, classes] of several classifiers at once.
        kept: gathers whether each image of this process was a hit, bool [.., N] for top1 and top5.

    Returns:
        ``{"top1": …, "top5": …}``, scalars or [heads].
    """
    count = torch.zeros((), device=device)
    right = {"top1": torch.zeros((), device=device), "top5": torch.zeros((), device=device)}
    for inputs, labels in batches:
        logits, labels = logits_of(inputs.to(device)), labels.to(device)
        ranked = logits.topk(min(5, logits.shape[-1]), dim=-1).indices
        hits = ranked == labels[:, None]
        count = count + len(labels)
        for name, each in (("top1", hits[..., 0]), ("top5", hits.any(-1))):
            right[name] = right[name] + each.sum(-1)
            if kept is not None:
                kept.setdefault(name, []).append(each.cpu())
    total = distributed.all_reduce_mean(count)
    return {name: distributed.all_reduce_mean(hits) / total for name, hits in right.items()}


def in_order(kept: dict[str, list[Tensor]], dealt: bool = True) -> dict[str, np.ndarray]:
    """Hits [N] bool of the whole test set in its order, by metric, from what ``accuracy`` kept of one classifier.

    Args:
        dealt: the processes had every world_size-th image each, as ``evaluation_batches`` deals them.
    """
    found = {}
    for name, parts in kept.items():
        own = torch.cat([part.reshape(-1) for part in parts])
        if not dealt or not distributed.is_distributed():
            found[name] = own.numpy()
            continue
        shares: list[Any] = [None] * distributed.world_size()
        torch.distributed.all_gather_object(shares, own)
        whole = torch.zeros(sum(map(len, shares)), dtype=torch.bool)
        for rank, share in enumerate(shares):
            whole[rank :: len(shares)] = share
        found[name] = whole.numpy()
    return found


Batch = TypeVar("Batch")
Loss = Callable[[Batch], tuple[Tensor, dict[str, float]]]
"""A batch -> (loss, further numbers for the log)."""


@dataclass
class Run:
    """One training run: what moves, how, and where it is kept.

    Attributes:
        modules: everything whose state a resumed run needs, by name.
        groups: parameter groups of the optimizer, each with its ``lr`` at the end of the warm-up.
        total: steps.
        after_step: called with the step's number when the optimiser has moved (FixMatch's teacher follows there).
        metrics: folder of a metrics.jsonl that gets a line a step, and of the other loggers; None for none.
        evaluate, evaluate_every: numbers to log besides every so many steps and at the end; 0 for never. It must leave
            the modules and the random numbers as they were.
    """

    modules: dict[str, nn.Module]
    groups: list[dict[str, Any]]
    schedule: Schedule
    total: int
    folder: Path
    nesterov: bool = False
    weight_decay: float = 0.0
    optimizer_name: str = "sgd"
    after_step: Callable[[int], None] = lambda step: None
    checkpoint_every: int = 1000
    metrics: Path | None = None
    evaluate: Callable[[], dict[str, float]] = dict
    evaluate_every: int = 0
    optimizer: Optimizer = field(init=False)

    def __post_init__(self) -> None:
        if self.optimizer_name == "lars":
            self.optimizer = LARS(self.groups, lr=0.0, momentum=0.9, weight_decay=self.weight_decay)
        else:
            self.optimizer = SGD(
                self.groups, momentum=0.9, nesterov=self.nesterov, weight_decay=self.weight_decay, foreach=True
            )
        self.rates = [group["lr"] for group in self.groups]

    def resume(self) -> int:
        """Load the newest checkpoint of the folder, if there is one; the number of steps that are done."""
        newest = CheckpointFolder(self.folder).last()
        if newest is None:
            return 0
        state = load(newest)
        check_parts(state, {"total": int, "step": int, "modules": dict, "optimizer": dict}, newest)
        if state["total"] != self.total or set(state["modules"]) != set(self.modules):
            raise InputError(f"{newest} belongs to another run (other settings); delete {self.folder} to start over")
        check_step(state["step"], self.total, newest)
        with fitting(newest):
            for name, module in self.modules.items():
                module.load_state_dict(state["modules"][name])
            load_optimizer(self.optimizer, state["optimizer"], newest)
        return int(state["step"])

    def save(self, step: int) -> None:
        """Write the state after ``step`` steps (first process only)."""
        if distributed.is_main():
            modules = {name: module.state_dict() for name, module in self.modules.items()}
            state = {"format": FORMAT, "step": step, "total": self.total, "modules": modules}
            CheckpointFolder(self.folder, keep=1).save(step, {**state, "optimizer": self.optimizer.state_dict()})
        distributed.barrier()

    def set_rates(self, step: int) -> None:
        """The learning rate of every group for ``step``."""
        schedule = self.schedule
        warmup = round(self.total * schedule.warmup / schedule.epochs)
        for group, base in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = learning_rate(
                step,
                total=self.total,
                base=base,
                warmup=warmup,
                schedule=schedule.shape,
                milestones=schedule.milestones,
            )


def fit(run: Run, batches: Callable[[int], Iterable[Batch]], loss_of: Loss[Batch], description: str) -> None:
    """Train to the end, from where the folder's newest checkpoint stands.

    Args:
        batches: the first step -> the batches of that step and all later ones.
        loss_of: gives the loss of one batch; gradients flow into the parameters of ``run.groups``.

    Raises:
        Stopped: by SIGINT or SIGTERM, after saving.
        InputError: the loss is not finite.
    """
    begin = run.resume()
    if begin:
        say(f"{description}: going on after step {begin} of {run.total}")
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

    Each process normalises with its own batch; the running statistics are the first process's, as DDP has it.
    """
    if not distributed.is_distributed():
        return module
    devices = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=devices)
