"""Parameters and multiply-adds of detectors, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.transfer.cost import Cost, Estimate, _flops, cost_of, estimate
from momentum_transfer.transfer.experiment import Experiment
from momentum_transfer.transfer.initial_weights import read_initial
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.torchvision_engine.engine import build
from tests.transfer.torchvision_engine.tiny import shapes_config, tiny_config


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


def test_a_part_of_the_backbone_alone_is_counted_and_timed_as_trained(tmp_path, monkeypatch):
    torch.save(build_resnet(Architecture("resnet10", 32)).state_dict(), tmp_path / "weights.pth")
    cfg = shapes_config("retinanet", tmp_path, "MODEL.BACKBONE.TRAINABLE", "last-1")
    initial, seen = read_initial(str(tmp_path / "weights.pth"), cfg), []
    monkeypatch.setattr(
        "momentum_transfer.transfer.cost.timed_step", lambda training, *_: seen.append(training.detector) or 1.0
    )
    assert estimate(Experiment(cfg, open_task(cfg), initial)).step == 1.0
    trained = {name for name, value in seen[0].named_parameters() if value.requires_grad}
    whole = dict(build(cfg).named_parameters())
    layer4 = {name for name in whole if ".layer4." in name}  # of torchvision's names: res5, one block
    assert layer4
    assert trained == layer4 | {name for name in whole if "bottom_up" not in name}
    assert cost_of(cfg).trained == sum(whole[name].numel() for name in trained)
    assert cost_of(cfg).parameters == sum(value.numel() for value in whole.values())


def test_an_estimate_adds_training_statistics_and_predictions():
    estimate = Estimate(2.0, 0.5, steps=30, statistics=6, images=8, memory=3 * 2**30, device="cpu")
    assert estimate.seconds == 30 * 2.0 + 6 * 2.0 / 3 + 8 * 0.5
    assert "30 iterations of 2.00 s and 8 test images of 0.50 s; 3.0 GiB of memory" in estimate.line()
    assert "GiB of the GPU's memory" in replace(estimate, device="cuda").line()
    assert "1 iteration of" in replace(estimate, steps=1).line()
    assert estimate.steps_within(8.0 + 20.0) == 10
    assert estimate.steps_within(8.0 + 19.9) == 9
    assert estimate.steps_within(0.0) == 1
    again = replace(estimate, steps=estimate.steps_within(68.0))
    assert again.seconds == 68.0


def test_costs_are_told_in_millions_and_billions():
    cost = Cost(25_560_000, 23_500_000, 4.1234e9, 3.8e9, 224)
    assert cost.as_record() == {
        "parameters": 25_560_000, "trained_parameters": 23_500_000, "gflops": 4.123, "gflops_side": 224
    }  # fmt: skip
    assert str(cost) == (
        "25.56 M parameters, 23.50 M of them trained; 4.12 G multiply-adds an image of 224 × 224 px, 3.80 G of them in "
        "the backbone"
    )


@pytest.mark.parametrize(("size", "side"), [("64", 64), ("65", 96), ("96", 96), ("33", 64)])
def test_the_counted_image_is_the_test_size_rounded_up_to_32(size, side):
    assert cost_of(tiny_config("retinanet", "INPUT.MIN_SIZE_TEST", size)).side == side


def test_regions_and_detections_cost_in_proportion():
    def flops(*words: str) -> float:
        return cost_of(tiny_config("mask_rcnn", *words)).flops

    one, two, three = (flops("MODEL.RPN.POST_NMS_TOPK_TEST", str(n)) for n in (40, 50, 70))
    assert (three - two) == pytest.approx(2 * (two - one))
    one, two, three = (flops("TEST.DETECTIONS_PER_IMAGE", str(n)) for n in (20, 30, 50))
    assert (three - two) == pytest.approx(2 * (two - one))
    assert two > one


@pytest.mark.parametrize("name", ["mask_rcnn", "cascade", "retinanet", "fcos", "mask_rcnn_c4", "stride16"])
def test_parameters_are_counted_once_and_frozen_ones_are_not_trained(name):
    cfg = tiny_config(name, "MODEL.BACKBONE.FREEZE_AT", "2")
    cost, network = cost_of(cfg), build(cfg)
    assert cost.parameters == sum(p.numel() for p in network.parameters())
    assert cost.trained == sum(p.numel() for p in network.parameters() if p.requires_grad) < cost.parameters
    assert 0 < cost.backbone_flops < cost.flops
