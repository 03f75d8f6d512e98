"""Captures and restores the training state, bit-exact: 2 + 2 steps equal 4.

The whole network that a run of ours trained: backbone and projector, from its last checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fvcore.common.config import CfgNode
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from momentum_transfer.backbones.build import AnyArchitecture
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core import distributed
from momentum_transfer.core.checkpoints import (
    FORMAT,
    CheckpointFolder,
    check_generator,
    check_numbers,
    check_parts,
    check_step,
    fitting,
    load,
    load_optimizer,
)
from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.log import warn
from momentum_transfer.core.settings import dump, learned_settings
from momentum_transfer.pretrain.config import get_cfg, norms_of_own_batch
from momentum_transfer.pretrain.methods import Method, build_method
from momentum_transfer.pretrain.methods.method import Branch

SHARED_BUFFERS = ("queue.",)  # equal on every process


def capture(
    cfg: CfgNode, method: Method, optimizer: Optimizer, scaler: GradScaler, step: int, steps_per_epoch: int
) -> dict[str, Any]:
    """The checkpoint after ``step`` steps. Every process must call it; the first one's return value is written."""
    architecture = method.backbone().architecture
    local = {"generators": _generators(), "buffers": _local_buffers(method)}
    processes: list[Any] = [local]
    if distributed.is_distributed():
        processes = [None] * distributed.world_size()
        dist.all_gather_object(processes, local)
    return {
        "format": FORMAT,
        "method": cfg.METHOD.NAME,
        "config": dump(cfg),
        "step": step,
        "sampler": {"epoch": step // steps_per_epoch, "step_in_epoch": step % steps_per_epoch},
        "architecture": _described(architecture),
        "network_default": method.network_default,
        "model": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "processes": processes,
    }


def _described(architecture: AnyArchitecture) -> dict[str, Any]:
    if isinstance(architecture, Architecture):
        return {"name": architecture.name, "width": architecture.width, "stem": architecture.stem}
    return {"text": str(architecture)}


def restore(
    state: dict[str, Any],
    cfg: CfgNode,
    method: Method,
    optimizer: Optimizer,
    scaler: GradScaler,
    steps: int,
    path: Path,
) -> int:
    """Puts a checkpoint back; returns the steps that it has done.

    Args:
        steps: of the whole training. path: of the checkpoint, for messages.

    Raises:
        InputError: it was made under other settings, does not hold this model, is no whole state of a training, or was
            of a number of processes that the normalisations do not exchange for this one.
    """
    _check(state, cfg, path)
    check_same_settings(state["config"], cfg)
    check_other_processes(cfg, len(state["processes"]), distributed.world_size())
    check_step(state["step"], max(steps, 1), path)
    with fitting(path):
        method.load_state_dict(state["model"])
        load_optimizer(optimizer, state["optimizer"], path)
        scaler.load_state_dict(state["scaler"])
    processes = state["processes"]
    if len(processes) != distributed.world_size():
        warn(
            f"this run goes on with {distributed.world_size()} processes, the checkpoint had {len(processes)}: "
            "every process starts from the first one's BN statistics, and the result is not bit-equal"
        )
        return state["step"]
    own = processes[distributed.rank()]
    with torch.no_grad(), fitting(path):
        buffers = dict(method.named_buffers())
        for name, value in own["buffers"].items():
            buffers[name].copy_(value)
    _set_generators(own["generators"])
    return state["step"]


def _check(state: dict[str, Any], cfg: CfgNode, path: Path) -> None:
    """The whole state before any of it is used."""
    parts = {"method": str, "config": str, "step": int, "sampler": dict, "model": dict, "optimizer": dict,
             "scaler": dict, "processes": list}  # fmt: skip
    check_parts(state, parts, path)
    check_parts({"figures": {}, **state}, {"figures": dict}, path)
    if state["method"] != cfg.METHOD.NAME:
        raise InputError(f"expected a checkpoint of {cfg.METHOD.NAME}, found one of {shown(state['method'])}: {path}")
    for values in state.get("figures", {}).values():
        numbers = enumerate(values if isinstance(values, list) else [values])
        check_numbers({str(place): value for place, value in numbers}, "figures", path)
    if not state["processes"]:
        raise InputError(f"expected the states of one process or more in {path}, found none; take another checkpoint")
    for number, process in enumerate(state["processes"]):
        check_parts(process if isinstance(process, dict) else {}, {"generators": dict, "buffers": dict}, path)
        check_generator(process["generators"].get("torch"), f"processes[{number}]", path)


def check_other_processes(cfg: CfgNode, before: int, now: int) -> None:
    """Refuses another number of processes where it would change the images that a normalisation sees.

    GN and IN look at one image, SyncBN at the whole micro-batch, EMAN and StudentPN at the student's statistics. All
    others keep statistics of each process's own images, and under NORM.GROUP of each of its groups.

    Raises:
        InputError: with the number of processes to go on with.
    """
    by_process = norms_of_own_batch(cfg)
    if before == now or not by_process:
        return
    seen = [cfg.SOLVER.BATCH_SIZE // (count * cfg.SOLVER.ACCUMULATE) for count in (before, now)]
    change = f"would normalise a process's {seen[1]} images in place of {seen[0]}, another training"
    if group := cfg.NORM.GROUP:
        change = f"would have statistics of {seen[1] // group} groups a process, where {seen[0] // group} are saved"
    raise InputError(
        f"expected {before} processes, as the checkpoint had, found {now}: {' and '.join(by_process)} {change}; go on "
        f"with {before}, or begin anew in another OUTPUT_DIR"
    )


def check_same_settings(saved: str, cfg: CfgNode) -> None:
    """Refuses to go on under settings that change what is learned.

    Raises:
        InputError: names every setting that differs, with both values.
    """
    before, now = learned_settings(saved), learned_settings(dump(cfg))
    differing = [
        f"{key} {before.get(key)!r} -> {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if differing:
        raise InputError(
            f"expected the settings of the checkpoint, found changes: {'; '.join(differing)}; "
            "undo them, or start a new OUTPUT_DIR"
        )


def _local_buffers(method: nn.Module) -> dict[str, Tensor]:
    """Buffers that processes keep for themselves (BN statistics); empty alone, where the model's state has them."""
    if not distributed.is_distributed():
        return {}
    return {name: value.cpu() for name, value in method.named_buffers() if not name.startswith(SHARED_BUFFERS)}


def _generators() -> dict[str, Any]:
    """torch's alone: every other draw of a run comes from a generator seeded for its purpose (views, orders, subsets).

    Python's and numpy's global generators are neither seeded nor read here, so there is nothing of theirs to keep.
    """
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def load_embedding(run: str | Path, network: str | None = None) -> Branch | None:
    """Images [N, 3, H, W] -> embeddings [N, D] before the predictor, in evaluation mode.

    Args:
        run: OUTPUT_DIR of a pretraining.
        network: "student" or "teacher"; None for the one that the paper evaluates.

    Returns:
        None where ``run`` is no folder with checkpoints of ours, or its method has no projector.

    Raises:
        InputError: the method has no such network, or the checkpoint is damaged.
    """
    file = CheckpointFolder(Path(run) / "checkpoints").last() if Path(run).is_dir() else None
    if file is None:
        return None
    state = load(file)
    cfg = get_cfg()
    cfg.merge_from_other_cfg(CfgNode.load_cfg(state["config"]))
    classes = state["model"].get("student.fc.weight", [[]] * 10)
    method = build_method(cfg, len(classes))
    method.load_state_dict(state["model"])
    networks: dict[str, nn.Module] = method.networks()
    chosen = network or method.network_default
    if chosen not in networks:
        raise InputError(f"expected a network of {', '.join(networks)} in {file}, found none called {chosen}")
    branch = networks[chosen]
    if not isinstance(branch, Branch):
        return None
    branch.predictor = None
    return branch.eval()
