"""Detectron2's FCOS from MODEL.FCOS; Detectron2 itself reaches it from Python configs only."""

from __future__ import annotations

from typing import Any

from torch import nn


def build_fcos(cfg: Any) -> nn.Module:
    """The model of a configuration that ``add_own_keys`` has extended, on its device."""
    from detectron2.modeling import build_backbone
    from detectron2.modeling.meta_arch.fcos import FCOS, FCOSHead

    settings, backbone = cfg.MODEL.FCOS, build_backbone(cfg)
    shapes = [backbone.output_shape()[name] for name in settings.IN_FEATURES]
    head = FCOSHead(
        input_shape=shapes,
        num_classes=settings.NUM_CLASSES,
        conv_dims=[shapes[0].channels] * settings.NUM_CONVS,
        norm=settings.NORM,
        prior_prob=settings.PRIOR_PROB,
    )
    return FCOS(
        backbone=backbone,
        head=head,
        head_in_features=settings.IN_FEATURES,
        num_classes=settings.NUM_CLASSES,
        center_sampling_radius=settings.CENTER_SAMPLING_RADIUS,
        focal_loss_alpha=settings.FOCAL_LOSS_ALPHA,
        focal_loss_gamma=settings.FOCAL_LOSS_GAMMA,
        test_score_thresh=settings.SCORE_THRESH_TEST,
        test_topk_candidates=settings.TOPK_CANDIDATES_TEST,
        test_nms_thresh=settings.NMS_THRESH_TEST,
        max_detections_per_image=cfg.TEST.DETECTIONS_PER_IMAGE,
        pixel_mean=cfg.MODEL.PIXEL_MEAN,
        pixel_std=cfg.MODEL.PIXEL_STD,
    ).to(cfg.MODEL.DEVICE)
