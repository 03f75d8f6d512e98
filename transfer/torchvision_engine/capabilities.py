"""Config key → values that the torchvision engine implements; others are refused."""

from collections.abc import Iterator

from fvcore.common.config import CfgNode

from momentum_transfer.backbones.resnet import DEPTHS
from momentum_transfer.core.devices import runs_on_cpu
from momentum_transfer.core.settings import value_of
from momentum_transfer.transfer.config import synchronises_on_cpu, task_name
from momentum_transfer.transfer.torchvision_engine import semantic_run

C4_HEADS = ("Res5ROIHeads", "Res5ROIHeadsExtraNorm")
_BOX_LOSSES = ("smooth_l1", "giou")
_POOLERS = ("ROIAlign", "ROIAlignV2")

#: Key → the values of Detectron2's that this engine knows.
WORDS: dict[str, tuple[object, ...]] = {
    "VERSION": (2,),
    "MODEL.META_ARCHITECTURE": ("GeneralizedRCNN", "RetinaNet", "FCOS", "SemanticSegmentor"),
    "MODEL.RESNETS.DEPTH": tuple(int(name.removeprefix("resnet")) for name in DEPTHS),
    "MODEL.RESNETS.STEM_TYPE": ("basic",),
    "MODEL.PROPOSAL_GENERATOR.NAME": ("RPN",),
    "MODEL.RPN.HEAD_NAME": ("StandardRPNHead",),
    "MODEL.ROI_HEADS.NAME": ("StandardROIHeads", "CascadeROIHeads", *C4_HEADS),
    "MODEL.ROI_BOX_HEAD.NAME": ("", "FastRCNNConvFCHead"),
    "MODEL.ROI_BOX_HEAD.POOLER_TYPE": _POOLERS,
    "MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE": _BOX_LOSSES,
    "MODEL.ROI_MASK_HEAD.NAME": ("MaskRCNNConvUpsampleHead",),
    "MODEL.ROI_MASK_HEAD.POOLER_TYPE": _POOLERS,
    "MODEL.RETINANET.BBOX_REG_LOSS_TYPE": _BOX_LOSSES,
    "INPUT.FORMAT": ("RGB", "BGR"),
    "INPUT.MASK_FORMAT": ("polygon", "bitmask"),
    "INPUT.RANDOM_FLIP": ("horizontal", "none"),
    "INPUT.MIN_SIZE_TRAIN_SAMPLING": ("choice", "range"),
    "DATALOADER.SAMPLER_TRAIN": ("TrainingSampler", "RepeatFactorTrainingSampler"),
    "SOLVER.LR_SCHEDULER_NAME": ("WarmupMultiStepLR", "WarmupCosineLR", "WarmupPolyLR"),
    "SOLVER.WARMUP_METHOD": ("linear", "constant"),
    "SOLVER.CLIP_GRADIENTS.CLIP_TYPE": ("value", "norm"),
    "SOLVER.AMP.PRECISION": ("float16", "bfloat16"),
}
_BACKBONES = {
    "GeneralizedRCNN": "build_resnet_fpn_backbone",
    "RetinaNet": "build_retinanet_resnet_fpn_backbone",
    "FCOS": "build_fcos_resnet_fpn_backbone",
    "SemanticSegmentor": "build_resnet_deeplab_backbone",
}


def unsupported(cfg: CfgNode) -> str | None:
    """Why the torchvision engine cannot run the config here, or None."""
    for key, known in WORDS.items():
        if value_of(cfg, key) not in known:
            return f"{key} is none of {', '.join(str(word) or 'the empty name' for word in known)}"
    if reason := next(_problems(cfg), None):
        return reason
    detects = task_name(cfg) == "detection"
    return next(_detector_problems(cfg), None) if detects else semantic_run.unsupported(cfg)


def _problems(cfg: CfgNode) -> Iterator[str]:
    amp = cfg.SOLVER.AMP
    c4 = cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN" and cfg.MODEL.ROI_HEADS.NAME in C4_HEADS
    backbone = "build_resnet_backbone" if c4 else _BACKBONES[cfg.MODEL.META_ARCHITECTURE]
    if backbone != cfg.MODEL.BACKBONE.NAME:
        yield f"MODEL.BACKBONE.NAME of this network is not {backbone}"
    if not cfg.MODEL.BACKBONE.ARCH:
        yield from _resnet_problems(cfg)
    if amp.ENABLED and runs_on_cpu(cfg.MODEL.DEVICE) and amp.PRECISION == "float16":
        yield "float16 needs a GPU; set SOLVER.AMP.PRECISION bfloat16"
    if synchronises_on_cpu(cfg):
        yield "SyncBN over several processes needs GPUs; use BN, or one process"


def _resnet_problems(cfg: CfgNode) -> Iterator[str]:
    resnets = cfg.MODEL.RESNETS
    if resnets.STRIDE_IN_1X1:
        yield "MODEL.RESNETS.STRIDE_IN_1X1 True is Caffe2's ResNet; set it False"
    bottlenecks = resnets.DEPTH >= 50
    if resnets.STEM_OUT_CHANNELS * (4 if bottlenecks else 1) != resnets.RES2_OUT_CHANNELS or (
        bottlenecks and resnets.WIDTH_PER_GROUP != resnets.STEM_OUT_CHANNELS
    ):
        yield "MODEL.RESNETS: RES2_OUT_CHANNELS and WIDTH_PER_GROUP do not follow STEM_OUT_CHANNELS"


def _detector_problems(cfg: CfgNode) -> Iterator[str]:
    model = cfg.MODEL
    if model.RESNETS.RES5_DILATION != 1 or model.RESNETS.RES4_DILATION != 1:
        yield "MODEL.RESNETS.RES4_DILATION or RES5_DILATION other than 1"
    if cfg.INPUT.CROP.ENABLED:
        yield "INPUT.CROP is for semantic segmentation only"
    yield from _level_problems(cfg)
    if model.BACKBONE.ARCH:
        return
    used = model.FPN.IN_FEATURES if "fpn" in model.BACKBONE.NAME else model.ROI_HEADS.IN_FEATURES
    lacking = sorted(set(used) - set(model.RESNETS.OUT_FEATURES))
    if lacking:
        yield f"MODEL.RESNETS.OUT_FEATURES lacks {', '.join(lacking)}"


def _level_problems(cfg: CfgNode) -> Iterator[str]:
    """Feature levels that are not there, and anchors that do not fit them."""
    model, section = cfg.MODEL, {"RetinaNet": "RETINANET", "FCOS": "FCOS"}.get(cfg.MODEL.META_ARCHITECTURE, "RPN")
    levels = list(model[section].IN_FEATURES)
    if "fpn" in model.BACKBONE.NAME:
        sources = list(model.FPN.IN_FEATURES)
        if not sources or sources != [f"res{k}" for k in range(int(sources[0][-1]), 6)]:
            yield f"MODEL.FPN.IN_FEATURES {sources} are not the stages from one on to res5"
        there = [f"p{name[-1]}" for name in sources] + (["p6"] if section == "RPN" else ["p6", "p7"])
    else:
        there = ["res4"]
    heads = list(model.ROI_HEADS.IN_FEATURES) if section == "RPN" else []
    for name in [*levels, *heads]:
        if name not in there:
            yield f"IN_FEATURES names {name}, but this backbone gives {', '.join(there)}"
    if not levels:
        yield f"MODEL.{section}.IN_FEATURES is empty"
    if section == "FCOS":
        return
    for key in ("SIZES", "ASPECT_RATIOS"):
        given = model.ANCHOR_GENERATOR[key]
        given = given if isinstance(given[0], (list, tuple)) else [given]
        if len(given) not in (1, len(levels)) or len({len(one) for one in given}) != 1:
            yield f"MODEL.ANCHOR_GENERATOR.{key} is not one list, or {len(levels)} lists of one length"
