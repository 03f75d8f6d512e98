"""Settings that no engine could make sense of are refused before weights and data are read, not after a training."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.errors import InputError
from momentum_transfer.settings import value_of
from transfer.config import is_semantic


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``; ``inside`` leaves the ends out."""

    low: float
    high: float = math.inf
    inside: bool = False

    def holds(self, value: Any) -> bool:
        if not isinstance(value, int | float):
            return False
        return self.low < value < self.high if self.inside else self.low <= value <= self.high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"more than {self.low:g}" if self.inside else f"of at least {self.low:g}"
        return f"between {self.low:g} and {self.high:g}" + (", ends excluded" if self.inside else "")


_COUNT, _MAYBE, _SHARE, _POSITIVE = Range(1), Range(0), Range(0, 1), Range(0, inside=True)
#: Key → numbers that make sense. A list is checked element by element.
RANGES = {
    "TRIALS": _COUNT,
    "SEED": Range(0, 2**31),
    "SOLVER.MAX_ITER": _COUNT,
    "SOLVER.IMS_PER_BATCH": _COUNT,
    "SOLVER.CHECKPOINT_PERIOD": _COUNT,
    "SOLVER.STEPS": _MAYBE,
    "SOLVER.BASE_LR": _POSITIVE,
    "SOLVER.BASE_LR_END": _MAYBE,
    "SOLVER.GAMMA": _MAYBE,
    "SOLVER.MOMENTUM": _SHARE,
    "SOLVER.WEIGHT_DECAY": _MAYBE,
    "SOLVER.WEIGHT_DECAY_NORM": _MAYBE,
    "SOLVER.WARMUP_ITERS": _MAYBE,
    "SOLVER.WARMUP_FACTOR": _SHARE,
    "SOLVER.POLY_LR_POWER": _MAYBE,
    "SOLVER.POLY_LR_CONSTANT_ENDING": _SHARE,
    "SOLVER.CLIP_GRADIENTS.CLIP_VALUE": _POSITIVE,
    "SOLVER.CLIP_GRADIENTS.NORM_TYPE": _POSITIVE,
    "TEST.VISUALS": _MAYBE,
    "TEST.EVAL_PERIOD": _MAYBE,
    "TEST.DETECTIONS_PER_IMAGE": _COUNT,
    "TEST.PRECISE_BN.NUM_ITER": _COUNT,
    "INPUT.MIN_SIZE_TRAIN": _COUNT,
    "INPUT.MAX_SIZE_TRAIN": _COUNT,
    "INPUT.MIN_SIZE_TEST": _COUNT,
    "INPUT.MAX_SIZE_TEST": _COUNT,
    "INPUT.CROP.SIZE": _POSITIVE,
    "INPUT.CROP.SINGLE_CATEGORY_MAX_AREA": Range(0, 1, inside=False),
    "DATALOADER.NUM_WORKERS": _MAYBE,
    "DATALOADER.REPEAT_THRESHOLD": _SHARE,
    "MODEL.PIXEL_STD": _POSITIVE,
    "MODEL.BACKBONE.FREEZE_AT": Range(0, 5),
    "MODEL.FPN.OUT_CHANNELS": _COUNT,
    "MODEL.ANCHOR_GENERATOR.SIZES": _POSITIVE,
    "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": _POSITIVE,
    "MODEL.RPN.IOU_THRESHOLDS": _SHARE,
    "MODEL.RPN.BATCH_SIZE_PER_IMAGE": _COUNT,
    "MODEL.RPN.POSITIVE_FRACTION": _SHARE,
    "MODEL.RPN.BBOX_REG_WEIGHTS": _POSITIVE,
    "MODEL.RPN.SMOOTH_L1_BETA": _MAYBE,
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN": _COUNT,
    "MODEL.RPN.PRE_NMS_TOPK_TEST": _COUNT,
    "MODEL.RPN.POST_NMS_TOPK_TRAIN": _COUNT,
    "MODEL.RPN.POST_NMS_TOPK_TEST": _COUNT,
    "MODEL.RPN.NMS_THRESH": _SHARE,
    "MODEL.PROPOSAL_GENERATOR.MIN_SIZE": _MAYBE,
    "MODEL.ROI_HEADS.NUM_CLASSES": _COUNT,
    "MODEL.ROI_HEADS.IOU_THRESHOLDS": _SHARE,
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": _COUNT,
    "MODEL.ROI_HEADS.POSITIVE_FRACTION": _SHARE,
    "MODEL.ROI_HEADS.SCORE_THRESH_TEST": _SHARE,
    "MODEL.ROI_HEADS.NMS_THRESH_TEST": _SHARE,
    "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": _POSITIVE,
    "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": _MAYBE,
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": _COUNT,
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": _MAYBE,
    "MODEL.ROI_BOX_HEAD.NUM_FC": _MAYBE,
    "MODEL.ROI_BOX_HEAD.FC_DIM": _COUNT,
    "MODEL.ROI_BOX_HEAD.NUM_CONV": _MAYBE,
    "MODEL.ROI_BOX_HEAD.CONV_DIM": _COUNT,
    "MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS": _POSITIVE,
    "MODEL.ROI_BOX_CASCADE_HEAD.IOUS": _SHARE,
    "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": _COUNT,
    "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO": _MAYBE,
    "MODEL.ROI_MASK_HEAD.NUM_CONV": _MAYBE,
    "MODEL.ROI_MASK_HEAD.CONV_DIM": _COUNT,
    "MODEL.RETINANET.NUM_CLASSES": _COUNT,
    "MODEL.RETINANET.NUM_CONVS": _MAYBE,
    "MODEL.RETINANET.IOU_THRESHOLDS": _SHARE,
    "MODEL.RETINANET.PRIOR_PROB": Range(0, 1, inside=True),
    "MODEL.RETINANET.SCORE_THRESH_TEST": _SHARE,
    "MODEL.RETINANET.NMS_THRESH_TEST": _SHARE,
    "MODEL.RETINANET.TOPK_CANDIDATES_TEST": _COUNT,
    "MODEL.RETINANET.BBOX_REG_WEIGHTS": _POSITIVE,
    "MODEL.RETINANET.FOCAL_LOSS_GAMMA": _MAYBE,
    "MODEL.RETINANET.SMOOTH_L1_LOSS_BETA": _MAYBE,
    "MODEL.FCOS.NUM_CLASSES": _COUNT,
    "MODEL.FCOS.NUM_CONVS": _MAYBE,
    "MODEL.FCOS.PRIOR_PROB": Range(0, 1, inside=True),
    "MODEL.FCOS.CENTER_SAMPLING_RADIUS": _POSITIVE,
    "MODEL.FCOS.FOCAL_LOSS_GAMMA": _MAYBE,
    "MODEL.FCOS.SCORE_THRESH_TEST": _SHARE,
    "MODEL.FCOS.NMS_THRESH_TEST": _SHARE,
    "MODEL.FCOS.TOPK_CANDIDATES_TEST": _COUNT,
    "MODEL.SEM_SEG_HEAD.NUM_CLASSES": Range(1, 255),
    "MODEL.SEM_SEG_HEAD.IGNORE_VALUE": Range(0, 255),
    "MODEL.SEM_SEG_HEAD.ASPP_DROPOUT": _SHARE,
    "MODEL.SEM_SEG_HEAD.ASPP_DILATIONS": _COUNT,
}
#: Key → how many numbers its list has.
LENGTHS = {
    "MODEL.PIXEL_MEAN": 3,
    "MODEL.PIXEL_STD": 3,
    "MODEL.RPN.BBOX_REG_WEIGHTS": 4,
    "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": 4,
    "MODEL.RETINANET.BBOX_REG_WEIGHTS": 4,
    "INPUT.CROP.SIZE": 2,
}
_NORMS = {"MODEL.FPN": "OUT_CHANNELS", "MODEL.ROI_BOX_HEAD": "CONV_DIM", "MODEL.ROI_MASK_HEAD": "CONV_DIM"}


