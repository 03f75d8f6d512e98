"""C4 heads that Detectron2 lacks: res5 of a small ResNet, and res5 followed by a norm."""

from __future__ import annotations

from typing import Any

from torch import nn

from momentum_transfer.transfer.detectron2_engine.backbones import SMALL, basic_stage


def heads() -> tuple[type[nn.Module], type[nn.Module]]:
    """Detectron2's Res5ROIHeads for ResNets of any depth, without and with the extra norm."""
    from detectron2.layers import get_norm
    from detectron2.modeling.roi_heads import Res5ROIHeads

    class PlainRes5ROIHeads(Res5ROIHeads):
        """C4 heads whose res5 may be of a small ResNet."""

        @classmethod
        def _build_res5_block(cls, cfg: Any) -> tuple[nn.Sequential, int]:
            depth = cfg.MODEL.RESNETS.DEPTH
            if depth not in SMALL:
                return super()._build_res5_block(cfg)
            channels = cfg.MODEL.RESNETS.RES2_OUT_CHANNELS * 8
            blocks = basic_stage(SMALL[depth][3], channels // 2, channels, cfg.MODEL.RESNETS.NORM, stride=2)
            return nn.Sequential(*blocks), channels

    class ExtraNormRes5ROIHeads(PlainRes5ROIHeads):
        """C4 heads with a norm after res5, as MoCo (arXiv 1911.05722, appendix) introduced them."""

        @classmethod
        def _build_res5_block(cls, cfg: Any) -> tuple[nn.Sequential, int]:
            res5, channels = super()._build_res5_block(cfg)
            res5.add_module("norm", get_norm(cfg.MODEL.RESNETS.NORM, channels))
            return res5, channels

    return PlainRes5ROIHeads, ExtraNormRes5ROIHeads
