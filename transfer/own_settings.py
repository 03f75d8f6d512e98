"""Complete a detector's settings from its data: class count, image sizes and schedule of a custom set.

Networks are imported where they are needed: `transfer --check-data` looks at files alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of_text, write_once
from momentum_transfer.core.log import say, warn
from momentum_transfer.core.settings import value_of
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.transfer import config
from momentum_transfer.transfer.config import identity, task_name
from momentum_transfer.transfer.data.few_shot import FewShot
from momentum_transfer.transfer.data.own.open import open_own
from momentum_transfer.transfer.data.semantic_datasets import label_specs
from momentum_transfer.transfer.fit import FittedSetting, fit, fit_segmenter, settings_of_data, this_machine
from momentum_transfer.transfer.tasks import Detection, Segmentation, Task, open_task

if TYPE_CHECKING:
    from momentum_transfer.backbones.build import AnyArchitecture
    from momentum_transfer.backbones.source import SourceBackbone
    from momentum_transfer.transfer.experiment import Experiment
    from momentum_transfer.transfer.initial_weights import InitialWeights

#: Settings of SOLVER that --minutes decides, besides SEMI.BURN_IN of a teacher.
_SCHEDULE = ("MAX_ITER", "STEPS", "WARMUP_ITERS")


@dataclass(frozen=True)
class OwnSource:
    """The options --train, --val, --split, --title and --images; see `open_own`."""

    train: str | None = None
    val: str | None = None
    split: float | None = None
    title: str = ""
    images: str | None = None

    def __post_init__(self) -> None:
        if self.train is None and (self.val or self.split is not None or self.title or self.images):
            asked = "--val, --split, --title or --images"
            raise InputError(f"expected --train FOLDER_OR_FILE with {asked}, found none; add it")


@dataclass(frozen=True)
class Opened:
    """What was opened to find the settings, so that a run need not open it again."""

    task: Task[Any] | None = field(default=None, repr=False)
    weights: InitialWeights | SourceBackbone | None = field(default=None, repr=False)


def load_for(
    file: str | Path | None, overrides: Sequence[str] = (), source: OwnSource | None = None, *, weights: str = "",
    resume: bool = False, eval_only: bool = False, read: InitialWeights | SourceBackbone | None = None,
) -> tuple[CfgNode, Opened]:  # fmt: skip
    """Settings of a config file with what follows from the data, the machine and the weights; each is logged.

    Args:
        file: a config. overrides: KEY VALUE pairs, which win over what follows from the data.
        source: a custom set, instead of DATASETS.TRAIN and TEST.
        weights: value of --weights; with FIT_TO_DATA the ResNet's depth is that of the weights.
        read: the weights, where they were read already.
        resume: the fitted settings are those of the run in OUTPUT_DIR, where there is one.
        eval_only: they are those that the weights were trained with, whatever this machine would choose.

    A segmenter's settings also follow from custom label PNGs where the config's crops do not fit into them.

    Raises:
        InputError: wrong settings or data; with ``eval_only``, no settings beside the weights where any are fitted.
    """
    cfg = config.load(file, overrides)
    given = set(overrides[::2])
    found: list[FittedSetting] = []
    task: Task[Any] | None = None
    crops_fail = False
    if source is not None and source.train is not None and task_name(cfg) == "segmentation":
        found = _of_labels(source.train, source)
        named = config.load(file, [*_pairs(found), *overrides])
        task = open_task(named)
        own_crop = any(key.startswith("INPUT.CROP.") for key in given)
        crops_fail = isinstance(task, Segmentation) and not own_crop and not task.holds_crops(named)
        if crops_fail and not cfg.FIT_TO_DATA:
            say(f"  crops of {list(cfg.INPUT.CROP.SIZE)} do not fit these images; what follows from them instead:")
    elif source is not None and source.train is not None:
        task, found = _of_boxes(cfg, source.train, source)
    elif cfg.FIT_TO_DATA:
        task = open_task(cfg)
        found = settings_of_data(cfg, task.sets())
    if task is not None and (cfg.FIT_TO_DATA or crops_fail):
        earlier = _trained(cfg, weights or cfg.MODEL.WEIGHTS) if eval_only else _begun(cfg) if resume else None
        found += _fitted(cfg, task.train, overrides[::2], earlier)
    if cfg.FIT_TO_DATA and "MODEL.BACKBONE.ARCH" not in given and weights:
        from momentum_transfer.backbones.source import SourceBackbone
        from momentum_transfer.transfer.initial_weights import NONE, read_source

        read = read or (read_source(weights) if weights.lower() != NONE else None)
        if isinstance(read, SourceBackbone):  # a detector's file does not name its network
            found += architecture_settings(read.architecture)
    for one in found:
        if one.why and one.key not in given:
            say(f"  {one.key} {one.words[1]}: {one.why}")
    renamed = bool({"DATASETS.TRAIN", "DATASETS.TEST"} & given) and source is not None
    return config.load(file, [*_pairs(found), *overrides]), Opened(None if renamed else task, read)


def _pairs(settings: Sequence[FittedSetting]) -> list[str]:
    return [word for one in settings for word in one.words]


def _of_boxes(cfg: CfgNode, train: str, source: OwnSource) -> tuple[Detection, list[FittedSetting]]:
    """The task of a detection set, and its names and what follows from it."""
    own = open_own(train, source.val, source.split, seed=cfg.SEED, title=source.title, images=source.images)
    for line in own.lines():
        say(line)
    task = Detection([own.train], [own.val], detections=cfg.TEST.DETECTIONS_PER_IMAGE, few_shot=FewShot.of(cfg))
    names = [FittedSetting(f"DATASETS.{k}", [name], "") for k, name in zip(("TRAIN", "TEST"), own.specs, strict=True)]
    return task, [*names, *settings_of_data(cfg, task.sets())]


def _of_labels(train: str, source: OwnSource) -> list[FittedSetting]:
    """Names and class count of folders of label PNGs."""
    if source.split is not None:
        raise InputError("expected --val FOLDER with label PNGs, found --split; put the images that test in a folder")
    val = None if source.val is None else Path(source.val).expanduser()
    train_spec, val_spec, classes = label_specs(Path(train).expanduser(), val, source.title)
    return [FittedSetting("DATASETS.TRAIN", [train_spec], ""), FittedSetting("DATASETS.TEST", [val_spec], ""),
            FittedSetting("MODEL.SEM_SEG_HEAD.NUM_CLASSES", classes, "classes of the labels")]  # fmt: skip


def _fitted(cfg: CfgNode, sets: Sequence[Any], given: Sequence[str], before: Path | None) -> list[FittedSetting]:
    """What follows from the training data and the machine, or what a run began with: its settings are in ``before``."""
    machine = this_machine(cfg.MODEL.DEVICE)
    segments = task_name(cfg) == "segmentation"
    fitted = fit_segmenter(cfg, sets, machine, given) if segments else fit(cfg, sets, machine, given)
    if before is not None and before.is_file():
        earlier = config.load(before)
        return [FittedSetting(one.key, value_of(earlier, one.key), "as the run began") for one in fitted]
    return fitted


def _begun(cfg: CfgNode) -> Path:
    """The settings of the run in OUTPUT_DIR, of several trials those of the first."""
    alone, first = (Path(cfg.OUTPUT_DIR) / file for file in ("config.yaml", "trial_0/config.yaml"))
    return first if first.is_file() and not alone.is_file() else alone


def _trained(cfg: CfgNode, weights: str) -> Path:
    """The settings beside a detector's weights; InputError without them under FIT_TO_DATA."""
    place = Path(weights)
    file = (place if place.is_dir() else place.parent) / "config.yaml"
    if cfg.FIT_TO_DATA and not file.is_file():
        raise InputError(
            f"expected the training's config.yaml beside --weights for what is fitted to data with --eval-only, found "
            f"no {file}; give its run's folder, or FIT_TO_DATA False and the sizes and anchors it was trained with"
        )
    return file


def architecture_settings(architecture: AnyArchitecture) -> list[FittedSetting]:
    """Depth and widths of a ResNet, or another network's name; InputError for a stem that detectors do not build."""
    from momentum_transfer.backbones.resnet import Architecture

    why = "the weights' own"
    if not isinstance(architecture, Architecture):
        return [FittedSetting("MODEL.BACKBONE.ARCH", str(architecture), why)]
    if architecture.stem != "imagenet":
        raise InputError(f"expected a ResNet with the stem imagenet under a detector, found {architecture.stem}")
    depth = int(architecture.name.removeprefix("resnet"))
    width = architecture.width
    channels = {"STEM_OUT_CHANNELS": width, "RES2_OUT_CHANNELS": width * (4 if depth >= 50 else 1)}
    if depth >= 50:
        channels["WIDTH_PER_GROUP"] = width
    return [FittedSetting(f"MODEL.RESNETS.{key}", value, why) for key, value in {"DEPTH": depth, **channels}.items()]


def kept_schedule(cfg: CfgNode, minutes: float, place: Path, resume: bool = False) -> CfgNode | None:
    """The settings with the schedule that the run in OUTPUT_DIR, or the first run of a comparison, has decided.

    Args:
        place: the common folder of the runs of a comparison. resume: the run in OUTPUT_DIR keeps its own schedule.

    Returns None if nothing is decided yet: see `timed_schedule`. InputError for a damaged file.
    """
    if not 0 < minutes < float("inf"):
        raise InputError(f"expected --minutes above 0, found {minutes:g}; give a length of time")
    file, begun = _schedule_file(cfg, minutes, place), _begun(cfg)
    if resume and begun.is_file():
        return _with_schedule(cfg, _schedule_of(config.load(begun)), minutes, "as the run began")
    if file.is_file():
        why = f"decided by the first run of this comparison, {file}"
        return _with_schedule(cfg, _read_schedule(file), minutes, why)
    return None


