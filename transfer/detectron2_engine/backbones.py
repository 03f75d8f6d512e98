"""Backbones that Detectron2's configuration cannot express: networks of timm, its own ViT, small ResNets, pyramids."""

import functools
from typing import Any

from torch import Tensor, nn

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer import any_backbone
from momentum_transfer.transfer.any_backbone import LAST, PATCH, DetectorBackbone, build_network, vit_settings


@functools.cache
def _wrapped_class() -> Any:
    from detectron2.layers import ShapeSpec
    from detectron2.modeling import Backbone

    class WrappedBackbone(DetectorBackbone, Backbone):
        """A network of timm as Detectron2 knows backbones; images are padded to ``divisibility`` or a square."""

        divisibility, square = 1, 0

        @property
        def size_divisibility(self) -> int:
            return self.divisibility

        @property
        def padding_constraints(self) -> dict[str, int]:
            return {"square_size": self.square}

        def output_shape(self) -> dict[str, Any]:
            return {name: ShapeSpec(channels=self.channels[name], stride=self.strides[name]) for name in self.strides}

        def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]  # maps, not features
            return DetectorBackbone.forward(self, x)

    return WrappedBackbone


def _wrapped(cfg: Any) -> Any:
    """The timm network of a configuration, with the padding that segmentation without a pyramid needs."""
    network: Any = build_network(cfg, _wrapped_class())
    network.divisibility, network.square = max(network.strides.values()), cfg.MODEL.BACKBONE.SQUARE
    return network


@functools.cache
def _pyramid_class() -> Any:
    from detectron2.modeling.backbone.vit import SimpleFeaturePyramid

    class PaddedPyramid(SimpleFeaturePyramid):
        """Detectron2's pyramid keeps its divisibility to itself, since ViTDet pads to squares."""

        @property
        def size_divisibility(self) -> int:
            return int(self._size_divisibility)

        @property
        def padding_constraints(self) -> dict[str, int]:
            return {"square_size": self._square_pad}

    return PaddedPyramid


def _plain_pyramid(cfg: Any, top_block: Any) -> nn.Module:
    """Detectron2's simple feature pyramid, on its own ViT (MODEL.VIT.FORM vitdet) or on timm's network."""
    network = _own_vit(cfg) if cfg.MODEL.VIT.FORM == "vitdet" else _wrapped(cfg)
    scales = [PATCH / 2 ** int(name[-1]) for name in cfg.MODEL.FPN.IN_FEATURES]
    options = {"top_block": top_block, "norm": cfg.MODEL.FPN.NORM, "square_pad": cfg.MODEL.BACKBONE.SQUARE}
    pyramid: nn.Module = _pyramid_class()(network, LAST, cfg.MODEL.FPN.OUT_CHANNELS, scales, **options)
    return pyramid


def _own_vit(cfg: Any) -> Any:
    """Detectron2's own ViT, of the shape of a config's network."""
    from detectron2.modeling.backbone.vit import ViT

    shape, settings = vit_settings(cfg)
    windows = [index for index in range(shape.depth) if index not in settings["global_at"]]
    side = settings["side"]
    network: Any = ViT(
        img_size=side * PATCH or PATCH, patch_size=PATCH, embed_dim=shape.width, depth=shape.depth,
        num_heads=shape.heads, mlp_ratio=shape.hidden / shape.width, qkv_bias=shape.qkv_bias,
        drop_path_rate=settings["drop_path"], norm_layer=functools.partial(nn.LayerNorm, eps=shape.eps),
        use_rel_pos=side > 0, window_size=settings["window"],
        window_block_indexes=windows if settings["window"] else (), pretrain_img_size=shape.grid * PATCH,
        pretrain_use_cls_token=False, out_feature=LAST,
    )  # fmt: skip
    return network.requires_grad_(False) if cfg.MODEL.BACKBONE.FROZEN else network


#: Blocks of the ResNets of basic blocks. Detectron2 itself builds 18 and 34 at width 64, but no C4 head of them.
SMALL = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
#: What P6 and P7 are convolved from, for each name of a pyramid's builder; "": P6 is pooled.
PYRAMIDS = {
    "build_resnet_fpn_backbone": "",
    "build_retinanet_resnet_fpn_backbone": "res5",
    "build_fcos_resnet_fpn_backbone": "p5",
}


def small_resnet(cfg: Any) -> bool:
    """Whether a config's ResNet is one that Detectron2 does not build: depth 10, or basic blocks of another width."""
    settings = cfg.MODEL.RESNETS
    return settings.DEPTH in SMALL and (settings.DEPTH == 10 or settings.RES2_OUT_CHANNELS != 64)


def resnet(own: Any, cfg: Any, input_shape: Any) -> Any:
    """A ResNet by ``own``, a builder of Detectron2's, or by this file; frozen as a whole where the config says so."""
    network: Any = _small_resnet(cfg, input_shape) if small_resnet(cfg) else own(cfg, input_shape)
    return network.freeze(5) if cfg.MODEL.BACKBONE.FROZEN else network


def _small_resnet(cfg: Any, input_shape: Any) -> nn.Module:
    from detectron2.modeling.backbone import resnet

    settings = cfg.MODEL.RESNETS
    if settings.RES4_DILATION > 1 or settings.RES5_DILATION > 1:
        raise InputError(
            f"expected a ResNet of bottlenecks for dilated stages, found MODEL.RESNETS.DEPTH {settings.DEPTH}; set 50 "
            "or more, or RES4_DILATION and RES5_DILATION 1"
        )
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


def pyramid(source: str, own: Any, cfg: Any, input_shape: Any) -> nn.Module:
    """FPN on a ResNet or a network of timm, or the simple feature pyramid on a plain one.

    Args:
        source: what P6 and P7 are convolved from (P5 where there is no res5), or "" for Mask R-CNN's pooled P6.
        own: Detectron2's builder of this name; unused, since it takes no other backbone.
    """
    from detectron2.modeling.backbone import FPN, build_resnet_backbone
    from detectron2.modeling.backbone.fpn import LastLevelMaxPool, LastLevelP6P7

    settings, channels = cfg.MODEL.FPN, cfg.MODEL.FPN.OUT_CHANNELS
    if cfg.MODEL.BACKBONE.ARCH and any_backbone.is_plain(cfg):
        top = LastLevelP6P7(channels, channels, "p5") if source else LastLevelMaxPool()
        return _plain_pyramid(cfg, top)
    bottom_up = single_scale(build_resnet_backbone, cfg, input_shape)
    top = LastLevelMaxPool()
    if source:
        inputs = bottom_up.output_shape()["res5"].channels if source == "res5" else channels
        top = LastLevelP6P7(inputs, channels, source)
    options = {"norm": settings.NORM, "fuse_type": settings.FUSE_TYPE, "square_pad": cfg.MODEL.BACKBONE.SQUARE}
    return FPN(bottom_up, settings.IN_FEATURES, channels, top_block=top, **options)


def single_scale(own: Any, cfg: Any, input_shape: Any) -> Any:
    """A backbone without a pyramid: a network of timm, or a ResNet by Detectron2's builder ``own``."""
    return _wrapped(cfg) if cfg.MODEL.BACKBONE.ARCH else resnet(own, cfg, input_shape)
