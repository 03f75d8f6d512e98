"""Detectron2's models: what its registries lack, and the weights that models start from.

Added are FCOS by MODEL.FCOS (Detectron2 reaches it from Python configs only), C4 heads on a small ResNet and with a
norm after res5, and backbones.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.transfer.any_backbone import network_pixels
from momentum_transfer.transfer.config import add_own_keys, backbone_problems, changed
from momentum_transfer.transfer.detectron2_engine.backbones import (
    PYRAMIDS,
    SMALL,
    basic_stage,
    pyramid,
    single_scale,
    small_resnet,
)
from momentum_transfer.transfer.detectron2_engine.data import ENGINE
from momentum_transfer.transfer.detectron2_engine.few_labels import box_predictors, on_samples
from momentum_transfer.transfer.initial_weights import InitialWeights, match_backbone, match_detector
from momentum_transfer.transfer.torchvision_engine.detectors import with_class_rows
from momentum_transfer.transfer.torchvision_engine.region_heads import CosineClassifier


def _c4_heads() -> tuple[type[nn.Module], type[nn.Module]]:
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


def _build_fcos(cfg: Any) -> nn.Module:
    """FCOS of a configuration that ``add_own_keys`` has extended, on its device."""
    from detectron2.modeling import build_backbone
    from detectron2.modeling.meta_arch.fcos import FCOS, FCOSHead

    settings, backbone = cfg.MODEL.FCOS, build_backbone(cfg)
    shapes = [backbone.output_shape()[name] for name in settings.IN_FEATURES]
    head = FCOSHead(
        input_shape=shapes, num_classes=settings.NUM_CLASSES, conv_dims=[shapes[0].channels] * settings.NUM_CONVS,
        norm=settings.NORM, prior_prob=settings.PRIOR_PROB,
    )  # fmt: skip
    return FCOS(
        backbone=backbone, head=head, head_in_features=settings.IN_FEATURES, num_classes=settings.NUM_CLASSES,
        center_sampling_radius=settings.CENTER_SAMPLING_RADIUS, focal_loss_alpha=settings.FOCAL_LOSS_ALPHA,
        focal_loss_gamma=settings.FOCAL_LOSS_GAMMA, test_score_thresh=settings.SCORE_THRESH_TEST,
        test_topk_candidates=settings.TOPK_CANDIDATES_TEST, test_nms_thresh=settings.NMS_THRESH_TEST,
        max_detections_per_image=cfg.TEST.DETECTIONS_PER_IMAGE, pixel_mean=cfg.MODEL.PIXEL_MEAN,
        pixel_std=cfg.MODEL.PIXEL_STD,
    ).to(cfg.MODEL.DEVICE)  # fmt: skip


#: Below Detectron2's logger, which its users see.
_LOGGER = logging.getLogger("detectron2.momentum_transfer")


def add_momentum_transfer_config(cfg: Any) -> None:
    """Let a configuration of Detectron2's take this project's YAML files: its keys in ``cfg``, its networks registered.

    Call it right after Detectron2's ``get_cfg()``, as its projects' ``add_…_config``. Then ``configs/transfer`` and the
    YAML that ``convert`` writes beside a ``.pkl`` merge, and ``build_model`` knows what they name: FCOS, C4 heads
    with the extra norm and of basic blocks, networks of timm, frozen backbones. Other configurations build what they
    built before. ``docs/from-detectron2.md`` shows it at work.

    Args:
        cfg: changed in place.
    """
    add_own_keys(cfg)
    register()


def build_model(d2_cfg: Any) -> nn.Module:
    """Detectron2's model of one of its configurations, on its device."""
    from detectron2.modeling import build_model as build

    register()
    return build(d2_cfg)


@functools.cache
def register() -> None:
    """Register what Detectron2 lacks; once per process.

    FCOS, its pyramid and C4 heads with the extra norm are new names; where another project has one of them already, its
    entry stays. Detectron2's builders of backbones keep their names: one of ours stands before each, and calls it
    unless the config asks for what it cannot build.
    """
    import detectron2.projects.deeplab  # noqa: F401, registers its backbone and head
    from detectron2.modeling import BACKBONE_REGISTRY, META_ARCH_REGISTRY, ROI_HEADS_REGISTRY

    plain, extra_norm = _c4_heads()
    ROI_HEADS_REGISTRY._obj_map["Res5ROIHeads"] = plain
    architectures = META_ARCH_REGISTRY._obj_map
    for name in ("GeneralizedRCNN", "RetinaNet"):
        architectures[name] = functools.partial(_few_shot, architectures[name])
    ours: dict[str, Any] = {name: functools.partial(pyramid, source) for name, source in PYRAMIDS.items()}
    ours |= dict.fromkeys(("build_resnet_backbone", "build_resnet_deeplab_backbone"), single_scale)
    backbones = BACKBONE_REGISTRY._obj_map
    backbones.update({name: functools.partial(_backbone, backbones.get(name), ours[name]) for name in ours})
    for registry, name, new in (
        (META_ARCH_REGISTRY, "FCOS", functools.partial(_few_shot, _build_fcos)),
        (ROI_HEADS_REGISTRY, "Res5ROIHeadsExtraNorm", extra_norm),
    ):
        if name in registry:
            _LOGGER.warning(f"{name} is registered already, by {registry.get(name).__module__}; that one is used")
        else:
            registry._do_register(name, new)


