"""The training loop: from settings to checkpoints, ``metrics.jsonl`` and ``backbone.safetensors``."""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pretrain import distributed, resume
from pretrain.checkpoint import CheckpointFolder, export_backbone, load
from pretrain.config import config_hash
from pretrain.console import ProgressLine, Stopped, StopSignal, say, stop_signals
from pretrain.errors import InputError
from pretrain.images import LabelledImages
from pretrain.methods import build_method
from pretrain.metrics import Metrics
from pretrain.monitor import KnnMonitor, non_finite_tensors, shuffled_subset
from pretrain.norms import use_fused_sync
from pretrain.optimizers import build_optimizer, set_learning_rate
from pretrain.pipeline import TrainingBatches, build_images, evaluation_images
from pretrain.plan import Plan, check_settings, describe, learning_rate_at, make_plan
from pretrain.subsets import full_size

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(cfg: CfgNode, *, resuming: bool = False, stop_after: int | None = None) -> Path:
    """Trains what the settings say, from the start or from the last checkpoint of OUTPUT_DIR.

    Args:
        cfg: settings of ``config.get_cfg``, merged.
        resuming: go on from OUTPUT_DIR's last checkpoint; without one, start.
        stop_after: leave after this many steps of the run, saved, as if a signal had come (for time slices).

    Returns:
        The exported ``backbone.safetensors``.

    Raises:
        InputError: wrong settings or data, before any computation; or a loss that is not finite.
        Stopped: SIGINT or SIGTERM came; the run is saved and the message says how to go on.
    """
    check_settings(cfg)
    device = _device(cfg.RUN.DEVICE)
    with distributed.process_group(device):
        run = _prepare(cfg, device)
        checkpoints = CheckpointFolder(Path(cfg.OUTPUT_DIR) / "checkpoints", cfg.RUN.KEEP)
        first = _start_or_resume(run, checkpoints, resuming)
        if cfg.METHOD.NAME == "random":
            if first == 0:
                _calibrate(run)
                _save(run, checkpoints, 1)
        elif first < run.plan.steps:
            _loop(run, checkpoints, first, stop_after)
        return _export(run)


@dataclass
class Run:
    """What the loop works with."""

    cfg: CfgNode
    device: torch.device
    plan: Plan
    images: LabelledImages
    batches: TrainingBatches
    method: nn.Module
    optimizer: Optimizer
    scaler: GradScaler
    knn: KnnMonitor | None
    figures: dict[str, list[float]] = field(default_factory=dict)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("expected a CUDA device under RUN.DEVICE cuda, found none; use cpu or auto")
    if name not in ("cuda", "cpu"):
        raise InputError(f"expected RUN.DEVICE of auto, cuda, cpu, found {name!r}; correct the config")
    if name == "cuda":
        torch.cuda.set_device(distributed.local_rank())
        return torch.device("cuda", distributed.local_rank())
    return torch.device("cpu")


def _prepare(cfg: CfgNode, device: torch.device) -> Run:
    images = build_images(cfg, cfg.DATA.SPLIT)
    plan = make_plan(cfg, len(images), full_size(images), distributed.world_size())
    batches = TrainingBatches(cfg, images, plan, device)
    for line in describe(plan, cfg, distributed.world_size()) if cfg.METHOD.NAME != "random" else []:
        say(line)
    torch.manual_seed(cfg.SEED)  # the same weights on every process
    method = build_method(cfg, len(images.classes)).to(device)
    if device.type == "cuda":
        use_fused_sync(method)
    if cfg.RUN.CHANNELS_LAST:
        method = method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.manual_seed(cfg.SEED + 1 + distributed.rank())
    solver = cfg.SOLVER
    optimizer = build_optimizer(
        method,
        solver.OPTIMIZER,
        lr=plan.base_lr,
        momentum=solver.MOMENTUM,
        weight_decay=solver.WEIGHT_DECAY,
        eta=solver.ETA,
        fixed_lr="predictor" if solver.FIXED_PREDICTOR_LR else "",
    )
    scaler = GradScaler(device.type, enabled=cfg.RUN.PRECISION == "fp16")
    return Run(cfg, device, plan, images, batches, method, optimizer, scaler, _knn_monitor(cfg, images, device))


