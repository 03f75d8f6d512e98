"""Every pretraining setting that can be judged without data, judged before anything is computed or written."""

from __future__ import annotations

import itertools
import math
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.errors import InputError
from momentum_transfer.schedules import LR_SCHEDULES, check_choice
from momentum_transfer.settings import value_of
from pretrain.methods import METHODS, check_teacher
from pretrain.optimizers import OPTIMIZERS

PRECISIONS = ("float32", "bf16", "fp16")
_MANY = 2**31 - 1
#: key -> lowest and highest value, both allowed. The upper ends catch slips of the keyboard, not large machines.
_RANGES: dict[str, tuple[float, float]] = {
    "SEED": (0, _MANY),
    "MODEL.WIDTH": (1, 4096),
    "HEAD.HIDDEN": (1, 2**20),
    "HEAD.OUTPUT": (1, 2**20),
    "HEAD.PREDICTOR_HIDDEN": (0, 2**20),
    "MOCO.QUEUE": (1, 2**26),
    "DATA.IMAGE_SIZE": (1, 2**13),
    "DATA.CANVAS": (0, 2**14),
    "DATA.MAX_UNREADABLE": (0, _MANY),
    "DATA.WORKERS": (0, 1024),
    "SOLVER.BATCH_SIZE": (1, 2**24),
    "SOLVER.BASE_BATCH_SIZE": (1, 2**24),
    "SOLVER.ACCUMULATE": (1, 2**24),
    "SOLVER.EPOCHS": (1, _MANY),
    "SOLVER.STEPS": (0, _MANY),
    "SOLVER.WARMUP_EPOCHS": (0, 1e9),
    "SOLVER.WARMUP_FACTOR": (0, 1),
    "SOLVER.MOMENTUM": (0, 1),
    "SOLVER.WEIGHT_DECAY": (0, 1e9),
    "SOLVER.GAMMA": (0, 1),
    "RUN.CHECKPOINT_EVERY": (1, _MANY),
    "RUN.KEEP": (1, _MANY),
    "RUN.LOG_EVERY": (1, _MANY),
    "RUN.KNN_EVERY": (0, 1e9),
    "RUN.CALIBRATION_BATCHES": (1, _MANY),
}
_ABOVE_ZERO = ("SOLVER.BASE_LR", "SOLVER.ETA", "MOCO.TEMPERATURE")


def check_settings(cfg: CfgNode) -> None:
    """Raises InputError, which names the key, its value and what would be right."""
    check_choice("METHOD.NAME", cfg.METHOD.NAME, tuple(METHODS))
    check_choice("SOLVER.OPTIMIZER", cfg.SOLVER.OPTIMIZER, OPTIMIZERS)
    check_choice("SOLVER.SCHEDULE", cfg.SOLVER.SCHEDULE, LR_SCHEDULES)
    check_choice("RUN.PRECISION", cfg.RUN.PRECISION, PRECISIONS)
    for key, (low, high) in _RANGES.items():
        value = value_of(cfg, key)
        if not low <= value <= high:  # NaN is outside too
            expected = f"above {low - 1:g}" if low == 1 else f"of at least {low:g}"
            limit = "" if value < low or high >= _MANY else f" and at most {high:g}"
            raise InputError(f"expected {key} {expected}{limit}, found {value}; correct the config")
    for key in _ABOVE_ZERO:
        value = value_of(cfg, key)
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"expected {key} above 0, found {value}; correct the config")
    check_teacher(cfg)
    _check_lists(cfg)
    if not cfg.OUTPUT_DIR.strip():
        raise InputError("expected a folder for OUTPUT_DIR, found ''; name one that is to be made")


def _check_lists(cfg: CfgNode) -> None:
    milestones = cfg.SOLVER.MILESTONES
    ascending = _numbers(milestones) and all(a < b for a, b in itertools.pairwise(milestones))
    if not ascending or not all(0 < share < 1 for share in milestones):
        raise InputError(
            f"expected SOLVER.MILESTONES as ascending shares of the run, such as [0.6, 0.8], found {milestones!r}; "
            "divide epochs by SOLVER.EPOCHS"
        )
    scale = cfg.DATA.CROP_SCALE
    if not _numbers(scale) or len(scale) not in (0, 2):
        raise InputError(f"expected DATA.CROP_SCALE [low, high] or [], found {scale!r}; correct the config")
    if not isinstance(cfg.DATA.REMOVE, list | tuple) or not all(isinstance(name, str) for name in cfg.DATA.REMOVE):
        raise InputError(f"expected DATA.REMOVE as a list of names, found {cfg.DATA.REMOVE!r}; correct the config")


def _numbers(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )
