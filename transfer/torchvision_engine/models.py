"""Builders of detectors: the only file of the engine's models that reads the config."""

from collections.abc import Sequence
from typing import Any

from fvcore.common.config import CfgNode
from torch import nn

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.transfer import any_backbone
from momentum_transfer.transfer.torchvision_engine.backbone import (
    FPN,
    LAST,
    BottomUp,
    ConvP6P7,
    MaxPoolP6,
    SimplePyramid,
    SingleScale,
    TopBlock,
)
from momentum_transfer.transfer.torchvision_engine.boxes import AnchorGenerator
from momentum_transfer.transfer.torchvision_engine.dense import RetinaNet, RetinaNetHead
from momentum_transfer.transfer.torchvision_engine.detectors import RCNN, Detector, OneStage
from momentum_transfer.transfer.torchvision_engine.fcos import FCOS, FCOSHead
from momentum_transfer.transfer.torchvision_engine.layers import norm_layer
from momentum_transfer.transfer.torchvision_engine.region_heads import BoxHead, BoxPredictor, MaskHead
from momentum_transfer.transfer.torchvision_engine.roi_heads import (
    CascadeRoIHeads,
    ProposalSampler,
    Res5RoIHeads,
    RoIPooler,
    StandardRoIHeads,
    res5_head,
)
from momentum_transfer.transfer.torchvision_engine.rpn import RPN
from momentum_transfer.transfer.torchvision_engine.vit import ViT


def architecture_of(cfg: CfgNode) -> Architecture:
    """The backbone that a config asks for."""
    return Architecture(name=f"resnet{cfg.MODEL.RESNETS.DEPTH}", width=cfg.MODEL.RESNETS.STEM_OUT_CHANNELS)


def freeze_at(cfg: CfgNode) -> int:
    """How many parts of a ResNet are frozen, from the stem on; 5 is all."""
    return 5 if cfg.MODEL.BACKBONE.FROZEN else int(cfg.MODEL.BACKBONE.FREEZE_AT)


def build_detector(cfg: CfgNode) -> Detector:
    """The detector of a config, freshly initialised, on the CPU, in training mode."""
    pixels = {"pixel_mean": cfg.MODEL.PIXEL_MEAN, "pixel_std": cfg.MODEL.PIXEL_STD}
    name = cfg.MODEL.META_ARCHITECTURE
    if name == "RetinaNet":
        backbone = _pyramid(cfg, convolved_from="res5")
        return OneStage(backbone, _retinanet(cfg, backbone), **pixels)
    if name == "FCOS":
        backbone = _pyramid(cfg, convolved_from="p5")
        return OneStage(backbone, _fcos(cfg, backbone), **pixels)
    if cfg.MODEL.ROI_HEADS.NAME in ("Res5ROIHeads", "Res5ROIHeadsExtraNorm"):
        return _c4(cfg, pixels)
    backbone = _pyramid(cfg)
    heads = _cascade_heads(cfg, backbone) if cfg.MODEL.ROI_HEADS.NAME == "CascadeROIHeads" else _heads(cfg, backbone)
    return RCNN(backbone, _rpn(cfg, backbone), heads, **pixels)


def resnet_of(cfg: CfgNode) -> Any:
    """The freshly initialised ResNet of a config, with its norm (an empty name: none)."""
    norm = norm_layer(cfg.MODEL.RESNETS.NORM)
    return build_resnet(architecture_of(cfg), norm if norm is not None else nn.Identity)


def _pyramid(cfg: CfgNode, convolved_from: str = "") -> FPN | SimplePyramid:
    square, sources = cfg.MODEL.BACKBONE.SQUARE, cfg.MODEL.FPN.IN_FEATURES
    bottom_up: Any
    if cfg.MODEL.BACKBONE.ARCH:
        bottom_up = vit(cfg) if cfg.MODEL.VIT.FORM == "vitdet" else any_backbone.build_network(cfg)
    else:
        bottom_up = BottomUp(resnet_of(cfg), freeze_at=freeze_at(cfg))
    plain = LAST in bottom_up.channels
    channels, norm = cfg.MODEL.FPN.OUT_CHANNELS, cfg.MODEL.FPN.NORM
    top: TopBlock = MaxPoolP6()
    if convolved_from:  # a plain network has no res5
        from_stage = convolved_from == "res5" and not plain
        top = ConvP6P7(bottom_up.channels["res5"] if from_stage else channels, channels, "res5" if from_stage else "p5")
    if plain:
        levels = [f"p{name[-1]}" for name in sources]
        return SimplePyramid(bottom_up, levels, channels, norm=norm, top_block=top, square=square)
    return FPN(bottom_up, sources, channels, norm=norm, top_block=top, square=square)


def vit(cfg: CfgNode) -> ViT:
    """ViTDet's network of a config."""
    shape, settings = any_backbone.vit_settings(cfg)
    network = ViT(shape, **settings)
    return network.requires_grad_(False) if cfg.MODEL.BACKBONE.FROZEN else network


