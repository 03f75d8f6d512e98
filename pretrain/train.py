"""The training loop: from settings to checkpoints, ``metrics.jsonl`` and ``backbone.safetensors``."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from momentum_transfer.backbones.convert import export_backbone
from momentum_transfer.core import distributed
from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.command import Stopped, stop_signals
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import ProgressLine, say
from momentum_transfer.core.loggers import Metrics
from momentum_transfer.core.run_lock import alone_in
from momentum_transfer.core.settings import dump, pretraining_hash
from momentum_transfer.pretrain import resume
from momentum_transfer.pretrain.config import check_settings
from momentum_transfer.pretrain.methods.baselines import RandomBackbone
from momentum_transfer.pretrain.optimizers import set_learning_rate
from momentum_transfer.pretrain.pipeline import Batch
from momentum_transfer.pretrain.plan import learning_rate_at
from momentum_transfer.pretrain.run import Run, compile_errors, distribute, estimate, prepare

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(
    cfg: CfgNode, *, resuming: bool = False, stop_after: int | None = None, preset: CfgNode | None = None
) -> Path:
    """Trains what the settings say, from the start or from the last checkpoint of OUTPUT_DIR.

    Args:
        resuming: go on from OUTPUT_DIR's last checkpoint; without one, start.
        stop_after: leave after this many steps of the run, saved, as if a signal had come (for time slices).
        preset: the config's own settings, without what was changed for this run, to warn of another protocol.

    Returns:
        The exported ``backbone.safetensors``.

    Raises:
        InputError: wrong settings or data, before any computation; or a loss or gradient that is not finite.
        Stopped: SIGINT or SIGTERM came; the run is saved and the message says how to resume.
    """
    check_settings(cfg)
    if stop_after is not None and stop_after < 1:
        raise InputError(f"expected --stop-after of at least 1 step, found {stop_after}")
    device = choose_device(cfg.RUN.DEVICE, "RUN.DEVICE")
    with distributed.process_group(device):
        checkpoints = CheckpointFolder(Path(cfg.OUTPUT_DIR) / "checkpoints", cfg.RUN.KEEP)
        run = prepare(cfg, device, checkpoints, preset)
        with alone_in(cfg.OUTPUT_DIR):
            return _work(run, checkpoints, resuming, stop_after)


def _work(run: Run, checkpoints: CheckpointFolder, resuming: bool, stop_after: int | None) -> Path:
    """From the start or the last checkpoint to the exported backbone."""
    first = _start_or_resume(run, checkpoints, resuming)
    if isinstance(run.method, RandomBackbone):
        if first == 0:
            count = estimate(run.cfg, run.images, run.method.backbone(), run.device)
            say(f"random weights; BN statistics calibrated on {count} training images")
            _save(run, checkpoints, 1)
    elif stop_after is not None and first >= stop_after and first < run.plan.steps:
        raise InputError(f"expected --stop-after beyond the {counted(first, 'step')} done, found {stop_after}")
    elif first < run.plan.steps:
        _loop(run, checkpoints, first, stop_after)
    return _export(run)


def _start_or_resume(run: Run, checkpoints: CheckpointFolder, resuming: bool) -> int:
    last = checkpoints.last()
    now = run.images_key if distributed.is_main() else {}  # one process looks through the files, as the run begins
    if last is None:
        return 0
    if not resuming:
        raise InputError(
            f"expected no earlier run in OUTPUT_DIR, found {last}; add --resume to go on, or choose another OUTPUT_DIR"
        )
    state = load(last)
    before = state.get("images")
    if differing := [part for part in now if not isinstance(before, Mapping) or before.get(part) != now[part]]:
        raise InputError(
            f"expected the images that {last} was trained on, found others: their {' and '.join(differing)} differ; "
            "restore them, correct DATA.ROOT, or start a new OUTPUT_DIR"
        )
    step = resume.restore(run, state, last)
    run.unlogged.update(state.get("figures", {}))
    say(f"resumed {last} after {counted(step, 'step')}")
    return step


def _save(run: Run, checkpoints: CheckpointFolder, step: int) -> None:
    state = resume.capture(run, step)
    if distributed.is_main():
        checkpoints.save(step, {**state, "images": run.images_key, "figures": run.unlogged})
    distributed.barrier()


def _loop(run: Run, checkpoints: CheckpointFolder, first: int, stop_after: int | None) -> None:
    """Steps ``first`` to the last; saves on its way, at a signal, and at the end."""
    cfg, plan = run.cfg, run.plan
    if distributed.is_main():  # as detectors' runs have it: loggers show it
        write_text(Path(cfg.OUTPUT_DIR) / "config.yaml", dump(cfg))
    model = distribute(run)
    model.train()
    batches = run.batches.from_step(first)
    with (
        stop_signals() as stop,
        Metrics(cfg.OUTPUT_DIR, first) as metrics,
        ProgressLine(f"pretrain {cfg.METHOD.NAME}", plan.steps, first) as progress,
    ):
        seconds = waited = 0.0
        for step in range(first, plan.steps):
            values = _step(run, model, batches, step)
            done = step + 1
            seconds, waited = seconds + values["seconds"], waited + values["data_seconds"]
            _log(run, metrics, done, values)
            progress.advance(note=f"loss {values['loss']:.4f}")
            _knn(run, metrics, done)
            _export_on_the_way(run, done)
            leaving = distributed.any_rank(bool(stop), run.device) or done == stop_after
            if leaving or done == plan.steps or done % cfg.RUN.CHECKPOINT_EVERY == 0:
                _save(run, checkpoints, done)
            if leaving and done < plan.steps:
                how = f"saved after step {done} in {cfg.OUTPUT_DIR}; run the same command with --resume to go on"
                raise Stopped(how, stop.exit_code if stop else 0)
    say(f"{seconds / (plan.steps - first):.3f} s a step, {waited / seconds:.1%} of it waiting for images")


def _step(run: Run, model: nn.Module, batches: Iterator[Batch], step: int) -> dict[str, float]:
    """One optimizer step in the order of the papers; returns the metrics for the log."""
    plan, method, optimizer = run.plan, run.method, run.optimizer
    begun, waited = time.perf_counter(), 0.0
    progress = step / plan.steps  # k/K of the schedules
    lr = learning_rate_at(plan, run.cfg, step)
    set_learning_rate(optimizer, lr, plan.base_lr)
    momenta = method.begin_step(progress)  # Momentum BN's alpha
    if run.cfg.TEACHER.MOVES == "before":
        momenta |= method.update_teacher(progress)
    totals: dict[str, Tensor] = {}
    for micro in range(plan.accumulate):
        asked = time.perf_counter()
        view1, view2, labels = next(batches)
        waited += time.perf_counter() - asked
        with _gradient_exchange(model, last=micro == plan.accumulate - 1), compile_errors():
            with _autocast(run):
                # Inside: both teacher forwards without gradient, both student forwards, the loss.
                outputs = model(view1, view2, labels)
            run.scaler.scale(outputs["loss"] / plan.accumulate).backward()
        for name, value in outputs.items():
            totals[name] = totals.get(name, 0) + value.detach() / plan.accumulate
    method.commit_statistics()  # Momentum BN: the history moves once a step
    if run.start and progress < run.cfg.SOLVER.HEAD_WARMUP:
        for parameter in method.backbone("student").parameters():
            parameter.grad = None  # the optimizer leaves it, its momentum and its decay alone
    _check_finite(run, totals, step, {"view 1": view1, "view 2": view2})
    run.scaler.step(optimizer)
    run.scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if run.cfg.TEACHER.MOVES == "after":
        momenta |= method.update_teacher(progress)
    values = {name: float(value) for name, value in totals.items()}
    return {**values, "lr": lr, **momenta, "seconds": time.perf_counter() - begun, "data_seconds": waited}


def _gradient_exchange(model: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Gradients are averaged over processes with the last micro-batch of a step only."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else contextlib.nullcontext()


def _autocast(run: Run) -> contextlib.AbstractContextManager[Any]:
    dtype = _AUTOCAST.get(run.cfg.RUN.PRECISION)
    return contextlib.nullcontext() if dtype is None else torch.autocast(run.device.type, dtype)


def _check_finite(run: Run, values: dict[str, Tensor], step: int, views: dict[str, Tensor]) -> None:
    """Stops before a NaN or infinity reaches the weights, and so before one is saved.

    Under fp16 the gradients are left to the scaler, which skips a step whose scaled gradients overflow.
    """
    finite = torch.isfinite(values["loss"])
    if not run.scaler.is_enabled():
        finite = finite & _all_finite([p.grad for p in run.method.parameters() if p.grad is not None])
    if distributed.any_rank(not bool(finite), run.device):
        names = ", ".join(non_finite_tensors(run.method, {**values, **views})) or "elsewhere"
        raise InputError(
            f"expected a finite loss and finite gradients, found a loss of {float(values['loss'])} at step {step}; not "
            f"finite: {names}; lower SOLVER.BASE_LR or check the images, and go on from the last checkpoint: --resume"
        )


def non_finite_tensors(method: nn.Module, named: dict[str, Tensor], limit: int = 8) -> list[str]:
    """Names of what is NaN or infinite: the given tensors, then the method's parameters, buffers and gradients."""
    gradients = {f"{name} (gradient)": p.grad for name, p in method.named_parameters() if p.grad is not None}
    tensors = {**named, **dict(method.named_parameters()), **dict(method.named_buffers()), **gradients}
    names = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    return names[:limit] + (["…"] if len(names) > limit else [])


