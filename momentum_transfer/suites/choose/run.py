"""Runs a choice under its budget: a plan from sizes, stage after stage, times that are measured as it goes.

Its question and plan are noted, so that a stopped choice goes on as it began.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, TypeVar

import msgspec
import torch
from torch.utils.flop_counter import FlopCounterMode

from momentum_transfer.backbones.build import build_backbone, own_input, parse_architecture
from momentum_transfer.core import loggers
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import sha256_of, write_text
from momentum_transfer.core.log import say, table
from momentum_transfer.core.records import read as read_records
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.suites.chain import Step, run_chain
from momentum_transfer.suites.choose import stages
from momentum_transfer.suites.choose.screen import Screen
from momentum_transfer.suites.choose.stages import CLASSIFICATION, DETECTION, IMAGES, Plan, Question, Times

Kind = TypeVar("Kind")

_QUESTION, _PLAN, _SCREEN = "question.json", "plan.json", "screen.json"
#: Seconds that a command takes before it does anything (imports, reading weights), and to read and transform an image.
_START, _READ = 6.0, 0.01
#: Operations of a detector's pyramid and heads, a pixel of the image; how much slower backbones are than a convolution.
_HEADS, _SLOWER = 2.4e5, 1.6
#: Operations of a network that cannot be counted. Part of a stage's time that may go into timing its trainings.
_UNKNOWN, _TIMING = 1e10, 0.1


def estimated(asked: Question, tested: int, side: int = 0, batch: int = 1) -> Plan:
    """A plan without lengths, from the sizes of networks and data (``tested``: test images) alone, in a second or two.

    ``side``, ``batch``: of a detector's images.
    """
    speed, train = _operations_a_second(), sum(asked.counts)
    times: dict[str, dict[str, Times]] = {stage: {} for stage in asked.stages}
    seconds = {}
    for name in sorted({one.architecture for one in asked.candidates}):
        forward = _SLOWER * _operations(name, asked.image_size) / speed + _READ
        seconds[name] = len(stages.image_commands(asked)) * _START + forward * (train + tested)
        for stage in asked.stages:
            if asked.kind == DETECTION:
                network, heads = _SLOWER * _operations(name, side) / speed, _HEADS * side**2 / speed
                each = batch * ((1 if stage == "frozen" else 3) * network + 3 * heads + _READ)
                times[stage][name] = Times(_START + tested * (network + heads + _READ), each)
            else:  # two learning rates are searched on four fifths of the images
                each = train * (2 * 0.8 + 1) * (3 * (forward - _READ) + _READ / max(asked.workers, 1))
                times[stage][name] = Times(_START + (tested + train) * forward, each)
    return Plan({}, times, seconds)


def screen_seconds(asked: Question, images: int, side: int) -> float:
    """Seconds to measure all candidates, nearly all of which go into the features of ``images`` images."""
    speed = _operations_a_second()
    return sum(1.5 + images * _SLOWER * _operations(one.architecture, side) / speed for one in asked.candidates)


@lru_cache
def _operations(architecture: str, side: int) -> float:
    """Of a forward pass of an image, without weights or pixels."""
    parsed = parse_architecture(architecture)
    own = own_input(parsed)
    for size in (side, own.size if own else side):
        try:
            with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
                build_backbone(parsed).eval()(torch.zeros(1, 3, size, size))
            return float(counter.get_total_flops()) * (side / size) ** 2
        except (InputError, NotImplementedError, RuntimeError):
            continue
    return _UNKNOWN


def _operations_a_second() -> float:
    """Of a convolution on this machine: the fastest of eight."""
    device, seconds = choose_device(), []
    images, weights = torch.zeros(8, 64, 56, 56, device=device), torch.zeros(64, 64, 3, 3, device=device)
    for _ in range(9):
        begun = time.monotonic()
        torch.nn.functional.conv2d(images, weights, padding=1)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.monotonic() - begun)
    return 2.0 * 8 * 64 * 64 * 9 * 54 * 54 / max(min(seconds[1:]), 1e-6)


def measured(asked: Question, stage: str, one: stages.Candidate, wall: float) -> Times:
    """The seconds of an iteration (an epoch, all that is searched included) and of the rest of a probe.

    ``wall``: seconds of the probe's command. InputError if it left no metrics.
    """
    folder = asked.out / "probes" / one.name / stage
    length = stages.PROBE[asked.kind]
    files = sorted(folder.rglob("metrics.jsonl")) or sorted(folder.glob("metrics.json"))  # the latter: Detectron2's
    lines = [line for file in files for line in loggers.read(file)]
    if asked.kind == CLASSIFICATION:
        each = sum(line["seconds"] for line in lines) / length
    else:  # the mean of those after the first
        each = float(lines[-1].get("seconds", lines[-1].get("time", 0.0))) if lines else 0.0
    if not each > 0:
        raise InputError(f"expected metrics of the timed training in {folder}, found none; remove the folder")
    return Times(max(wall - each * length, 0.0), each)


class _Machine(msgspec.Struct):
    """What of a question follows from this machine at this moment, and stays as it was when the choice began."""

    settings: tuple[Annotated[str, msgspec.Meta(pattern=r"^[^\0\ud800-\udfff]*\Z")], ...]  # as a command line holds it
    longest: Annotated[int, msgspec.Meta(ge=0, lt=10**12)]
    workers: Annotated[int, msgspec.Meta(ge=0, lt=10**12)]


def as_begun(asked: Question) -> Question:
    """The question, of a stopped choice with the settings that it began with.

    InputError if the folder holds another choice, with what differs, or its notes are damaged.
    """
    file = asked.out / _QUESTION
    before, machine = _read(file, dict[str, Any]), _read(file, _Machine)
    if before is None or machine is None:
        return asked
    now, free = _noted(asked), list(_Machine.__struct_fields__)
    if (plan := _read(asked.out / _PLAN, Plan)) is None or not plan.timed:  # no length of a training follows from them
        free.append("minutes")
    if different := [key for key in now if key not in free and before.get(key) != now[key]]:
        key = different[0]
        raise InputError(f"{asked.out} holds another choice: its {key} was {shown(before.get(key))}, now it is "
                         f"{shown(now[key])}; give another --out, or remove the folder")  # fmt: skip
    if len(machine.settings) % 2:
        raise _damaged(file)
    return replace(asked, **msgspec.structs.asdict(machine))


def keep_question(asked: Question) -> None:
    """Note the question in its folder, where a choice begins that may be stopped."""
    write_text(asked.out / _QUESTION, json.dumps(_noted(asked), indent=1))


def _noted(asked: Question) -> dict[str, Any]:
    lists = [asked.out / "images" / f"{part}.txt" for part in ("train", "val")]
    return {**json.loads(json.dumps(asdict(asked), default=str)), "images": [sha256_of(file) for file in lists]}


def _read(file: Path, kind: type[Kind]) -> Kind | None:
    """A note of a choice; None if there is none yet."""
    if not file.is_file():
        return None
    try:
        return msgspec.convert(read_json(file, "a note of a choice"), kind)
    except (InputError, msgspec.ValidationError) as error:
        raise _damaged(file) from error


def _damaged(file: Path) -> InputError:
    return InputError(f"expected {file} as a choice wrote it, found something else; remove the folder to start over")


def make_plan(asked: Question, first: Plan, before: float) -> Plan:
    """The plan in the output folder, else ``first`` with the lengths that fit.

    ``before``: seconds of what comes before kNN and SVM. InputError if no training fits the minutes.
    """
    file = asked.out / _PLAN
    if (kept := _read(file, Plan)) is not None:
        names, alive = {one.architecture for one in asked.everyone}, set().union(*kept.alive.values())
        whole = set(kept.timed) <= set(asked.stages) and alive <= {one.name for one in asked.candidates}
        whole = whole and names <= kept.images.keys() and all(
            names <= kept.times.get(stage, {}).keys() and kept.lengths.get(stage, 0) >= stages.LEAST[asked.kind]
            for stage in asked.stages
        )  # fmt: skip
        if not whole:
            raise _damaged(file)
        if kept.timed:
            return kept
        first = msgspec.structs.replace(kept, spent=0.0)
    return stages.with_lengths(asked, first, asked.stages, before + first.seconds(asked, IMAGES))


def kept_screen(asked: Question, screen: Callable[[], Screen], measure: str = "") -> Screen:
    """The ranking of a stopped choice, else a new one, which is kept; InputError if it is by another ``measure``."""
    file = asked.out / _SCREEN
    if (found := _read(file, Screen)) is None:
        found = screen()
        write_text(file, json.dumps(msgspec.to_builtins(found), indent=1))
    if measure and found.measure != measure:
        raise InputError(f"{asked.out} holds another choice: its measure was {found.measure}, now it is "
                         f"{shown(measure)}; give another --out, or remove the folder")  # fmt: skip
    return found


class Progress:
    """A choice that runs: its plan, kept in the output folder, and the time of its budget."""

    def __init__(self, asked: Question, plan: Plan) -> None:
        self.asked, self.plan = asked, plan
        self._begun = time.monotonic() - plan.spent

    @property
    def spent(self) -> float:
        """Seconds of the budget so far, those of a stopped run included."""
        return time.monotonic() - self._begun

    def keep(self, **changes: Any) -> None:
        """Change the plan and note it."""
        self.plan = msgspec.structs.replace(self.plan, **changes, spent=self.spent)
        write_text(self.asked.out / _PLAN, json.dumps(msgspec.to_builtins(self.plan), indent=1))

    def show(self) -> None:
        """The plan as a table."""
        lines = stages.rows(self.asked, self.plan)
        table(f"plan for {self.asked.title}", ("stage", "what", "runs", "minutes"), lines)

    def run(self, ranked: list[str] | None = None) -> tuple[str, ...]:
        """All stages; the names of the candidates in the last one. ``ranked``: of a screen, the best first."""
        names = ranked or [one.name for one in self.asked.candidates]
        names = names[: self.asked.counts_of()[IMAGES]]
        for stage in (IMAGES, *self.asked.stages):
            names = self.plan.alive.get(stage, names)
            self.keep(alive={**self.plan.alive, stage: names})
            if stage != IMAGES and stage not in self.plan.timed:
                self._time(stage)
            starts = self.plan.starts(self.asked, stage)
            if stage == IMAGES:
                steps = stages.image_steps(self.asked, starts)
            else:
                steps = [stages.training_step(self.asked, one, stage, self.plan.lengths[stage]) for one in starts]
            self._steps(stage, steps)
            names = self._better(stage, names)
        return tuple(names)

    def _steps(self, stage: str, steps: Sequence[Step]) -> None:
        """Run a stage's commands; after each the time that is left, by how long they took so far."""
        begun, expected = time.monotonic(), self.plan.seconds(self.asked, stage)
        later = sum(self.plan.seconds(self.asked, one) for one in self._after(stage))
        for count, step in enumerate(steps, start=1):
            run_chain([step], self.asked.out / "done.json", 1)
            self.keep()
            taken = time.monotonic() - begun
            rate = taken / count if taken > 1 else expected / len(steps)
            left = rate * (len(steps) - count)
            left = max(left, min(left + later, 60 * self.asked.minutes - self.spent))  # later stages are fitted to it
            budget = f" of {self.asked.minutes:g}" if self.asked.trains else ""
            spent = f"{self.spent / 60:.1f}{budget} minutes spent"
            say(f"{stage}, {count} of {len(steps)}: {spent}, about {left / 60:.1f} left")

    def _after(self, stage: str) -> tuple[str, ...]:
        """The stages that follow."""
        return self.asked.stages[(IMAGES, *self.asked.stages).index(stage) :]

    def _time(self, stage: str) -> None:
        """Measure short trainings, the costliest architecture first, and fit the stage's length to what is left.

        Those that are not measured, because timing would take too much, are scaled as those that are.
        """
        asked, before = self.asked, self.plan.times[stage]
        first = {one.architecture: one for one in reversed(self.plan.starts(asked, stage))}
        found: dict[str, Times] = {}
        begun, memory = self.spent, asked.out / "probes" / "done.json"
        room = _TIMING * (60 * asked.minutes - begun)
        for name in sorted(first, key=lambda name: -before[name].each):
            if found and self.spent - begun > room / 2:
                say(f"{stage}: the other architectures are not timed, but scaled as {', '.join(found)}")
                break
            step = stages.training_step(asked, first[name], stage, stages.PROBE[asked.kind], probe=True)
            run_chain([step], memory, 1)
            found[name] = measured(asked, stage, first[name], json.loads(memory.read_text(encoding="utf-8"))[step.key])
        around = sum(one.around for one in found.values()) / sum(before[name].around for name in found)
        each = sum(one.each for one in found.values()) / sum(before[name].each for name in found)
        left = (stage, *self._after(stage))
        times = {later: {name: Times(one.around * around, one.each * each) for name, one in known.items()}
                 for later, known in self.plan.times.items() if later in left}  # fmt: skip
        self.keep(times={**self.plan.times, **times, stage: {**times[stage], **found}})
        lengths = stages.with_lengths(asked, self.plan, left, self.spent).lengths
        self.keep(lengths=lengths, timed=[*self.plan.timed, stage])
        self.show()

    def _better(self, stage: str, names: list[str]) -> list[str]:
        """The candidates of the next stage: of a screened choice the better half by this stage's scores."""
        following = self._after(stage)[:1]
        count = self.asked.counts_of()[following[0]] if following else len(names)
        wanted = {"frozen": ("coco/bbox", "AP"), IMAGES: ("linear", "top1")}.get(stage)
        if count >= len(names) or wanted is None:
            return names
        scores: dict[str, list[float]] = {}
        for line in read_records(self.asked.results)[0]:
            if (line["task"], line["metric"]) == wanted and line["value"] is not None:
                scores.setdefault(line["checkpoint"]["name"], []).append(line["value"])
        means = {name: fmean(scores.get(name, [0.0])) for name in names}
        kept = sorted(names, key=lambda name: -means[name])[:count]
        say(f"after {stage} {', '.join(kept)} go on: " + ", ".join(f"{name} {means[name]:.1f}" for name in names))
        return [name for name in names if name in kept]
