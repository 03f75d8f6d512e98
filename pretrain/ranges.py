"""What every setting of pretraining may be, by key; the defaults are in ``pretrain/config.py``.

The upper ends catch slips of the keyboard, not large machines.
"""

from __future__ import annotations

from collections.abc import Iterator

from fvcore.common.config import CfgNode

from momentum_transfer.backbones.build import ArchitectureName
from momentum_transfer.backbones.resnet import STEMS
from momentum_transfer.core.devices import check_device
from momentum_transfer.core.optimization import LR_SCHEDULES, MOMENTUM_SCHEDULES
from momentum_transfer.core.ranges import (
    ANY_PATH,
    DEVICE,
    MOMENTUM,
    PATH,
    POSITIVE,
    SEED,
    SHARE,
    UNIT,
    Choice,
    Many,
    Momentum,
    Number,
    Rule,
    check,
    refuse,
)
from momentum_transfer.images.augmentations import RECIPES, REMOVALS
from momentum_transfer.images.datasets import DATASETS
from momentum_transfer.images.digits import VARIANTS
from momentum_transfer.pretrain.norms import OWN_BATCH, POLICIES, STUDENT_NORMS, TEACHER_NORMS, check_norms
from momentum_transfer.pretrain.optimizers import OPTIMIZERS

METHOD_NAMES = ("momentum2", "byol", "moco", "simsiam", "supervised", "random")
#: Methods whose student has a teacher that follows it.
WITH_TEACHER = ("momentum2", "byol", "moco")
PRECISIONS = ("float32", "bf16", "fp16")
_MANY = 2**31 - 1


def _count(high: int, unit: str = "", low: int = 1, note: str = "") -> Number:
    return Number(low, high, whole=True, unit=unit, note=note)


#: Every key of the defaults but the switches.
RULES: dict[str, Rule] = {
    "OUTPUT_DIR": PATH,
    "SEED": SEED,
    "METHOD.NAME": Choice(METHOD_NAMES),
    "MODEL.ARCH": ArchitectureName(),
    "MODEL.WIDTH": _count(4096, "channels"),
    "MODEL.STEM": Choice(STEMS),
    "HEAD.HIDDEN": _count(2**20, "units"),
    "HEAD.OUTPUT": _count(2**20, "units"),
    "HEAD.PREDICTOR_HIDDEN": _count(2**20, "units", low=0, note="0: as HEAD.HIDDEN"),
    "TEACHER.MOMENTUM_BASE": MOMENTUM,
    "TEACHER.MOMENTUM_SCHEDULE": Choice(MOMENTUM_SCHEDULES),
    "TEACHER.MOVES": Choice(("before", "after")),
    "NORM.STUDENT": Choice(STUDENT_NORMS),
    "NORM.TEACHER": Choice(TEACHER_NORMS),
    "NORM.STUDENT_MOMENTUM": MOMENTUM,
    "NORM.STATISTICS_MOMENTUM": Momentum(negative="that of the parameters"),
    "NORM.PROXY_MOMENTUM": MOMENTUM,
    "NORM.ALPHA_BASE": Number(0, 1, note="the weight of the batch"),
    "NORM.ALPHA_SCHEDULE": Choice(MOMENTUM_SCHEDULES),
    "NORM.GROUP": _count(2**24, "images", low=0, note="0: the whole batch"),
    "NORM.POLICY": Choice(POLICIES),
    "MOCO.QUEUE": _count(2**26, "keys"),
    "MOCO.TEMPERATURE": POSITIVE,
    "DATA.NAME": Choice(DATASETS),
    "DATA.ROOT": ANY_PATH,
    "DATA.SPLIT": PATH,
    "DATA.FILE_LIST": ANY_PATH,
    "DATA.IMAGE_SIZE": _count(2**13, "px"),
    "DATA.VARIANT": Choice(VARIANTS),
    "DATA.CLASS_FRACTION": SHARE,
    "DATA.SAMPLE_FRACTION": SHARE,
    "DATA.LONG_TAIL": SHARE,
    "DATA.TAXONOMY": ANY_PATH,
    "DATA.MAX_UNREADABLE": _count(_MANY, "images", low=0),
    "DATA.VIEWS": Choice((*RECIPES, "digits")),
    "DATA.REMOVE": Many(Choice(REMOVALS)),
    "DATA.CROP_SCALE": Many(SHARE, lengths=(0, 2)),
    "DATA.VIEWS_ON": Choice(("workers", "device", "auto")),
    "DATA.CANVAS": _count(2**14, "px", low=0, note="0: twice DATA.IMAGE_SIZE"),
    "DATA.WORKERS": _count(1024, "processes", low=-1, note="-1: measured in the first steps"),
    "DATA.MEMORY_SHARE": Number(0, 1, note="of the free memory"),
    "SOLVER.OPTIMIZER": Choice(OPTIMIZERS),
    "SOLVER.BATCH_SIZE": _count(2**24, "images"),
    "SOLVER.ACCUMULATE": _count(2**24, "micro-batches"),
    "SOLVER.EPOCHS": _count(_MANY, "epochs"),
    "SOLVER.STEPS": _count(_MANY, "steps", low=0, note="0: SOLVER.EPOCHS count"),
    "SOLVER.BASE_LR": POSITIVE,
    "SOLVER.BASE_BATCH_SIZE": _count(2**24, "images"),
    "SOLVER.SCHEDULE": Choice(LR_SCHEDULES),
    "SOLVER.MILESTONES": Many(
        Number(0, 1, above=True, below=True, note="shares of the run: divide epochs by SOLVER.EPOCHS"), ascending=True
    ),
    "SOLVER.GAMMA": UNIT,
    "SOLVER.WARMUP_EPOCHS": Number(0, 1e9, unit="epochs"),
    "SOLVER.WARMUP_FACTOR": UNIT,
    "SOLVER.MOMENTUM": Number(0, 1, note="of the gradients that came before, as in torch's SGD"),
    "SOLVER.WEIGHT_DECAY": Number(0, 1e9),
    "SOLVER.ETA": POSITIVE,
    "RUN.DEVICE": DEVICE,
    "RUN.PRECISION": Choice(PRECISIONS),
    "RUN.CHECKPOINT_EVERY": _count(_MANY, "steps"),
    "RUN.KEEP": _count(_MANY, "checkpoints"),
    "RUN.LOG_EVERY": _count(_MANY, "steps"),
    "RUN.EXPORT_EVERY": Number(0, 1e9, unit="epochs", note="0: the last backbone only"),
    "RUN.KNN_EVERY": Number(0, 1e9, unit="epochs", note="0: never"),
    "RUN.KNN_SPLIT": PATH,
    "RUN.CALIBRATION_BATCHES": _count(_MANY, "batches"),
}