def _anchors(cfg: CfgNode, strides: Sequence[int]) -> AnchorGenerator:
    settings = cfg.MODEL.ANCHOR_GENERATOR
    return AnchorGenerator(settings.SIZES, settings.ASPECT_RATIOS, strides, settings.OFFSET)


def _rpn(cfg: CfgNode, backbone: FPN | SimplePyramid | SingleScale) -> RPN:
    rpn = cfg.MODEL.RPN
    anchors = _anchors(cfg, [backbone.strides[name] for name in rpn.IN_FEATURES])
    return RPN(
        rpn.IN_FEATURES, anchors, backbone.channels[rpn.IN_FEATURES[0]], coder_weights=rpn.BBOX_REG_WEIGHTS,
        thresholds=rpn.IOU_THRESHOLDS, labels=rpn.IOU_LABELS, batch_size=rpn.BATCH_SIZE_PER_IMAGE,
        positive_fraction=rpn.POSITIVE_FRACTION, pre_nms=(rpn.PRE_NMS_TOPK_TRAIN, rpn.PRE_NMS_TOPK_TEST),
        post_nms=(rpn.POST_NMS_TOPK_TRAIN, rpn.POST_NMS_TOPK_TEST), nms_threshold=rpn.NMS_THRESH,
        min_size=cfg.MODEL.PROPOSAL_GENERATOR.MIN_SIZE, smooth_l1_beta=rpn.SMOOTH_L1_BETA,
        loss_weight=rpn.LOSS_WEIGHT, box_loss_weight=rpn.BBOX_REG_LOSS_WEIGHT, convs=rpn.CONV_DIMS,
    )  # fmt: skip


def _sampler(cfg: CfgNode) -> ProposalSampler:
    roi = cfg.MODEL.ROI_HEADS
    return ProposalSampler(
        roi.NUM_CLASSES, roi.IOU_THRESHOLDS, roi.IOU_LABELS, batch_size=roi.BATCH_SIZE_PER_IMAGE,
        positive_fraction=roi.POSITIVE_FRACTION, append_ground_truth=roi.PROPOSAL_APPEND_GT,
    )  # fmt: skip


def _pooler(cfg: CfgNode, backbone: FPN | SimplePyramid | SingleScale, head: CfgNode) -> RoIPooler:
    strides = [backbone.strides[name] for name in cfg.MODEL.ROI_HEADS.IN_FEATURES]
    return RoIPooler(head.POOLER_RESOLUTION, strides, head.POOLER_SAMPLING_RATIO, head.POOLER_TYPE == "ROIAlignV2")


def _box_head(cfg: CfgNode, channels: int) -> BoxHead:
    head = cfg.MODEL.ROI_BOX_HEAD
    convs = {"convs": head.NUM_CONV, "conv_dim": head.CONV_DIM, "norm": head.NORM}
    return BoxHead(channels, head.POOLER_RESOLUTION, fcs=head.NUM_FC, fc_dim=head.FC_DIM, **convs)


def _box_predictor(cfg: CfgNode, inputs: int, coder_weights: Sequence[float]) -> BoxPredictor:
    head = cfg.MODEL.ROI_BOX_HEAD
    roi = cfg.MODEL.ROI_HEADS
    return BoxPredictor(
        inputs, roi.NUM_CLASSES, coder_weights=coder_weights, class_agnostic=head.CLS_AGNOSTIC_BBOX_REG,
        box_loss=head.BBOX_REG_LOSS_TYPE, smooth_l1_beta=head.SMOOTH_L1_BETA,
        box_loss_weight=head.BBOX_REG_LOSS_WEIGHT, score_threshold=roi.SCORE_THRESH_TEST,
        nms_threshold=roi.NMS_THRESH_TEST, detections=cfg.TEST.DETECTIONS_PER_IMAGE,
        cosine_scale=head.COSINE_SCALE, focal_gamma=cfg.SEMI.FOCAL_GAMMA,
    )  # fmt: skip


def _mask_head(cfg: CfgNode, channels: int) -> MaskHead | None:
    if not cfg.MODEL.MASK_ON:
        return None
    head = cfg.MODEL.ROI_MASK_HEAD
    classes = 1 if head.CLS_AGNOSTIC_MASK else cfg.MODEL.ROI_HEADS.NUM_CLASSES
    return MaskHead(channels, classes, head.NUM_CONV, head.CONV_DIM, head.NORM)


def _mask_branch(cfg: CfgNode, backbone: FPN | SimplePyramid) -> dict[str, Any]:
    head = _mask_head(cfg, backbone.channels[cfg.MODEL.ROI_HEADS.IN_FEATURES[0]])
    return {"mask_head": head, "mask_pooler": _pooler(cfg, backbone, cfg.MODEL.ROI_MASK_HEAD)} if head else {}