def _all_finite(tensors: list[Tensor]) -> Tensor:
    """[] bool. A sum is not finite if a summand is not, and on a CPU takes a tenth of the time of a norm."""
    if tensors[0].is_cpu and (sums := torch.stack([tensor.sum() for tensor in tensors]).isfinite().all()):
        return sums
    return torch.stack(torch._foreach_norm(tensors, float("inf"))).isfinite().all()  # finite numbers overflow a sum


def _log(run: Run, metrics: Metrics, done: int, values: dict[str, float]) -> None:
    """Means over the steps since the last line, every LOG_EVERY steps."""
    for name, value in values.items():
        run.unlogged.setdefault(name, []).append(value)
    if done % run.cfg.RUN.LOG_EVERY == 0 or done == run.plan.steps:
        means = {name: sum(unlogged) / len(unlogged) for name, unlogged in run.unlogged.items()}
        metrics.write(done, {"epoch": done / run.plan.steps_per_epoch, **means})
        run.unlogged.clear()


def _knn(run: Run, metrics: Metrics, done: int) -> None:
    every = round(run.cfg.RUN.KNN_EVERY * run.plan.steps_per_epoch)
    if run.knn is None or (done % max(every, 1) and done != run.plan.steps):
        return
    if distributed.is_main():
        top1 = run.knn.top1(run.method.backbone())
        metrics.write(done, {"epoch": done / run.plan.steps_per_epoch, "knn_top1": top1})
        say(f"step {done}: kNN top-1 {top1:.2f} % on {run.cfg.RUN.KNN_SPLIT}")
    distributed.barrier()


