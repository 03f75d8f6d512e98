"""Settings of dense transfer: one table for defaults, checks, documentation and identity.

Keys and defaults are Detectron2's for what is used here, and a few of our own. A YAML file written for these settings
also merges into Detectron2's own configuration once ``add_own_keys`` has been applied to it; a test holds that. Keys
that Detectron2 has and this project does not use are absent, so that setting one is an error and not silently without
effect. Words that only the torchvision engine lacks are in its ``capabilities.py``.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fvcore.common.config import CfgNode

from momentum_transfer.core.ranges import (
    ANY_PATH,
    COUNT,
    COUNT_OR_NONE,
    DEVICE,
    NOT_NEGATIVE,
    NOTHING,
    PATH,
    POSITIVE,
    SCORES,
    SEED,
    SWITCH,
    UNIT,
    Choice,
    Many,
    Number,
    Setting,
    Words,
    add_defaults,
    check,
    refuse,
    table,
)
from momentum_transfer.core.settings import config_hash, load_config, value_of
from momentum_transfer.core.shipped import VARIANTS

#: MODEL.META_ARCHITECTURE -> its task (``transfer/tasks``), and the section of MODEL that holds the class count.
NETWORKS = {
    "GeneralizedRCNN": ("detection", "ROI_HEADS"),
    "RetinaNet": ("detection", "RETINANET"),
    "FCOS": ("detection", "FCOS"),
    "SemanticSegmentor": ("segmentation", "SEM_SEG_HEAD"),
}

_NAME = Words(r"[\w.:/-]*", "as a name")
_LEVELS = Many(Words(r"\w+", "such as res4 or p3"))
_PIXELS = Number(1, 2**16, whole=True, unit="px")
_STEPS = Number(1, whole=True, unit="iterations")
_STEPS_OR_NONE = Number(0, whole=True, unit="iterations")
_IOU = Many(UNIT, ascending=True)
_LABELS = Many(Choice((-1, 0, 1)))
_BOX_WEIGHTS = Many(POSITIVE, lengths=(4,))
_OPEN = Number(0, 1, above=True, below=True)

_DETECTRON2 = table(
    Setting("VERSION", 2, COUNT),
    Setting("OUTPUT_DIR", "./output", PATH, "folder of the run", NOTHING),
    Setting("SEED", 0, SEED, "seed of weights and order of images; Detectron2's -1 means another one each time"),
    Setting("MODEL.META_ARCHITECTURE", "GeneralizedRCNN", Choice(NETWORKS)),
    Setting("MODEL.DEVICE", "auto", DEVICE, "Detectron2's is cuda; it is given the device that auto comes to", NOTHING),
    Setting("MODEL.WEIGHTS", "", ANY_PATH, "as --weights; records have the weights' own hash", NOTHING),
    Setting("MODEL.MASK_ON", False, SWITCH),
    Setting("MODEL.PIXEL_MEAN", [103.530, 116.280, 123.675], Many(Number(), lengths=(3,))),
    Setting("MODEL.PIXEL_STD", [1.0, 1.0, 1.0], Many(POSITIVE, lengths=(3,))),
    Setting("MODEL.BACKBONE.NAME", "build_resnet_backbone", _NAME),
    Setting("MODEL.BACKBONE.FREEZE_AT", 2, Number(0, 5, whole=True, unit="stages")),
    Setting("MODEL.RESNETS.DEPTH", 50, COUNT),
    Setting("MODEL.RESNETS.OUT_FEATURES", ["res4"], _LEVELS),
    Setting("MODEL.RESNETS.NORM", "FrozenBN", _NAME),
    Setting("MODEL.RESNETS.WIDTH_PER_GROUP", 64, COUNT),
    Setting("MODEL.RESNETS.STRIDE_IN_1X1", True, SWITCH),
    Setting("MODEL.RESNETS.RES5_DILATION", 1, COUNT),
    Setting("MODEL.RESNETS.RES2_OUT_CHANNELS", 256, COUNT),
    Setting("MODEL.RESNETS.STEM_OUT_CHANNELS", 64, COUNT),
    Setting("MODEL.FPN.IN_FEATURES", [], _LEVELS),
    Setting("MODEL.FPN.OUT_CHANNELS", 256, COUNT),
    Setting("MODEL.FPN.NORM", "", _NAME),
    Setting("MODEL.PROPOSAL_GENERATOR.NAME", "RPN", _NAME),
    Setting("MODEL.PROPOSAL_GENERATOR.MIN_SIZE", 0, NOT_NEGATIVE),
    Setting("MODEL.ANCHOR_GENERATOR.SIZES", [[32, 64, 128, 256, 512]], Many(POSITIVE, least=1, nested=True)),
    Setting("MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS", [[0.5, 1.0, 2.0]], Many(POSITIVE, least=1, nested=True)),
    Setting("MODEL.ANCHOR_GENERATOR.OFFSET", 0.0, Number(0, 1, below=True)),
    Setting("MODEL.RPN.HEAD_NAME", "StandardRPNHead", _NAME),
    Setting("MODEL.RPN.CONV_DIMS", [-1],
            Many(Number(-1, whole=True, note="-1: as many as the levels have"), least=1)),
    Setting("MODEL.RPN.IN_FEATURES", ["res4"], _LEVELS),
    Setting("MODEL.RPN.IOU_THRESHOLDS", [0.3, 0.7], _IOU),
    Setting("MODEL.RPN.IOU_LABELS", [0, -1, 1], _LABELS),
    Setting("MODEL.RPN.BATCH_SIZE_PER_IMAGE", 256, COUNT),
    Setting("MODEL.RPN.POSITIVE_FRACTION", 0.5, UNIT),
    Setting("MODEL.RPN.BBOX_REG_LOSS_WEIGHT", 1.0, NOT_NEGATIVE),
    Setting("MODEL.RPN.BBOX_REG_WEIGHTS", (1.0, 1.0, 1.0, 1.0), _BOX_WEIGHTS),
    Setting("MODEL.RPN.SMOOTH_L1_BETA", 0.0, NOT_NEGATIVE),
    Setting("MODEL.RPN.LOSS_WEIGHT", 1.0, NOT_NEGATIVE),
    Setting("MODEL.RPN.PRE_NMS_TOPK_TRAIN", 12000, COUNT),
    Setting("MODEL.RPN.PRE_NMS_TOPK_TEST", 6000, COUNT),
    Setting("MODEL.RPN.POST_NMS_TOPK_TRAIN", 2000, COUNT),
    Setting("MODEL.RPN.POST_NMS_TOPK_TEST", 1000, COUNT),
    Setting("MODEL.RPN.NMS_THRESH", 0.7, UNIT),
    Setting("MODEL.ROI_HEADS.NAME", "Res5ROIHeads", _NAME),
    Setting("MODEL.ROI_HEADS.NUM_CLASSES", 80, COUNT),
    Setting("MODEL.ROI_HEADS.IN_FEATURES", ["res4"], _LEVELS),
    Setting("MODEL.ROI_HEADS.IOU_THRESHOLDS", [0.5], _IOU),
    Setting("MODEL.ROI_HEADS.IOU_LABELS", [0, 1], _LABELS),
    Setting("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 512, COUNT),
    Setting("MODEL.ROI_HEADS.POSITIVE_FRACTION", 0.25, UNIT),
    Setting("MODEL.ROI_HEADS.SCORE_THRESH_TEST", 0.05, UNIT),
    Setting("MODEL.ROI_HEADS.NMS_THRESH_TEST", 0.5, UNIT),
    Setting("MODEL.ROI_HEADS.PROPOSAL_APPEND_GT", True, SWITCH),
    Setting("MODEL.ROI_BOX_HEAD.NAME", "", _NAME),
    Setting("MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE", "smooth_l1", _NAME),
    Setting("MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_WEIGHT", 1.0, NOT_NEGATIVE),
    Setting("MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS", (10.0, 10.0, 5.0, 5.0), _BOX_WEIGHTS),
    Setting("MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA", 0.0, NOT_NEGATIVE),
    Setting("MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", 14, COUNT),
    Setting("MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO", 0, COUNT_OR_NONE),
    Setting("MODEL.ROI_BOX_HEAD.POOLER_TYPE", "ROIAlignV2", _NAME),
    Setting("MODEL.ROI_BOX_HEAD.NUM_FC", 0, COUNT_OR_NONE),
    Setting("MODEL.ROI_BOX_HEAD.FC_DIM", 1024, COUNT),
    Setting("MODEL.ROI_BOX_HEAD.NUM_CONV", 0, COUNT_OR_NONE),
    Setting("MODEL.ROI_BOX_HEAD.CONV_DIM", 256, COUNT),
    Setting("MODEL.ROI_BOX_HEAD.NORM", "", _NAME),
    Setting("MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG", False, SWITCH),
    Setting("MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS",
            ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0)), Many(_BOX_WEIGHTS)),
    Setting("MODEL.ROI_BOX_CASCADE_HEAD.IOUS", (0.5, 0.6, 0.7), Many(UNIT)),
    Setting("MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead", _NAME),
    Setting("MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION", 14, COUNT),
    Setting("MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO", 0, COUNT_OR_NONE),
    Setting("MODEL.ROI_MASK_HEAD.POOLER_TYPE", "ROIAlignV2", _NAME),
    Setting("MODEL.ROI_MASK_HEAD.NUM_CONV", 0, COUNT_OR_NONE),
    Setting("MODEL.ROI_MASK_HEAD.CONV_DIM", 256, COUNT),
    Setting("MODEL.ROI_MASK_HEAD.NORM", "", _NAME),
    Setting("MODEL.ROI_MASK_HEAD.CLS_AGNOSTIC_MASK", False, SWITCH),
    Setting("MODEL.RETINANET.NUM_CLASSES", 80, COUNT),
    Setting("MODEL.RETINANET.IN_FEATURES", ["p3", "p4", "p5", "p6", "p7"], _LEVELS),
    Setting("MODEL.RETINANET.NUM_CONVS", 4, COUNT_OR_NONE),
    Setting("MODEL.RETINANET.IOU_THRESHOLDS", [0.4, 0.5], _IOU),
    Setting("MODEL.RETINANET.IOU_LABELS", [0, -1, 1], _LABELS),
    Setting("MODEL.RETINANET.PRIOR_PROB", 0.01, _OPEN),
    Setting("MODEL.RETINANET.SCORE_THRESH_TEST", 0.05, UNIT),
    Setting("MODEL.RETINANET.TOPK_CANDIDATES_TEST", 1000, COUNT),
    Setting("MODEL.RETINANET.NMS_THRESH_TEST", 0.5, UNIT),
    Setting("MODEL.RETINANET.BBOX_REG_WEIGHTS", (1.0, 1.0, 1.0, 1.0), _BOX_WEIGHTS),
    Setting("MODEL.RETINANET.FOCAL_LOSS_GAMMA", 2.0, NOT_NEGATIVE),
    Setting("MODEL.RETINANET.FOCAL_LOSS_ALPHA", 0.25, Number(high=1, note="below 0: no weights")),
    Setting("MODEL.RETINANET.SMOOTH_L1_LOSS_BETA", 0.1, NOT_NEGATIVE),
    Setting("MODEL.RETINANET.BBOX_REG_LOSS_TYPE", "smooth_l1", _NAME),
    Setting("MODEL.RETINANET.NORM", "", _NAME),
    Setting("MODEL.SEM_SEG_HEAD.NAME", "SemSegFPNHead", _NAME),
    Setting("MODEL.SEM_SEG_HEAD.IN_FEATURES", ["p2", "p3", "p4", "p5"], _LEVELS),
    Setting("MODEL.SEM_SEG_HEAD.IGNORE_VALUE", 255, Number(0, 255, whole=True)),
    Setting("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 54, Number(1, 255, whole=True, unit="classes")),
    Setting("MODEL.SEM_SEG_HEAD.CONVS_DIM", 128, COUNT),
    Setting("MODEL.SEM_SEG_HEAD.COMMON_STRIDE", 4, COUNT),
    Setting("MODEL.SEM_SEG_HEAD.NORM", "GN", _NAME),
    Setting("MODEL.SEM_SEG_HEAD.LOSS_WEIGHT", 1.0, NOT_NEGATIVE),
    Setting("INPUT.MIN_SIZE_TRAIN", (800,), Many(_PIXELS, least=1)),
    Setting("INPUT.MIN_SIZE_TRAIN_SAMPLING", "choice", _NAME),
    Setting("INPUT.MAX_SIZE_TRAIN", 1333, _PIXELS),
    Setting("INPUT.MIN_SIZE_TEST", 800, _PIXELS),
    Setting("INPUT.MAX_SIZE_TEST", 1333, _PIXELS),
    Setting("INPUT.RANDOM_FLIP", "horizontal", _NAME),
    Setting("INPUT.FORMAT", "BGR", _NAME),
    Setting("INPUT.CROP.ENABLED", False, SWITCH),
    Setting("INPUT.CROP.TYPE", "relative_range", _NAME),
    Setting("INPUT.CROP.SIZE", [0.9, 0.9], Many(POSITIVE, lengths=(2,))),
    Setting("INPUT.MASK_FORMAT", "polygon", _NAME),
    Setting("DATASETS.TRAIN", (), Many(PATH)),
    Setting("DATASETS.TEST", (), Many(PATH), decides=SCORES),
    Setting("DATALOADER.NUM_WORKERS", 4, Number(0, 1024, whole=True, unit="processes"), decides=NOTHING),
    Setting("DATALOADER.ASPECT_RATIO_GROUPING", True, SWITCH),
    Setting("DATALOADER.SAMPLER_TRAIN", "TrainingSampler", _NAME),
    Setting("DATALOADER.REPEAT_THRESHOLD", 0.0, UNIT),
    Setting("DATALOADER.REPEAT_SQRT", True, SWITCH),
    Setting("DATALOADER.FILTER_EMPTY_ANNOTATIONS", True, SWITCH),
    Setting("TEST.EVAL_PERIOD", 0, Number(0, whole=True, unit="iterations", note="0: at the end only"),
            decides=SCORES),
    Setting("TEST.DETECTIONS_PER_IMAGE", 100, COUNT, decides=SCORES),
    Setting("TEST.PRECISE_BN.ENABLED", False, SWITCH),
    Setting("TEST.PRECISE_BN.NUM_ITER", 200, Number(1, whole=True, unit="batches")),
    Setting("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", _NAME),
    Setting("SOLVER.MAX_ITER", 40000, _STEPS),
    Setting("SOLVER.BASE_LR", 0.001, POSITIVE),
    Setting("SOLVER.BASE_LR_END", 0.0, NOT_NEGATIVE),
    Setting("SOLVER.MOMENTUM", 0.9, UNIT),
    Setting("SOLVER.NESTEROV", False, SWITCH),
    Setting("SOLVER.WEIGHT_DECAY", 0.0001, NOT_NEGATIVE),
    Setting("SOLVER.WEIGHT_DECAY_NORM", 0.0, NOT_NEGATIVE),
    Setting("SOLVER.GAMMA", 0.1, NOT_NEGATIVE),
    Setting("SOLVER.STEPS", (30000,), Many(_STEPS_OR_NONE)),
    Setting("SOLVER.WARMUP_FACTOR", 1.0 / 1000, UNIT),
    Setting("SOLVER.WARMUP_ITERS", 1000, _STEPS_OR_NONE),
    Setting("SOLVER.WARMUP_METHOD", "linear", _NAME),
    Setting("SOLVER.CHECKPOINT_PERIOD", 5000, _STEPS, decides=NOTHING),
    Setting("SOLVER.IMS_PER_BATCH", 16, Number(1, whole=True, unit="images")),
    Setting("SOLVER.CLIP_GRADIENTS.ENABLED", False, SWITCH),
    Setting("SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "value", _NAME),
    Setting("SOLVER.CLIP_GRADIENTS.CLIP_VALUE", 1.0, POSITIVE),
    Setting("SOLVER.CLIP_GRADIENTS.NORM_TYPE", 2.0, POSITIVE),
    Setting("SOLVER.AMP.ENABLED", False, SWITCH),
)  # fmt: skip
#: Keys that Detectron2 does not know. It has FCOS, but no keys for it; DeepLab's are those of its project there.
_OWN = table(
    Setting("ENGINE", "auto", Choice(("auto", "detectron2", "torchvision")),
            "auto: detectron2 where it imports, else torchvision", NOTHING),
    Setting("TRIALS", 1, COUNT, "number of seeds SEED, SEED + 1, …", NOTHING),
    Setting("PROTOCOL", "", Words(r"[^\0\n]*", "as one line of text"),
            "name of the preset, kept in every record; NAME for a config that ships", SCORES),
    Setting("DATASETS.ROOT", "", ANY_PATH,
            "folder of the data sets; empty: $DETECTRON2_DATASETS or ./datasets", NOTHING),
    Setting("FIT_TO_DATA", False, SWITCH,
            "sizes, batch and schedule follow from the data and the machine (transfer/fit.py)", NOTHING),
    Setting("FIT_RATE", 1.0, POSITIVE, "factor of the learning rate that FIT_TO_DATA chooses", NOTHING),
    Setting("TEST.VISUALS", 4, Number(0, whole=True, unit="images"),
            "test images to draw with their detections", NOTHING),
    Setting("MODEL.BACKBONE.ARCH", "", Words(r"(timm:[^\0\s]+)?", "as timm:NAME[?key=value…], or empty for a ResNet"),
            "empty: the ResNet of MODEL.RESNETS"),
    Setting("MODEL.BACKBONE.PIXELS", "network", Choice(("network", "settings")),
            "network: a timm network's own mean and std; settings: PIXEL_MEAN and PIXEL_STD"),
    Setting("MODEL.BACKBONE.NORM", "", Choice(("", "SyncBN", "FrozenBN")), "instead of a timm network's BatchNorms"),
    Setting("MODEL.BACKBONE.DROP_PATH", 0.0, Number(0, 1, below=True),
            "rate of a timm network's last block, rising linearly from 0"),
    Setting("MODEL.BACKBONE.SQUARE", 0, Number(0, 2**16, whole=True, unit="px", note="0: no square"),
            "pad a timm network's images to a square of this side; 0: to the next multiple of 32"),
    Setting("MODEL.BACKBONE.FROZEN", False, SWITCH,
            "the backbone stays as it is, BatchNorm statistics too; neck and heads train"),
    Setting("MODEL.RESNETS.RES4_DILATION", 1, COUNT),
    Setting("MODEL.RESNETS.RES5_MULTI_GRID", [1, 2, 4], Many(COUNT, least=1)),
    Setting("MODEL.RESNETS.STEM_TYPE", "basic", _NAME),
    Setting("MODEL.SEM_SEG_HEAD.LOSS_TYPE", "hard_pixel_mining", _NAME),
    Setting("MODEL.SEM_SEG_HEAD.BLOCKS", 1, COUNT, "LinearHead: last blocks of a plain network, put together"),
    Setting("MODEL.SEM_SEG_HEAD.CACHE", "", ANY_PATH,
            "LinearHead: folder of its dense features; empty: OUTPUT_DIR/dense_features", NOTHING),
    Setting("MODEL.SEM_SEG_HEAD.CACHE_GB", 32.0, Number(0, unit="GB"),
            "LinearHead: no cache where features need more", NOTHING),
    Setting("MODEL.SEM_SEG_HEAD.ASPP_CHANNELS", 256, COUNT),
    Setting("MODEL.SEM_SEG_HEAD.ASPP_DILATIONS", [6, 12, 18], Many(COUNT)),
    Setting("MODEL.SEM_SEG_HEAD.ASPP_DROPOUT", 0.1, UNIT),
    Setting("MODEL.SEM_SEG_HEAD.USE_DEPTHWISE_SEPARABLE_CONV", False, SWITCH),
    Setting("MODEL.VIT.FORM", "network", Choice(("network", "vitdet")),
            "network: as timm computes it; vitdet: without prefix tokens and final norm"),
    Setting("MODEL.VIT.WINDOW", 0, COUNT_OR_NONE, "vitdet: tokens along a side of a window; 0: every block is global"),
    Setting("MODEL.VIT.GLOBAL_BLOCKS", 4, COUNT,
            "vitdet: blocks without windows, evenly spaced, the last one among them"),
    Setting("MODEL.VIT.RELATIVE_POSITIONS", False, SWITCH, "vitdet's decomposed ones, which start at 0"),
    Setting("MODEL.FCOS.NUM_CLASSES", 80, COUNT),
    Setting("MODEL.FCOS.IN_FEATURES", ["p3", "p4", "p5", "p6", "p7"], _LEVELS),
    Setting("MODEL.FCOS.NUM_CONVS", 4, COUNT_OR_NONE),
    Setting("MODEL.FCOS.NORM", "GN", _NAME),
    Setting("MODEL.FCOS.PRIOR_PROB", 0.01, _OPEN),
    Setting("MODEL.FCOS.CENTER_SAMPLING_RADIUS", 1.5, POSITIVE),
    Setting("MODEL.FCOS.FOCAL_LOSS_GAMMA", 2.0, NOT_NEGATIVE),
    Setting("MODEL.FCOS.FOCAL_LOSS_ALPHA", 0.25, Number(high=1, note="below 0: no weights")),
    Setting("MODEL.FCOS.SCORE_THRESH_TEST", 0.2, UNIT),
    Setting("MODEL.FCOS.NMS_THRESH_TEST", 0.6, UNIT),
    Setting("MODEL.FCOS.TOPK_CANDIDATES_TEST", 1000, COUNT),
    Setting("INPUT.CROP.SINGLE_CATEGORY_MAX_AREA", 1.0, UNIT),
    Setting("SOLVER.AMP.PRECISION", "float16", Choice(("float16", "bfloat16")), "where SOLVER.AMP.ENABLED"),
    Setting("SOLVER.LAYER_DECAY", 1.0, Number(0, 1, above=True),
            "factor of the rate from one layer of a timm network to the one below"),
    Setting("SOLVER.OPTIMIZER", "SGD", Choice(("SGD", "AdamW")), "Detectron2 has AdamW in Python configs only"),
    Setting("SOLVER.BETAS", (0.9, 0.999), Many(Number(0, 1, below=True), lengths=(2,)),
            "AdamW's; torch's convention, 1 - the weight of the new value"),
    Setting("SOLVER.POLY_LR_POWER", 0.9, NOT_NEGATIVE),
    Setting("SOLVER.POLY_LR_CONSTANT_ENDING", 0.0, UNIT),
)  # fmt: skip
SETTINGS = _DETECTRON2 | _OWN


def get_cfg() -> CfgNode:
    """The defaults."""
    return add_defaults(CfgNode(), SETTINGS)


def add_own_keys(cfg: CfgNode) -> CfgNode:
    """Add the keys that Detectron2 does not know to its configuration (in place, and returned)."""
    cfg[VARIANTS] = type(cfg)(new_allowed=True)  # what a file lists besides itself, to be passed over
    return add_defaults(cfg, _OWN)


def load(file: str | Path | None, overrides: Sequence[str] = ()) -> CfgNode:
    """Defaults, a YAML file with its ``_BASE_``, then KEY VALUE pairs; frozen. Mistakes raise InputError.

    A timm network's own mean and standard deviation replace PIXEL_MEAN and PIXEL_STD (MODEL.BACKBONE.PIXELS).
    """
    cfg = load_config(get_cfg(), file, overrides)
    if cfg.MODEL.BACKBONE.ARCH and cfg.MODEL.BACKBONE.PIXELS == "network":
        from momentum_transfer.transfer.any_backbone import network_pixels  # imports torch and timm

        cfg.defrost()
        cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD = network_pixels(cfg)
        cfg.freeze()
    return cfg


def num_classes(cfg: CfgNode) -> tuple[str, int]:
    """The key that holds the class count of a config's network, and its value."""
    name = NETWORKS[cfg.MODEL.META_ARCHITECTURE][1]
    return f"MODEL.{name}.NUM_CLASSES", cfg.MODEL[name].NUM_CLASSES


