"""Backbones beside ResNets for Detectron2: timm's networks wrapped, and its own ViT under its simple pyramid."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn

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


def wrapped(cfg: Any) -> Any:
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


def plain_pyramid(cfg: Any, top_block: Any) -> nn.Module:
    """Detectron2's simple feature pyramid, on its own ViT (MODEL.VIT.FORM vitdet) or on timm's network."""
    network = own_vit(cfg) if cfg.MODEL.VIT.FORM == "vitdet" else wrapped(cfg)
    pyramid: nn.Module = _pyramid_class()(
        network,
        LAST,
        cfg.MODEL.FPN.OUT_CHANNELS,
        [PATCH / 2 ** int(name[-1]) for name in cfg.MODEL.FPN.IN_FEATURES],
        top_block=top_block,
        norm=cfg.MODEL.FPN.NORM,
        square_pad=cfg.MODEL.BACKBONE.SQUARE,
    )
    return pyramid


def own_vit(cfg: Any) -> Any:
    """Detectron2's own ViT, of the shape of a config's network."""
    from detectron2.modeling.backbone.vit import ViT

    shape, settings = vit_settings(cfg)
    windows = [index for index in range(shape.depth) if index not in settings["global_at"]]
    side = settings["side"]
    network: Any = ViT(
        img_size=side * PATCH or PATCH,
        patch_size=PATCH,
        embed_dim=shape.width,
        depth=shape.depth,
        num_heads=shape.heads,
        mlp_ratio=shape.hidden / shape.width,
        qkv_bias=shape.qkv_bias,
        drop_path_rate=settings["drop_path"],
        norm_layer=functools.partial(nn.LayerNorm, eps=shape.eps),
        use_rel_pos=side > 0,
        window_size=settings["window"],
        window_block_indexes=windows if settings["window"] else (),
        pretrain_img_size=shape.grid * PATCH,
        pretrain_use_cls_token=False,
        out_feature=LAST,
    )
    return network.requires_grad_(False) if cfg.MODEL.BACKBONE.FROZEN else network