def _export_on_the_way(run: Run, done: int) -> None:
    """Every RUN.EXPORT_EVERY epochs a backbone under its own name, for RCF's figure 7."""
    every = run.cfg.RUN.EXPORT_EVERY
    count = round(done / run.plan.steps_per_epoch / every) if every else 0
    if count and done == round(count * every * run.plan.steps_per_epoch):
        folder = Path(run.cfg.OUTPUT_DIR)
        _export(run, folder / "exports" / f"{folder.resolve().name}_epoch{count * every:g}.safetensors", done)


def _export(run: Run, path: Path | None = None, steps: int | None = None) -> Path:
    cfg, network = run.cfg, run.method.network_default
    path = path or Path(cfg.OUTPUT_DIR) / "backbone.safetensors"
    if distributed.is_main():
        metadata = {
            "network": network,
            "method": cfg.METHOD.NAME,
            "optimizer": cfg.SOLVER.OPTIMIZER,
            "norm_student": cfg.NORM.STUDENT,
            "norm_teacher": cfg.NORM.TEACHER if "teacher" in run.method.networks() else "",
            "config_hash": pretraining_hash(dump(cfg)),
            **({"weights": run.start.source.name, "weights_sha256": run.start.source.sha256} if run.start else {}),
            "steps": str((steps or run.plan.steps) if cfg.METHOD.NAME != "random" else 0),
        }
        export_backbone(path, run.method.backbone(), metadata)
        say(f"exported the {network}'s backbone to {path}")
    distributed.barrier()
    return path
