"""Checkpoints of a detector's training: whole or absent, and enough to go on bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from fvcore.common.config import CfgNode
from torch import Tensor

from pretrain.config import dump
from pretrain.errors import InputError
from pretrain.files import atomic_path, write_text
from transfer.torchvision_engine.models import Detector
from transfer.torchvision_engine.weights import export_state, load_detector, own_state

LAST = "last_checkpoint"  # Detectron2's name for the pointer
#: Settings that may change between a training and its resumption.
_FREE = ("OUTPUT_DIR", "TEST", "DATALOADER.NUM_WORKERS", "DATASETS.ROOT", "DATASETS.TEST", "TRIALS", "ENGINE",
         "MODEL.DEVICE", "MODEL.WEIGHTS", "SOLVER.CHECKPOINT_PERIOD", "PROTOCOL", "SEED")  # fmt: skip


@dataclass(frozen=True)
class Position:
    """Where a training stands. step: iterations done."""

    step: int
    loaded: tuple[str, ...]
    new: tuple[str, ...]


def save(
    folder: Path, detector: Detector, optimizer: torch.optim.Optimizer, scaler: Any, position: Position, cfg: CfgNode
) -> Path:
    """Write ``model_<step>.pth`` and point ``last_checkpoint`` to it; the one before is removed only then."""
    path = folder / f"model_{position.step - 1:07d}.pth"
    content = {
        "model": export_state(detector),
        "own": own_state(detector),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "iteration": position.step - 1,
        "loaded": list(position.loaded),
        "new": list(position.new),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "config": dump(cfg),
    }
    with atomic_path(path) as temporary:
        torch.save(content, temporary)
    before = last(folder)
    write_text(folder / LAST, path.name)
    if before is not None and before != path:
        before.unlink(missing_ok=True)
    return path


def last(folder: Path) -> Path | None:
    """The newest checkpoint of a folder, or None."""
    pointer = folder / LAST
    return folder / pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else None


def resume(
    path: Path, detector: Detector, optimizer: torch.optim.Optimizer, scaler: Any, cfg: CfgNode, device: torch.device
) -> Position:
    """Put everything back as it was when ``path`` was written.

    Raises:
        InputError: the file is damaged or not this engine's, or was written with other settings (the first is named).
    """
    content = _read(path)
    changed = next(_differences(yaml.safe_load(content["config"]), yaml.safe_load(dump(cfg))), None)
    if changed is not None:
        raise InputError(f"cannot resume {path}: {changed}; use the same settings, or another OUTPUT_DIR")
    load_detector(detector, content["model"], str(path))
    detector.load_state_dict(content["own"], strict=False)
    optimizer.load_state_dict(content["optimizer"])
    scaler.load_state_dict(content["scaler"])
    torch.set_rng_state(content["random"])
    if device.type == "cuda" and content["random_cuda"]:
        torch.cuda.set_rng_state_all(content["random_cuda"])
    return Position(content["iteration"] + 1, tuple(content["loaded"]), tuple(content["new"]))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged files
        raise InputError(
            f"cannot read the checkpoint {path} ({type(error).__name__}); remove it and start anew"
        ) from error
    needed = {"model", "own", "optimizer", "scaler", "iteration", "random", "random_cuda", "config", "loaded", "new"}
    if not isinstance(content, dict) or not needed <= set(content):
        raise InputError(
            f"{path} is no checkpoint of the torchvision engine; resume with the engine that wrote it, "
            "or choose another OUTPUT_DIR"
        )
    return content


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted(set(before) | set(now)):
        name = prefix + key
        if name in _FREE:
            continue
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{name}.")
        elif old != new:
            yield f"{name} was {old!r} and is {new!r}"


def save_weights(path: Path, detector: Detector, position: Position) -> Path:
    """Write a detector's weights alone, as Detectron2 names and reads them."""
    content: dict[str, Any] = {"model": export_state(detector), "iteration": position.step - 1}
    content |= {"loaded": list(position.loaded), "new": list(position.new)}
    with atomic_path(path) as temporary:
        torch.save(content, temporary)
    return path


def read_final(path: Path) -> tuple[dict[str, Tensor], Position]:
    """The weights of ``save_weights`` and where they came from."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    return content["model"], Position(content["iteration"] + 1, tuple(content["loaded"]), tuple(content["new"]))
