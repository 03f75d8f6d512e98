"""Where views are made, settled before the first step: by worker processes, or a batch at a time on the device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from fvcore.common.config import CfgNode

from momentum_transfer.core import distributed
from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.log import say
from momentum_transfer.core.machine import available_cores
from momentum_transfer.core.settings import learned_settings
from momentum_transfer.images.device_views import CanvasDataset, build_device_views
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.images.views import TwoViewDataset, build_views

#: The setting that asks for the measurement.
AUTO = "auto"
_SAMPLE = 16  # images that are timed


def settle_views(
    cfg: CfgNode, images: LabelledImages, micro_batch: int, device: torch.device, checkpoints: CheckpointFolder
) -> CfgNode:
    """The settings with "workers" or "device" for DATA.VIEWS_ON "auto": as the run began, else the faster one.

    Both follow one recipe, but not to the bit, so a choice belongs to the run: its checkpoints hold it, and a run that
    is to be repeated elsewhere names it.

    Args:
        cfg: settings; not changed.
        micro_batch: images of one forward.
        checkpoints: of this run; a resumed run keeps to what it began with.
    """
    if cfg.DATA.VIEWS_ON != AUTO:
        return cfg
    last = checkpoints.last()
    if last is not None:
        return _with_views_on(cfg, learned_settings(load(last)["config"])["DATA.VIEWS_ON"])
    choice = [_faster(cfg, images, micro_batch, device) if distributed.is_main() else ""]
    if distributed.is_distributed():
        dist.broadcast_object_list(choice, device=device if device.type == "cuda" else None)
    return _with_views_on(cfg, choice[0])


def _with_views_on(cfg: CfgNode, choice: str) -> CfgNode:
    settled = cfg.clone()
    settled.defrost()
    settled.DATA.VIEWS_ON = choice
    settled.freeze()
    return settled


def _faster(cfg: CfgNode, images: LabelledImages, micro_batch: int, device: torch.device) -> str:
    data = cfg.DATA
    if data.VIEWS == "digits":  # drawn, not cut out of an image
        return "workers"
    recipe = {"remove": data.REMOVE, "crop_scale": tuple(data.CROP_SCALE) or None}
    canvases = CanvasDataset(images, data.CANVAS or 2 * data.IMAGE_SIZE, cfg.SEED)
    views = TwoViewDataset(images, build_views(data.VIEWS, data.IMAGE_SIZE, variant=data.VARIANT, **recipe), cfg.SEED)
    sample = [index % len(images) for index in range(_SAMPLE)]
    share = _SAMPLE * max(available_cores() // distributed.local_world_size(), 1)  # of a core's time an image takes
    by_workers = _seconds(lambda: [views.at(0, index) for index in sample]) / share
    items = [canvases.at(0, index) for index in sample]
    decoding = _seconds(lambda: [canvases.at(0, index) for index in sample]) / share
    on_device = build_device_views(data.VIEWS, data.IMAGE_SIZE, **recipe)
    repeated = [items[index % _SAMPLE] for index in range(micro_batch)]
    batch = torch.stack([item[0] for item in repeated]).to(device)
    sizes, keys = torch.stack([item[1] for item in repeated]), torch.tensor([item[4] for item in repeated])
    # Workers decode beside the device's work, so the slower of the two counts.
    by_device = max(decoding, _seconds(lambda: on_device(batch, sizes, keys), device) / micro_batch)
    choice = "device" if by_device < by_workers else "workers"
    say(
        f"views are made by the {choice}: {1000 * by_workers:.2f} ms an image by workers on "
        f"{share // _SAMPLE} cores, {1000 * by_device:.2f} ms on the device (DATA.VIEWS_ON)"
    )
    return choice


def _seconds(work: Callable[[], object], device: torch.device | None = None) -> float:
    """Of the second of two runs."""
    for _ in range(2):
        begun = time.perf_counter()
        work()
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        taken = time.perf_counter() - begun
    return taken