def check_settings(cfg: CfgNode) -> None:
    """Raises InputError for the first setting that is out of its range or does not fit another one."""
    for key, allowed in RANGES.items():
        value = value_of(cfg, key)
        for one in _numbers(value):
            if not allowed.holds(one):
                raise InputError(f"expected {key} {allowed}, found {one!r}; correct the config")
    for key, length in LENGTHS.items():
        if len(value_of(cfg, key)) != length:
            raise InputError(
                f"expected {length} numbers in {key}, found {list(value_of(cfg, key))}; correct the config"
            )
    problem = next(_problems(cfg), None)
    if problem:
        raise InputError(f"{problem}; correct the config")


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _numbers(one)
    else:
        yield value


def _ascending(values: Sequence[float]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))


def _problems(cfg: CfgNode) -> Iterator[str]:
    """Settings that contradict each other."""
    sizes = cfg.INPUT.MIN_SIZE_TRAIN
    if not sizes:
        yield "expected a size in INPUT.MIN_SIZE_TRAIN, found none"
    if cfg.INPUT.MIN_SIZE_TRAIN_SAMPLING == "range" and (len(sizes) != 2 or sizes[0] > sizes[-1]):
        yield f"expected two ascending sizes in INPUT.MIN_SIZE_TRAIN for a range, found {list(sizes)}"
    if cfg.SOLVER.NESTEROV and not cfg.SOLVER.MOMENTUM:
        yield "expected SOLVER.MOMENTUM above 0 with SOLVER.NESTEROV"
    if not re.fullmatch(r"cpu|cuda(:\d+)?|mps", cfg.MODEL.DEVICE):
        yield f"expected MODEL.DEVICE cpu, cuda, cuda:N or mps, found {cfg.MODEL.DEVICE!r}"
    if is_semantic(cfg):
        return
    for name in ("RPN", "ROI_HEADS", "RETINANET"):
        if len(cfg.MODEL[name].IOU_LABELS) != len(cfg.MODEL[name].IOU_THRESHOLDS) + 1:
            yield f"MODEL.{name}.IOU_LABELS is not one longer than IOU_THRESHOLDS"
        if not _ascending(cfg.MODEL[name].IOU_THRESHOLDS):
            yield f"expected ascending MODEL.{name}.IOU_THRESHOLDS, found {list(cfg.MODEL[name].IOU_THRESHOLDS)}"
    if cfg.MODEL.ROI_HEADS.NAME == "CascadeROIHeads":
        yield from _cascade_problems(cfg)
    for weights in cfg.MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS:
        if len(weights) != 4:
            yield f"expected four weights a stage in MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS, found {list(weights)}"
    for key, width in _NORMS.items():
        if value_of(cfg, key).NORM == "GN" and value_of(cfg, key)[width] % 32:
            yield f"expected a multiple of 32 in {key}.{width} for GN, found {value_of(cfg, key)[width]}"
    dense = {"FCOS": cfg.MODEL.FCOS.NORM, "RetinaNet": cfg.MODEL.RETINANET.NORM}
    if dense.get(cfg.MODEL.META_ARCHITECTURE) == "GN" and cfg.MODEL.FPN.OUT_CHANNELS % 32:
        yield f"expected a multiple of 32 in MODEL.FPN.OUT_CHANNELS for GN, found {cfg.MODEL.FPN.OUT_CHANNELS}"
    if not cfg.MODEL.ANCHOR_GENERATOR.SIZES or not cfg.MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS:
        yield "expected MODEL.ANCHOR_GENERATOR.SIZES and ASPECT_RATIOS, found an empty list"


def _cascade_problems(cfg: CfgNode) -> Iterator[str]:
    """What a cascade needs; Detectron2 asserts the same."""
    cascade = cfg.MODEL.ROI_BOX_CASCADE_HEAD
    if not cascade.IOUS or len(cascade.IOUS) != len(cascade.BBOX_REG_WEIGHTS):
        yield "MODEL.ROI_BOX_CASCADE_HEAD: IOUS and BBOX_REG_WEIGHTS are not of one length"
    elif list(cfg.MODEL.ROI_HEADS.IOU_THRESHOLDS) != [cascade.IOUS[0]]:
        yield "MODEL.ROI_HEADS.IOU_THRESHOLDS is not the first of MODEL.ROI_BOX_CASCADE_HEAD.IOUS"
    if not cfg.MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG:
        yield "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG is not True, as a cascade needs it"