def timed_schedule(experiment: Experiment, minutes: float, place: Path) -> CfgNode:
    """The settings with a schedule that ends within ``minutes``, by a few timed steps.

    The schedule is kept in ``place``: later runs of the same settings, data and minutes take it from there, so that all
    weights are compared under one schedule, however busy the machine is by then. InputError for a network whose steps
    cannot be timed beforehand.
    """
    cfg, file = experiment.cfg, _schedule_file(experiment.cfg, minutes, place)
    write_once(file, json.dumps(_shortened(experiment, minutes), indent=1))
    why = f"kept in {file} for the runs that are compared with this one"
    return _with_schedule(cfg, _read_schedule(file), minutes, why)


def _schedule_file(cfg: CfgNode, minutes: float, place: Path) -> Path:
    return place / f"schedule_{sha256_of_text(f'{identity(cfg, evaluation=False)} {minutes:g}')[:12]}.json"


def _schedule_of(cfg: CfgNode) -> dict[str, Any]:
    return {**{key: cfg.SOLVER[key] for key in _SCHEDULE}, "BURN_IN": cfg.SEMI.BURN_IN}


def _with_schedule(cfg: CfgNode, schedule: dict[str, Any], minutes: float, why: str) -> CfgNode:
    say(f"  SOLVER.MAX_ITER {schedule['MAX_ITER']} for --minutes {minutes:g}: {why}")
    shorter = cfg.clone()
    shorter.defrost()
    for key in _SCHEDULE:
        shorter.SOLVER[key] = type(cfg.SOLVER[key])(schedule[key])
    if cfg.SEMI.TEACHER:
        shorter.SEMI.BURN_IN = schedule["BURN_IN"]
    shorter.freeze()
    config.check_settings(shorter)
    return shorter


def _shortened(experiment: Experiment, minutes: float) -> dict[str, Any]:
    """The schedule by a few timed steps: the recipe's, or a shorter one."""
    from momentum_transfer.transfer.cost import estimate
    from momentum_transfer.transfer.torchvision_engine.capabilities import unsupported

    cfg, found = experiment.cfg, estimate(experiment)
    if found is None:
        detects = experiment.task.name == "detection"
        reason = unsupported(cfg) if detects else "a segmenter, whose steps are not timed beforehand"
        raise InputError(
            f"expected a detector that the torchvision engine builds with --minutes, found another: {reason}; correct "
            "that, or give SOLVER.MAX_ITER instead of --minutes"
        )
    whole, solver = cfg.SOLVER.MAX_ITER, cfg.SOLVER
    steps = min(found.steps_within(60 * minutes), whole)
    if steps == whole:
        return _schedule_of(cfg)
    say(f"  {steps} iterations instead of {whole}: {minutes:g} minutes at {found.step:.2f} s an iteration")
    if steps < whole / 10:
        warn(f"{steps} iterations are {100 * steps / whole:.0f} % of the recipe's: a detector that has learnt little")
    warmup = min(solver.WARMUP_ITERS, max(steps // 10, 1))
    milestones, burn_in = [step * steps // whole for step in solver.STEPS], cfg.SEMI.BURN_IN * steps // whole
    return {"MAX_ITER": steps, "STEPS": milestones, "WARMUP_ITERS": warmup, "BURN_IN": burn_in}


def _read_schedule(file: Path) -> dict[str, Any]:
    """What `timed_schedule` kept."""
    found = read_json(file, "a schedule")
    try:
        numbers = [found["MAX_ITER"] - 1, found["WARMUP_ITERS"], *found["STEPS"], found["BURN_IN"]]
        whole = all(type(number) is int and 0 <= number < 1e9 for number in numbers)
    except (TypeError, KeyError):
        whole = False
    if not whole:
        raise InputError(f"expected {file} as a run with --minutes wrote it, found something else; remove it")
    return dict(found)
