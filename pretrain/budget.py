"""A recipe for few images and a budget in minutes: sizes, batch and steps, said before anything is trained."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode

from momentum_transfer.backbones.build import named_architecture, own_input
from momentum_transfer.core import distributed
from momentum_transfer.core.checkpoints import CheckpointFolder
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say
from momentum_transfer.core.settings import value_of, with_values
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.pipeline import measured, worker_views

#: What the budget decides, unless it was given.
_FITTED = ("DATA.IMAGE_SIZE", "SOLVER.BATCH_SIZE", "SOLVER.STEPS", "SOLVER.WARMUP_EPOCHS")
#: Sides of views in pixels that are tried, the largest first; fewest steps and passes that are worth training.
_SIDES, _STEPS, _EPOCHS = (224, 160, 128, 96, 64), 200, 20
#: Passes after which no more steps follow; fraction of the budget for steps; fewest images; images that are looked at.
_MOST_EPOCHS, _FRACTION, _LEAST_IMAGES, _SAMPLE = 200, 0.85, 16, 16


def settle_budget(
    cfg: CfgNode, preset: CfgNode | None, images: LabelledImages, device: torch.device, checkpoints: CheckpointFolder
) -> CfgNode:
    """A copy of the settings with what RUN.MINUTES decides; a resumed run keeps what it began with.

    What differs from ``preset``, the config's own, was given, and stays. InputError for too few images or minutes.
    """
    if not cfg.RUN.MINUTES:
        return cfg
    if distributed.world_size() > 1:
        raise InputError(f"expected one process with RUN.MINUTES, found {distributed.world_size()}; give RUN.MINUTES 0 "
                         "with SOLVER.STEPS, SOLVER.BATCH_SIZE and DATA.IMAGE_SIZE")  # fmt: skip
    free = [key for key in _FITTED if preset is None or value_of(cfg, key) == value_of(preset, key)]
    return measured(cfg, free, lambda: _fitted(cfg, free, images, device), device, checkpoints)


def _fitted(cfg: CfgNode, free: Sequence[str], images: LabelledImages, device: torch.device) -> dict[str, Any]:
    count, minutes = len(images), cfg.RUN.MINUTES
    if count < _LEAST_IMAGES:
        raise InputError(f"expected at least {_LEAST_IMAGES} images, found {count}; leave the weights as they are")
    sample = [images[int(row)][0] for row in np.linspace(0, count - 1, min(count, _SAMPLE))]
    chosen: dict[str, Any] = {}
    if "SOLVER.BATCH_SIZE" in free:
        most = 256 if device.type == "cuda" else 64
        chosen["SOLVER.BATCH_SIZE"] = min(most, 2 ** int(np.log2(count / 8)) if count >= 64 else 8)
    batch = chosen.get("SOLVER.BATCH_SIZE", cfg.SOLVER.BATCH_SIZE)
    side, seconds = _side(with_values(cfg, chosen), free, images, sample, device)
    chosen["DATA.IMAGE_SIZE"] = side
    per_epoch = max(count // batch, 1)
    steps = cfg.SOLVER.STEPS
    if "SOLVER.STEPS" in free:
        within = int(_FRACTION * 60 * minutes / seconds)
        if within < (fewest := _STEPS // 4):
            needed = fewest * seconds / 60 / _FRACTION
            raise InputError(f"expected minutes for at least {fewest} steps of {seconds:.2f} s, found {minutes:g}; "
                             f"give --minutes {needed:.2g} or more, or leave the weights as they are")  # fmt: skip
        steps = chosen["SOLVER.STEPS"] = min(within, max(_MOST_EPOCHS * per_epoch, _STEPS))
    if "SOLVER.WARMUP_EPOCHS" in free:
        chosen["SOLVER.WARMUP_EPOCHS"] = round(0.1 * steps / per_epoch, 4)
    length = f"{steps} steps ({steps / per_epoch:.0f} passes), about {steps * seconds / 60:.1f} minutes"
    say(f"{counted(count, 'image')}, {minutes:g} minutes: views of {side} px, batches of {batch}, {length}")
    say(_expectation(cfg))
    return chosen


def _side(
    cfg: CfgNode, free: Sequence[str], images: LabelledImages, sample: Sequence[Any], device: torch.device
) -> tuple[int, float]:
    """The side of the views, and the seconds of a step with it: the largest that leaves enough steps."""
    own = own_input(named_architecture(cfg.MODEL.ARCH, cfg.MODEL.WIDTH, cfg.MODEL.STEM))
    longest = float(np.median([min(image.size) for image in sample]))
    sides = [side for side in _SIDES if side <= longest] or [_SIDES[-1]]
    if own is not None or "DATA.IMAGE_SIZE" not in free:
        sides = [own.size if own is not None else cfg.DATA.IMAGE_SIZE]
    enough = max(_STEPS, _EPOCHS * (len(images) // cfg.SOLVER.BATCH_SIZE))
    for side in sides:
        seconds = _step_seconds(with_values(cfg, {"DATA.IMAGE_SIZE": side}), images, len(sample), device)
        if seconds * enough <= _FRACTION * 60 * cfg.RUN.MINUTES:
            break
    return side, seconds


def _step_seconds(cfg: CfgNode, images: LabelledImages, sample: int, device: torch.device) -> float:
    """Seconds of a step: a batch's views, made one after another, and a method's forwards and backward."""
    batch, side = cfg.SOLVER.BATCH_SIZE, cfg.DATA.IMAGE_SIZE
    views = worker_views(cfg, images)
    begun = time.perf_counter()
    for row in range(sample):
        views.at(0, row)
    making = (time.perf_counter() - begun) / sample * batch
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        method = build_method(cfg, 1).to(device).train()
        micro = batch // cfg.SOLVER.ACCUMULATE
        pair = torch.randn(2, micro, 3, side, side, device=device)
        labels = torch.zeros(micro, dtype=torch.long, device=device)
        for _ in range(2):  # the first warms up
            begun = time.perf_counter()
            value = method(*pair, labels)["loss"]
            value.backward()
            float(value.detach())
    return making + 1.1 * cfg.SOLVER.ACCUMULATE * (time.perf_counter() - begun)  # and the optimizer


def _expectation(cfg: CfgNode) -> str:
    """What came of such a training where it was measured (docs/how-to/continue.md)."""
    if cfg.MODEL.WEIGHTS:
        return (
            "expect some points or none: on 314 digits of another rendering weights that went on gained 4.7 [1.5, 7.9] "
            "points of SVM in 800 steps of 16 (41 passes), 1.0 [-1.0, 3.0] in 200; compare with the weights as they are"
        )
    return (
        "expect nothing of a short run: on 314 digits the SVM was at 33.6 after 200 steps of 16 (10 passes) from "
        "random weights and at 57.2 after 800, where weights of similar images were at 57.4 untouched and at 62.1 "
        "after going on for 800; prefer --weights, and compare"
    )
