"""Training state of a detector: saved and restored bit-exact, in one process or several; and the best one so far."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from fvcore.common.config import CfgNode
from torch import Tensor

from momentum_transfer.core.checkpoints import (
    CheckpointFolder,
    check_generator,
    check_numbers,
    check_parts,
    check_step,
    fitting,
    load_optimizer,
    read_archive,
    write_archive,
)
from momentum_transfer.core.distributed import all_gather_tensor, barrier, is_main, rank, world_size
from momentum_transfer.core.errors import InputError, one_line, shown
from momentum_transfer.core.files import atomic_path, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.settings import differences, dump
from momentum_transfer.core.untrusted import parse_mapping
from momentum_transfer.transfer.config import decisive
from momentum_transfer.transfer.predictions import Predictions, Score
from momentum_transfer.transfer.torchvision_engine.detectors import (
    Detector,
    export_state,
    export_trained,
    load_detector,
    own_state,
)


@dataclass(frozen=True)
class Position:
    """Where a training stands.

    step: iterations done. loaded, new: see ``engine.Finetuned``. window: losses and times that no line of metrics.jsonl
    holds yet.
    """

    step: int
    loaded: tuple[str, ...]
    new: tuple[str, ...]
    window: tuple[dict[str, float], ...] = ()


def save(
    folder: Path, detector: Detector, optimizer: torch.optim.Optimizer, scaler: Any, position: Position, cfg: CfgNode,
    *, teacher: Detector | None = None, base: str = ""
) -> None:  # fmt: skip
    """Write ``checkpoints/step_<step>.pth`` of a run's folder and point ``last`` to it; then remove the one before.

    Every process has to call this: each has its own generators and moving averages. Rank 0 writes. ``base``: digest of
    the weights that hold what is not trained, and so is not written; "" where all is.
    """
    content = {
        "model": export_trained(detector),
        "own": {name: _of_all(value, detector.device) for name, value in own_state(detector).items()},
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "iteration": position.step - 1,
        "loaded": list(position.loaded),
        "new": list(position.new),
        "window": list(position.window),
        "random": _of_all(torch.get_rng_state(), detector.device),
        "config": dump(decisive(cfg, evaluation=False)),
    }
    if base:
        content["untrained"] = base
    if teacher is not None:
        trained, state = dict(teacher.named_parameters()), teacher.state_dict()
        content["teacher"] = {name: state[name].cpu() for name in state if name in trained}
        buffers = {name: _of_all(value, detector.device) for name, value in state.items() if name not in trained}
        content["teacher_buffers"] = buffers
    if detector.device.type == "cuda":
        content["random_cuda"] = _of_all(torch.cuda.get_rng_state(detector.device), detector.device)
    if is_main():
        _checkpoints(folder).save(position.step, content)
    barrier()


def _of_all(value: Tensor, device: torch.device) -> Tensor:
    """The tensors of all processes, [processes, …]; gathered on ``device``, which the process group can reach."""
    return all_gather_tensor(value[None].to(device)).cpu()


def _checkpoints(folder: Path) -> CheckpointFolder:
    return CheckpointFolder(folder / "checkpoints", keep=1, suffix=".pth")


def last(folder: Path) -> Path | None:
    """The newest checkpoint of a run's folder, or None; InputError for a training of Detectron2."""
    newest = _checkpoints(folder).last()
    if newest is None and (folder / "last_checkpoint").is_file():
        raise InputError(
            f"expected no training or one of the torchvision engine in {folder}, found a last_checkpoint of "
            "Detectron2; resume with the engine that wrote it, or choose another OUTPUT_DIR"
        )
    return newest


def resume(
    path: Path, detector: Detector, optimizer: torch.optim.Optimizer, scaler: Any, cfg: CfgNode,
    *, teacher: Detector | None = None, base: str = ""
) -> Position:  # fmt: skip
    """Restore everything as it was when ``path`` was written; InputError for a damaged file or other settings."""
    content = _read(path)
    before, now = _settings_in(content["config"], path), yaml.safe_load(dump(decisive(cfg, evaluation=False)))
    for key, old, new in differences(before, now):
        raise InputError(
            f"cannot resume {path}: {one_line(key)} was {shown(old)} and is {shown(new)}; use the same settings, or "
            "another OUTPUT_DIR"
        )
    check_step(content["iteration"] + 1, cfg.SOLVER.MAX_ITER, path)
    if (needed := str(content.get("untrained", ""))) != base:
        raise InputError(f"expected the weights of digest {needed[:12]} with {path}, found others; give --weights them")
    load_detector(detector, {**(export_state(detector) if base else {}), **content["model"]}, str(path))
    processes = len(content["random"])
    mine = rank() if processes == world_size() else 0
    with fitting(path):
        load_optimizer(optimizer, content["optimizer"], path)
        scaler.load_state_dict(content["scaler"])
        detector.load_state_dict({name: value[mine] for name, value in content["own"].items()}, strict=False)
        if teacher is not None:
            buffers = {name: value[mine] for name, value in content["teacher_buffers"].items()}
            teacher.load_state_dict(content["teacher"] | buffers)
    if processes != world_size():
        say(f"{path} was written by {processes} processes, now there are {world_size()}: random numbers begin anew")
    else:
        torch.set_rng_state(content["random"][mine].clone())  # torch ignores where in its storage a state begins
        if detector.device.type == "cuda" and "random_cuda" in content:
            torch.cuda.set_rng_state(content["random_cuda"][mine].clone(), detector.device)
    loaded, new = tuple(content["loaded"]), tuple(content["new"])
    return Position(content["iteration"] + 1, loaded, new, tuple(content["window"]))


