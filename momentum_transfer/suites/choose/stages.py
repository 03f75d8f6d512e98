"""What `choose` runs: candidates, the commands of every stage, and how long a training may be under the budget."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from momentum_transfer.backbones.build import parse_architecture
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import RANDOM_OF
from momentum_transfer.suites.chain import Step

DETECTION, CLASSIFICATION = "detection", "classification"
_IMAGES_CONFIG = "configs/lowshot/own_images.yaml"
#: Stage of training -> its config; the second one decides.
DETECTORS = {"frozen": "configs/transfer/own_small_frozen.yaml", "finetuned": "configs/transfer/own_small.yaml"}
#: Fraction of the minutes that each stage of training gets.
_FRACTIONS = {"frozen": 1 / 3, "finetuned": 2 / 3}
#: Fewest iterations (epochs) of a training that means anything.
LEAST = {DETECTION: 10, CLASSIFICATION: 1}
#: Iterations (epochs) of a probe, which measures how long one takes; the first of a detector does not count.
PROBE = {DETECTION: 5, CLASSIFICATION: 1}


@dataclass(frozen=True)
class Candidate:
    """Weights to choose from; ``baseline`` names the random start of the same architecture, "" for such a start."""

    name: str
    weights: str
    sha256: str
    architecture: str
    baseline: str = ""


@dataclass(frozen=True)
class Question:
    """All inputs of a choice that determine its commands; times are not among them."""

    out: Path  # where everything goes; images/train.txt and val.txt in it list the images of one class
    kind: str  # DETECTION or CLASSIFICATION
    title: str  # of the data
    counts: tuple[int, ...]  # training images of every class
    image_size: int
    candidates: tuple[Candidate, ...]
    minutes: float
    trials: int = 1
    seed: int = 0
    workers: int = 2
    settings: tuple[str, ...] = ()  # KEY VALUE of all detectors, which follow from the data and the machine
    overrides: tuple[str, ...] = ()  # KEY VALUE that the user gave, which win
    longest: int = 50  # iterations (epochs) beyond which no training is worth its time
    engine: str = "auto"

    @property
    def everyone(self) -> tuple[Candidate, ...]:
        """The candidates, then a random start for each of their architectures."""
        first: dict[str, Candidate] = {}
        for one in self.candidates:
            first.setdefault(one.baseline, one)
        return *self.candidates, *(
            Candidate(name, RANDOM_OF + one.weights, "", one.architecture) for name, one in first.items()
        )

    @property
    def results(self) -> Path:
        return self.out / "results.jsonl"

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages of training that are under the budget; the last one decides."""
        return tuple(DETECTORS) if self.kind == DETECTION else ("finetuned",)


def image_steps(asked: Question) -> list[Step]:
    """kNN and SVM of every start on images of one class; of classification sets a linear classifier too."""
    commands = ["knn", "svm"] if max(asked.counts) > 1 else ["knn"]
    if asked.kind == CLASSIFICATION:
        commands.append("linear")
    return [
        Step(f"{one.name}: {command}", ["tools/lowshot.py", command, *_images(asked, one, asked.results)])
        for command in commands
        for one in asked.everyone
    ]


