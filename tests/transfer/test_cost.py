"""Parameters and multiply-adds of detectors, against counts by hand."""

from __future__ import annotations

import pytest
import torch

from momentum_transfer.transfer.cost import _flops, cost_of
from momentum_transfer.transfer.torchvision_engine.engine import build
from tests.transfer.torchvision_engine.tiny import tiny_config


def test_attention_is_counted_as_its_two_products():
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    assert _flops(Attention(), q, k, k) == 2 * (2 * 3 * 5 * 7 * 8)


def test_a_detectors_cost_counts_every_parameter_and_its_regions():
    cfg = tiny_config("mask_rcnn")
    before = torch.get_rng_state()
    cost = cost_of(cfg)
    assert torch.equal(torch.get_rng_state(), before)  # a run's random numbers are its own
    network = build(cfg)
    assert cost.parameters == cost.trained == sum(p.numel() for p in network.parameters())
    fewer = cost_of(tiny_config("mask_rcnn", "MODEL.RPN.POST_NMS_TOPK_TEST", "20"))
    head, predictor = network.roi_heads.box_head, network.roi_heads.box_predictor
    region = sum(layer.weight.numel() for layer in (head.fc1, head.fc2, predictor.cls_score, predictor.bbox_pred))
    assert cost.flops - fewer.flops == pytest.approx((40 - 20) * region)


def test_a_frozen_backbone_is_counted_and_not_trained():
    cost = cost_of(tiny_config("retinanet", "MODEL.BACKBONE.FROZEN", "True"))
    whole = cost_of(tiny_config("retinanet"))
    assert cost.flops == whole.flops
    assert cost.trained < whole.trained
