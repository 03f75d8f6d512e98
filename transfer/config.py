"""Settings of dense transfer: Detectron2's key names and defaults for what is used here, and a few keys of our own.

A YAML file written for these settings also merges into Detectron2's own configuration once ``add_own_keys`` has been
applied to it; a test holds that. Keys that Detectron2 has and this project does not use are absent, so that setting one
is an error and not silently without effect.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fvcore.common.config import CfgNode

from momentum_transfer.core.settings import load_config

#: MODEL.META_ARCHITECTURE -> its task (``transfer/tasks``), and the section of MODEL that holds the class count.
NETWORKS = {
    "GeneralizedRCNN": ("detection", "ROI_HEADS"),
    "RetinaNet": ("detection", "RETINANET"),
    "FCOS": ("detection", "FCOS"),
    "SemanticSegmentor": ("segmentation", "SEM_SEG_HEAD"),
}
#: Normalisation constants of ImageNet in RGB, which every backbone here was trained with.
PIXEL_MEAN = [123.675, 116.28, 103.53]
PIXEL_STD = [58.395, 57.12, 57.375]


def add_own_keys(cfg: CfgNode) -> CfgNode:
    """Add the keys that Detectron2 does not know (in place, and returned).

    Detectron2 has FCOS, but no keys for it. DeepLab's keys are those of its project in Detectron2.
    """
    cfg.ENGINE = "auto"  # detectron2 where it imports, else torchvision; or the one named
    cfg.TRIALS = 1  # seeds to repeat with: SEED, SEED + 1, …
    cfg.PROTOCOL = ""  # name of the preset, kept in every record
    cfg.DATASETS.ROOT = ""  # folder of the data sets; "": $DETECTRON2_DATASETS or ./datasets
    cfg.FIT_TO_DATA = False  # sizes, batch and schedule follow from the data and the machine (transfer/fit.py)
    cfg.FIT_RATE = 1.0  # the learning rate that FIT_TO_DATA chooses, times this
    cfg.TEST.VISUALS = 4  # test images to draw with their detections
    cfg.SOLVER.AMP.PRECISION = "float16"  # or bfloat16
    _backbone_keys(cfg)
    _deeplab_keys(cfg)
    cfg.MODEL.FCOS = type(cfg)()  # Detectron2 insists on its own kind of CfgNode
    cfg.MODEL.FCOS.NUM_CLASSES = 80
    cfg.MODEL.FCOS.IN_FEATURES = ["p3", "p4", "p5", "p6", "p7"]
    cfg.MODEL.FCOS.NUM_CONVS = 4
    cfg.MODEL.FCOS.NORM = "GN"
    cfg.MODEL.FCOS.PRIOR_PROB = 0.01
    cfg.MODEL.FCOS.CENTER_SAMPLING_RADIUS = 1.5
    cfg.MODEL.FCOS.FOCAL_LOSS_GAMMA = 2.0
    cfg.MODEL.FCOS.FOCAL_LOSS_ALPHA = 0.25
    cfg.MODEL.FCOS.SCORE_THRESH_TEST = 0.2
    cfg.MODEL.FCOS.NMS_THRESH_TEST = 0.6
    cfg.MODEL.FCOS.TOPK_CANDIDATES_TEST = 1000
    return cfg


def _backbone_keys(cfg: CfgNode) -> None:
    """Any backbone, and how it is trained. Detectron2 has AdamW and its ViT in Python configs only."""
    cfg.MODEL.BACKBONE.ARCH = ""  # the ResNet of MODEL.RESNETS; or timm:NAME[?key=value…]
    cfg.MODEL.BACKBONE.PIXELS = "network"  # a timm network's own mean and std; or settings: PIXEL_MEAN and PIXEL_STD
    cfg.MODEL.BACKBONE.NORM = ""  # a timm network's BatchNorms: as they are, or SyncBN, or FrozenBN
    cfg.MODEL.BACKBONE.DROP_PATH = 0.0  # of a timm network's last block, rising linearly from 0
    cfg.MODEL.BACKBONE.SQUARE = 0  # pad a timm network's images to such a square; 0: to the next multiple of 32
    cfg.MODEL.BACKBONE.FROZEN = False  # all of it stays as it is, BatchNorm statistics too; neck and heads train
    cfg.MODEL.VIT = type(cfg)()
    cfg.MODEL.VIT.FORM = "network"  # as timm computes it; or vitdet: without prefix tokens and final norm
    cfg.MODEL.VIT.WINDOW = 0  # vitdet: tokens along a side of a window; 0: every block is global
    cfg.MODEL.VIT.GLOBAL_BLOCKS = 4  # where others have windows, evenly spaced, the last block among them
    cfg.MODEL.VIT.RELATIVE_POSITIONS = False  # vitdet's decomposed ones, which start at 0
    cfg.SOLVER.LAYER_DECAY = 1.0  # factor of the rate from one layer of a timm network to the one below
    cfg.SOLVER.OPTIMIZER = "SGD"  # or AdamW
    cfg.SOLVER.BETAS = (0.9, 0.999)  # AdamW's; torch's convention, 1 - the weight of the new value


def _deeplab_keys(cfg: CfgNode) -> None:
    """The keys of Detectron2's DeepLab project, and those of the linear probe."""
    cfg.INPUT.CROP.SINGLE_CATEGORY_MAX_AREA = 1.0
    cfg.SOLVER.POLY_LR_POWER = 0.9
    cfg.SOLVER.POLY_LR_CONSTANT_ENDING = 0.0
    cfg.MODEL.SEM_SEG_HEAD.LOSS_TYPE = "hard_pixel_mining"
    cfg.MODEL.SEM_SEG_HEAD.BLOCKS = 1  # LinearHead: last blocks of a plain network, put together
    cfg.MODEL.SEM_SEG_HEAD.CACHE = ""  # LinearHead: folder of its dense features; "": OUTPUT_DIR/dense_features
    cfg.MODEL.SEM_SEG_HEAD.CACHE_GB = 32.0  # no cache where features need more than this
    cfg.MODEL.SEM_SEG_HEAD.ASPP_CHANNELS = 256
    cfg.MODEL.SEM_SEG_HEAD.ASPP_DILATIONS = [6, 12, 18]
    cfg.MODEL.SEM_SEG_HEAD.ASPP_DROPOUT = 0.1
    cfg.MODEL.SEM_SEG_HEAD.USE_DEPTHWISE_SEPARABLE_CONV = False
    cfg.MODEL.RESNETS.RES4_DILATION = 1
    cfg.MODEL.RESNETS.RES5_MULTI_GRID = [1, 2, 4]
    cfg.MODEL.RESNETS.STEM_TYPE = "basic"


