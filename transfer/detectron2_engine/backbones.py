"""Backbones that Detectron2's configuration cannot express: ResNets of basic blocks, and pyramids on any ResNet."""

from __future__ import annotations

from typing import Any

from torch import nn

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
    """FPN on such a ResNet; ``source``: what P6 and P7 are convolved from, or "" for Mask R-CNN's pooled P6."""
    from detectron2.modeling.backbone import FPN
    from detectron2.modeling.backbone.fpn import LastLevelMaxPool, LastLevelP6P7

    bottom_up, settings = resnet(cfg, input_shape), cfg.MODEL.FPN
    top: nn.Module = LastLevelMaxPool()
    if source:
        shape: Any = bottom_up.output_shape  # Detectron2's Backbone, which is untyped here
        inputs = shape()["res5"].channels if source == "res5" else settings.OUT_CHANNELS
        top = LastLevelP6P7(inputs, settings.OUT_CHANNELS, source)
    return FPN(bottom_up, settings.IN_FEATURES, settings.OUT_CHANNELS, norm=settings.NORM, top_block=top)
