"""What keeps a network of timm from being a detector's backbone, found on meta tensors before any compute."""

import textwrap
from collections.abc import Iterator

import torch
from fvcore.common.config import CfgNode

from momentum_transfer.backbones.batch_statistics import has_batch_norm
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.backbones.vitdet import describe
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.any_backbone import (
    LAST,
    PATCH,
    asked_architecture,
    detector_architecture,
    on_meta,
    output_stride,
    segments,
)


def problems(cfg: CfgNode) -> Iterator[str]:
    """What keeps a network of timm from being a detector's backbone; InputError: no such network or option."""
    backbone, name = cfg.MODEL.BACKBONE, cfg.MODEL.BACKBONE.ARCH
    if cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN" and backbone.NAME == "build_resnet_backbone":
        yield f"expected a ResNet for a C4 detector, whose head is the backbone's res5, found {name}; use an FPN config"
    if backbone.FREEZE_AT:
        yield (
            f"expected MODEL.BACKBONE.FREEZE_AT 0 with {name}, found {backbone.FREEZE_AT}: it counts a ResNet's "
            "stages; set it 0, or MODEL.BACKBONE.FROZEN True"
        )
    asked = on_meta(asked_architecture(cfg))
    if not asked.plain and not asked.strides:
        yield f"expected a network that gives maps of strides 4 to 32 or patches, found none in {name}; take another"
    if backbone.NORM and not has_batch_norm(asked):
        yield f"expected BatchNorms for MODEL.BACKBONE.NORM {backbone.NORM}, found none in {name}; leave it out"
    if cfg.TEST.PRECISE_BN.ENABLED and not has_batch_norm(asked) and not _norms_of_batches(cfg):
        yield f"expected a BatchNorm for TEST.PRECISE_BN.ENABLED, found none in {name}, neck and heads; set it False"
    yield from _plain_problems(cfg, asked) if asked.plain else _map_problems(cfg, asked)
    try:
        network = on_meta(detector_architecture(cfg))
    except InputError as error:
        yield _not_adapted(cfg, asked, str(error))
        return
    yield from _size_problems(cfg, network)


def _not_adapted(cfg: CfgNode, asked: TimmBackbone, reason: str) -> str:
    """Which of the detector's changes to a network timm cannot build."""
    if cfg.MODEL.BACKBONE.DROP_PATH and _builds_without_drop_path(cfg):
        return reason
    if (stride := output_stride(cfg)) != 32:
        return (
            f"expected a network that timm can dilate to stride {stride} for DeepLab, found {asked.architecture}; "
            "set MODEL.RESNETS.RES4_DILATION and RES5_DILATION 1, or MODEL.SEM_SEG_HEAD.NAME LinearHead"
        )
    if asked.plain and asked.patch_size != PATCH and not segments(cfg):
        return (
            f"expected a plain network whose patches can be resampled to {PATCH} px, found {asked.patch_size} px in "
            f"{asked.architecture}, which timm does not build otherwise; take another network"
        )
    return reason


def _builds_without_drop_path(cfg: CfgNode) -> bool:
    without = cfg.clone()
    without.defrost()
    without.MODEL.BACKBONE.DROP_PATH = 0.0
    try:
        on_meta(detector_architecture(without))
    except InputError:
        return False
    return True


def _norms_of_batches(cfg: CfgNode) -> bool:
    """Whether neck or heads have BatchNorms."""
    heads = {"RetinaNet": ["RETINANET"], "FCOS": ["FCOS"], "SemanticSegmentor": ["SEM_SEG_HEAD"]}
    usual = ["ROI_BOX_HEAD", *(["ROI_MASK_HEAD"] if cfg.MODEL.MASK_ON else [])]
    sections = heads.get(cfg.MODEL.META_ARCHITECTURE, usual) + ([] if segments(cfg) else ["FPN"])
    return any(cfg.MODEL[section].NORM in ("BN", "SyncBN") for section in sections)


def _map_problems(cfg: CfgNode, network: TimmBackbone) -> Iterator[str]:
    wanted = cfg.MODEL.SEM_SEG_HEAD.IN_FEATURES if segments(cfg) else cfg.MODEL.FPN.IN_FEATURES
    lacking = [name for name in wanted if name not in (*network.strides, "last")]
    if lacking:
        yield (
            f"expected maps {', '.join(wanted)} of {network.architecture}, found {', '.join(network.strides)}; leave "
            f"{', '.join(lacking)} out of IN_FEATURES, or take another network"
        )
    if cfg.MODEL.VIT.FORM != "network" or cfg.MODEL.VIT.WINDOW:
        yield f"expected MODEL.VIT settings with a plain ViT, found maps of several strides in {network.architecture}"


def _plain_problems(cfg: CfgNode, network: TimmBackbone) -> Iterator[str]:
    if segments(cfg) and cfg.MODEL.SEM_SEG_HEAD.NAME == "DeepLabV3Head":
        yield (
            f"expected a hierarchical network for DeepLab, found the plain {network.architecture}; use "
            "MODEL.SEM_SEG_HEAD.NAME LinearHead"
        )
    if not segments(cfg) and not cfg.MODEL.FPN.NORM:
        yield "expected MODEL.FPN.NORM for a simple feature pyramid, found none; set LN, as ViTDet has it"
    if cfg.MODEL.VIT.FORM == "vitdet":
        describe(network)
    elif cfg.MODEL.VIT.WINDOW or cfg.MODEL.VIT.RELATIVE_POSITIONS:
        yield (
            "expected MODEL.VIT.FORM vitdet with windows or relative positions, found network: windows have no "
            "place for its prefix tokens"
        )


def _size_problems(cfg: CfgNode, network: TimmBackbone) -> Iterator[str]:
    """Whether the network takes the sizes that images are padded to, and gives maps of its declared strides."""
    square = cfg.MODEL.BACKBONE.SQUARE
    largest = max(cfg.INPUT.MAX_SIZE_TEST, cfg.INPUT.MAX_SIZE_TRAIN)
    if square and largest > square:
        yield f"expected images within MODEL.BACKBONE.SQUARE {square}, found INPUT.MAX_SIZE_… {largest}; lower these"
    step = network.patch_size if network.plain and segments(cfg) else 32
    if square % step:
        yield f"expected MODEL.BACKBONE.SQUARE as a multiple of {step}, found {square}"
    if cfg.MODEL.VIT.FORM == "vitdet" and network.plain:
        return
    for height, width in ((square, square),) if square else ((3 * step, 5 * step), (7 * step, 6 * step)):
        reason = _refuses(network, height, width)
        if reason:
            size = network.input.size
            yield (
                f"expected a network for images of any multiple of {step} px, found that {network.architecture} does "
                f"not take {height} × {width}: {reason}; pad all images to its own by MODEL.BACKBONE.SQUARE {size}, or "
                "another size by ?img_size=N and SQUARE N"
            )


def _refuses(network: TimmBackbone, height: int, width: int) -> str:
    try:
        with torch.no_grad(), torch.device("meta"):
            x = torch.empty(1, 3, height, width)
            maps = {LAST: network.tokens(x)[0][1]} if network.plain else network.maps(x)
    except (InputError, RuntimeError, AssertionError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0].partition(";")[0]
        return textwrap.shorten(reason, 160, placeholder=" …") or type(error).__name__
    strides = {LAST: network.patch_size} if network.plain else network.strides
    odd = [key for key, found in maps.items() if found.shape[-2:] != (height // strides[key], width // strides[key])]
    return f"its {odd[0]} is {tuple(maps[odd[0]].shape[-2:])}" if odd else ""
