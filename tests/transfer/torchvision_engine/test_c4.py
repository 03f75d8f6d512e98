"""The heads of C4 detectors."""

import pytest
import torch
from torch import nn

from momentum_transfer.transfer.torchvision_engine.models import build_detector
from momentum_transfer.transfer.torchvision_engine.region_heads import BoxPredictor, MaskHead, mask_loss
from momentum_transfer.transfer.torchvision_engine.roi_heads import ProposalSampler, Res5RoIHeads, RoIPooler, res5_head
from momentum_transfer.transfer.torchvision_engine.structures import BitMasks, Proposals, Target
from tests.transfer.torchvision_engine.tiny import tiny_config


def test_the_extra_norm_runs_on_what_res5_gives():
    torch.manual_seed(0)
    stage, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)), torch.randn(2, 3, 5, 5)
    head = res5_head(stage, 4, nn.BatchNorm2d)
    plain = stage(x)
    mean, variance = plain.mean(dim=(0, 2, 3), keepdim=True), plain.var(dim=(0, 2, 3), keepdim=True, unbiased=False)
    torch.testing.assert_close(head(x), (plain - mean) / torch.sqrt(variance + 1e-5))
    assert torch.equal(res5_head(stage, 4, None)(x), plain)


@pytest.mark.parametrize(("name", "extra"), [("Res5ROIHeadsExtraNorm", True), ("Res5ROIHeads", False)])
def test_only_the_heads_of_that_name_have_the_extra_norm(name, extra):
    detector = build_detector(tiny_config("faster_rcnn_c4", "MODEL.ROI_HEADS.NAME", name))
    kinds = [type(module) for module in detector.roi_heads.res5.children()]
    assert (kinds[-1] is nn.BatchNorm2d) == extra


def test_boxes_see_the_mean_and_masks_see_the_map_of_the_foreground():
    torch.manual_seed(0)
    predictor = BoxPredictor(
        6, 2, coder_weights=(10.0, 10.0, 5.0, 5.0), class_agnostic=False, box_loss="smooth_l1", smooth_l1_beta=0.0,
        box_loss_weight=1.0, score_threshold=0.05, nms_threshold=0.5, detections=9,
    )  # fmt: skip
    res5 = res5_head(nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1)), 6, None)
    pooler, masks = RoIPooler(6, [16]), MaskHead(6, 2, 0, 5, "")
    sampled = {"batch_size": 100, "positive_fraction": 1.0, "append_ground_truth": False}
    sampler = ProposalSampler(2, [0.5], [0, 1], **sampled)
    heads = Res5RoIHeads("res4", sampler, pooler, res5, predictor, mask_head=masks)
    features = torch.randn(1, 4, 4, 4)
    boxes = torch.tensor([[0.0, 0.0, 30.0, 30.0], [30.0, 30.0, 64.0, 64.0]])  # one object, one piece of background
    bitmap = torch.zeros(1, 64, 64, dtype=torch.bool)
    bitmap[0, :15, :30] = True
    target = Target(boxes[:1], torch.tensor([1]), BitMasks(bitmap))
    _, losses = heads.train()({"res4": features}, [Proposals(boxes, (64, 64))], [target])

    regions = res5(pooler([features], [boxes]))
    logits, offsets = predictor(regions.flatten(2).mean(dim=2))
    cross_entropy = -(logits[0].log_softmax(0)[1] + logits[1].log_softmax(0)[2]) / 2
    torch.testing.assert_close(losses["loss_cls"], cross_entropy)
    torch.testing.assert_close(losses["loss_box_reg"], offsets[0, 4:].abs().sum() / 2)  # its box is right already
    wanted = torch.zeros(1, 6, 6, dtype=torch.bool)
    wanted[0, :3] = True
    torch.testing.assert_close(losses["loss_mask"], mask_loss(masks(regions[:1]), torch.tensor([1]), wanted))
