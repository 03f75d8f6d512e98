"""Times the parts of a choice, and notes its question and plan, so that a stopped choice goes on as it began."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import torch

from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core import loggers
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import sha256_of, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.suites.chain import Step, run_chain
from momentum_transfer.suites.choose import stages
from momentum_transfer.suites.choose.stages import CLASSIFICATION, LEAST, PROBE, Candidate, Plan, Question, Times

Kind = TypeVar("Kind")

_QUESTION, _PLAN = "question.json", "plan.json"
#: Seconds that a command takes before it does anything: imports, reading weights.
_START = 10.0
_BATCH = 8


def seconds_per_image(source: SourceBackbone, size: int) -> float:
    """Of the features of an image of ``size`` px: the faster of two passes over a small batch, after one to warm up."""
    device = choose_device()
    network, images = source.build().to(device), torch.zeros(_BATCH, 3, size, size, device=device)
    seconds = []
    with torch.inference_mode():
        for _ in range(3):
            begun = time.monotonic()
            network(images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.monotonic() - begun)
    return min(seconds[1:]) / _BATCH


def probe_steps(asked: Question) -> list[tuple[str, Candidate, Step]]:
    """A short training of every stage for each architecture: (stage, who, command)."""
    first: dict[str, Candidate] = {}
    for one in asked.candidates:
        first.setdefault(one.architecture, one)
    length = PROBE[asked.kind]
    return [
        (stage, one, stages.training_step(asked, one, stage, length, probe=True))
        for stage in asked.stages
        for one in first.values()
    ]


def measured(asked: Question, stage: str, one: Candidate, wall: float) -> Times:
    """The seconds of an iteration (an epoch, all that is searched included) and of the rest of a probe.

    ``wall``: seconds of the probe's command. InputError if it left no metrics.
    """
    folder = asked.out / "probes" / one.name / stage
    length = PROBE[asked.kind]
    if asked.kind == CLASSIFICATION:
        each = sum(line["seconds"] for file in sorted(folder.rglob("metrics.jsonl")) for line in loggers.read(file))
        each /= length
    else:
        each = _per_iteration(folder)
    if not each > 0:
        raise InputError(f"expected metrics of the timed training in {folder}, found none; remove the folder")
    return Times(max(wall - each * length, 0.0), each)


def _per_iteration(folder: Path) -> float:
    """Mean seconds of an iteration after the first, from the torchvision engine's lines or Detectron2's."""
    if (folder / "metrics.jsonl").is_file():
        lines = loggers.read(folder / "metrics.jsonl")
        return float(lines[-1]["seconds"]) if lines else 0.0
    if (folder / "metrics.json").is_file():
        last = (folder / "metrics.json").read_text(encoding="utf-8").splitlines()[-1:]
        return float(json.loads(last[0]).get("time", 0.0)) if last else 0.0
    return 0.0


class _Machine(msgspec.Struct):
    """What of a question follows from this machine at this moment, and stays as it was when the choice began."""

    settings: tuple[str, ...]
    longest: Annotated[int, msgspec.Meta(ge=0, lt=10**12)]
    workers: Annotated[int, msgspec.Meta(ge=0, lt=10**12)]


def keep_question(asked: Question) -> Question:
    """Note the question in the output folder; a stopped choice gets the settings back that it began with.

    InputError if the folder holds another choice, with what differs, or its notes are damaged.
    """
    file = asked.out / _QUESTION
    lists = [asked.out / "images" / f"{part}.txt" for part in ("train", "val")]
    now = {**json.loads(json.dumps(asdict(asked), default=str)), "images": [sha256_of(file) for file in lists]}
    before = _read(file, dict[str, Any])
    if before is None:
        write_text(file, json.dumps(now, indent=1))
        return asked
    free = list(_Machine.__struct_fields__)
    if not (asked.out / _PLAN).is_file():  # too few minutes make no plan
        free.append("minutes")
    if different := [key for key in now if key not in free and before.get(key) != now[key]]:
        key = different[0]
        raise InputError(
            f"{asked.out} holds another choice: its {key} was {shown(before.get(key))}, now it is {shown(now[key])}; "
            "give another --out, or remove the folder"
        )
    write_text(file, json.dumps({**before, "minutes": now["minutes"]}, indent=1))
    machine = _as(before, _Machine, file)
    if not _are_settings(machine.settings):
        raise _damaged(file)
    return replace(asked, **msgspec.structs.asdict(machine))


def _are_settings(words: tuple[str, ...]) -> bool:
    """Whether these are KEY VALUE pairs that a command line can hold."""
    try:
        return len(words) % 2 == 0 and all("\0" not in word and os.fsencode(word) for word in words)
    except UnicodeEncodeError:
        return False


def _read(file: Path, kind: type[Kind]) -> Kind | None:
    """A note of a choice; None if there is none yet."""
    if not file.is_file():
        return None
    try:
        content = read_json(file, "a note of a choice")
    except InputError as error:
        raise _damaged(file) from error
    return _as(content, kind, file)


def _as(content: Any, kind: type[Kind], file: Path) -> Kind:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise _damaged(file) from error


def _damaged(file: Path) -> InputError:
    return InputError(f"expected {file} as a choice wrote it, found something else; remove the folder to start over")


def make_plan(asked: Question, sources: Mapping[str, SourceBackbone], tested: int) -> Plan:
    """The plan in the output folder, else a new one: timed trainings, and lengths under the budget.

    ``sources``: a backbone of each architecture, by its text; ``tested``: number of test images. InputError if a probe
    fails, or no training fits the minutes.
    """
    file = asked.out / _PLAN
    if (kept := _read(file, Plan)) is not None:
        architectures = {one.architecture for one in asked.everyone}
        for stage in asked.stages:
            whole = architectures <= kept.times.get(stage, {}).keys() & kept.images.keys()
            if not whole or kept.lengths.get(stage, 0) < LEAST[asked.kind]:
                raise _damaged(file)
        return kept
    say("timing: a few steps of each training")
    memory = asked.out / "probes" / "done.json"
    times: dict[str, dict[str, Times]] = {stage: {} for stage in asked.stages}
    for stage, one, step in probe_steps(asked):
        run_chain([step], memory, 1)
        wall = json.loads(memory.read_text(encoding="utf-8"))
        times[stage][one.architecture] = measured(asked, stage, one, wall[step.key])
        stages.refuse_too_few(asked, times)
    # kNN and SVM (and the linear classifier) mostly compute features, which are computed once.
    commands, images = 3 if asked.kind == CLASSIFICATION else 2, sum(asked.counts) + tested
    each = {name: seconds_per_image(source, asked.image_size) for name, source in sources.items()}
    seconds = {name: commands * _START + one * images for name, one in each.items()}
    plan = Plan(stages.lengths(asked, times), times, seconds)
    write_text(file, json.dumps(msgspec.to_builtins(plan), indent=1))
    return plan