def get_cfg() -> CfgNode:
    """The defaults."""
    cfg = CfgNode()
    cfg.VERSION = 2
    cfg.OUTPUT_DIR = "./output"
    cfg.SEED = (
        0  # Detectron2's default −1 means another seed each time; here a run is repeatable unless asked otherwise
    )
    _model(cfg)
    _region_heads(cfg)
    _retinanet(cfg)
    _semantic(cfg)
    _data(cfg)
    _solver(cfg)
    return add_own_keys(cfg)


def load(file: str | Path | None, overrides: Sequence[str] = ()) -> CfgNode:
    """Defaults, a YAML file with its ``_BASE_``, then KEY VALUE pairs; frozen. Mistakes raise InputError.

    A timm network's own mean and standard deviation take the place of PIXEL_MEAN and PIXEL_STD (MODEL.BACKBONE.PIXELS).
    """
    cfg = load_config(get_cfg(), file, overrides)
    if cfg.MODEL.BACKBONE.ARCH and cfg.MODEL.BACKBONE.PIXELS == "network":
        from momentum_transfer.transfer.any_backbone import (
            network_pixels,  # here, because it imports torch and timm, which take seconds
        )

        cfg.defrost()
        cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD = network_pixels(cfg)
        cfg.freeze()
    return cfg


def num_classes(cfg: CfgNode) -> tuple[str, int]:
    """The key that holds the class count of a config's network, and its value."""
    name = NETWORKS[cfg.MODEL.META_ARCHITECTURE][1]
    return f"MODEL.{name}.NUM_CLASSES", cfg.MODEL[name].NUM_CLASSES


def task_name(cfg: CfgNode) -> str:
    """The name of the task that a config's network is for, ours or Detectron2's config: a key of what tasks choose."""
    return NETWORKS[cfg.MODEL.META_ARCHITECTURE][0]


