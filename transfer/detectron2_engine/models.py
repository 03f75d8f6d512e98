"""Detectron2's models: those of its registries and ours, and the weights they start from."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn

from momentum_transfer.console import say
from transfer.detectron2_engine.backbones import PYRAMIDS, deeplab, pyramid, resnet
from transfer.detectron2_engine.c4 import heads
from transfer.detectron2_engine.fcos import build_fcos
from transfer.detectron2_engine.settings import own_name
from transfer.initial_weights import InitialWeights, match_backbone, match_detector


def build_model(theirs: Any) -> nn.Module:
    """Detectron2's model of one of its configurations, on its device."""
    from detectron2.modeling import build_model as build

    register()
    return build(theirs)


@functools.cache
def register() -> None:
    """Tell Detectron2 what it lacks, under ``own_name``: its own entries stay what they are. Once per process."""
    import detectron2.projects.deeplab  # noqa: F401, registers its backbone and head
    from detectron2.modeling import BACKBONE_REGISTRY, META_ARCH_REGISTRY, ROI_HEADS_REGISTRY

    plain, extra_norm = heads()
    deeplab_name = "build_resnet_deeplab_backbone"
    backbones: dict[str, Any] = {name: functools.partial(pyramid, source) for name, source in PYRAMIDS.items()}
    backbones["build_resnet_backbone"] = resnet
    backbones[deeplab_name] = functools.partial(deeplab, BACKBONE_REGISTRY.get(deeplab_name))
    ours: list[tuple[Any, str, Any]] = [(BACKBONE_REGISTRY, name, builder) for name, builder in backbones.items()]
    ours += [
        (META_ARCH_REGISTRY, "FCOS", build_fcos),
        (ROI_HEADS_REGISTRY, "Res5ROIHeads", plain),
        (ROI_HEADS_REGISTRY, "Res5ROIHeadsExtraNorm", extra_norm),
    ]
    for registry, name, builder in ours:
        registry._do_register(own_name(name), builder)


def load_initial(model: nn.Module, initial: InitialWeights) -> tuple[list[str], list[str]]:
    """Give a fresh Detectron2 model its weights; names of what was loaded and of what stays new.

    Detectron2's own matching is left aside, because it takes what matches and only logs the rest.

    Raises:
        InputError: the backbone, or the whole detector, is not covered.
    """
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    found: dict[str, Tensor] = {}
    new = list(shapes)
    if initial.detector:
        found, new = match_detector(shapes, initial.detector, initial.name), []
    elif initial.backbone:
        found, new = match_backbone(shapes, initial.backbone, initial.name, initial.architecture)
    model.load_state_dict(found, strict=False)
    say(f"weights: {len(found)} tensors from {initial.name}; {len(new)} are new")
    return list(found), new
