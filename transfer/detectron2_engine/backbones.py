"""Backbones that Detectron2's configuration cannot express: ResNets of basic blocks, and pyramids on any backbone."""

from __future__ import annotations

from typing import Any

from torch import nn

from transfer import any_backbone
from transfer.detectron2_engine.any_backbone import plain_pyramid, wrapped

#: Blocks of the ResNets that Detectron2 does not build by itself.
SMALL = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
#: Our builder for each of Detectron2's names (and for FCOS, which has none there): what P6 and P7 are convolved from.
PYRAMIDS = {
    "build_resnet_fpn_backbone": "",
    "build_retinanet_resnet_fpn_backbone": "res5",
    "build_fcos_resnet_fpn_backbone": "p5",
}


def resnet(cfg: Any, input_shape: Any) -> nn.Module:
    """A ResNet of any depth that we have; Detectron2 itself builds 50 and deeper."""
    from detectron2.modeling.backbone import resnet

    settings = cfg.MODEL.RESNETS
    if settings.DEPTH not in SMALL:
        return resnet.build_resnet_backbone(cfg, input_shape)
    stem = resnet.BasicStem(input_shape.channels, settings.STEM_OUT_CHANNELS, norm=settings.NORM)
    inputs, outputs = settings.STEM_OUT_CHANNELS, settings.RES2_OUT_CHANNELS
    stages = []
    for index, blocks in enumerate(SMALL[settings.DEPTH]):
        stages.append(basic_stage(blocks, inputs, outputs, settings.NORM, stride=1 if index == 0 else 2))
        inputs, outputs = outputs, outputs * 2
    return resnet.ResNet(stem, stages, out_features=settings.OUT_FEATURES, freeze_at=cfg.MODEL.BACKBONE.FREEZE_AT)


def basic_stage(blocks: int, inputs: int, outputs: int, norm: str, stride: int) -> list[nn.Module]:
    """A stage of ``blocks`` basic blocks, the first of which has the stride."""
    from detectron2.modeling.backbone import resnet

    strides = [stride] + [1] * (blocks - 1)
    return resnet.ResNet.make_stage(
        resnet.BasicBlock, blocks, stride_per_block=strides, in_channels=inputs, out_channels=outputs, norm=norm
    )


def pyramid(source: str, cfg: Any, input_shape: Any) -> nn.Module:
    """FPN on such a ResNet or a network of timm, or the simple feature pyramid on a plain one.

    Args:
        source: what P6 and P7 are convolved from (P5 where there is no res5), or "" for Mask R-CNN's pooled P6.
    """
    from detectron2.modeling.backbone import FPN
    from detectron2.modeling.backbone.fpn import LastLevelMaxPool, LastLevelP6P7

    settings, channels = cfg.MODEL.FPN, cfg.MODEL.FPN.OUT_CHANNELS
    if cfg.MODEL.BACKBONE.ARCH and any_backbone.is_plain(cfg):
        top = LastLevelP6P7(channels, channels, "p5") if source else LastLevelMaxPool()
        return plain_pyramid(cfg, top)
    bottom_up: Any = wrapped(cfg) if cfg.MODEL.BACKBONE.ARCH else resnet(cfg, input_shape)
    top = LastLevelMaxPool()
    if source:
        inputs = bottom_up.output_shape()["res5"].channels if source == "res5" else channels
        top = LastLevelP6P7(inputs, channels, source)
    return FPN(
        bottom_up,
        settings.IN_FEATURES,
        channels,
        norm=settings.NORM,
        top_block=top,
        square_pad=cfg.MODEL.BACKBONE.SQUARE,
    )


def deeplab(original: Any, cfg: Any, input_shape: Any) -> nn.Module:
    """The backbone of DeepLab: a network of timm, or Detectron2's ``original`` of ResNets."""
    network: nn.Module = wrapped(cfg) if cfg.MODEL.BACKBONE.ARCH else original(cfg, input_shape)
    return network
