import math

import pytest
import torch

from momentum_transfer.transfer.torchvision_engine.engine import build_training
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from momentum_transfer.transfer.torchvision_engine.training_state import Position
from tests.transfer.torchvision_engine.tiny import DETECTORS, tiny_config, tiny_samples

LOSSES = {
    "mask_rcnn": {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg", "loss_mask"},
    "retinanet": {"loss_cls", "loss_box_reg"},
    "fcos": {"loss_fcos_cls", "loss_fcos_loc", "loss_fcos_ctr"},
    "faster_rcnn_c4": {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg"},
}


@pytest.mark.parametrize("name", DETECTORS)
def test_every_parameter_takes_part_in_the_loss(name):
    torch.manual_seed(0)
    detector = build_detector(tiny_config(name))
    losses = detector(tiny_samples())
    assert all(math.isfinite(float(value.detach())) for value in losses.values())
    if name in LOSSES:
        assert set(losses) == LOSSES[name]
    sum(losses.values()).backward()
    assert [n for n, p in detector.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("name", DETECTORS)
def test_detections_lie_in_the_original_image(name):
    torch.manual_seed(0)
    overrides = ["MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0", "MODEL.RETINANET.SCORE_THRESH_TEST", "0.0",
                 "MODEL.FCOS.SCORE_THRESH_TEST", "0.0"]  # fmt: skip
    detector = build_detector(tiny_config(name, *overrides)).eval()
    sample = tiny_samples([(48, 70)])[0]
    sample.height, sample.width = 96, 140
    with torch.no_grad():
        found = detector([sample])[0]
    assert len(found)
    assert (found.scores[:-1] >= found.scores[1:]).all()
    assert (found.boxes >= 0).all()
    assert (found.boxes[:, 0::2] <= 140).all()
    assert (found.boxes[:, 1::2] <= 96).all()
    if found.masks is not None:
        assert found.masks.shape == (len(found), 96, 140)


def test_an_image_without_objects_trains():
    torch.manual_seed(0)
    detector = build_detector(tiny_config("mask_rcnn"))
    samples = tiny_samples()
    for sample in samples:
        sample.target.boxes = torch.zeros(0, 4)
        sample.target.classes = torch.zeros(0, dtype=torch.int64)
        sample.target.masks = sample.target.masks.select(torch.zeros(0, dtype=torch.int64))
    losses = detector(samples)
    assert losses["loss_mask"].item() == 0.0
    assert losses["loss_box_reg"].item() == 0.0
    sum(losses.values()).backward()


@pytest.mark.parametrize("name", ["mask_rcnn", "retinanet"])
def test_a_frozen_backbone_keeps_parameters_and_statistics_while_pyramid_and_heads_train(name):
    torch.manual_seed(0)
    cfg = tiny_config(name, "MODEL.BACKBONE.FROZEN", "True", "MODEL.FPN.NORM", "BN")
    detector = build_detector(cfg).train()
    training = build_training(cfg, detector, Position(0, (), ()))
    before = {key: value.clone() for key, value in detector.state_dict().items()}
    sum(detector(tiny_samples()).values()).backward()
    for group in training.optimizer.param_groups:
        group["lr"] = 0.1
    training.optimizer.step()
    same = {key for key, value in detector.state_dict().items() if torch.equal(value, before[key])}
    inside = {key for key in before if key.startswith("backbone.bottom_up.")}
    assert inside <= same
    # By their gradients: some are too small to show in a weight of 1.
    learning = {name for name, value in detector.named_parameters() if value.grad is not None and value.grad.any()}
    assert {key for key in set(before) - inside if key.endswith("weight")} <= learning
    assert "backbone.fpn_lateral5.norm.running_mean" not in same


def test_freeze_at_two_freezes_stem_and_res2_only():
    detector = build_detector(tiny_config("mask_rcnn", "MODEL.BACKBONE.FREEZE_AT", "2"))
    frozen = {name.split(".")[2] for name, p in detector.named_parameters() if not p.requires_grad}
    assert frozen == {"conv1", "layer1"}
    assert not any(
        "bn1" in name for name, _ in detector.backbone.bottom_up.named_parameters() if name.startswith("bn1")
    )
