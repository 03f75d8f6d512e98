"""Backbones of detectors beside ResNets: a network of timm as both engines build, freeze, check and decay it."""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn

from momentum_transfer.backbones.build import build_backbone, parse_architecture
from momentum_transfer.backbones.timm_network import TimmArchitecture, TimmBackbone
from momentum_transfer.backbones.trainable import check_part, layers_of
from momentum_transfer.backbones.vitdet import VitShape, describe, resample_patches, to_vitdet
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.torchvision_engine.backbone import LAST
from momentum_transfer.transfer.torchvision_engine.layers import norm_layer
from momentum_transfer.transfer.torchvision_engine.solver import GroupRules

#: Stride of a plain network's map, from which the simple feature pyramid goes up and down; other patches are resampled.
PATCH = 16
_PREFIX = re.compile(r"^backbone\.(?:bottom_up\.|net\.)?")


class DetectorBackbone(TimmBackbone):
    """A network of timm whose forward gives maps by name: "res2" … of a hierarchical one, "last_feat" of a plain one.

    If ``frozen``, no parameter takes a gradient, and it stays in evaluation mode (BatchNorm, drop path).
    """

    def __init__(self, network: Any, architecture: TimmArchitecture, frozen: bool = False) -> None:
        self.__dict__["frozen"] = frozen  # before the base, which may call train
        super().__init__(network, architecture)
        if self.plain:
            self.strides, self.channels = {LAST: self.patch_size}, {LAST: int(self.network.embed_dim)}
        elif "output_stride" in dict(architecture.options):  # dilated: the last map keeps the name that DeepLab knows
            last = list(self.strides)[-1]
            for table in (self._index, self.strides, self.channels):
                table["res5"] = table[last]
        if frozen:
            self.requires_grad_(False)
            self.train(False)

    def train(self, mode: bool = True) -> "DetectorBackbone":
        """A frozen network stays in evaluation mode."""
        super().train(mode and not self.frozen)
        return self

    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]  # maps, not features
        """Normalised images [N, 3, H, W] → maps [N, C, H/stride, W/stride] by name."""
        if self.plain:
            return {LAST: self.tokens(x)[0][1]}
        return self.maps(x)


def asked_architecture(cfg: CfgNode) -> TimmArchitecture:
    """The network that MODEL.BACKBONE.ARCH names: what checkpoints are of."""
    found = parse_architecture(cfg.MODEL.BACKBONE.ARCH)
    if not isinstance(found, TimmArchitecture):
        raise InputError(
            f"expected MODEL.BACKBONE.ARCH as timm:NAME, found {cfg.MODEL.BACKBONE.ARCH!r}; ResNets are set by "
            "MODEL.RESNETS"
        )
    return found


def detector_architecture(cfg: CfgNode) -> TimmArchitecture:
    """The network as it stands in the detector: for images of any size, with patches of 16 px and with its drop path.

    A plain network keeps the grid of its position embeddings; they are resized to each image's grid.
    """
    asked = asked_architecture(cfg)
    options = dict(asked.options)
    network = on_meta(asked)
    if network.plain and network.patch_size != PATCH and not segments(cfg):
        grid = _grid(network)
        options |= {"patch_size": PATCH} | ({"img_size": grid * PATCH} if grid else {})
    if cfg.MODEL.BACKBONE.DROP_PATH:
        options["drop_path_rate"] = float(cfg.MODEL.BACKBONE.DROP_PATH)
    if (stride := output_stride(cfg)) != 32:
        options["output_stride"] = stride
    settled = replace(asked, options=tuple(options.items()))
    dynamic = replace(asked, options=tuple((options | {"dynamic_img_size": True}).items()))
    try:
        on_meta(dynamic)
    except (InputError, TypeError):  # it takes any size without being asked, or never
        return settled
    return dynamic


def output_stride(cfg: CfgNode) -> int:
    """Stride of res5: each dilated stage of DeepLab gives up its stride of 2."""
    resnets = cfg.MODEL.RESNETS
    return 32 // 2 ** ((resnets.RES4_DILATION > 1) + (resnets.RES5_DILATION > 1))


def _grid(network: TimmBackbone) -> int:
    """Patches along a side that the network's position embeddings are for; 0 where it has none."""
    size = getattr(getattr(network.network, "patch_embed", None), "grid_size", None)
    return int(size[0]) if size else 0


def on_meta(architecture: TimmArchitecture) -> TimmBackbone:
    """The network without memory for its tensors."""
    with torch.device("meta"):
        found: TimmBackbone = build_backbone(architecture)
    return found


def build_network(cfg: CfgNode, kind: Callable[..., DetectorBackbone] = DetectorBackbone) -> DetectorBackbone:
    """The freshly initialised network of a config, of class ``kind``."""
    built = build_backbone(detector_architecture(cfg), norm_layer(cfg.MODEL.BACKBONE.NORM))
    network = kind(built.network, built.architecture, cfg.MODEL.BACKBONE.FROZEN)
    unused = _unused(built.architecture)
    for name, parameter in network.named_parameters():
        if name in unused:
            parameter.requires_grad_(False)
    return network


@functools.lru_cache(maxsize=8)
def _unused(architecture: TimmArchitecture) -> frozenset[str]:
    """Parameters that no map depends on, such as a norm before the classifier; DDP would wait for their gradients."""
    network = on_meta(architecture)
    network = DetectorBackbone(network.network, architecture).eval()
    side = network.input.size
    with torch.device("meta"):
        sum(found.sum() for found in network(torch.empty(1, 3, side, side)).values()).backward()
    return frozenset(name for name, parameter in network.named_parameters() if parameter.grad is None)


