"""Everything that a step depends on, taken out of a run and put back, so that 2 + 2 steps are 4 bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import yaml
from fvcore.common.config import CfgNode
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from pretrain import distributed
from pretrain.checkpoint import FORMAT
from pretrain.config import dump
from pretrain.console import warn
from pretrain.errors import InputError

# Settings that may differ between the two parts of a run: they change where and how fast, not what is computed.
FREE = ("OUTPUT_DIR", "RUN.", "DATA.ROOT", "DATA.WORKERS", "DATA.MAX_UNREADABLE")
SHARED_BUFFERS = ("queue.",)  # equal on every process


def capture(
    cfg: CfgNode, method: nn.Module, optimizer: Optimizer, scaler: GradScaler, step: int, steps_per_epoch: int
) -> dict[str, Any]:
    """The checkpoint after ``step`` steps. Every process must call it; the first one's return value is written."""
    architecture = method.backbone().architecture  # type: ignore[operator]
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
        "architecture": {"name": architecture.name, "width": architecture.width, "stem": architecture.stem},
        "network_default": method.network_default,
        "model": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "processes": processes,
    }


def restore(state: dict[str, Any], cfg: CfgNode, method: nn.Module, optimizer: Optimizer, scaler: GradScaler) -> int:
    """Puts a checkpoint back; returns the steps that it has done.

    Raises:
        InputError: it was made under other settings, or does not hold this model.
    """
    check_same_settings(state["config"], cfg)
    try:
        method.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
    except (RuntimeError, ValueError, KeyError) as error:
        detail = " ".join(str(error).split())
        raise InputError(f"expected a checkpoint of this model, found another: {detail}") from error
    processes = state["processes"]
    if len(processes) != distributed.world_size():
        warn(
            f"this run goes on with {distributed.world_size()} processes, the checkpoint had {len(processes)}: "
            "every process starts from the first one's BN statistics, and the result is not bit-equal"
        )
        return state["step"]
    own = processes[distributed.rank()]
    with torch.no_grad():
        buffers = dict(method.named_buffers())
        for name, value in own["buffers"].items():
            buffers[name].copy_(value)
    _set_generators(own["generators"])
    return state["step"]


def check_same_settings(saved: str, cfg: CfgNode) -> None:
    """Refuses to go on under settings that change what is learned.

    Raises:
        InputError: names every setting that differs, with both values.
    """
    before, now = _flat(yaml.safe_load(saved)), _flat(yaml.safe_load(dump(cfg)))
    differing = [
        f"{key} {before.get(key)!r} -> {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not key.startswith(FREE)
    ]
    if differing:
        raise InputError(
            f"expected the settings of the checkpoint, found changes: {'; '.join(differing)}; "
            "undo them, or start a new OUTPUT_DIR"
        )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _local_buffers(method: nn.Module) -> dict[str, Tensor]:
    """Buffers that processes keep for themselves (BN statistics); empty alone, where the model's state has them."""
    if not distributed.is_distributed():
        return {}
    return {name: value.cpu() for name, value in method.named_buffers() if not name.startswith(SHARED_BUFFERS)}


def _generators() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002  libraries may draw from it
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "python": [version, list(internal), gauss_next],
    }


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
