"""What every setting of dense transfer may be, by key, and which contradict each other.

Defaults are in ``transfer/config.py``. Words that only the torchvision engine lacks are in its ``capabilities.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from fvcore.common.config import CfgNode

from momentum_transfer.core.devices import check_device
from momentum_transfer.core.ranges import (
    ANY_PATH,
    COUNT,
    COUNT_OR_NONE,
    DEVICE,
    NOT_NEGATIVE,
    PATH,
    POSITIVE,
    SEED,
    UNIT,
    Choice,
    Many,
    Number,
    Rule,
    Words,
    check,
    refuse,
)
from momentum_transfer.core.settings import value_of
from momentum_transfer.transfer import backbone_checks
from momentum_transfer.transfer.config import NETWORKS, get_cfg

_NAME = Words(r"[\w.:/-]*", "as a name")
_LEVELS = Many(Words(r"\w+", "such as res4 or p3"))
_FINITE = Number()
_PIXELS = Number(1, 2**16, whole=True, unit="px")
_STEPS = Number(1, whole=True, unit="iterations")
_STEPS_OR_NONE = Number(0, whole=True, unit="iterations")
_IOU = Many(UNIT, ascending=True)
_LABELS = Many(Choice((-1, 0, 1)))
_BOX_WEIGHTS = Many(POSITIVE, lengths=(4,))
_OPEN_SHARE = Number(0, 1, above=True, below=True)


def _section(name: str, rules: dict[str, Rule]) -> dict[str, Rule]:
    return {f"{name}.{key}": rule for key, rule in rules.items()}


_BACKBONE: dict[str, Rule] = {
    "MODEL.META_ARCHITECTURE": Choice(NETWORKS),
    "MODEL.DEVICE": DEVICE,
    "MODEL.WEIGHTS": ANY_PATH,
    "MODEL.PIXEL_MEAN": Many(_FINITE, lengths=(3,)),
    "MODEL.PIXEL_STD": Many(POSITIVE, lengths=(3,)),
    "MODEL.BACKBONE.NAME": _NAME,
    "MODEL.BACKBONE.FREEZE_AT": Number(0, 5, whole=True, unit="stages"),
    "MODEL.BACKBONE.ARCH": Words(r"(timm:[^\0\s]+)?", "as timm:NAME[?key=value…], or empty for a ResNet"),
    "MODEL.BACKBONE.PIXELS": Choice(("network", "settings")),
    "MODEL.BACKBONE.NORM": Choice(("", "SyncBN", "FrozenBN")),
    "MODEL.BACKBONE.DROP_PATH": Number(0, 1, below=True),
    "MODEL.BACKBONE.SQUARE": Number(0, 2**16, whole=True, unit="px", note="0: no square"),
    "MODEL.VIT.FORM": Choice(("network", "vitdet")),
    "MODEL.VIT.WINDOW": COUNT_OR_NONE,
    "MODEL.VIT.GLOBAL_BLOCKS": COUNT,
    **_section(
        "MODEL.RESNETS",
        {
            "DEPTH": COUNT,
            "OUT_FEATURES": _LEVELS,
            "NORM": _NAME,
            "WIDTH_PER_GROUP": COUNT,
            "RES4_DILATION": COUNT,
            "RES5_DILATION": COUNT,
            "RES5_MULTI_GRID": Many(COUNT, least=1),
            "RES2_OUT_CHANNELS": COUNT,
            "STEM_OUT_CHANNELS": COUNT,
            "STEM_TYPE": _NAME,
        },
    ),
    **_section("MODEL.FPN", {"IN_FEATURES": _LEVELS, "OUT_CHANNELS": COUNT, "NORM": _NAME}),
}
_REGIONS: dict[str, Rule] = {
    "MODEL.PROPOSAL_GENERATOR.NAME": _NAME,
    "MODEL.PROPOSAL_GENERATOR.MIN_SIZE": NOT_NEGATIVE,
    **_section(
        "MODEL.ANCHOR_GENERATOR",
        {
            "SIZES": Many(POSITIVE, least=1, nested=True),
            "ASPECT_RATIOS": Many(POSITIVE, least=1, nested=True),
            "OFFSET": Number(0, 1, below=True),
        },
    ),
    **_section(
        "MODEL.RPN",
        {
            "HEAD_NAME": _NAME,
            "CONV_DIMS": Many(Number(-1, whole=True, note="-1: as many as the levels have"), least=1),
            "IN_FEATURES": _LEVELS,
            "IOU_THRESHOLDS": _IOU,
            "IOU_LABELS": _LABELS,
            "BATCH_SIZE_PER_IMAGE": COUNT,
            "POSITIVE_FRACTION": UNIT,
            "BBOX_REG_WEIGHTS": _BOX_WEIGHTS,
            "BBOX_REG_LOSS_WEIGHT": NOT_NEGATIVE,
            "LOSS_WEIGHT": NOT_NEGATIVE,
            "SMOOTH_L1_BETA": NOT_NEGATIVE,
            "PRE_NMS_TOPK_TRAIN": COUNT,
            "PRE_NMS_TOPK_TEST": COUNT,
            "POST_NMS_TOPK_TRAIN": COUNT,
            "POST_NMS_TOPK_TEST": COUNT,
            "NMS_THRESH": UNIT,
        },
    ),
    **_section(
        "MODEL.ROI_HEADS",
        {
            "NAME": _NAME,
            "NUM_CLASSES": COUNT,
            "IN_FEATURES": _LEVELS,
            "IOU_THRESHOLDS": _IOU,
            "IOU_LABELS": _LABELS,
            "BATCH_SIZE_PER_IMAGE": COUNT,
            "POSITIVE_FRACTION": UNIT,
            "SCORE_THRESH_TEST": UNIT,
            "NMS_THRESH_TEST": UNIT,
        },
    ),
    **_section(
        "MODEL.ROI_BOX_HEAD",
        {
            "NAME": _NAME,
            "BBOX_REG_LOSS_TYPE": _NAME,
            "BBOX_REG_LOSS_WEIGHT": NOT_NEGATIVE,
            "BBOX_REG_WEIGHTS": _BOX_WEIGHTS,
            "SMOOTH_L1_BETA": NOT_NEGATIVE,
            "POOLER_RESOLUTION": COUNT,
            "POOLER_SAMPLING_RATIO": COUNT_OR_NONE,
            "POOLER_TYPE": _NAME,
            "NUM_FC": COUNT_OR_NONE,
            "FC_DIM": COUNT,
            "NUM_CONV": COUNT_OR_NONE,
            "CONV_DIM": COUNT,
            "NORM": _NAME,
        },
    ),
    "MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS": Many(_BOX_WEIGHTS),
    "MODEL.ROI_BOX_CASCADE_HEAD.IOUS": Many(UNIT),
    **_section(
        "MODEL.ROI_MASK_HEAD",
        {
            "NAME": _NAME,
            "POOLER_RESOLUTION": COUNT,
            "POOLER_SAMPLING_RATIO": COUNT_OR_NONE,
            "POOLER_TYPE": _NAME,
            "NUM_CONV": COUNT_OR_NONE,
            "CONV_DIM": COUNT,
            "NORM": _NAME,
        },
    ),
}
_DENSE: dict[str, Rule] = {
    "IN_FEATURES": _LEVELS,
    "NUM_CLASSES": COUNT,
    "NUM_CONVS": COUNT_OR_NONE,
    "NORM": _NAME,
    "PRIOR_PROB": _OPEN_SHARE,
    "FOCAL_LOSS_GAMMA": NOT_NEGATIVE,
    "FOCAL_LOSS_ALPHA": Number(high=1, note="below 0: no weights"),
    "SCORE_THRESH_TEST": UNIT,
    "NMS_THRESH_TEST": UNIT,
    "TOPK_CANDIDATES_TEST": COUNT,
}
_OTHER_HEADS: dict[str, Rule] = {
    **_section("MODEL.RETINANET", _DENSE),
    **_section(
        "MODEL.RETINANET",
        {
            "IOU_THRESHOLDS": _IOU,
            "IOU_LABELS": _LABELS,
            "BBOX_REG_WEIGHTS": _BOX_WEIGHTS,
            "BBOX_REG_LOSS_TYPE": _NAME,
            "SMOOTH_L1_LOSS_BETA": NOT_NEGATIVE,
        },
    ),
    **_section("MODEL.FCOS", _DENSE),
    "MODEL.FCOS.CENTER_SAMPLING_RADIUS": POSITIVE,
    **_section(
        "MODEL.SEM_SEG_HEAD",
        {
            "NAME": _NAME,
            "IN_FEATURES": _LEVELS,
            "NUM_CLASSES": Number(1, 255, whole=True, unit="classes"),
            "IGNORE_VALUE": Number(0, 255, whole=True),
            "CONVS_DIM": COUNT,
            "COMMON_STRIDE": COUNT,
            "NORM": _NAME,
            "LOSS_WEIGHT": NOT_NEGATIVE,
            "LOSS_TYPE": _NAME,
            "BLOCKS": COUNT,
            "CACHE": ANY_PATH,
            "CACHE_GB": NOT_NEGATIVE,
            "ASPP_CHANNELS": COUNT,
            "ASPP_DILATIONS": Many(COUNT),
            "ASPP_DROPOUT": UNIT,
        },
    ),
}
_DATA: dict[str, Rule] = {
    "INPUT.MIN_SIZE_TRAIN": Many(_PIXELS, least=1),
    "INPUT.MAX_SIZE_TRAIN": _PIXELS,
    "INPUT.MIN_SIZE_TEST": _PIXELS,
    "INPUT.MAX_SIZE_TEST": _PIXELS,
    "INPUT.MIN_SIZE_TRAIN_SAMPLING": _NAME,
    "INPUT.RANDOM_FLIP": _NAME,
    "INPUT.FORMAT": _NAME,
    "INPUT.MASK_FORMAT": _NAME,
    "INPUT.CROP.TYPE": _NAME,
    "INPUT.CROP.SIZE": Many(POSITIVE, lengths=(2,)),
    "INPUT.CROP.SINGLE_CATEGORY_MAX_AREA": UNIT,
    "DATASETS.ROOT": ANY_PATH,
    "DATASETS.TRAIN": Many(PATH),
    "DATASETS.TEST": Many(PATH),
    "DATALOADER.NUM_WORKERS": Number(0, 1024, whole=True, unit="processes"),
    "DATALOADER.SAMPLER_TRAIN": _NAME,
    "DATALOADER.REPEAT_THRESHOLD": UNIT,
}
_SOLVER: dict[str, Rule] = {
    "MAX_ITER": _STEPS,
    "IMS_PER_BATCH": Number(1, whole=True, unit="images"),
    "CHECKPOINT_PERIOD": _STEPS,
    "OPTIMIZER": Choice(("SGD", "AdamW")),
    "LAYER_DECAY": Number(0, 1, above=True),
    "BETAS": Many(Number(0, 1, below=True), lengths=(2,)),
    "LR_SCHEDULER_NAME": _NAME,
    "STEPS": Many(_STEPS_OR_NONE),
    "BASE_LR": POSITIVE,
    "BASE_LR_END": NOT_NEGATIVE,
    "GAMMA": NOT_NEGATIVE,
    "MOMENTUM": UNIT,
    "WEIGHT_DECAY": NOT_NEGATIVE,
    "WEIGHT_DECAY_NORM": NOT_NEGATIVE,
    "WARMUP_ITERS": _STEPS_OR_NONE,
    "WARMUP_FACTOR": UNIT,
    "WARMUP_METHOD": _NAME,
    "POLY_LR_POWER": NOT_NEGATIVE,
    "POLY_LR_CONSTANT_ENDING": UNIT,
    "CLIP_GRADIENTS.CLIP_TYPE": _NAME,
    "CLIP_GRADIENTS.CLIP_VALUE": POSITIVE,
    "CLIP_GRADIENTS.NORM_TYPE": POSITIVE,
    "AMP.PRECISION": Choice(("float16", "bfloat16")),
}
#: Every key of the defaults but the switches.
RULES: dict[str, Rule] = {
    "VERSION": COUNT,
    "OUTPUT_DIR": PATH,
    "ENGINE": Choice(("auto", "detectron2", "torchvision")),
    "PROTOCOL": Words(r"[^\0\n]*", "as one line of text"),
    "TRIALS": COUNT,
    "FIT_RATE": POSITIVE,
    "SEED": SEED,
    **_BACKBONE,
    **_REGIONS,
    **_OTHER_HEADS,
    **_DATA,
    **_section("SOLVER", _SOLVER),
    "TEST.VISUALS": Number(0, whole=True, unit="images"),
    "TEST.EVAL_PERIOD": Number(0, whole=True, unit="iterations", note="0: at the end only"),
    "TEST.DETECTIONS_PER_IMAGE": COUNT,
    "TEST.PRECISE_BN.NUM_ITER": Number(1, whole=True, unit="batches"),
}
#: What a ResNet of MODEL.RESNETS has no place for.
_TIMM_ONLY = ("MODEL.BACKBONE.NORM", "MODEL.BACKBONE.DROP_PATH", "MODEL.BACKBONE.SQUARE", "MODEL.VIT.FORM",
              "MODEL.VIT.WINDOW", "MODEL.VIT.RELATIVE_POSITIONS", "SOLVER.LAYER_DECAY")  # fmt: skip
_NORMS = {"MODEL.FPN": "OUT_CHANNELS", "MODEL.ROI_BOX_HEAD": "CONV_DIM", "MODEL.ROI_MASK_HEAD": "CONV_DIM"}


def check_settings(cfg: CfgNode) -> None:
    """Judge all that no engine and no data need to be asked about.

    Raises:
        InputError: the first setting that is out of its range or does not fit another one.
    """
    check(cfg, RULES)
    check_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")
    refuse(_contradictions(cfg))


def _contradictions(cfg: CfgNode) -> Iterator[str]:
    sizes = cfg.INPUT.MIN_SIZE_TRAIN
    if cfg.INPUT.MIN_SIZE_TRAIN_SAMPLING == "range" and (len(sizes) != 2 or sizes[0] > sizes[-1]):
        yield f"expected two ascending sizes in INPUT.MIN_SIZE_TRAIN for a range, found {list(sizes)}"
    if cfg.SOLVER.NESTEROV and not cfg.SOLVER.MOMENTUM:
        yield "expected SOLVER.MOMENTUM above 0 with SOLVER.NESTEROV, found 0"
    yield from backbone_problems(cfg)
    for name in ("RPN", "ROI_HEADS", "RETINANET"):
        if len(cfg.MODEL[name].IOU_LABELS) != len(cfg.MODEL[name].IOU_THRESHOLDS) + 1:
            yield f"expected MODEL.{name}.IOU_LABELS one longer than IOU_THRESHOLDS, found it is not"
    if cfg.MODEL.ROI_HEADS.NAME == "CascadeROIHeads":
        yield from _cascade_problems(cfg)
    for key, width in _NORMS.items():
        if value_of(cfg, key).NORM == "GN" and value_of(cfg, key)[width] % 32:
            yield f"expected a multiple of 32 in {key}.{width} for GN, found {value_of(cfg, key)[width]}"
    dense = {"FCOS": cfg.MODEL.FCOS.NORM, "RetinaNet": cfg.MODEL.RETINANET.NORM}
    if dense.get(cfg.MODEL.META_ARCHITECTURE) == "GN" and cfg.MODEL.FPN.OUT_CHANNELS % 32:
        yield f"expected a multiple of 32 in MODEL.FPN.OUT_CHANNELS for GN, found {cfg.MODEL.FPN.OUT_CHANNELS}"


def backbone_problems(cfg: CfgNode) -> Iterator[str]:
    """What a frozen backbone and another one than a ResNet cannot be combined with."""
    c4 = cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN" and cfg.MODEL.BACKBONE.NAME == "build_resnet_backbone"
    if cfg.MODEL.BACKBONE.FROZEN and c4:
        yield "expected MODEL.BACKBONE.FROZEN with a pyramid, found a C4 detector, whose head is the backbone's res5"
    if cfg.MODEL.BACKBONE.ARCH:
        yield from backbone_checks.problems(cfg)
        return
    defaults = get_cfg()
    for key in _TIMM_ONLY:
        if value_of(cfg, key) != value_of(defaults, key):
            yield f"expected MODEL.BACKBONE.ARCH with {key}, found none; name a network of timm, or leave {key} out"


def _cascade_problems(cfg: CfgNode) -> Iterator[str]:
    """What a cascade needs; Detectron2 asserts the same."""
    cascade = cfg.MODEL.ROI_BOX_CASCADE_HEAD
    if not cascade.IOUS or len(cascade.IOUS) != len(cascade.BBOX_REG_WEIGHTS):
        yield "expected as many BBOX_REG_WEIGHTS as IOUS in MODEL.ROI_BOX_CASCADE_HEAD, found others"
    elif list(cfg.MODEL.ROI_HEADS.IOU_THRESHOLDS) != [cascade.IOUS[0]]:
        found = list(cfg.MODEL.ROI_HEADS.IOU_THRESHOLDS)
        yield f"expected MODEL.ROI_HEADS.IOU_THRESHOLDS [{cascade.IOUS[0]}], the cascade's first of IOUS, found {found}"
    if not cfg.MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG:
        yield "expected MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG True for a cascade, found False"