def _few_shot(own: Any, cfg: Any) -> nn.Module:
    """Detectron2's ``own`` detector; with our keys its cosine classifier, and all but the last layers frozen."""
    model: Any = own(cfg)
    if scale := cfg.MODEL.ROI_BOX_HEAD.get("COSINE_SCALE", 0.0):
        for predictor in box_predictors(model):
            linear = predictor.cls_score
            predictor.cls_score = CosineClassifier(linear.in_features, linear.out_features, scale)
            nn.init.normal_(predictor.cls_score.weight, std=0.01)
    if "FEW_SHOT" in cfg and cfg.FEW_SHOT.TRAINED == "last":
        model.__class__ = on_samples(model.__class__)
        model.train_last_layers()
    return model


def _backbone(own: Any, ours: Callable[[Any, Any, Any], nn.Module], cfg: Any, input_shape: Any) -> nn.Module:
    """Detectron2's ``own`` builder (None: it has none), unless a config with our keys asks for what it cannot build.

    InputError for settings that contradict each other, or pixels of another network.
    """
    backbone = cfg.MODEL.BACKBONE
    extended = "ARCH" in backbone  # by add_momentum_transfer_config; a registry serves other configurations too
    if extended and (backbone.ARCH or backbone.FROZEN):
        for problem in backbone_problems(cfg):
            raise InputError(problem)
    if extended and backbone.ARCH and backbone.PIXELS == "network":
        network, found = network_pixels(cfg), (list(cfg.MODEL.PIXEL_MEAN), list(cfg.MODEL.PIXEL_STD))
        if found != network:
            raise InputError(
                f"expected the mean and standard deviation of {backbone.ARCH}, {network}, found {found}; set "
                "MODEL.PIXEL_MEAN and PIXEL_STD to these, or MODEL.BACKBONE.PIXELS settings to keep yours"
            )
    if extended and cfg.ENGINE != ENGINE and (ignored := _ignored(cfg)):
        _LOGGER.warning(
            f"Detectron2's DefaultTrainer does not follow {', '.join(ignored)}; see docs/from-detectron2.md"
        )
    if own is not None and not (extended and (backbone.ARCH or backbone.FROZEN or small_resnet(cfg))):
        return own(cfg, input_shape)
    return ours(own, cfg, input_shape)


def _ignored(cfg: Any) -> list[str]:
    """Settings that decide numbers in our engine and that Detectron2's own trainer ignores."""
    solver = cfg.SOLVER
    found = [f"SOLVER.OPTIMIZER {solver.OPTIMIZER}"] * (solver.OPTIMIZER != "SGD")
    found += [f"SOLVER.LAYER_DECAY {solver.LAYER_DECAY}"] * (solver.LAYER_DECAY != 1)
    found += [f"MODEL.BACKBONE.TRAINABLE {part}" for part in [cfg.MODEL.BACKBONE.TRAINABLE] if part != "all"]
    found += [f"{part}.*" for part in ("FEW_SHOT", "SEMI") if changed(cfg, part)]
    return found + ["FIT_TO_DATA True"] * bool(cfg.FIT_TO_DATA)


def load_initial(model: nn.Module, initial: InitialWeights) -> tuple[list[str], list[str]]:
    """Give a fresh Detectron2 model its weights; names of what was loaded and of what stays new.

    InputError unless the backbone, or the whole detector, is covered: Detectron2's own matching only logs the rest.
    """
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    found: dict[str, Tensor] = {}
    new = list(shapes)
    if initial.detector:
        state = initial.detector if initial.places is None else with_class_rows(model.state_dict(), initial)
        found, new = match_detector(shapes, state, initial.name), []
    elif initial.backbone:
        found, new = match_backbone(shapes, initial.backbone, initial.name, initial.architecture)
    model.load_state_dict(found, strict=False)
    say(f"weights: {len(found)} tensors from {initial.name}; {len(new)} are new")
    return list(found), new