def task_name(cfg: CfgNode) -> str:
    """The task of a config's network, "detection" or "segmentation"; the config may be Detectron2's."""
    return NETWORKS[cfg.MODEL.META_ARCHITECTURE][0]


def synchronises_on_cpu(cfg: CfgNode) -> bool:
    """Whether BN statistics would be shared between torchrun's processes on a CPU, which torch cannot do."""
    from momentum_transfer.core.devices import runs_on_cpu  # imports torch, which takes seconds

    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return several and runs_on_cpu(cfg.MODEL.DEVICE) and "SyncBN" in cfg.dump()


#: What a ResNet of MODEL.RESNETS has no place for.
_TIMM_ONLY = ("MODEL.BACKBONE.NORM", "MODEL.BACKBONE.DROP_PATH", "MODEL.BACKBONE.SQUARE", "MODEL.VIT.FORM",
              "MODEL.VIT.WINDOW", "MODEL.VIT.RELATIVE_POSITIONS", "SOLVER.LAYER_DECAY")  # fmt: skip
_NORMS = {"MODEL.FPN": "OUT_CHANNELS", "MODEL.ROI_BOX_HEAD": "CONV_DIM", "MODEL.ROI_MASK_HEAD": "CONV_DIM"}


def decisive(cfg: CfgNode, evaluation: bool = True) -> CfgNode:
    """The settings that decide the training and, with ``evaluation``, the scores: claims and resumption go by them.

    A set of images from `open_own` is named by its content, wherever its file is.
    """
    from momentum_transfer.transfer.data.detection_datasets import content_name

    kept = cfg.clone()
    kept.defrost()
    for split in ("TRAIN", "TEST"):
        kept.DATASETS[split] = type(cfg.DATASETS[split])(content_name(name) for name in cfg.DATASETS[split])
    for setting in SETTINGS.values():
        if setting.decides == NOTHING or (setting.decides == SCORES and not evaluation):
            section, _, name = setting.key.rpartition(".")
            del (value_of(kept, section) if section else kept)[name]
    return kept


def identity(cfg: CfgNode, evaluation: bool = True) -> str:
    """Hash of the `decisive` settings: twelve hex digits."""
    return config_hash(decisive(cfg, evaluation))


def check_settings(cfg: CfgNode) -> None:
    """Check all that no engine and no data need to be asked about.

    Raises:
        InputError: the first setting that is out of its range or does not fit another one.
    """
    from momentum_transfer.core.devices import check_device  # imports torch, which takes seconds

    check(cfg, SETTINGS)
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
        from momentum_transfer.transfer import backbone_checks  # imports torch, which takes seconds

        yield from backbone_checks.problems(cfg)
        return
    for key in _TIMM_ONLY:
        if value_of(cfg, key) != SETTINGS[key].default:
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
