"""Captures and restores the training state, bit-exact: 2 + 2 steps equal 4; loads a trained network with its head."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fvcore.common.config import CfgNode
from torch import nn

from momentum_transfer.backbones.build import AnyArchitecture
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core import checkpoints, distributed
from momentum_transfer.core.checkpoints import check_parts, fitting
from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.log import warn
from momentum_transfer.core.settings import dump, learned_settings
from momentum_transfer.pretrain.config import get_cfg, norms_of_own_batch
from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.methods.method import Branch
from momentum_transfer.pretrain.run import Run


def capture(run: Run, step: int) -> dict[str, Any]:
    """The checkpoint after ``step`` steps. Every process must call it; rank 0's return value is written."""
    method, steps_per_epoch = run.method, run.plan.steps_per_epoch
    # torch's generators alone: views, orders and subsets have generators of their own, seeded for each.
    cuda = torch.cuda.get_rng_state(run.device) if run.device.type == "cuda" else None
    local: dict[str, Any] = {"generators": {"torch": torch.get_rng_state(), "cuda": cuda}, "buffers": {}}
    processes: list[Any] = [local]
    if distributed.is_distributed():  # BN statistics differ between processes, the queue does not
        named = method.named_buffers()
        local["buffers"] = {name: value.cpu() for name, value in named if not name.startswith("queue.")}
        processes = [None] * distributed.world_size()
        dist.all_gather_object(processes, local)
    return {
        "format": checkpoints.FORMAT,
        "method": run.cfg.METHOD.NAME,
        "config": dump(run.cfg),
        "step": step,
        "sampler": {"epoch": step // steps_per_epoch, "step_in_epoch": step % steps_per_epoch},
        "architecture": _described(method.backbone().architecture),
        "network_default": method.network_default,
        "model": method.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scaler": run.scaler.state_dict(),
        "processes": processes,
        **({"weights": run.start.source.name} if run.start else {}),
    }


def _described(architecture: AnyArchitecture) -> dict[str, Any]:
    if isinstance(architecture, Architecture):
        return {"name": architecture.name, "width": architecture.width, "stem": architecture.stem}
    return {"text": str(architecture)}


def restore(run: Run, state: dict[str, Any], path: Path) -> int:
    """Loads the checkpoint at ``path`` into the run; returns the steps that it has done.

    Raises:
        InputError: other settings, another model, no whole state of a training, or another number of processes where a
            normalisation depends on it.
    """
    _check(state, run.cfg, path)
    check_same_settings(state["config"], run.cfg)
    check_other_processes(run.cfg, len(state["processes"]), distributed.world_size())
    checkpoints.check_step(state["step"], max(run.plan.steps, 1), path)
    with fitting(path):
        run.method.load_state_dict(state["model"])
        checkpoints.load_optimizer(run.optimizer, state["optimizer"], path)
        run.scaler.load_state_dict(state["scaler"])
    processes = state["processes"]
    if len(processes) != distributed.world_size():
        warn(
            f"this run goes on with {distributed.world_size()} processes, the checkpoint had {len(processes)}: "
            "every process starts from the first one's BN statistics, and the result is not bit-equal"
        )
        return state["step"]
    own = processes[distributed.rank()]
    with torch.no_grad(), fitting(path):
        buffers = dict(run.method.named_buffers())
        for name, value in own["buffers"].items():
            buffers[name].copy_(value)
    torch.set_rng_state(own["generators"]["torch"])
    if own["generators"]["cuda"] is not None and run.device.type == "cuda":
        torch.cuda.set_rng_state(own["generators"]["cuda"], run.device)
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
        checkpoints.check_numbers({str(place): value for place, value in numbers}, "figures", path)
    if not state["processes"]:
        raise InputError(f"expected the states of one process or more in {path}, found none; take another checkpoint")
    for number, process in enumerate(state["processes"]):
        check_parts(process if isinstance(process, dict) else {}, {"generators": dict, "buffers": dict}, path)
        checkpoints.check_generator(process["generators"].get("torch"), f"processes[{number}]", path)


def check_other_processes(cfg: CfgNode, before: int, now: int) -> None:
    """Raises InputError for another number of processes where it would change the images that a normalisation sees: all
    but GN, IN (one image), SyncBN (the whole micro-batch), EMAN and StudentPN (the student's statistics)."""
    by_process = norms_of_own_batch(cfg)
    if before == now or not by_process:
        return
    seen = [cfg.SOLVER.BATCH_SIZE // (count * cfg.SOLVER.ACCUMULATE) for count in (before, now)]
    change = f"would normalise a process's {seen[1]} images instead of {seen[0]}, another training"
    if group := cfg.NORM.GROUP_SIZE:
        change = f"would have statistics of {seen[1] // group} groups a process, where {seen[0] // group} are saved"
    raise InputError(
        f"expected {before} processes, as the checkpoint had, found {now}: {' and '.join(by_process)} {change}; go on "
        f"with {before}, or begin anew in another OUTPUT_DIR"
    )


def check_same_settings(saved: str, cfg: CfgNode) -> None:
    """Raises InputError, with every setting that differs, if the settings change what is learned."""
    before, now = learned_settings(saved), learned_settings(dump(cfg))
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differing := [f"{key} {before.get(key)!r} -> {now.get(key)!r}" for key in keys]:
        raise InputError(
            f"expected the settings of the checkpoint, found changes: {'; '.join(differing)}; "
            "undo them, or start a new OUTPUT_DIR"
        )


def load_embedding(run: str | Path, network: str | None = None) -> Branch | None:
    """A trained network, images [N, 3, H, W] -> embeddings [N, D] before the predictor, in evaluation mode.

    Args:
        run: OUTPUT_DIR of a pretraining.
        network: "student" or "teacher"; None for the one that the paper evaluates.

    Returns:
        None if ``run`` is no folder with checkpoints of ours, or its method has no projector.

    Raises:
        InputError: the method has no such network, or the checkpoint is damaged.
    """
    file = checkpoints.CheckpointFolder(Path(run) / "checkpoints").last() if Path(run).is_dir() else None
    if file is None:
        return None
    state = checkpoints.load(file)
    cfg = get_cfg()
    with checkpoints.fitting(file):
        cfg.merge_from_other_cfg(CfgNode.load_cfg(state["config"]))
    classes = state["model"].get("student.fc.weight", [[]] * 10)
    cfg.NORM.GROUP_SIZE = 0  # evaluation takes the first group's statistics, whatever processes and groups there were
    method = build_method(cfg, len(classes))
    fresh = {name: value for name, value in method.state_dict().items() if ".pending_" in name}
    model = {name: value for name, value in state["model"].items() if not name.endswith(("group_mean", "group_var"))}
    with checkpoints.fitting(file):
        method.load_state_dict(model | fresh)
    networks: dict[str, nn.Module] = method.networks()
    chosen = network or method.network_default
    if chosen not in networks:
        raise InputError(f"expected a network of {', '.join(networks)} in {file}, found none called {chosen}")
    branch = networks[chosen]
    if not isinstance(branch, Branch):
        return None
    branch.predictor = None
    return branch.eval()