def check_trainable(cfg: CfgNode) -> None:
    """Raise InputError where the backbone has no such part as MODEL.BACKBONE.TRAINABLE names."""
    if cfg.MODEL.BACKBONE.ARCH:
        network: nn.Module = on_meta(asked_architecture(cfg))
    else:
        with torch.device("meta"):
            network = build_backbone(f"resnet{cfg.MODEL.RESNETS.DEPTH}")
    check_part(network, cfg.MODEL.BACKBONE.TRAINABLE)


def is_plain(cfg: CfgNode) -> bool:
    """Whether a config's network has one map only: a ViT."""
    return on_meta(asked_architecture(cfg)).plain


def vit_settings(cfg: CfgNode) -> tuple[VitShape, dict[str, Any]]:
    """ViTDet's network of a config: its shape, and window, global blocks, drop path and side of relative positions.

    InputError for a network that has no such form.
    """
    shape = describe(on_meta(asked_architecture(cfg)))
    vit = cfg.MODEL.VIT
    drop_path = 0.0 if cfg.MODEL.BACKBONE.FROZEN else float(cfg.MODEL.BACKBONE.DROP_PATH)
    side = (cfg.MODEL.BACKBONE.SQUARE or cfg.INPUT.MIN_SIZE_TEST) // PATCH if vit.RELATIVE_POSITIONS else 0
    global_at = global_blocks(shape.depth, vit.GLOBAL_BLOCKS) if vit.WINDOW else ()
    return shape, {"window": vit.WINDOW, "global_at": global_at, "drop_path": drop_path, "side": side}


def global_blocks(depth: int, count: int) -> list[int]:
    """Blocks that attend globally: ``count`` of them evenly spaced, the last one among them (ViTDet, section 3)."""
    count = min(count, depth)
    return [round((k + 1) * depth / count) - 1 for k in range(count)]


def changes(cfg: CfgNode) -> list[str]:
    """How a config's detector differs from the network of the checkpoints; nothing for a ResNet."""
    if not cfg.MODEL.BACKBONE.ARCH:
        return []
    network = on_meta(asked_architecture(cfg))
    if not network.plain:
        return []
    found = []
    if network.patch_size != PATCH and not segments(cfg):
        found.append(f"patches of {network.patch_size} px resampled to {PATCH} px (FlexiViT's pseudo-inverse)")
    if cfg.MODEL.VIT.FORM == "vitdet":
        tokens = network.num_prefix_tokens
        found.append(f"another function: {tokens} prefix tokens and the final norm left out, LayerScale folded")
        if cfg.MODEL.VIT.WINDOW:
            count = cfg.MODEL.VIT.GLOBAL_BLOCKS
            found.append(f"attention in windows of {cfg.MODEL.VIT.WINDOW}² tokens in all but {count} blocks")
    return found


def detector_state(cfg: CfgNode, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A network's tensors, timm's names, as they stand in the detector (see ``changes``)."""
    network = on_meta(asked_architecture(cfg))
    if not network.plain or segments(cfg):
        return dict(state)
    if cfg.MODEL.VIT.FORM == "vitdet":
        return to_vitdet(state, describe(network), PATCH)
    weight = "patch_embed.proj.weight"
    if network.patch_size == PATCH or weight not in state:
        return dict(state)
    return {**state, weight: resample_patches(state[weight], PATCH)}


def group_rules(cfg: CfgNode) -> GroupRules | None:
    """Rates by layer and the parameters without weight decay, by names within a detector; None for a ResNet."""
    if not cfg.MODEL.BACKBONE.ARCH:
        return None
    network = on_meta(asked_architecture(cfg))
    # No weight decay as the network's authors have it: position embeddings mostly.
    undecayed: set[str] = set(getattr(network.network, "no_weight_decay", set)())
    decay = cfg.SOLVER.LAYER_DECAY
    # ConvNeXt's norm before the classifier is a layer for timm, but no map depends on it.
    unused = frozenset() if network.plain else _unused(detector_architecture(cfg))
    layers = {name: k for name, k in layers_of(network).items() if name not in unused} if decay != 1.0 else {}
    above = max(layers.values(), default=0) + 1  # neck and heads

    def scale(name: str) -> float:
        inner = _inner_name(name)
        if ".rel_pos_" in inner:  # ViTDet's own, in the layer of their block
            inner = re.sub(r"rel_pos_[hw]$", "qkv.weight", inner)
        return float(decay ** (above - layers.get(inner, above)))

    return GroupRules(scale, lambda name: _inner_name(name) in undecayed)


def network_pixels(cfg: CfgNode) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of a network's images in 0..255, in the channel order of INPUT.FORMAT."""
    mean, std = on_meta(asked_architecture(cfg)).input.pixels
    return (mean[::-1], std[::-1]) if cfg.INPUT.FORMAT == "BGR" else (mean, std)


def segments(cfg: CfgNode) -> bool:
    """Whether a config is of semantic segmentation."""
    return bool(cfg.MODEL.META_ARCHITECTURE == "SemanticSegmentor")


def _inner_name(name: str) -> str:
    """``backbone.bottom_up.stem.weight`` → ``stem.weight``: a name within the network."""
    return _PREFIX.sub("", name) if name.startswith("backbone.") else ""