def _heads(cfg: CfgNode, backbone: FPN | SimplePyramid) -> StandardRoIHeads:
    levels = cfg.MODEL.ROI_HEADS.IN_FEATURES
    box_head = _box_head(cfg, backbone.channels[levels[0]])
    predictor = _box_predictor(cfg, box_head.outputs, cfg.MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS)
    pooler = _pooler(cfg, backbone, cfg.MODEL.ROI_BOX_HEAD)
    return StandardRoIHeads(levels, _sampler(cfg), pooler, box_head, predictor, **_mask_branch(cfg, backbone))


def _cascade_heads(cfg: CfgNode, backbone: FPN | SimplePyramid) -> CascadeRoIHeads:
    levels, cascade = cfg.MODEL.ROI_HEADS.IN_FEATURES, cfg.MODEL.ROI_BOX_CASCADE_HEAD
    heads = [_box_head(cfg, backbone.channels[levels[0]]) for _ in cascade.IOUS]
    weights = zip(heads, cascade.BBOX_REG_WEIGHTS, strict=True)
    predictors = [_box_predictor(cfg, head.outputs, weight) for head, weight in weights]
    pooler, branch = _pooler(cfg, backbone, cfg.MODEL.ROI_BOX_HEAD), _mask_branch(cfg, backbone)
    return CascadeRoIHeads(levels, _sampler(cfg), pooler, heads, predictors, thresholds=cascade.IOUS, **branch)


def _c4(cfg: CfgNode, pixels: dict[str, Any]) -> RCNN:
    resnet = resnet_of(cfg)
    backbone = SingleScale(BottomUp(resnet, last="res4", freeze_at=freeze_at(cfg)))
    channels = resnet.num_features
    extra = norm_layer(cfg.MODEL.RESNETS.NORM) if cfg.MODEL.ROI_HEADS.NAME == "Res5ROIHeadsExtraNorm" else None
    heads = Res5RoIHeads(
        cfg.MODEL.ROI_HEADS.IN_FEATURES[0], _sampler(cfg), _pooler(cfg, backbone, cfg.MODEL.ROI_BOX_HEAD),
        res5_head(resnet.layer4, channels, extra),
        _box_predictor(cfg, channels, cfg.MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS), mask_head=_mask_head(cfg, channels),
    )  # fmt: skip
    return RCNN(backbone, _rpn(cfg, backbone), heads, **pixels)


def _retinanet(cfg: CfgNode, backbone: FPN | SimplePyramid) -> RetinaNet:
    settings = cfg.MODEL.RETINANET
    anchors = _anchors(cfg, [backbone.strides[name] for name in settings.IN_FEATURES])
    channels, levels = cfg.MODEL.FPN.OUT_CHANNELS, len(settings.IN_FEATURES)
    towers = {"convs": settings.NUM_CONVS, "norm": settings.NORM, "prior": settings.PRIOR_PROB, "levels": levels}
    head = RetinaNetHead(channels, settings.NUM_CLASSES, anchors.per_location[0], **towers)
    return RetinaNet(
        settings.IN_FEATURES, head, anchors, coder_weights=settings.BBOX_REG_WEIGHTS,
        thresholds=settings.IOU_THRESHOLDS, labels=settings.IOU_LABELS, alpha=settings.FOCAL_LOSS_ALPHA,
        gamma=settings.FOCAL_LOSS_GAMMA, box_loss=settings.BBOX_REG_LOSS_TYPE,
        smooth_l1_beta=settings.SMOOTH_L1_LOSS_BETA, **_dense_inference(cfg, settings),
    )  # fmt: skip


def _fcos(cfg: CfgNode, backbone: FPN | SimplePyramid) -> FCOS:
    settings = cfg.MODEL.FCOS
    strides = [backbone.strides[name] for name in settings.IN_FEATURES]
    towers = {"convs": settings.NUM_CONVS, "norm": settings.NORM, "prior": settings.PRIOR_PROB, "levels": len(strides)}
    head = FCOSHead(cfg.MODEL.FPN.OUT_CHANNELS, settings.NUM_CLASSES, **towers)
    points = AnchorGenerator([[stride] for stride in strides], [[1.0]], strides, offset=0.5)
    return FCOS(
        settings.IN_FEATURES, head, points, radius=settings.CENTER_SAMPLING_RADIUS, alpha=settings.FOCAL_LOSS_ALPHA,
        gamma=settings.FOCAL_LOSS_GAMMA, **_dense_inference(cfg, settings),
    )  # fmt: skip


def _dense_inference(cfg: CfgNode, settings: CfgNode) -> dict[str, Any]:
    return {"score_threshold": settings.SCORE_THRESH_TEST, "candidates": settings.TOPK_CANDIDATES_TEST,
            "nms_threshold": settings.NMS_THRESH_TEST, "detections": cfg.TEST.DETECTIONS_PER_IMAGE}  # fmt: skip