def _knn_monitor(cfg: CfgNode, images: LabelledImages, device: torch.device) -> KnnMonitor | None:
    if cfg.RUN.KNN_EVERY <= 0:
        return None
    held_out = evaluation_images(cfg, build_images(cfg, cfg.RUN.KNN_SPLIT))
    return KnnMonitor(
        evaluation_images(cfg, images), held_out, device, batch=cfg.SOLVER.BATCH_SIZE, workers=cfg.DATA.WORKERS
    )


def _start_or_resume(run: Run, checkpoints: CheckpointFolder, resuming: bool) -> int:
    last = checkpoints.last()
    if last is None:
        return 0
    if not resuming:
        raise InputError(
            f"expected no earlier run in OUTPUT_DIR, found {last}; add --resume to go on, or choose another OUTPUT_DIR"
        )
    step = resume.restore(load(last), run.cfg, run.method, run.optimizer, run.scaler)
    say(f"resumed {last} after {step} steps")
    return step


def _save(run: Run, checkpoints: CheckpointFolder, step: int) -> None:
    state = resume.capture(run.cfg, run.method, run.optimizer, run.scaler, step, run.plan.steps_per_epoch)
    if distributed.is_main():
        checkpoints.save(step, state)
    distributed.barrier()


def _loop(run: Run, checkpoints: CheckpointFolder, first: int, stop_after: int | None) -> None:
    """Steps ``first`` to the last; saves on its way, at a signal, and at the end."""
    cfg, plan, method = run.cfg, run.plan, run.method
    model = _distribute(run)
    model.train()
    batches = run.batches.from_step(first)
    with (
        stop_signals() as stop,
        Metrics(cfg.OUTPUT_DIR, first) as metrics,
        ProgressLine(f"pretrain {cfg.METHOD.NAME}", plan.steps, first) as progress,
    ):
        for step in range(first, plan.steps):
            begun, waited = time.perf_counter(), 0.0
            lr = learning_rate_at(plan, cfg, step)
            set_learning_rate(run.optimizer, lr, plan.base_lr)
            if cfg.TEACHER.MOVES == "before":
                momenta = method.update_teacher(step / plan.steps)  # type: ignore[operator]
            figures: dict[str, Tensor] = {}
            for micro in range(plan.accumulate):
                asked = time.perf_counter()
                view1, view2, labels = next(batches)
                waited += time.perf_counter() - asked
                with _gradient_exchange(model, last=micro == plan.accumulate - 1):
                    with _autocast(run):
                        # Inside: both teacher forwards without gradient, both student forwards, the loss.
                        outputs = model(view1, view2, labels)
                    run.scaler.scale(outputs["loss"] / plan.accumulate).backward()
                for name, value in outputs.items():
                    figures[name] = figures.get(name, 0) + value.detach() / plan.accumulate
            method.commit_statistics()  # type: ignore[operator]  # Momentum BN: the history moves once a step
            loss = _finite_loss(run, figures, step, {"view 1": view1, "view 2": view2})
            run.scaler.step(run.optimizer)
            run.scaler.update()
            run.optimizer.zero_grad(set_to_none=True)
            if cfg.TEACHER.MOVES == "after":
                momenta = method.update_teacher(step / plan.steps)  # type: ignore[operator]
            done = step + 1
            timing = {"seconds": time.perf_counter() - begun, "data_seconds": waited}
            _log(run, metrics, done, {**{k: float(v) for k, v in figures.items()}, "lr": lr, **momenta, **timing})
            progress.advance(note=f"loss {loss:.4f}")
            _knn(run, metrics, done)
            leaving = _leaving(run, stop, done == stop_after)
            if leaving or done == plan.steps or done % cfg.RUN.CHECKPOINT_EVERY == 0:
                _save(run, checkpoints, done)
            if leaving and done < plan.steps:
                raise Stopped(_how_to_resume(cfg, done), stop.exit_code if stop else 0)


def _distribute(run: Run) -> nn.Module:
    if run.cfg.RUN.COMPILE:
        for network in ("student", "teacher"):
            if hasattr(run.method, network):
                getattr(run.method, network).compile()  # in place: the names in the state stay
    if not distributed.is_distributed():
        return run.method
    with warnings.catch_warnings():
        # Newer torch wants forward_sync_buffers, which still overwrites every process's BN statistics at the start;
        # they are each process's own (the student's by the paper's design, the teacher's by NORM.POLICY).
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        devices = [run.device.index] if run.device.type == "cuda" else None
        return DistributedDataParallel(run.method, device_ids=devices, broadcast_buffers=False)


