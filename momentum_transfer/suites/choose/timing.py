"""How long the parts of a choice take: a few timed forward passes, and trainings of a few steps."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from momentum_transfer.backbones.read import SourceBackbone
from momentum_transfer.core import metrics
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.chain import Step
from momentum_transfer.suites.choose.plan import CLASSIFICATION, PROBE, Candidate, Question, Times, training_step

#: Seconds that a command takes before it does anything: imports, reading weights.
START = 10.0
_BATCH = 8


def seconds_per_image(source: SourceBackbone, size: int) -> float:
    """Of the features of an image of ``size`` px: the faster of two passes over a small batch, after one to warm up."""
    device = choose_device()
    network, images = source.build().to(device), torch.zeros(_BATCH, 3, size, size, device=device)
    taken = []
    with torch.inference_mode():
        for _ in range(3):
            begun = time.monotonic()
            network(images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.monotonic() - begun)
    return min(taken[1:]) / _BATCH


def probe_steps(asked: Question) -> list[tuple[str, Candidate, Step]]:
    """A short training of every stage for each architecture: (stage, who, command)."""
    first: dict[str, Candidate] = {}
    for one in asked.candidates:
        first.setdefault(one.architecture, one)
    length = PROBE[asked.kind]
    return [(stage, one, training_step(asked, one, stage, length, probe=True))
            for stage in asked.stages for one in first.values()]  # fmt: skip


def measured(asked: Question, stage: str, one: Candidate, wall: float) -> Times:
    """What a probe tells: the seconds of an iteration (an epoch, all that is searched included) and of all around them.

    Args:
        wall: seconds of the probe's command.

    Raises:
        InputError: the probe left no figures.
    """
    folder = asked.out / "probes" / one.name / stage
    length = PROBE[asked.kind]
    if asked.kind == CLASSIFICATION:
        files = sorted(folder.rglob("metrics.jsonl"))
        inside = sum(line["seconds"] for file in files for line in metrics.read(file))
        each = inside / length
    else:
        each = _per_iteration(folder)
        inside = each * length
    if not each > 0:
        raise InputError(f"expected figures of the timed training in {folder}, found none; remove the folder")
    return Times(max(wall - inside, 0.0), each)


def _per_iteration(folder: Path) -> float:
    """Mean seconds of an iteration after the first, from the torchvision engine's lines or Detectron2's."""
    if (folder / "metrics.jsonl").is_file():
        lines = metrics.read(folder / "metrics.jsonl")
        return float(lines[-1]["seconds"]) if lines else 0.0
    if (folder / "metrics.json").is_file():
        last = (folder / "metrics.json").read_text(encoding="utf-8").splitlines()[-1:]
        return float(json.loads(last[0]).get("time", 0.0)) if last else 0.0
    return 0.0


def image_seconds(asked: Question, each: Mapping[str, float], tested: int) -> dict[str, float]:
    """Seconds of kNN and SVM (and the linear classifier) by architecture: mostly the features, computed once.

    Args:
        each: seconds of an image's features by architecture. tested: number of test images.
    """
    commands = 3 if asked.kind == CLASSIFICATION else 2
    return {name: commands * START + one * (sum(asked.counts) + tested) for name, one in each.items()}