def synchronises_on_cpu(cfg: CfgNode) -> bool:
    """Whether BN statistics would be shared between torchrun's processes on a CPU, which torch cannot do."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    from momentum_transfer.core.devices import runs_on_cpu  # here, because it imports torch, which takes seconds

    return several and runs_on_cpu(cfg.MODEL.DEVICE) and "SyncBN" in cfg.dump()


def _model(cfg: CfgNode) -> None:
    cfg.MODEL = CfgNode()
    cfg.MODEL.META_ARCHITECTURE = "GeneralizedRCNN"
    cfg.MODEL.DEVICE = "auto"  # Detectron2's is cuda; it is told the device that auto comes to
    cfg.MODEL.WEIGHTS = ""
    cfg.MODEL.MASK_ON = False
    cfg.MODEL.PIXEL_MEAN = [103.530, 116.280, 123.675]
    cfg.MODEL.PIXEL_STD = [1.0, 1.0, 1.0]
    cfg.MODEL.BACKBONE = CfgNode()
    cfg.MODEL.BACKBONE.NAME = "build_resnet_backbone"
    cfg.MODEL.BACKBONE.FREEZE_AT = 2
    cfg.MODEL.RESNETS = CfgNode()
    cfg.MODEL.RESNETS.DEPTH = 50
    cfg.MODEL.RESNETS.OUT_FEATURES = ["res4"]
    cfg.MODEL.RESNETS.NORM = "FrozenBN"
    cfg.MODEL.RESNETS.WIDTH_PER_GROUP = 64
    cfg.MODEL.RESNETS.STRIDE_IN_1X1 = True
    cfg.MODEL.RESNETS.RES5_DILATION = 1
    cfg.MODEL.RESNETS.RES2_OUT_CHANNELS = 256
    cfg.MODEL.RESNETS.STEM_OUT_CHANNELS = 64
    cfg.MODEL.FPN = CfgNode()
    cfg.MODEL.FPN.IN_FEATURES = []
    cfg.MODEL.FPN.OUT_CHANNELS = 256
    cfg.MODEL.FPN.NORM = ""
    cfg.MODEL.PROPOSAL_GENERATOR = CfgNode()
    cfg.MODEL.PROPOSAL_GENERATOR.NAME = "RPN"
    cfg.MODEL.PROPOSAL_GENERATOR.MIN_SIZE = 0
    cfg.MODEL.ANCHOR_GENERATOR = CfgNode()
    cfg.MODEL.ANCHOR_GENERATOR.SIZES = [[32, 64, 128, 256, 512]]
    cfg.MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS = [[0.5, 1.0, 2.0]]
    cfg.MODEL.ANCHOR_GENERATOR.OFFSET = 0.0
    cfg.MODEL.RPN = CfgNode()
    cfg.MODEL.RPN.HEAD_NAME = "StandardRPNHead"
    cfg.MODEL.RPN.CONV_DIMS = [-1]
    cfg.MODEL.RPN.IN_FEATURES = ["res4"]
    cfg.MODEL.RPN.IOU_THRESHOLDS = [0.3, 0.7]
    cfg.MODEL.RPN.IOU_LABELS = [0, -1, 1]
    cfg.MODEL.RPN.BATCH_SIZE_PER_IMAGE = 256
    cfg.MODEL.RPN.POSITIVE_FRACTION = 0.5
    cfg.MODEL.RPN.BBOX_REG_LOSS_WEIGHT = 1.0
    cfg.MODEL.RPN.BBOX_REG_WEIGHTS = (1.0, 1.0, 1.0, 1.0)
    cfg.MODEL.RPN.SMOOTH_L1_BETA = 0.0
    cfg.MODEL.RPN.LOSS_WEIGHT = 1.0
    cfg.MODEL.RPN.PRE_NMS_TOPK_TRAIN = 12000
    cfg.MODEL.RPN.PRE_NMS_TOPK_TEST = 6000
    cfg.MODEL.RPN.POST_NMS_TOPK_TRAIN = 2000
    cfg.MODEL.RPN.POST_NMS_TOPK_TEST = 1000
    cfg.MODEL.RPN.NMS_THRESH = 0.7


def _region_heads(cfg: CfgNode) -> None:
    cfg.MODEL.ROI_HEADS = CfgNode()
    cfg.MODEL.ROI_HEADS.NAME = "Res5ROIHeads"
    cfg.MODEL.ROI_HEADS.NUM_CLASSES = 80
    cfg.MODEL.ROI_HEADS.IN_FEATURES = ["res4"]
    cfg.MODEL.ROI_HEADS.IOU_THRESHOLDS = [0.5]
    cfg.MODEL.ROI_HEADS.IOU_LABELS = [0, 1]
    cfg.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE = 512
    cfg.MODEL.ROI_HEADS.POSITIVE_FRACTION = 0.25
    cfg.MODEL.ROI_HEADS.SCORE_THRESH_TEST = 0.05
    cfg.MODEL.ROI_HEADS.NMS_THRESH_TEST = 0.5
    cfg.MODEL.ROI_HEADS.PROPOSAL_APPEND_GT = True
    cfg.MODEL.ROI_BOX_HEAD = CfgNode()
    cfg.MODEL.ROI_BOX_HEAD.NAME = ""
    cfg.MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE = "smooth_l1"
    cfg.MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_WEIGHT = 1.0
    cfg.MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
    cfg.MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA = 0.0
    cfg.MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION = 14
    cfg.MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO = 0
    cfg.MODEL.ROI_BOX_HEAD.POOLER_TYPE = "ROIAlignV2"
    cfg.MODEL.ROI_BOX_HEAD.NUM_FC = 0
    cfg.MODEL.ROI_BOX_HEAD.FC_DIM = 1024
    cfg.MODEL.ROI_BOX_HEAD.NUM_CONV = 0
    cfg.MODEL.ROI_BOX_HEAD.CONV_DIM = 256
    cfg.MODEL.ROI_BOX_HEAD.NORM = ""
    cfg.MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG = False
    cfg.MODEL.ROI_BOX_CASCADE_HEAD = CfgNode()
    cfg.MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS = (
        (10.0, 10.0, 5.0, 5.0),
        (20.0, 20.0, 10.0, 10.0),
        (30.0, 30.0, 15.0, 15.0),
    )
    cfg.MODEL.ROI_BOX_CASCADE_HEAD.IOUS = (0.5, 0.6, 0.7)
    cfg.MODEL.ROI_MASK_HEAD = CfgNode()
    cfg.MODEL.ROI_MASK_HEAD.NAME = "MaskRCNNConvUpsampleHead"
    cfg.MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION = 14
    cfg.MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO = 0
    cfg.MODEL.ROI_MASK_HEAD.POOLER_TYPE = "ROIAlignV2"
    cfg.MODEL.ROI_MASK_HEAD.NUM_CONV = 0
    cfg.MODEL.ROI_MASK_HEAD.CONV_DIM = 256
    cfg.MODEL.ROI_MASK_HEAD.NORM = ""
    cfg.MODEL.ROI_MASK_HEAD.CLS_AGNOSTIC_MASK = False


def _retinanet(cfg: CfgNode) -> None:
    cfg.MODEL.RETINANET = CfgNode()
    cfg.MODEL.RETINANET.NUM_CLASSES = 80
    cfg.MODEL.RETINANET.IN_FEATURES = ["p3", "p4", "p5", "p6", "p7"]
    cfg.MODEL.RETINANET.NUM_CONVS = 4
    cfg.MODEL.RETINANET.IOU_THRESHOLDS = [0.4, 0.5]
    cfg.MODEL.RETINANET.IOU_LABELS = [0, -1, 1]
    cfg.MODEL.RETINANET.PRIOR_PROB = 0.01
    cfg.MODEL.RETINANET.SCORE_THRESH_TEST = 0.05
    cfg.MODEL.RETINANET.TOPK_CANDIDATES_TEST = 1000
    cfg.MODEL.RETINANET.NMS_THRESH_TEST = 0.5
    cfg.MODEL.RETINANET.BBOX_REG_WEIGHTS = (1.0, 1.0, 1.0, 1.0)
    cfg.MODEL.RETINANET.FOCAL_LOSS_GAMMA = 2.0
    cfg.MODEL.RETINANET.FOCAL_LOSS_ALPHA = 0.25
    cfg.MODEL.RETINANET.SMOOTH_L1_LOSS_BETA = 0.1
    cfg.MODEL.RETINANET.BBOX_REG_LOSS_TYPE = "smooth_l1"
    cfg.MODEL.RETINANET.NORM = ""


def _semantic(cfg: CfgNode) -> None:
    cfg.MODEL.SEM_SEG_HEAD = CfgNode()
    cfg.MODEL.SEM_SEG_HEAD.NAME = "SemSegFPNHead"
    cfg.MODEL.SEM_SEG_HEAD.IN_FEATURES = ["p2", "p3", "p4", "p5"]
    cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE = 255
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 54
    cfg.MODEL.SEM_SEG_HEAD.CONVS_DIM = 128
    cfg.MODEL.SEM_SEG_HEAD.COMMON_STRIDE = 4
    cfg.MODEL.SEM_SEG_HEAD.NORM = "GN"
    cfg.MODEL.SEM_SEG_HEAD.LOSS_WEIGHT = 1.0


def _data(cfg: CfgNode) -> None:
    cfg.INPUT = CfgNode()
    cfg.INPUT.MIN_SIZE_TRAIN = (800,)
    cfg.INPUT.MIN_SIZE_TRAIN_SAMPLING = "choice"
    cfg.INPUT.MAX_SIZE_TRAIN = 1333
    cfg.INPUT.MIN_SIZE_TEST = 800
    cfg.INPUT.MAX_SIZE_TEST = 1333
    cfg.INPUT.RANDOM_FLIP = "horizontal"
    cfg.INPUT.FORMAT = "BGR"
    cfg.INPUT.CROP = CfgNode()
    cfg.INPUT.CROP.ENABLED = False
    cfg.INPUT.CROP.TYPE = "relative_range"
    cfg.INPUT.CROP.SIZE = [0.9, 0.9]
    cfg.INPUT.MASK_FORMAT = "polygon"
    cfg.DATASETS = CfgNode()
    cfg.DATASETS.TRAIN = ()
    cfg.DATASETS.TEST = ()
    cfg.DATALOADER = CfgNode()
    cfg.DATALOADER.NUM_WORKERS = 4
    cfg.DATALOADER.ASPECT_RATIO_GROUPING = True
    cfg.DATALOADER.SAMPLER_TRAIN = "TrainingSampler"
    cfg.DATALOADER.REPEAT_THRESHOLD = 0.0
    cfg.DATALOADER.REPEAT_SQRT = True
    cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS = True
    cfg.TEST = CfgNode()
    cfg.TEST.EVAL_PERIOD = 0
    cfg.TEST.DETECTIONS_PER_IMAGE = 100
    cfg.TEST.PRECISE_BN = CfgNode()
    cfg.TEST.PRECISE_BN.ENABLED = False
    cfg.TEST.PRECISE_BN.NUM_ITER = 200


def _solver(cfg: CfgNode) -> None:
    cfg.SOLVER = CfgNode()
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupMultiStepLR"
    cfg.SOLVER.MAX_ITER = 40000
    cfg.SOLVER.BASE_LR = 0.001
    cfg.SOLVER.BASE_LR_END = 0.0
    cfg.SOLVER.MOMENTUM = 0.9
    cfg.SOLVER.NESTEROV = False
    cfg.SOLVER.WEIGHT_DECAY = 0.0001
    cfg.SOLVER.WEIGHT_DECAY_NORM = 0.0
    cfg.SOLVER.GAMMA = 0.1
    cfg.SOLVER.STEPS = (30000,)
    cfg.SOLVER.WARMUP_FACTOR = 1.0 / 1000
    cfg.SOLVER.WARMUP_ITERS = 1000
    cfg.SOLVER.WARMUP_METHOD = "linear"
    cfg.SOLVER.CHECKPOINT_PERIOD = 5000
    cfg.SOLVER.IMS_PER_BATCH = 16
    cfg.SOLVER.CLIP_GRADIENTS = CfgNode()
    cfg.SOLVER.CLIP_GRADIENTS.ENABLED = False
    cfg.SOLVER.CLIP_GRADIENTS.CLIP_TYPE = "value"
    cfg.SOLVER.CLIP_GRADIENTS.CLIP_VALUE = 1.0
    cfg.SOLVER.CLIP_GRADIENTS.NORM_TYPE = 2.0
    cfg.SOLVER.AMP = CfgNode()
    cfg.SOLVER.AMP.ENABLED = False