def norms(cfg: CfgNode) -> set[str]:
    """Names of the normalisations that a run has: the student's, and the teacher's where the method has one."""
    return {cfg.NORM.STUDENT, cfg.NORM.TEACHER if cfg.METHOD.NAME in WITH_TEACHER else cfg.NORM.STUDENT}


def norms_of_own_batch(cfg: CfgNode) -> list[str]:
    """Those that see other images when the number of processes changes; NORM.GROUP keeps how many."""
    return sorted(norms(cfg).intersection(OWN_BATCH)) if cfg.METHOD.NAME != "random" else []


def check_settings(cfg: CfgNode) -> None:
    """Judge all that can be judged without data.

    Raises:
        InputError: names the key, its value and what would be right.
    """
    check(cfg, RULES)
    check_device(cfg.RUN.DEVICE, "RUN.DEVICE")
    check_norms(cfg.NORM.STUDENT, cfg.NORM.TEACHER if cfg.METHOD.NAME in WITH_TEACHER else None)
    refuse(_contradictions(cfg))


def _contradictions(cfg: CfgNode) -> Iterator[str]:
    crop, moco = cfg.DATA.CROP_SCALE, cfg.MOCO
    if crop and crop[0] > crop[1]:
        yield f"expected DATA.CROP_SCALE [low, high], found {list(crop)}"
    micro, rest = divmod(cfg.SOLVER.BATCH_SIZE, cfg.SOLVER.ACCUMULATE)
    if cfg.NORM.GROUP and not rest and micro % cfg.NORM.GROUP:
        yield (
            f"expected NORM.GROUP to divide a micro-batch of {micro} images, found {cfg.NORM.GROUP}; give NORM.GROUP "
            f"{micro}, or another batch"
        )
    if cfg.METHOD.NAME == "moco" and moco.TEACHER_PREDICTOR and not moco.PREDICTOR:
        yield "expected MOCO.PREDICTOR True under MOCO.TEACHER_PREDICTOR, found False: the teacher's is a copy of it"
