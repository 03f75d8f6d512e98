"""The memory of a choice: what was asked, what the probes took, the plan; so that a stopped one goes on as it began.

How long the parts of a choice take: a few timed forward passes, and trainings of a few steps.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core import loggers
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import sha256_of, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.suites.chain import Step, run_chain
from momentum_transfer.suites.choose.stages import (
    CLASSIFICATION,
    LEAST,
    PROBE,
    Candidate,
    Plan,
    Question,
    Times,
    lengths,
    refuse_too_few,
    training_step,
)

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
        inside = sum(line["seconds"] for file in files for line in loggers.read(file))
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
        lines = loggers.read(folder / "metrics.jsonl")
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


_QUESTION, _PLAN = "question.json", "plan.json"
#: Of the question: what follows from this machine at this moment, and stays as it was when the choice began.
_MACHINE = ("settings", "longest", "workers")


def keep_question(asked: Question) -> Question:
    """Remember what is asked in the output folder; the settings that a stopped choice began with are taken up again.

    Raises:
        InputError: the folder holds another choice; what differs is named.
    """
    file, now = asked.out / _QUESTION, _as_json(asked)
    before = _read(file)
    if before is None:
        write_text(file, json.dumps(now, indent=1))
        return asked
    free = (*_MACHINE, "minutes") if not (asked.out / _PLAN).is_file() else _MACHINE  # too few of them make no plan
    before.setdefault("overrides", [])  # of a choice from before these could be given
    different = [key for key in now if key not in free and before.get(key) != now[key]]
    if different:
        raise InputError(
            f"{asked.out} holds another choice: its {different[0]} was {shown(before.get(different[0]))}, now it is "
            f"{shown(now[different[0]])}; give another --out, or remove the folder"
        )
    write_text(file, json.dumps({**before, "minutes": now["minutes"]}, indent=1))
    try:
        longest, workers = _number(before["longest"], int), _number(before["workers"], int)
        return replace(asked, settings=_words(before["settings"]), longest=longest, workers=workers)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(file) from error


def _words(found: Any) -> tuple[str, ...]:
    """KEY VALUE words of a command line; ValueError where they are something else."""
    if not isinstance(found, list) or len(found) % 2 or any("\0" in word or not os.fsencode(word) for word in found):
        raise ValueError(shown(found))
    return tuple(found)


def _number(found: Any, *kinds: type) -> Any:
    """A number that time or a count can be; ValueError where it is something else."""
    if type(found) not in kinds or not 0 <= found < 1e12:
        raise ValueError(shown(found))
    return found


def _as_json(asked: Question) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(asdict(asked), default=str))
    lists = [asked.out / "images" / f"{part}.txt" for part in ("train", "val")]
    return {**content, "images": [sha256_of(file) for file in lists]}


def _read(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        content = read_json(file, "what a choice wrote")
    except InputError as error:
        raise _damaged(file) from error
    if not isinstance(content, dict):
        raise _damaged(file)
    return content


def _damaged(file: Path) -> InputError:
    return InputError(f"expected {file} as a choice wrote it, found something else; remove the folder to start over")


def _plan_in(kept: Mapping[str, Any], asked: Question) -> Plan:
    """The plan for what is asked; KeyError, TypeError, ValueError or AttributeError where it is none."""
    everyone = dict.fromkeys(one.architecture for one in asked.everyone)
    times = {
        stage: {
            one: Times(*(_number(kept["times"][stage][one][part], int, float) for part in ("around", "each")))
            for one in everyone
        }
        for stage in asked.stages
    }
    lengths_kept = {stage: _number(kept["lengths"][stage], int) for stage in asked.stages}
    if min(lengths_kept.values()) < LEAST[asked.kind]:
        raise ValueError(shown(lengths_kept))
    return Plan(lengths_kept, times, {one: _number(kept["images"][one], int, float) for one in everyone})


def make_plan(asked: Question, sources: Mapping[str, SourceBackbone], tested: int) -> Plan:
    """The plan of the output folder, or one made now: timed trainings, lengths under the budget.

    Args:
        sources: a backbone of each architecture, by its text. tested: number of test images of one class.

    Raises:
        InputError: a probe failed, or the minutes bear no training.
    """
    kept = _read(asked.out / _PLAN)
    if kept is not None:
        try:
            return _plan_in(kept, asked)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(asked.out / _PLAN) from error
    say("timing: a few steps of each training")
    memory = asked.out / "probes" / "done.json"
    probes = probe_steps(asked)
    times: dict[str, dict[str, Times]] = {stage: {} for stage in asked.stages}
    for stage, one, step in probes:
        run_chain([step], memory, 1)
        wall = json.loads(memory.read_text(encoding="utf-8"))
        times[stage][one.architecture] = measured(asked, stage, one, wall[step.key])
        refuse_too_few(asked, times)
    each = {text: seconds_per_image(source, asked.image_size) for text, source in sources.items()}
    plan = Plan(lengths(asked, times), times, image_seconds(asked, each, tested))
    write_text(asked.out / _PLAN, json.dumps(asdict(plan), indent=1))
    return plan