def _images(asked: Question, one: Candidate, results: Path) -> list[str]:
    total, lists = sum(asked.counts), asked.out / "images"
    pool = sorted(count - min(20, count // 2) for count in asked.counts)
    shots = [k for k in (1, 2, 4, 8, 16) if k <= pool[len(pool) // 2]] or [1]
    held_in = max(2, int(total * 0.8) // 2 * 2)
    settings = {
        "DATASETS.NAME": "filelist", "DATASETS.ROOT": lists,
        "DATASETS.TRAIN_LIST": lists / "train.txt", "DATASETS.TEST_LIST": lists / "val.txt",
        "DATASETS.TITLE": asked.title, "INPUT.IMAGE_SIZE": asked.image_size, "SEED": asked.seed,
        "KNN.PRESETS": [f"majority-{20 if total >= 200 else min(5, total)}"], "SVM.SHOTS": shots,
        "LINEAR.BATCH_SIZE": min(256, held_in), "FINETUNE.BATCH_SIZE": min(32, held_in),
        "LINEAR.CACHED": True,
        "LINEAR.TRIALS": asked.trials, "FINETUNE.TRIALS": asked.trials, "OUTPUT_DIR": asked.out / "few_labels",
        **{f"{node}.WORKERS": asked.workers for node in ("FEATURES", "LINEAR", "FINETUNE")},
    }  # fmt: skip
    return ["--config", _IMAGES_CONFIG, "--weights", one.weights, "--results", str(results), *_flat(settings)]


def _flat(settings: Mapping[str, object]) -> list[str]:
    return [str(word) for pair in settings.items() for word in pair]


def training_step(asked: Question, one: Candidate, stage: str, length: int, probe: bool = False) -> Step:
    """One training of one start; ``length``: iterations of a detector, epochs of fine-tuning on images."""
    folder, results = asked.out / one.name / stage, asked.results
    title = f"{one.name}: {'detector, ' if asked.kind == DETECTION else ''}{stage}"
    if probe:
        folder, results = asked.out / "probes" / one.name / stage, asked.out / "probes/results.jsonl"
        title += ", timed"
    if asked.kind == CLASSIFICATION:
        command = ["tools/lowshot.py", "finetune", *_images(asked, one, results), "FINETUNE.EPOCHS", f"{length:.1f}"]
        if probe:
            command += ["FINETUNE.TRIALS", "1", "OUTPUT_DIR", str(folder)]
        return Step(title, command)
    command = ["tools/transfer.py", "--config", DETECTORS[stage], "--weights", one.weights, "--engine", asked.engine]
    command += ["--trials", "1" if probe else str(asked.trials), "--resume", "--results", str(results)]
    command += [*asked.settings, *asked.overrides]
    if not isinstance(parse_architecture(one.architecture), Architecture):
        command += ["MODEL.BACKBONE.ARCH", one.architecture]
    settings = {"SOLVER.MAX_ITER": length, "SOLVER.WARMUP_ITERS": min(100, max(length // 10, 1)),
                "SOLVER.CHECKPOINT_PERIOD": max(length // 4, 20), "SEED": asked.seed, "OUTPUT_DIR": folder}  # fmt: skip
    return Step(title, [*command, *_flat(settings)])


_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]


class Times(msgspec.Struct, frozen=True):
    """Seconds of a training: before and after its iterations (epochs), and for each of them."""

    around: _Seconds
    each: _Seconds

    def of(self, length: int) -> float:
        """Seconds of a training of that length."""
        return self.around + length * self.each


class Plan(msgspec.Struct, frozen=True):
    """Length of every stage, times[stage][architecture] that it follows from, and the images' seconds[architecture]."""

    lengths: dict[str, Annotated[int, msgspec.Meta(ge=1, lt=10**12)]]
    times: dict[str, dict[str, Times]]
    images: dict[str, _Seconds] = {}

    def seconds(self, asked: Question, stage: str) -> float:
        """Seconds of a stage for all starts and trials."""
        times = self.times[stage]
        return asked.trials * sum(times[one.architecture].of(self.lengths[stage]) for one in asked.everyone)


_Measured = Mapping[str, Mapping[str, Times]]  #: times[stage][architecture]


def lengths(asked: Question, times: _Measured) -> dict[str, int]:
    """The longest trainings that fit the minutes, the same for every start; InputError if none fits."""
    refuse_too_few(asked, times)
    lengths = {}
    for stage in asked.stages:
        around, each = _sums(asked, times, stage)
        room = 60 * asked.minutes * _fraction(asked, stage) / asked.trials - around
        lengths[stage] = min(max(math.floor(room / each), LEAST[asked.kind]), asked.longest)
    return lengths


def refuse_too_few(asked: Question, times: _Measured) -> None:
    """Raise InputError if no training fits the minutes; what is not yet measured counts nothing.

    The message says how many would do, with the longest time so far for what is not yet measured.
    """
    if _needed(asked, times)[0] <= asked.minutes:
        return
    known = [one for stage in asked.stages for one in times[stage].values()]
    longest = max(known, key=lambda one: one.of(LEAST[asked.kind]))
    names = [one.architecture for one in asked.everyone]
    needed, fixed = _needed(
        asked, {stage: {name: times[stage].get(name, longest) for name in names} for stage in asked.stages}
    )
    raise InputError(
        f"expected --minutes of at least {math.ceil(needed)} for {counted(len(names), 'start')} and "
        f"{counted(asked.trials, 'trial')}, found {asked.minutes:g}; starting commands and scoring take {fixed:.1f} of "
        "them, however long the trainings are; give more, or fewer weights"
    )


def _needed(asked: Question, times: _Measured) -> tuple[float, float]:
    """Minutes of the shortest useful trainings, and how many of these are not for iterations."""
    needed = fixed = 0.0
    for stage in asked.stages:
        around, each = _sums(asked, times, stage)
        fixed += asked.trials * around / 60
        shortest = around + LEAST[asked.kind] * each
        needed = max(needed, asked.trials * shortest / _fraction(asked, stage) / 60)
    return needed, fixed


def _sums(asked: Question, times: _Measured, stage: str) -> tuple[float, float]:
    """Seconds around and for each iteration of a stage's trainings of every start, as far as they are measured."""
    known = [times[stage][one.architecture] for one in asked.everyone if one.architecture in times[stage]]
    return sum(one.around for one in known), sum(one.each for one in known)


def _fraction(asked: Question, stage: str) -> float:
    return _FRACTIONS[stage] if len(asked.stages) > 1 else 1.0


def training_steps(asked: Question, plan: Plan) -> list[Step]:
    """Every training, stage after stage."""
    return [training_step(asked, one, stage, plan.lengths[stage]) for stage in asked.stages for one in asked.everyone]


def rows(asked: Question, plan: Plan) -> list[Sequence[str]]:
    """The plan as a table: stage, what it is, how many runs, minutes."""
    starts, detection = len(asked.everyone), asked.kind == DETECTION
    seconds = sum(plan.images[one.architecture] for one in asked.everyone)
    probes, images = ("kNN, SVM", "crops of the boxes") if detection else ("kNN, SVM, linear classifier", "images")
    rows: list[Sequence[str]] = [
        (probes, f"features of {images}, {asked.image_size} px", str(starts), f"{seconds / 60:.1f}")
    ]
    for stage in asked.stages:
        around = asked.trials * sum(plan.times[stage][one.architecture].around for one in asked.everyone)
        length = f"{plan.lengths[stage]} {'iterations' if detection else 'epochs'}"
        what = f"{length}; {around / 60:.1f} minutes start and score"
        rows.append((stage, what, str(starts * asked.trials), f"{plan.seconds(asked, stage) / 60:.1f}"))
    return rows
