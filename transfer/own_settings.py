"""A detector's settings for its data: a set of one's own is opened, and what follows from it filled in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fvcore.common.config import CfgNode

from momentum_transfer.backbones.build import AnyArchitecture
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of_text, write_once
from momentum_transfer.core.log import say, speaking, warn
from momentum_transfer.core.settings import value_of
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.transfer import config
from momentum_transfer.transfer.config import identity, task_name
from momentum_transfer.transfer.cost import estimate
from momentum_transfer.transfer.data.own.open import open_own
from momentum_transfer.transfer.data.semantic_datasets import label_specs
from momentum_transfer.transfer.fit import Setting, fit, fit_segmenter, settings_of_data, this_machine
from momentum_transfer.transfer.initial_weights import NONE, detector_in, read_initial
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.torchvision_engine.capabilities import unsupported

#: Settings of SOLVER that --minutes decides.
_SCHEDULE = ("MAX_ITER", "STEPS", "WARMUP_ITERS")

if TYPE_CHECKING:
    from momentum_transfer.transfer.tasks.segmentation import Segmentation


@dataclass(frozen=True)
class OwnSource:
    """What --train, --val, --split, --title and --images say; see `open_own`."""

    train: str | None = None
    val: str | None = None
    split: float | None = None
    title: str = ""
    images: str | None = None

    def __post_init__(self) -> None:
        if self.train is None and (self.val or self.split is not None or self.title or self.images):
            raise InputError(
                "expected --train FOLDER_OR_FILE with --val, --split, --title or --images, found none; add it"
            )


def load_for(
    file: str | Path | None,
    overrides: Sequence[str] = (),
    source: OwnSource | None = None,
    *,
    weights: str = "",
    resume: bool = False,
) -> CfgNode:
    """Settings of a config file with what follows from the data, the machine and the weights; all of it is said.

    Args:
        file: a config. overrides: KEY VALUE words, which win over what follows from the data.
        source: a set of one's own, in the place of DATASETS.TRAIN and TEST.
        weights: what --weights names; with FIT_TO_DATA the ResNet's depth is theirs.
        resume: the fitted settings are those of the run in OUTPUT_DIR, where there is one.

    A segmenter's settings follow from label PNGs of one's own where the config's crops do not fit into them, too.

    Raises:
        InputError: wrong settings or data.
    """
    cfg = config.load(file, overrides)
    found: list[Setting] = []
    sets: list[Any] = []
    crops_fail = False
    if source is not None and source.train is not None and task_name(cfg) == "segmentation":
        found = _of_labels(source.train, source)
        named = config.load(file, [*(word for one in found for word in one.words), *overrides])
        labelled = cast("Segmentation", open_task(named))
        own_crop = any(key.startswith("INPUT.CROP.") for key in overrides[::2])
        sets, crops_fail = list(labelled.train), not own_crop and not labelled.holds_crops(named)
        if crops_fail and not cfg.FIT_TO_DATA:
            say(f"  crops of {list(cfg.INPUT.CROP.SIZE)} do not fit these images; what follows from them instead:")
    elif source is not None and source.train is not None:
        own = open_own(source.train, source.val, source.split, seed=cfg.SEED, title=source.title, images=source.images)
        for line in own.lines():
            say(line)
        names = [Setting(f"DATASETS.{k}", [name], "") for k, name in zip(("TRAIN", "TEST"), own.specs, strict=True)]
        found, sets = [*names, *settings_of_data(cfg, [own.train, own.val])], [own.train]
    elif cfg.FIT_TO_DATA:
        task = open_task(cfg)
        found, sets = settings_of_data(cfg, task.sets()), list(task.train)
    if cfg.FIT_TO_DATA or crops_fail:
        found += _fitted(cfg, sets, overrides[::2], resume)
    given = set(overrides[::2])
    if cfg.FIT_TO_DATA and "MODEL.BACKBONE.ARCH" not in given:
        found += _of_weights(weights)
    for one in found:
        if one.why and one.key not in given:
            say(f"  {one.key} {one.words[1]}: {one.why}")
    return config.load(file, [*(word for one in found for word in one.words), *overrides])


def _of_labels(train: str, source: OwnSource) -> list[Setting]:
    """Names and class count of folders of label PNGs."""
    if source.split is not None:
        raise InputError("expected --val FOLDER with label PNGs, found --split; put the images that test in a folder")
    val = None if source.val is None else Path(source.val).expanduser()
    train_spec, val_spec, classes = label_specs(Path(train).expanduser(), val, source.title)
    return [Setting("DATASETS.TRAIN", [train_spec], ""), Setting("DATASETS.TEST", [val_spec], ""),
            Setting("MODEL.SEM_SEG_HEAD.NUM_CLASSES", classes, "classes of the labels")]  # fmt: skip


def _fitted(cfg: CfgNode, sets: Sequence[Any], given: Sequence[str], resume: bool) -> list[Setting]:
    """What follows from the data that trains and the machine, or what the run in OUTPUT_DIR began with."""
    before, machine = Path(cfg.OUTPUT_DIR) / "config.yaml", this_machine(cfg.MODEL.DEVICE)
    segments = task_name(cfg) == "segmentation"
    fitted = fit_segmenter(cfg, sets, machine, given) if segments else fit(cfg, sets, machine, given)
    if resume and before.is_file():
        earlier = config.load(before)
        return [Setting(one.key, value_of(earlier, one.key), "as the run began") for one in fitted]
    return fitted


def within_minutes(cfg: CfgNode, weights: str, minutes: float, place: Path, resume: bool = False) -> CfgNode:
    """The settings with a schedule that ends within so many minutes, one for all weights that are compared.

    The first run times a few steps and keeps the schedule in ``place``; later runs of the same settings, data and
    minutes take it from there, however busy the machine is by then.

    Args:
        place: the folder that the runs of a comparison have in common. resume: the run in OUTPUT_DIR keeps its own.

    Raises:
        InputError: not a length of time, or a network whose steps cannot be timed beforehand.
    """
    if not 0 < minutes < float("inf"):
        raise InputError(f"expected --minutes above 0, found {minutes:g}; give a length of time")
    file = place / f"schedule_{sha256_of_text(f'{identity(cfg, evaluation=False)} {minutes:g}')[:12]}.json"
    begun = Path(cfg.OUTPUT_DIR) / "config.yaml"
    if resume and begun.is_file():
        earlier = config.load(begun).SOLVER
        schedule, why = {key: earlier[key] for key in _SCHEDULE}, "as the run began"
    elif file.is_file():
        schedule, why = _read_schedule(file), f"decided by the first run of this comparison, {file}"
    else:
        write_once(file, json.dumps(_timed_schedule(cfg, weights, minutes), indent=1))
        schedule, why = _read_schedule(file), f"kept in {file} for the runs that are compared with this one"
    say(f"  SOLVER.MAX_ITER {schedule['MAX_ITER']} for --minutes {minutes:g}: {why}")
    shorter = cfg.clone()
    shorter.defrost()
    for key in _SCHEDULE:
        shorter.SOLVER[key] = type(cfg.SOLVER[key])(schedule[key])
    shorter.freeze()
    return shorter


def _timed_schedule(cfg: CfgNode, weights: str, minutes: float) -> dict[str, Any]:
    """The settings of `_SCHEDULE` by a few timed steps: the recipe's, or shorter ones."""
    task = open_task(cfg)
    found = estimate(cfg, task, read_initial(weights, cfg))
    if found is None:
        reason = unsupported(cfg) if task.name == "detection" else "a segmenter, whose steps are not timed beforehand"
        raise InputError(
            f"expected a detector that the torchvision engine builds with --minutes, found another: {reason}; correct "
            "that, or give SOLVER.MAX_ITER in the place of --minutes"
        )
    whole, solver = cfg.SOLVER.MAX_ITER, cfg.SOLVER
    steps = min(found.steps_within(60 * minutes), whole)
    if steps == whole:
        return {key: solver[key] for key in _SCHEDULE}
    say(f"  {steps} iterations instead of {whole}: {minutes:g} minutes at {found.step:.2f} s an iteration")
    if steps < whole / 10:
        warn(f"{steps} iterations are {100 * steps / whole:.0f} % of the recipe's: a detector that has learnt little")
    warmup = min(solver.WARMUP_ITERS, max(steps // 10, 1))
    return {"MAX_ITER": steps, "STEPS": [step * steps // whole for step in solver.STEPS], "WARMUP_ITERS": warmup}


def _read_schedule(file: Path) -> dict[str, Any]:
    """What `_timed_schedule` gave an earlier run."""
    found = read_json(file, "a schedule")
    try:
        numbers = [found["MAX_ITER"] - 1, found["WARMUP_ITERS"], *found["STEPS"]]
        whole = all(type(number) is int and 0 <= number < 1e9 for number in numbers)
    except (TypeError, KeyError):
        whole = False
    if not whole:
        raise InputError(f"expected {file} as a run with --minutes wrote it, found something else; remove it")
    return dict(found)


def _of_weights(weights: str) -> list[Setting]:
    """Depth and widths of a backbone's ResNet, or another network's name; a detector's file does not tell."""
    if not weights or weights.lower() == NONE or (Path(weights).exists() and detector_in(Path(weights)) is not None):
        return []
    with speaking(quiet=True):  # they are read again, and told, when the run begins
        found = load_backbone(weights).architecture
    return architecture_settings(found)


def architecture_settings(architecture: AnyArchitecture, why: str = "the weights' own") -> list[Setting]:
    """Depth and widths of a ResNet, or another network's name.

    Raises:
        InputError: a ResNet's stem that detectors do not build.
    """
    if not isinstance(architecture, Architecture):
        return [Setting("MODEL.BACKBONE.ARCH", str(architecture), why)]
    if architecture.stem != "imagenet":
        raise InputError(f"expected a ResNet with the stem imagenet under a detector, found {architecture.stem}")
    depth = int(architecture.name.removeprefix("resnet"))
    width = architecture.width
    channels = {"STEM_OUT_CHANNELS": width, "RES2_OUT_CHANNELS": width * (4 if depth >= 50 else 1)}
    if depth >= 50:
        channels["WIDTH_PER_GROUP"] = width
    return [Setting(f"MODEL.RESNETS.{key}", value, why) for key, value in {"DEPTH": depth, **channels}.items()]
