"""What `choose` runs: candidates, the commands of every stage, and how long a training may be under the budget."""

import math
from collections.abc import Collection, Mapping, Sequence
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
#: The stage of kNN, SVM and linear classifier, on images of one class.
IMAGES = "images"
_IMAGES_CONFIG = "configs/lowshot/own_images.yaml"
#: Stage of training -> its config; the second one decides.
DETECTORS = {"frozen": "configs/transfer/own_small_frozen.yaml", "finetuned": "configs/transfer/own_small.yaml"}
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
    screened: bool = False  # ranked without training first; then half of the candidates go on from stage to stage
    trains: bool = True  # else nothing is trained but the linear classifier

    @property
    def everyone(self) -> tuple[Candidate, ...]:
        """The candidates, then a random start for each of their architectures."""
        first: dict[str, Candidate] = {}
        for one in self.candidates:
            first.setdefault(one.baseline, one)
        return *self.candidates, *(
            Candidate(name, RANDOM_OF + one.weights, "", one.architecture) for name, one in first.items()
        )

    def starts(self, names: Collection[str]) -> tuple[Candidate, ...]:
        """The candidates of these names, then their random starts."""
        wanted = {*names, *(one.baseline for one in self.candidates if one.name in names)}
        return tuple(one for one in self.everyone if one.name in wanted)

    @property
    def results(self) -> Path:
        return self.out / "results.jsonl"

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages of training; the last one decides."""
        return () if not self.trains else tuple(DETECTORS) if self.kind == DETECTION else ("finetuned",)

    def counts_of(self) -> dict[str, int]:
        """How many candidates are in each stage: half of them after the screen, half of these in the last one."""
        first = last = len(self.candidates)
        if self.screened:
            first = max(min(first, 2), math.ceil(first / 2))
            last = max(min(first, 2), math.ceil(first / 2))
        return {IMAGES: first, **dict.fromkeys(self.stages[:-1], first), **dict.fromkeys(self.stages[-1:], last)}


def image_commands(asked: Question) -> list[str]:
    """Evaluations on images of one class."""
    return ["knn", *["svm"] * (max(asked.counts) > 1), *["linear"] * (asked.kind == CLASSIFICATION)]


def image_steps(asked: Question, starts: Sequence[Candidate]) -> list[Step]:
    """kNN and SVM of every start on images of one class; of classification sets a linear classifier too."""
    return [
        Step(f"{one.name}: {command}", ["tools/lowshot.py", command, *_images(asked, one, asked.results)])
        for command in image_commands(asked)
        for one in starts
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


class Plan(msgspec.Struct, frozen=True):
    """How long every stage is, and what that follows from."""

    lengths: dict[str, Annotated[int, msgspec.Meta(ge=1, lt=10**12)]]  # of a stage
    times: dict[str, dict[str, Times]]  # of a stage and architecture
    images: dict[str, _Seconds] = {}  # of an architecture
    timed: list[str] = []  # stages whose times were measured and whose lengths stay
    alive: dict[str, list[str]] = {}  # names of a stage's candidates, once they are known
    spent: _Seconds = 0.0  # of the budget so far

    def starts(self, asked: Question, stage: str) -> tuple[Candidate, ...]:
        """Who is in a stage; as long as that is unknown, as many as there will be, the costliest ones."""
        if stage in self.alive:
            return asked.starts(self.alive[stage])
        cost = self.images if stage == IMAGES else {name: one.each for name, one in self.times[stage].items()}
        costly = sorted(asked.candidates, key=lambda one: -cost[one.architecture])
        return asked.starts([one.name for one in costly[: asked.counts_of()[stage]]])

    def seconds(self, asked: Question, stage: str) -> float:
        """Seconds of a stage for its starts and trials."""
        if stage == IMAGES:
            return sum(self.images[one.architecture] for one in self.starts(asked, stage))
        around, each = self.sums(asked, stage)
        return asked.trials * (around + self.lengths[stage] * each)

    def sums(self, asked: Question, stage: str) -> tuple[float, float]:
        """Seconds around and for each iteration of a stage's trainings of its starts."""
        known = [self.times[stage][one.architecture] for one in self.starts(asked, stage)]
        return sum(one.around for one in known), sum(one.each for one in known)


#: Part of the minutes that trainings are fitted to: timed steps do not foresee all, and the page takes seconds.
_PLANNED = 0.95


def with_lengths(asked: Question, plan: Plan, stages: Sequence[str], before: float) -> Plan:
    """The plan with the longest trainings of these stages that fit after ``before`` seconds, the same for every start.

    The last stage may take all seconds that are left, another one a third. InputError if the shortest useful trainings
    do not fit, unless a stage was trained already.
    """
    least, needed, later = LEAST[asked.kind], 0.0, 1.0
    planned, left = plan, _PLANNED * 60 * asked.minutes - before
    for stage in stages:
        part = 1.0 if stage == asked.stages[-1] else 1 / 3
        around, each = plan.sums(asked, stage)
        needed, later = max(needed, asked.trials * (around + least * each) / (later * part)), later * (1 - part)
        longest = math.floor((left * part / asked.trials - around) / each)
        lengths = {**planned.lengths, stage: max(min(longest, asked.longest), least)}
        planned = msgspec.structs.replace(planned, lengths=lengths)
        left -= planned.seconds(asked, stage)
    needed = (before + needed) / 60
    if needed > asked.minutes + 1e-9 and not plan.timed:
        starts = len(plan.starts(asked, stages[-1] if stages else IMAGES))
        smaller = "smaller images (INPUT.MIN_SIZE_TRAIN '[128]' INPUT.MIN_SIZE_TEST 128), "
        advice = f"give more, {smaller * (asked.kind == DETECTION)}fewer weights, or --probes-only, or --screen alone"
        if plan.alive:
            advice = "this machine is slower than estimated; the same command with more minutes goes on from here"
        raise InputError(
            f"expected --minutes of at least {math.ceil(needed)} for {counted(starts, 'start')} and "
            f"{counted(asked.trials, 'trial')}, found {asked.minutes:g}; {before / 60:.1f} of them are before any "
            f"training; {advice}"
        )
    return planned


def rows(asked: Question, plan: Plan) -> list[Sequence[str]]:
    """The plan as a table: stage, what it is, how many runs, minutes."""
    detection = asked.kind == DETECTION
    probes, images = ("kNN, SVM", "crops of the boxes") if detection else ("kNN, SVM, linear classifier", "images")
    starts = {stage: plan.starts(asked, stage) for stage in (IMAGES, *asked.stages)}
    minutes = {stage: f"{plan.seconds(asked, stage) / 60:.1f}" for stage in starts}
    what = f"features of {images}, {asked.image_size} px"
    rows: list[Sequence[str]] = [(probes, what, str(len(starts[IMAGES])), minutes[IMAGES])]
    for stage in asked.stages:
        around = asked.trials * plan.sums(asked, stage)[0] / 60
        what = f"{plan.lengths[stage]} {'iterations' if detection else 'epochs'}; {around:.1f} minutes start and score"
        rows.append((stage, what, str(len(starts[stage]) * asked.trials), minutes[stage]))
    return rows
