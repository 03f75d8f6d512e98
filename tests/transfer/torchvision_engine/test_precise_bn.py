"""BatchNorm's statistics after a training."""

import copy

import numpy as np
import pytest
import torch
from fvcore.nn import update_bn_stats
from torch import nn

from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.torchvision_engine.data import annotated_images, read_image
from momentum_transfer.transfer.torchvision_engine.detectors import load_detector
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from momentum_transfer.transfer.torchvision_engine.train import _normalising
from tests.transfer.torchvision_engine.tiny import shapes_config, tiny_config, tiny_samples, train_tiny

SETTINGS = ["SOLVER.MAX_ITER", "2", "SOLVER.STEPS", "()", "SOLVER.WARMUP_ITERS", "0", "SOLVER.BASE_LR", "0.01"]
SETTINGS += ["SOLVER.IMS_PER_BATCH", "4", "TEST.PRECISE_BN.NUM_ITER", "3"]


def trained(folder, enabled):
    cfg = shapes_config("retinanet", folder, *SETTINGS, "TEST.PRECISE_BN.ENABLED", str(enabled))
    finetuned = train_tiny(TorchvisionEngine(), cfg, 0, folder / f"precise_{enabled}")
    state = torch.load(finetuned.weights, weights_only=True)["model"]
    detector = build_detector(cfg)
    load_detector(detector, state, "test")
    return cfg, detector


def test_exact_statistics_are_those_of_the_training_images_under_the_last_weights(tmp_path):
    cfg, detector = trained(tmp_path, True)
    norm: nn.BatchNorm2d = detector.backbone.bottom_up.bn1
    pictures = annotated_images(get_dataset(cfg.DATASETS.TRAIN[0]))
    images = np.stack([read_image(p) for p in pictures]).astype(np.float64)  # 64 px: no resizing, no padding
    scaled = (images - np.array(cfg.MODEL.PIXEL_MEAN)) / np.array(cfg.MODEL.PIXEL_STD)
    with torch.no_grad():
        stem = detector.backbone.bottom_up.conv1(torch.from_numpy(scaled).permute(0, 3, 1, 2).float())
    # every batch holds all four images, so each one's statistics are those of the whole set
    torch.testing.assert_close(norm.running_mean, stem.mean(dim=(0, 2, 3)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.running_var, stem.var(dim=(0, 2, 3)), rtol=1e-3, atol=1e-4)


def test_exact_statistics_leave_the_weights_alone(tmp_path):
    (_, exact), (_, running) = trained(tmp_path, True), trained(tmp_path, False)
    for (name, one), other in zip(exact.named_parameters(), running.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert not torch.allclose(exact.backbone.bottom_up.bn1.running_var, running.backbone.bottom_up.bn1.running_var)


@pytest.mark.parametrize(("name", "alone"), [("mask_rcnn", True), ("mask_rcnn_4conv1fc", False)])
def test_without_bn_in_the_heads_the_backbone_gives_the_same_statistics(name, alone):
    detector = build_detector(tiny_config(name, "MODEL.FPN.NORM", "BN")).train()
    part = _normalising(detector, detector)
    assert (part is not detector) == alone
    state = copy.deepcopy(detector.state_dict())
    batches = [tiny_samples(seed=seed) for seed in range(2)]
    found = []
    for model in (detector, part):
        detector.load_state_dict(state)
        torch.manual_seed(0)  # heads sample proposals
        update_bn_stats(model, batches, 2)
        found.append(copy.deepcopy(detector.state_dict()))
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items() if "num_batches" not in key)
