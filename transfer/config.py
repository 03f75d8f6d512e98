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
    TRAINABLE,
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
    Setting("VERSION", 2, COUNT, "version of Detectron2's config format"),
    Setting("OUTPUT_DIR", "./output", PATH, "folder of the run", NOTHING),
    Setting("SEED", 0, SEED, "seed of weights and order of images; Detectron2's -1 means another one each time"),
    Setting("MODEL.META_ARCHITECTURE", "GeneralizedRCNN", Choice(NETWORKS), "kind of network"),
    Setting("MODEL.DEVICE", "auto", DEVICE, "Detectron2's is cuda; it is given the device that auto comes to", NOTHING),
    Setting("MODEL.WEIGHTS", "", ANY_PATH, "as --weights; records have the weights' own hash", NOTHING),
    Setting("MODEL.MASK_ON", False, SWITCH, "predict masks too"),
    Setting("MODEL.PIXEL_MEAN", [103.530, 116.280, 123.675], Many(Number(), lengths=(3,)),
            "mean of the pixels, 0 to 255, in the order of INPUT.FORMAT"),
    Setting("MODEL.PIXEL_STD", [1.0, 1.0, 1.0], Many(POSITIVE, lengths=(3,)),
            "standard deviation of the pixels, in the order of INPUT.FORMAT"),
    Setting("MODEL.BACKBONE.NAME", "build_resnet_backbone", _NAME,
            "Detectron2's name of the function that builds the backbone"),
    Setting("MODEL.BACKBONE.FREEZE_AT", 2, Number(0, 5, whole=True, unit="stages"),
            "first stages of a ResNet that do not train; 1: the stem"),
    Setting("MODEL.RESNETS.DEPTH", 50, COUNT, "layers of a ResNet"),
    Setting("MODEL.RESNETS.OUT_FEATURES", ["res4"], _LEVELS, "stages whose maps the ResNet returns"),
    Setting("MODEL.RESNETS.NORM", "FrozenBN", _NAME, "normalisation of the ResNet"),
    Setting("MODEL.RESNETS.WIDTH_PER_GROUP", 64, COUNT, "channels of a bottleneck's 3×3 convolution in res2"),
    Setting("MODEL.RESNETS.STRIDE_IN_1X1", True, SWITCH,
            "a bottleneck's stride is in its first 1×1 convolution, not in the 3×3"),
    Setting("MODEL.RESNETS.RES5_DILATION", 1, COUNT, "dilation of res5 instead of a stride"),
    Setting("MODEL.RESNETS.RES2_OUT_CHANNELS", 256, COUNT, "output channels of res2; 64 for depth 18 and 34"),
    Setting("MODEL.RESNETS.STEM_OUT_CHANNELS", 64, COUNT, "output channels of the stem"),
    Setting("MODEL.FPN.IN_FEATURES", [], _LEVELS, "backbone maps that the pyramid takes"),
    Setting("MODEL.FPN.OUT_CHANNELS", 256, COUNT, "channels of every level of the pyramid"),
    Setting("MODEL.FPN.NORM", "", _NAME, "normalisation of the pyramid; empty: none"),
    Setting("MODEL.PROPOSAL_GENERATOR.NAME", "RPN", _NAME, "kind of proposal generator"),
    Setting("MODEL.PROPOSAL_GENERATOR.MIN_SIZE", 0, NOT_NEGATIVE,
            "proposals are kept if both sides are longer than this, in px"),
    Setting("MODEL.ANCHOR_GENERATOR.SIZES", [[32, 64, 128, 256, 512]], Many(POSITIVE, least=1, nested=True),
            "sides of square anchors in px: a list a level, or one for all levels"),
    Setting("MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS", [[0.5, 1.0, 2.0]], Many(POSITIVE, least=1, nested=True),
            "height / width of anchors: a list a level, or one for all levels"),
    Setting("MODEL.ANCHOR_GENERATOR.OFFSET", 0.0, Number(0, 1, below=True),
            "shift of the anchors' centres, as a fraction of the stride"),
    Setting("MODEL.RPN.HEAD_NAME", "StandardRPNHead", _NAME, "kind of RPN head"),
    Setting("MODEL.RPN.CONV_DIMS", [-1],
            Many(Number(-1, whole=True, note="-1: as many as the levels have"), least=1),
            "channels of the RPN's hidden convolutions"),
    Setting("MODEL.RPN.IN_FEATURES", ["res4"], _LEVELS, "maps that the RPN takes"),
    Setting("MODEL.RPN.IOU_THRESHOLDS", [0.3, 0.7], _IOU, "IoUs that divide anchors into the classes of IOU_LABELS"),
    Setting("MODEL.RPN.IOU_LABELS", [0, -1, 1], _LABELS,
            "labels between the thresholds: 0 background, -1 ignored, 1 object"),
    Setting("MODEL.RPN.BATCH_SIZE_PER_IMAGE", 256, COUNT, "anchors of an image that are sampled for the loss"),
    Setting("MODEL.RPN.POSITIVE_FRACTION", 0.5, UNIT, "fraction of the sampled anchors that are objects, at most"),
    Setting("MODEL.RPN.BBOX_REG_LOSS_WEIGHT", 1.0, NOT_NEGATIVE, "weight of the RPN's box loss"),
    Setting("MODEL.RPN.BBOX_REG_WEIGHTS", (1.0, 1.0, 1.0, 1.0), _BOX_WEIGHTS,
            "factors of the box offsets dx, dy, dw, dh"),
    Setting("MODEL.RPN.SMOOTH_L1_BETA", 0.0, NOT_NEGATIVE, "where the box loss turns from L2 to L1; 0: L1 only"),
    Setting("MODEL.RPN.LOSS_WEIGHT", 1.0, NOT_NEGATIVE, "weight of the RPN's losses"),
    Setting("MODEL.RPN.PRE_NMS_TOPK_TRAIN", 12000, COUNT, "best proposals of a level before NMS, in training"),
    Setting("MODEL.RPN.PRE_NMS_TOPK_TEST", 6000, COUNT, "best proposals of a level before NMS, at test"),
    Setting("MODEL.RPN.POST_NMS_TOPK_TRAIN", 2000, COUNT, "best proposals of an image after NMS, in training"),
    Setting("MODEL.RPN.POST_NMS_TOPK_TEST", 1000, COUNT, "best proposals of an image after NMS, at test"),
    Setting("MODEL.RPN.NMS_THRESH", 0.7, UNIT, "IoU above which NMS drops the weaker proposal"),
    Setting("MODEL.ROI_HEADS.NAME", "Res5ROIHeads", _NAME, "kind of second stage"),
    Setting("MODEL.ROI_HEADS.NUM_CLASSES", 80, COUNT, "classes, background not counted"),
    Setting("MODEL.ROI_HEADS.IN_FEATURES", ["res4"], _LEVELS, "maps that the second stage pools from"),
    Setting("MODEL.ROI_HEADS.IOU_THRESHOLDS", [0.5], _IOU, "IoUs that divide proposals into the classes of IOU_LABELS"),
    Setting("MODEL.ROI_HEADS.IOU_LABELS", [0, 1], _LABELS, "as MODEL.RPN.IOU_LABELS"),
    Setting("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 512, COUNT, "proposals of an image that are sampled for the loss"),
    Setting("MODEL.ROI_HEADS.POSITIVE_FRACTION", 0.25, UNIT,
            "fraction of the sampled proposals that are objects, at most"),
    Setting("MODEL.ROI_HEADS.SCORE_THRESH_TEST", 0.05, UNIT, "lowest score of a detection"),
    Setting("MODEL.ROI_HEADS.NMS_THRESH_TEST", 0.5, UNIT, "IoU above which NMS drops the weaker detection of a class"),
    Setting("MODEL.ROI_HEADS.PROPOSAL_APPEND_GT", True, SWITCH, "true boxes are proposals too, in training"),
    Setting("MODEL.ROI_BOX_HEAD.NAME", "", _NAME, "kind of box head; empty with a C4 detector"),
    Setting("MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE", "smooth_l1", _NAME, "kind of box loss"),
    Setting("MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_WEIGHT", 1.0, NOT_NEGATIVE, "weight of the box loss"),
    Setting("MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS", (10.0, 10.0, 5.0, 5.0), _BOX_WEIGHTS,
            "as MODEL.RPN.BBOX_REG_WEIGHTS"),
    Setting("MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA", 0.0, NOT_NEGATIVE, "as MODEL.RPN.SMOOTH_L1_BETA"),
    Setting("MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", 14, COUNT,
            "side of the map that a proposal is pooled to, in cells"),
    Setting("MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO", 0, COUNT_OR_NONE,
            "samples along a side of a cell; 0: by the proposal's size"),
    Setting("MODEL.ROI_BOX_HEAD.POOLER_TYPE", "ROIAlignV2", _NAME, "kind of pooling; V2 is shifted by half a pixel"),
    Setting("MODEL.ROI_BOX_HEAD.NUM_FC", 0, COUNT_OR_NONE, "hidden fully connected layers"),
    Setting("MODEL.ROI_BOX_HEAD.FC_DIM", 1024, COUNT, "units of a hidden layer"),
    Setting("MODEL.ROI_BOX_HEAD.NUM_CONV", 0, COUNT_OR_NONE, "convolutions before the hidden layers"),
    Setting("MODEL.ROI_BOX_HEAD.CONV_DIM", 256, COUNT, "channels of these convolutions"),
    Setting("MODEL.ROI_BOX_HEAD.NORM", "", _NAME, "normalisation of these convolutions; empty: none"),
    Setting("MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG", False, SWITCH,
            "one box for all classes instead of one a class"),
    Setting("MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS",
            ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0)), Many(_BOX_WEIGHTS),
            "as MODEL.RPN.BBOX_REG_WEIGHTS, for every stage"),
    Setting("MODEL.ROI_BOX_CASCADE_HEAD.IOUS", (0.5, 0.6, 0.7), Many(UNIT),
            "IoU with a true box from which a stage takes a box as object"),
    Setting("MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead", _NAME, "kind of mask head"),
    Setting("MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION", 14, COUNT, "side of the map that a box is pooled to, in cells"),
    Setting("MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO", 0, COUNT_OR_NONE, "as of ROI_BOX_HEAD"),
    Setting("MODEL.ROI_MASK_HEAD.POOLER_TYPE", "ROIAlignV2", _NAME, "as of ROI_BOX_HEAD"),
    Setting("MODEL.ROI_MASK_HEAD.NUM_CONV", 0, COUNT_OR_NONE, "convolutions before the upsampling"),
    Setting("MODEL.ROI_MASK_HEAD.CONV_DIM", 256, COUNT, "channels of the convolutions and the upsampling"),
    Setting("MODEL.ROI_MASK_HEAD.NORM", "", _NAME, "normalisation of the mask head; empty: none"),
    Setting("MODEL.ROI_MASK_HEAD.CLS_AGNOSTIC_MASK", False, SWITCH, "one mask for all classes instead of one a class"),
    Setting("MODEL.RETINANET.NUM_CLASSES", 80, COUNT, "classes, background not counted"),
    Setting("MODEL.RETINANET.IN_FEATURES", ["p3", "p4", "p5", "p6", "p7"], _LEVELS,
            "levels of the pyramid that the head takes"),
    Setting("MODEL.RETINANET.NUM_CONVS", 4, COUNT_OR_NONE, "hidden convolutions of each tower of the head"),
    Setting("MODEL.RETINANET.IOU_THRESHOLDS", [0.4, 0.5], _IOU,
            "IoUs that divide anchors into the classes of IOU_LABELS"),
    Setting("MODEL.RETINANET.IOU_LABELS", [0, -1, 1], _LABELS, "as MODEL.RPN.IOU_LABELS"),
    Setting("MODEL.RETINANET.PRIOR_PROB", 0.01, _OPEN, "probability of an object that the head starts from"),
    Setting("MODEL.RETINANET.SCORE_THRESH_TEST", 0.05, UNIT, "lowest score of a detection"),
    Setting("MODEL.RETINANET.TOPK_CANDIDATES_TEST", 1000, COUNT, "best candidates of a level before NMS"),
    Setting("MODEL.RETINANET.NMS_THRESH_TEST", 0.5, UNIT, "IoU above which NMS drops the weaker detection of a class"),
    Setting("MODEL.RETINANET.BBOX_REG_WEIGHTS", (1.0, 1.0, 1.0, 1.0), _BOX_WEIGHTS, "as MODEL.RPN.BBOX_REG_WEIGHTS"),
    Setting("MODEL.RETINANET.FOCAL_LOSS_GAMMA", 2.0, NOT_NEGATIVE, "exponent of the focal loss"),
    Setting("MODEL.RETINANET.FOCAL_LOSS_ALPHA", 0.25, Number(high=1, note="below 0: no weights"),
            "weight of objects in the focal loss"),
    Setting("MODEL.RETINANET.SMOOTH_L1_LOSS_BETA", 0.1, NOT_NEGATIVE, "as MODEL.RPN.SMOOTH_L1_BETA"),
    Setting("MODEL.RETINANET.BBOX_REG_LOSS_TYPE", "smooth_l1", _NAME, "kind of box loss"),
    Setting("MODEL.RETINANET.NORM", "", _NAME, "normalisation of the towers; empty: none"),
    Setting("MODEL.SEM_SEG_HEAD.NAME", "SemSegFPNHead", _NAME, "kind of segmentation head"),
    Setting("MODEL.SEM_SEG_HEAD.IN_FEATURES", ["p2", "p3", "p4", "p5"], _LEVELS, "backbone maps that the head takes"),
    Setting("MODEL.SEM_SEG_HEAD.IGNORE_VALUE", 255, Number(0, 255, whole=True),
            "label of pixels that neither train nor count"),
    Setting("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 54, Number(1, 255, whole=True, unit="classes"), "classes of the head"),
    Setting("MODEL.SEM_SEG_HEAD.CONVS_DIM", 128, COUNT, "channels of the head's convolutions"),
    Setting("MODEL.SEM_SEG_HEAD.COMMON_STRIDE", 4, COUNT, "stride of the map that is predicted, in image px"),
    Setting("MODEL.SEM_SEG_HEAD.NORM", "GN", _NAME, "normalisation of the head; empty: none"),
    Setting("MODEL.SEM_SEG_HEAD.LOSS_WEIGHT", 1.0, NOT_NEGATIVE, "weight of the loss"),
    Setting("INPUT.MIN_SIZE_TRAIN", (800,), Many(_PIXELS, least=1),
            "shorter sides of images in training; see MIN_SIZE_TRAIN_SAMPLING"),
    Setting("INPUT.MIN_SIZE_TRAIN_SAMPLING", "choice", _NAME,
            "choice: one of MIN_SIZE_TRAIN; range: any size between its two"),
    Setting("INPUT.MAX_SIZE_TRAIN", 1333, _PIXELS, "longer side of images in training, at most"),
    Setting("INPUT.MIN_SIZE_TEST", 800, _PIXELS, "shorter side of images at test"),
    Setting("INPUT.MAX_SIZE_TEST", 1333, _PIXELS, "longer side of images at test, at most"),
    Setting("INPUT.RANDOM_FLIP", "horizontal", _NAME, "direction of random flips, or none"),
    Setting("INPUT.FORMAT", "BGR", _NAME, "order of the colour channels"),
    Setting("INPUT.CROP.ENABLED", False, SWITCH, "train on random crops"),
    Setting("INPUT.CROP.TYPE", "relative_range", _NAME,
            "absolute: CROP.SIZE in px; relative: in fractions of the image; relative_range: at least these"),
    Setting("INPUT.CROP.SIZE", [0.9, 0.9], Many(POSITIVE, lengths=(2,)), "height and width of a crop"),
    Setting("INPUT.MASK_FORMAT", "polygon", _NAME, "form of true masks in training: polygon or bitmask"),
    Setting("DATASETS.TRAIN", (), Many(PATH), "data sets that train"),
    Setting("DATASETS.TEST", (), Many(PATH), "data sets that are scored", decides=SCORES),
    Setting("DATALOADER.NUM_WORKERS", 4, Number(0, 1024, whole=True, unit="processes"),
            "processes that read images", decides=NOTHING),
    Setting("DATALOADER.ASPECT_RATIO_GROUPING", True, SWITCH, "a batch has only wide or only tall images"),
    Setting("DATALOADER.SAMPLER_TRAIN", "TrainingSampler", _NAME,
            "order of training images; RepeatFactor…: rare classes more often"),
    Setting("DATALOADER.REPEAT_THRESHOLD", 0.0, UNIT, "classes in a smaller fraction of the images are repeated"),
    Setting("DATALOADER.REPEAT_SQRT", True, SWITCH,
            "repeat by the square root of threshold / frequency, not by the ratio"),
    Setting("DATALOADER.FILTER_EMPTY_ANNOTATIONS", True, SWITCH, "leave out training images without objects"),
    Setting("TEST.EVAL_PERIOD", 0, Number(0, whole=True, unit="iterations", note="0: at the end only"),
            "iterations between scores in training; the best detector is kept", decides=SCORES),
    Setting("TEST.DETECTIONS_PER_IMAGE", 100, COUNT, "best detections of an image that are kept", decides=SCORES),
    Setting("TEST.PRECISE_BN.ENABLED", False, SWITCH, "recompute BN statistics after training"),
    Setting("TEST.PRECISE_BN.NUM_ITER", 200, Number(1, whole=True, unit="batches"),
            "training batches that PRECISE_BN averages over"),
    Setting("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", _NAME, "schedule of the learning rate"),
    Setting("SOLVER.MAX_ITER", 40000, _STEPS, "length of training"),
    Setting("SOLVER.BASE_LR", 0.001, POSITIVE, "learning rate after the warm-up"),
    Setting("SOLVER.BASE_LR_END", 0.0, NOT_NEGATIVE, "learning rate at the end of WarmupCosineLR"),
    Setting("SOLVER.MOMENTUM", 0.9, UNIT, "momentum of SGD, the weight of earlier gradients"),
    Setting("SOLVER.NESTEROV", False, SWITCH, "Nesterov's momentum"),
    Setting("SOLVER.WEIGHT_DECAY", 0.0001, NOT_NEGATIVE, "weight decay"),
    Setting("SOLVER.WEIGHT_DECAY_NORM", 0.0, NOT_NEGATIVE, "weight decay of the parameters of normalisation layers"),
    Setting("SOLVER.GAMMA", 0.1, NOT_NEGATIVE, "factor of the rate at every one of STEPS"),
    Setting("SOLVER.STEPS", (30000,), Many(_STEPS_OR_NONE), "iterations at which WarmupMultiStepLR lowers the rate"),
    Setting("SOLVER.WARMUP_FACTOR", 1.0 / 1000, UNIT, "factor of the rate at the start of the warm-up"),
    Setting("SOLVER.WARMUP_ITERS", 1000, _STEPS_OR_NONE, "length of the warm-up"),
    Setting("SOLVER.WARMUP_METHOD", "linear", _NAME,
            "linear: the rate rises; constant: it stays at WARMUP_FACTOR until the end"),
    Setting("SOLVER.CHECKPOINT_PERIOD", 5000, _STEPS, "iterations between checkpoints", decides=NOTHING),
    Setting("SOLVER.IMS_PER_BATCH", 16, Number(1, whole=True, unit="images"), "batch of all processes together"),
    Setting("SOLVER.CLIP_GRADIENTS.ENABLED", False, SWITCH, "clip gradients"),
    Setting("SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "value", _NAME,
            "value: each entry; norm: each parameter's gradient as a whole"),
    Setting("SOLVER.CLIP_GRADIENTS.CLIP_VALUE", 1.0, POSITIVE, "largest absolute value, or largest norm"),
    Setting("SOLVER.CLIP_GRADIENTS.NORM_TYPE", 2.0, POSITIVE, "p of the norm of CLIP_TYPE norm"),
    Setting("SOLVER.AMP.ENABLED", False, SWITCH, "mixed precision"),
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
    Setting("FEW_SHOT.NOVEL", (), Many(Words(r".*\S.*", "as names of classes")),
            "novel classes, all others are base; empty: no few-shot protocol"),
    Setting("FEW_SHOT.STAGE", "base", Choice(("base", "novel", "all")),
            "classes that train and are scored: base from all their objects, novel or all from SHOTS objects a class"),
    Setting("FEW_SHOT.SHOTS", 10, Number(1, whole=True, unit="objects"), "of each class, K, outside the stage base"),
    Setting("FEW_SHOT.SEED_FILES", "", ANY_PATH, "folder of FsDet's seed files; empty: shots are drawn here"),
    Setting("FEW_SHOT.DRAW", 0, SEED, "draw of shots of the first trial; of seed files 0 is the folder, N its seedN"),
    Setting("FEW_SHOT.SEEDS", 1, COUNT, "trials that share a draw of shots"),
    Setting("FEW_SHOT.TRAINED", "all", Choice(("all", "last")),
            "last: only the layers with rows for classes, and the box regression beside them; the rest is frozen"),
    Setting("FEW_SHOT.NOVEL_WEIGHTS", "", ANY_PATH,
            "detector of the stage novel whose rows the novel classes start from; empty: random"),
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
    Setting("MODEL.BACKBONE.TRAINABLE", "all", TRAINABLE,
            "part of the backbone that is trained beside neck and heads (torchvision engine)"),
    Setting("MODEL.ROI_BOX_HEAD.COSINE_SCALE", 0.0, NOT_NEGATIVE,
            "factor of cosine similarities as class scores (TFA: 20); 0: a linear classifier"),
    Setting("MODEL.RESNETS.RES4_DILATION", 1, COUNT, "dilation of res4 instead of a stride"),
    Setting("MODEL.RESNETS.RES5_MULTI_GRID", [1, 2, 4], Many(COUNT, least=1),
            "factors of RES5_DILATION in the blocks of res5"),
    Setting("MODEL.RESNETS.STEM_TYPE", "basic", _NAME, "basic: one 7×7 convolution; deeplab: three of 3×3"),
    Setting("MODEL.SEM_SEG_HEAD.LOSS_TYPE", "hard_pixel_mining", _NAME,
            "cross_entropy, or hard_pixel_mining: of the hardest fifth of the pixels"),
    Setting("MODEL.SEM_SEG_HEAD.BLOCKS", 1, COUNT, "LinearHead: last blocks of a plain network, put together"),
    Setting("MODEL.SEM_SEG_HEAD.CACHE", "", ANY_PATH,
            "LinearHead: folder of its dense features; empty: OUTPUT_DIR/dense_features", NOTHING),
    Setting("MODEL.SEM_SEG_HEAD.CACHE_GB", 32.0, Number(0, unit="GB"),
            "LinearHead: no cache where features need more", NOTHING),
    Setting("MODEL.SEM_SEG_HEAD.ASPP_CHANNELS", 256, COUNT, "channels of every branch of DeepLab's ASPP"),
    Setting("MODEL.SEM_SEG_HEAD.ASPP_DILATIONS", [6, 12, 18], Many(COUNT), "dilations of the ASPP's 3×3 convolutions"),
    Setting("MODEL.SEM_SEG_HEAD.ASPP_DROPOUT", 0.1, UNIT, "dropout after the ASPP"),
    Setting("MODEL.SEM_SEG_HEAD.USE_DEPTHWISE_SEPARABLE_CONV", False, SWITCH,
            "depthwise separable convolutions in the ASPP"),
    Setting("MODEL.VIT.FORM", "network", Choice(("network", "vitdet")),
            "network: as timm computes it; vitdet: without prefix tokens and final norm"),
    Setting("MODEL.VIT.WINDOW", 0, COUNT_OR_NONE, "vitdet: tokens along a side of a window; 0: every block is global"),
    Setting("MODEL.VIT.GLOBAL_BLOCKS", 4, COUNT,
            "vitdet: blocks without windows, evenly spaced, the last one among them"),
    Setting("MODEL.VIT.RELATIVE_POSITIONS", False, SWITCH, "vitdet's decomposed ones, which start at 0"),
    Setting("MODEL.FCOS.NUM_CLASSES", 80, COUNT, "classes, background not counted"),
    Setting("MODEL.FCOS.IN_FEATURES", ["p3", "p4", "p5", "p6", "p7"], _LEVELS,
            "levels of the pyramid that the head takes"),
    Setting("MODEL.FCOS.NUM_CONVS", 4, COUNT_OR_NONE, "hidden convolutions of each tower of the head"),
    Setting("MODEL.FCOS.NORM", "GN", _NAME, "normalisation of the towers; empty: none"),
    Setting("MODEL.FCOS.PRIOR_PROB", 0.01, _OPEN, "probability of an object that the head starts from"),
    Setting("MODEL.FCOS.CENTER_SAMPLING_RADIUS", 1.5, POSITIVE,
            "a box's cells within this many strides of its centre are objects"),
    Setting("MODEL.FCOS.FOCAL_LOSS_GAMMA", 2.0, NOT_NEGATIVE, "exponent of the focal loss"),
    Setting("MODEL.FCOS.FOCAL_LOSS_ALPHA", 0.25, Number(high=1, note="below 0: no weights"),
            "weight of objects in the focal loss"),
    Setting("MODEL.FCOS.SCORE_THRESH_TEST", 0.2, UNIT, "lowest score of a detection, with its centre-ness"),
    Setting("MODEL.FCOS.NMS_THRESH_TEST", 0.6, UNIT, "IoU above which NMS drops the weaker detection of a class"),
    Setting("MODEL.FCOS.TOPK_CANDIDATES_TEST", 1000, COUNT, "best candidates of a level before NMS"),
    Setting("SEMI.TEACHER", False, SWITCH,
            "a mean teacher labels images without labels for the detector, from SEMI.BURN_IN on"),
    Setting("SEMI.LABELLED", 100.0, Number(0, 100, above=True, unit="%"),
            "part of the training images that keep their labels, drawn by the trial's seed"),
    Setting("SEMI.SPLITS", "", ANY_PATH,
            "JSON of published draws {percent: {seed: [place among the images with objects]}}, for SEMI.LABELLED"),
    Setting("SEMI.UNLABELLED", "", ANY_PATH,
            "as --unlabelled: a folder of images; empty: the training images that lose their labels"),
    Setting("SEMI.IMS_PER_BATCH", 16, Number(1, whole=True, unit="images"),
            "images for the teacher to label in a step of all processes together"),
    Setting("SEMI.BURN_IN", 2000, _STEPS_OR_NONE, "first part of training, on labels alone"),
    Setting("SEMI.THRESHOLD", 0.7, NOT_NEGATIVE, "lowest score of a detection that becomes a label; above 1: none"),
    Setting("SEMI.WEIGHT", 4.0, NOT_NEGATIVE, "weight of the losses on the teacher's labels"),
    Setting("SEMI.BOX_LOSS", False, SWITCH, "the box losses on the teacher's labels count too"),
    Setting("SEMI.SOFT_BACKGROUND", False, SWITCH,
            "regions without a label weigh in the class loss as the teacher's score of background (Soft Teacher)"),
    Setting("SEMI.FOCAL_GAMMA", 0.0, NOT_NEGATIVE,
            "exponent of a focal loss instead of the second stage's cross-entropy; 0: cross-entropy"),
    Setting("SEMI.EMA", 0.9996, UNIT, "weight of the teacher's own parameters in their moving average"),
    Setting("SEMI.TEACHER_NORM", "student", Choice(("student", "BN", "SyncBN", "FrozenBN", "EMAN", "MomentumBN")),
            "how the teacher's BN layers normalise; student: BN of its own batch; others than BN are the student's"),
    Setting("SEMI.TEACHER_GROUP", 0, COUNT_OR_NONE,
            "images that the teacher's BN or Momentum BN normalises together; 0: all of a process"),
    Setting("SEMI.ALPHA", 0.5, UNIT, "weight of the batch in the teacher's Momentum BN, the rest its history's"),
    Setting("SEMI.STRONG_LABELLED", False, SWITCH, "labelled images come in their strong view besides"),
    Setting("SEMI.RESULT", "teacher", Choice(("teacher", "student")), "the network that is kept and scored"),
    Setting("INPUT.CROP.SINGLE_CATEGORY_MAX_AREA", 1.0, UNIT,
            "largest fraction of a segmenter's crop that one class should fill"),
    Setting("SOLVER.AMP.PRECISION", "float16", Choice(("float16", "bfloat16")), "where SOLVER.AMP.ENABLED"),
    Setting("SOLVER.LAYER_DECAY", 1.0, Number(0, 1, above=True),
            "factor of the rate from one layer of a timm network to the one below"),
    Setting("SOLVER.OPTIMIZER", "SGD", Choice(("SGD", "AdamW")), "Detectron2 has AdamW in Python configs only"),
    Setting("SOLVER.BETAS", (0.9, 0.999), Many(Number(0, 1, below=True), lengths=(2,)),
            "AdamW's; torch's convention, 1 - the weight of the new value"),
    Setting("SOLVER.POLY_LR_POWER", 0.9, NOT_NEGATIVE, "exponent of WarmupPolyLR"),
    Setting("SOLVER.POLY_LR_CONSTANT_ENDING", 0.0, UNIT, "fraction of BASE_LR below which WarmupPolyLR does not fall"),
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


def changed(cfg: CfgNode, part: str) -> bool:
    """Whether any setting of a part ("SEMI") is another than its default."""
    return any(value_of(cfg, key) != one.default for key, one in SETTINGS.items() if key.startswith(f"{part}."))


def synchronises_on_cpu(cfg: CfgNode) -> bool:
    """Whether BN statistics would be shared between torchrun's processes on a CPU, which torch cannot do."""
    from momentum_transfer.core.devices import runs_on_cpu  # imports torch, which takes seconds

    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and runs_on_cpu(cfg.MODEL.DEVICE) and "SyncBN" in cfg.dump()


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
    if not changed(cfg, "SEMI"):
        del kept["SEMI"]  # so that it is no part of the name of settings without it
    if cfg.FEW_SHOT.NOVEL_WEIGHTS:
        kept.FEW_SHOT.NOVEL_WEIGHTS = "given"  # every backbone has its own; records and claims have their hash
    if cfg.MODEL.BACKBONE.TRAINABLE == "all":
        del kept.MODEL.BACKBONE["TRAINABLE"]
    for split in ("TRAIN", "TEST"):
        kept.DATASETS[split] = type(cfg.DATASETS[split])(content_name(name) for name in cfg.DATASETS[split])
    for setting in SETTINGS.values():
        if setting.key.startswith("SEMI."):
            continue
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
    if changed(cfg, "SEMI"):
        yield from _semi_problems(cfg)
    yield from backbone_problems(cfg)
    for name in ("RPN", "ROI_HEADS", "RETINANET"):
        if len(cfg.MODEL[name].IOU_LABELS) != len(cfg.MODEL[name].IOU_THRESHOLDS) + 1:
            yield f"expected MODEL.{name}.IOU_LABELS one longer than IOU_THRESHOLDS, found it is not"
    if cfg.MODEL.MASK_ON and cfg.MODEL.META_ARCHITECTURE in ("RetinaNet", "FCOS"):
        name = cfg.MODEL.META_ARCHITECTURE
        yield f"expected MODEL.MASK_ON False for {name}, which has no mask head, found True; set it False"
    if cfg.MODEL.ROI_HEADS.NAME == "CascadeROIHeads":
        yield from _cascade_problems(cfg)
    for key, width in _NORMS.items():
        if value_of(cfg, key).NORM == "GN" and value_of(cfg, key)[width] % 32:
            yield f"expected a multiple of 32 in {key}.{width} for GN, found {value_of(cfg, key)[width]}"
    yield from _few_shot_problems(cfg)
    dense = {"FCOS": cfg.MODEL.FCOS.NORM, "RetinaNet": cfg.MODEL.RETINANET.NORM}
    if dense.get(cfg.MODEL.META_ARCHITECTURE) == "GN" and cfg.MODEL.FPN.OUT_CHANNELS % 32:
        yield f"expected a multiple of 32 in MODEL.FPN.OUT_CHANNELS for GN, found {cfg.MODEL.FPN.OUT_CHANNELS}"


def _semi_problems(cfg: CfgNode) -> Iterator[str]:
    """What a teacher and few labels cannot be combined with."""
    semi = cfg.SEMI
    if task_name(cfg) != "detection":
        yield "expected a detector with settings of SEMI, found a segmenter; leave them out"
    if cfg.FEW_SHOT.NOVEL:
        yield "expected FEW_SHOT.NOVEL or settings of SEMI, found both; leave one of them out"
    if semi.SPLITS and semi.LABELLED == 100:
        yield "expected SEMI.LABELLED below 100 with SEMI.SPLITS, found 100; set the draw's percentage"
    if not semi.TEACHER:
        if semi.UNLABELLED:
            yield "expected SEMI.TEACHER True with SEMI.UNLABELLED, found False; without a teacher nobody labels"
        return
    if cfg.MODEL.MASK_ON:
        yield "expected MODEL.MASK_ON False with SEMI.TEACHER, whose labels are boxes, found True; set it False"
    faster = cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN" and cfg.MODEL.ROI_HEADS.NAME == "StandardROIHeads"
    if semi.SOFT_BACKGROUND and not faster:
        yield "expected a Faster R-CNN with a pyramid for SEMI.SOFT_BACKGROUND, found another detector; leave it out"
    if semi.BURN_IN >= cfg.SOLVER.MAX_ITER:
        yield f"expected SEMI.BURN_IN below SOLVER.MAX_ITER {cfg.SOLVER.MAX_ITER}, found {semi.BURN_IN}; lower it"
    if semi.TEACHER_GROUP and semi.IMS_PER_BATCH % semi.TEACHER_GROUP:
        images = semi.IMS_PER_BATCH
        yield f"expected a SEMI.TEACHER_GROUP that divides SEMI.IMS_PER_BATCH {images}, found {semi.TEACHER_GROUP}"


def backbone_problems(cfg: CfgNode) -> Iterator[str]:
    """What a frozen backbone and another one than a ResNet cannot be combined with."""
    c4 = cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN" and cfg.MODEL.BACKBONE.NAME == "build_resnet_backbone"
    if cfg.MODEL.BACKBONE.FROZEN and c4:
        yield "expected MODEL.BACKBONE.FROZEN with a pyramid, found a C4 detector, whose head is the backbone's res5"
    if (part := cfg.MODEL.BACKBONE.TRAINABLE) != "all":
        if cfg.SEMI.TEACHER or cfg.FEW_SHOT.TRAINED != "all" or cfg.MODEL.BACKBONE.FROZEN:
            yield (
                "expected MODEL.BACKBONE.TRAINABLE all with SEMI.TEACHER, FEW_SHOT.TRAINED last or "
                f"MODEL.BACKBONE.FROZEN, found {part}; choose one of them"
            )
        from momentum_transfer.transfer.any_backbone import check_trainable

        check_trainable(cfg)
    if cfg.MODEL.BACKBONE.ARCH:
        from momentum_transfer.transfer import backbone_checks  # imports torch, which takes seconds

        yield from backbone_checks.problems(cfg)
        return
    for key in _TIMM_ONLY:
        if value_of(cfg, key) != SETTINGS[key].default:
            yield f"expected MODEL.BACKBONE.ARCH with {key}, found none; name a network of timm, or leave {key} out"


def _few_shot_problems(cfg: CfgNode) -> Iterator[str]:
    """Few-shot settings without novel classes, and what other networks have no place for."""
    few, network = cfg.FEW_SHOT, cfg.MODEL.META_ARCHITECTURE
    if repeated := next((name for name in few.NOVEL if list(few.NOVEL).count(name) > 1), None):
        yield f"expected every class of FEW_SHOT.NOVEL once, found {repeated!r} again; leave it out"
    if not few.NOVEL and (few.STAGE != "base" or few.TRAINED != "all"):
        yield "expected FEW_SHOT.NOVEL with FEW_SHOT.STAGE and TRAINED, found none; name the novel classes"
    if few.NOVEL and task_name(cfg) != "detection":
        yield "expected a detector with FEW_SHOT.NOVEL, found a segmenter; choose another config"
    if cfg.MODEL.ROI_BOX_HEAD.COSINE_SCALE and network != "GeneralizedRCNN":
        yield f"expected MODEL.ROI_BOX_HEAD.COSINE_SCALE 0 for {network}, which has no box head, found another"


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