_PARTS: dict[str, Any] = {"model": dict, "own": dict, "optimizer": dict, "scaler": dict, "iteration": int,
                          "random": Tensor, "config": str, "loaded": (list, tuple), "new": (list, tuple),
                          "window": (list, tuple)}  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    content = read_archive(path, own=True)
    if not isinstance(content, dict) or not set(_PARTS) <= set(content):
        raise InputError(
            f"{path} is no checkpoint of the torchvision engine; resume with the engine that wrote it, "
            "or choose another OUTPUT_DIR"
        )
    check_parts(content, _PARTS | ({"teacher_buffers": dict} if "teacher" in content else {}), path)
    if not content["random"].ndim or not len(content["random"]):
        raise InputError(f"expected the random states of one process or more in {path}, found none")
    for state in content["random"]:
        check_generator(state, "random", path)
    for losses in content["window"]:
        check_numbers(losses, "window", path)
    return content


def _settings_in(text: str, path: Path) -> dict[str, Any]:
    try:
        return parse_mapping(text, str(path))
    except InputError as error:
        raise InputError(
            f"expected the settings of a training as YAML in {path}, found none; choose another"
        ) from error


def save_weights(path: Path, detector: Detector, position: Position) -> Path:
    """Write a detector's weights alone, as Detectron2 names and reads them."""
    content: dict[str, Any] = {"model": export_state(detector), "iteration": position.step - 1}
    content |= {"loaded": list(position.loaded), "new": list(position.new)}
    with atomic_path(path) as temporary:
        write_archive(temporary, content)
    return path


def read_final(path: Path) -> Position:
    """Where the weights that ``save_weights`` wrote came from."""
    content = read_archive(path, own=True)
    parts: dict[str, Any] = {"model": dict, "iteration": int, "loaded": (list, tuple), "new": (list, tuple)}
    check_parts(content if isinstance(content, dict) else {}, parts, path)
    return Position(content["iteration"] + 1, tuple(content["loaded"]), tuple(content["new"]))


class BestKeeper:
    """Scores the detector and keeps ``model_best.pth`` with ``model_best.json`` (score, iteration, last one seen).

    BN uses its running statistics here; exact ones are computed at the end of the training only. ``predict`` writes the
    detections of the first test set into a folder.
    """

    def __init__(self, detector: Detector, predict: Callable[[Path], Predictions], score: Score, out_dir: Path) -> None:
        self.detector, self.predict, self.score, self.out_dir = detector, predict, score, out_dir
        self.note = out_dir / "model_best.json"
        known: dict[str, float] = {}
        try:
            known = json.loads(self.note.read_text(encoding="utf-8")) if self.note.is_file() else {}
            self.best = float(known.get("score", float("-inf")))
            self.iteration = int(known.get("iteration", 0))
            self.seen = int(known.get("seen", 0))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(
                f"expected {self.note} as a training wrote it, found it damaged; delete it to look for the best "
                "detector from here on"
            ) from error

    def __call__(self, position: Position) -> None:
        """Score the detector as it is, in evaluation mode, and leave it in training mode."""
        predictions = self.predict(self.out_dir / "validation")
        self.detector.train()
        if is_main():
            value = self.score(predictions)
            say(f"iteration {position.step}: {predictions.dataset} {value:.2f} (best {max(value, self.best):.2f})")
            if value > self.best:
                self.best, self.iteration = value, position.step
                save_weights(self.out_dir / "model_best.pth", self.detector, position)
            note = {"score": self.best, "iteration": self.iteration, "seen": position.step}
            write_text(self.note, json.dumps(note))
        self.seen = position.step
        barrier()

    def catch_up(self, position: Position, period: int) -> None:
        """Score a resumed detector whose training was stopped or killed between its checkpoint and its evaluation."""
        if position.step % period == 0 and self.seen < position.step:
            self(position)