def _gradient_exchange(model: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Gradients are averaged over processes with the last micro-batch of a step only."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else contextlib.nullcontext()


def _autocast(run: Run) -> contextlib.AbstractContextManager[Any]:
    dtype = AUTOCAST.get(run.cfg.RUN.PRECISION)
    return contextlib.nullcontext() if dtype is None else torch.autocast(run.device.type, dtype)


def _finite_loss(run: Run, figures: dict[str, Tensor], step: int, views: dict[str, Tensor]) -> float:
    loss = figures["loss"]
    if distributed.any_rank(not bool(torch.isfinite(loss)), run.device):
        found = ", ".join(non_finite_tensors(run.method, {**figures, **views})) or "elsewhere"
        raise InputError(
            f"expected a finite loss, found {float(loss)} at step {step}; not finite: {found}; "
            "lower SOLVER.BASE_LR or check the images, and go on from the last checkpoint with --resume"
        )
    return float(loss)


def _log(run: Run, metrics: Metrics, done: int, figures: dict[str, float]) -> None:
    """Means over the steps since the last line, every LOG_EVERY steps."""
    for name, value in figures.items():
        run.figures.setdefault(name, []).append(value)
    if done % run.cfg.RUN.LOG_EVERY == 0 or done == run.plan.steps:
        means = {name: sum(values) / len(values) for name, values in run.figures.items()}
        metrics.write(done, {"epoch": done / run.plan.steps_per_epoch, **means})
        run.figures.clear()


def _knn(run: Run, metrics: Metrics, done: int) -> None:
    every = round(run.cfg.RUN.KNN_EVERY * run.plan.steps_per_epoch)
    if run.knn is None or (done % max(every, 1) and done != run.plan.steps):
        return
    if distributed.is_main():
        top1 = run.knn.top1(run.method.backbone())  # type: ignore[operator]
        metrics.write(done, {"epoch": done / run.plan.steps_per_epoch, "knn_top1": top1})
        say(f"step {done}: kNN top-1 {top1:.2f} % on {run.cfg.RUN.KNN_SPLIT}")
    distributed.barrier()


def _leaving(run: Run, stop: StopSignal, time_is_up: bool) -> bool:
    return distributed.any_rank(bool(stop), run.device) or time_is_up


def _how_to_resume(cfg: CfgNode, done: int) -> str:
    return f"saved after step {done} in {cfg.OUTPUT_DIR}; run the same command with --resume to go on"


def _calibrate(run: Run) -> None:
    """The random baseline: BN statistics over training images, in their evaluation form."""
    cfg = run.cfg
    batch, count = cfg.SOLVER.BATCH_SIZE, cfg.RUN.CALIBRATION_BATCHES
    count = min(count, len(run.images) // batch)
    subset = shuffled_subset(evaluation_images(cfg, run.images), batch * count, cfg.SEED)
    loader = torch.utils.data.DataLoader(subset, batch_size=batch, num_workers=cfg.DATA.WORKERS)
    run.method.calibrate((images.to(run.device) for images, _ in loader), count)  # type: ignore[operator]
    say(f"random weights; BN statistics calibrated on {batch * count} training images")


def _export(run: Run) -> Path:
    cfg, which = run.cfg, run.method.network_default
    path = Path(cfg.OUTPUT_DIR) / "backbone.safetensors"
    if distributed.is_main():
        metadata = {
            "network": str(which),
            "method": cfg.METHOD.NAME,
            "norm_student": cfg.NORM.STUDENT,
            "norm_teacher": cfg.NORM.TEACHER if hasattr(run.method, "teacher") else "",
            "config_hash": config_hash(cfg),
            "steps": str(run.plan.steps if cfg.METHOD.NAME != "random" else 0),
        }
        export_backbone(path, run.method.backbone(), metadata)  # type: ignore[operator]
        say(f"exported the {which}'s backbone to {path}")
    distributed.barrier()
    return path
