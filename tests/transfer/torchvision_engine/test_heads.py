import math

import pytest
import torch
from torchvision.ops import box_iou

from momentum_transfer.transfer.torchvision_engine.layers import FrozenBatchNorm2d, norm_layer
from momentum_transfer.transfer.torchvision_engine.region_heads import (
    BoxHead,
    BoxPredictor,
    MaskHead,
    mask_loss,
    mask_probabilities,
)
from momentum_transfer.transfer.torchvision_engine.structures import Proposals

SETTINGS = {
    "coder_weights": (10.0, 10.0, 5.0, 5.0), "box_loss": "smooth_l1", "smooth_l1_beta": 0.0, "box_loss_weight": 1.0,
    "score_threshold": 0.05, "nms_threshold": 0.5, "detections": 100,
}  # fmt: skip


def predictor(class_agnostic=False, **changes):
    return BoxPredictor(8, 3, class_agnostic=class_agnostic, **{**SETTINGS, **changes})


def proposals():
    return Proposals(
        torch.tensor([[0.0, 0.0, 10.0, 10.0], [5.0, 5.0, 25.0, 15.0], [1.0, 1.0, 4.0, 4.0]]), (40, 40),
        torch.tensor([1, 3, 0]), torch.tensor([0, 0, 1]),
        torch.tensor([[1.0, 0.0, 12.0, 10.0], [0.0, 0.0, 1.0, 1.0], [1.0, 2.0, 5.0, 6.0]]),
    )  # fmt: skip


@pytest.mark.parametrize("class_agnostic", [False, True])
def test_losses_are_the_written_out_sums(class_agnostic):
    torch.manual_seed(0)
    head, given = predictor(class_agnostic), proposals()
    logits, offsets = torch.randn(3, 4), torch.randn(3, 4 if class_agnostic else 12)
    losses = head.losses(logits, offsets, [given])
    by_hand = [-math.log(math.exp(logits[i, c]) / sum(math.exp(v) for v in logits[i])) for i, c in enumerate([1, 3, 0])]
    assert losses["loss_cls"].item() == pytest.approx(sum(by_hand) / 3, rel=1e-5)
    absolute = 0.0
    for region, category in ((0, 1), (2, 0)):  # the second one is background
        x1, y1, x2, y2 = given.boxes[region].tolist()
        a1, b1, a2, b2 = given.matched_boxes[region].tolist()
        width, height = x2 - x1, y2 - y1
        wanted = (10 * ((a1 + a2) / 2 - (x1 + x2) / 2) / width, 10 * ((b1 + b2) / 2 - (y1 + y2) / 2) / height,
                  5 * math.log((a2 - a1) / width), 5 * math.log((b2 - b1) / height))  # fmt: skip
        start = 0 if class_agnostic else 4 * category
        absolute += sum(abs(offsets[region, start + k].item() - wanted[k]) for k in range(4))
    assert losses["loss_box_reg"].item() == pytest.approx(absolute / 3, rel=1e-5)


def test_only_background_gives_no_box_loss():
    given = proposals()
    given.classes = torch.tensor([3, 3, 3])
    assert predictor().losses(torch.randn(3, 4), torch.randn(3, 12), [given])["loss_box_reg"].item() == 0.0


def naive_detect(boxes, scores, threshold, nms, limit):
    candidates = [(scores[r, c].item(), r, c) for r in range(len(scores)) for c in range(3) if scores[r, c] > threshold]
    kept = []
    for score, region, category in sorted(candidates, reverse=True):
        box = boxes[region, 4 * category : 4 * category + 4]
        if all(c != category or box_iou(box[None], b[None]).item() <= nms for _, b, c in kept):
            kept.append((score, box, category))
    return kept[:limit]


def test_detections_equal_greedy_suppression_within_classes():
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(30, 3, 2, generator=generator) * 60
    boxes = torch.cat((corner, corner + 15 + torch.rand(30, 3, 2, generator=generator) * 15), dim=2).reshape(30, 12)
    scores = torch.softmax(torch.randn(30, 4, generator=generator) * 2, dim=1)
    found = predictor(detections=12).detect(boxes, scores, (100, 100))
    expected = naive_detect(boxes, scores, 0.05, 0.5, 12)
    assert found.classes.tolist() == [c for _, _, c in expected]
    torch.testing.assert_close(found.scores, torch.tensor([s for s, _, _ in expected]))
    torch.testing.assert_close(found.boxes, torch.stack([b for _, b, _ in expected]))


@pytest.mark.parametrize("threshold", [0.0, 0.25])
def test_only_scores_above_the_threshold_are_detections(threshold):
    scores = torch.tensor([[0.25, 0.125, 0.0625, 0.5625], [0.0, 0.3125, 0.625, 0.0625]])
    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [20.0, 20.0, 30.0, 30.0]]).repeat(1, 3)
    found = predictor(score_threshold=threshold).detect(boxes, scores, (40, 40))
    above = sorted((v for row in scores[:, :3].tolist() for v in row if v > threshold), reverse=True)
    assert found.scores.tolist() == pytest.approx(above)


def test_the_box_loss_takes_its_weight_and_no_other_loss_does():
    torch.manual_seed(0)
    logits, offsets = torch.randn(3, 4), torch.randn(3, 12)
    plain, heavy = (predictor(box_loss_weight=w).losses(logits, offsets, [proposals()]) for w in (1.0, 2.5))
    torch.testing.assert_close(heavy["loss_box_reg"], 2.5 * plain["loss_box_reg"])
    assert heavy["loss_cls"] == plain["loss_cls"]


def test_regions_that_are_not_finite_are_left_out():
    boxes, scores = torch.rand(2, 12) + torch.tensor([0.0, 0.0, 9.0, 9.0]).repeat(3), torch.full((2, 4), 0.25)
    scores[1, 0] = float("nan")
    assert len(predictor().detect(boxes, scores, (40, 40))) == 3


@pytest.mark.parametrize("columns", [4, 12])
def test_an_image_without_regions_has_no_detections(columns):
    found = predictor(columns == 4).detect(torch.zeros(0, columns), torch.zeros(0, 4), (64, 64))
    assert len(found) == 0
    assert found.boxes.shape == (0, 4)


def test_mask_loss_looks_at_the_true_class_only():
    logits = torch.zeros(2, 3, 4, 4)
    logits[0, 1], logits[1, 2] = 50.0, -50.0  # both right
    logits[:, 0] = 1e3  # another class
    wanted = torch.stack((torch.ones(4, 4), torch.zeros(4, 4))).bool()
    assert mask_loss(logits, torch.tensor([1, 2]), wanted).item() == pytest.approx(0.0, abs=1e-6)
    assert mask_loss(torch.zeros(2, 3, 4, 4), torch.tensor([1, 2]), wanted).item() == pytest.approx(math.log(2))
    assert mask_loss(logits[:0], torch.zeros(0, dtype=torch.int64), wanted[:0]).item() == 0.0


def test_class_agnostic_masks_serve_every_class():
    probabilities = mask_probabilities(torch.zeros(2, 1, 4, 4), torch.tensor([1, 2]))
    assert probabilities.shape == (2, 1, 4, 4)
    assert (probabilities == 0.5).all()


def test_box_heads_of_both_presets_have_the_right_size():
    assert BoxHead(32, 7, convs=0, conv_dim=0, fcs=2, fc_dim=64, norm="")(torch.rand(2, 32, 7, 7)).shape == (2, 64)
    head = BoxHead(32, 7, convs=4, conv_dim=32, fcs=1, fc_dim=64, norm="BN")
    assert head(torch.rand(2, 32, 7, 7)).shape == (2, 64)
    assert [n for n, _ in head.named_parameters() if n.endswith("bias") and "conv" in n and "norm" not in n] == []


def test_the_mask_head_doubles_the_resolution():
    assert MaskHead(32, 5, 2, 16, "")(torch.rand(3, 32, 14, 14)).shape == (3, 5, 28, 28)


def test_frozen_norm_equals_batch_norm_in_evaluation_with_and_without_gradient():
    torch.manual_seed(0)
    plain, frozen = torch.nn.BatchNorm2d(4), FrozenBatchNorm2d(4)
    for name, value in plain.state_dict().items():
        if value.dim():
            value.copy_(torch.rand(4) + 0.5)
            getattr(frozen, name).copy_(value)
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(frozen(x), plain.eval()(x))
    torch.testing.assert_close(frozen(x.requires_grad_()), plain(x))
    assert list(frozen.parameters()) == []


def test_an_unknown_norm_is_named():
    from momentum_transfer.core.errors import InputError

    with pytest.raises(InputError, match=r"BN, SyncBN, FrozenBN, GN, LN .* found 'XN'"):
        norm_layer("XN")


def test_a_cosine_classifier_scores_by_the_angle_alone():
    torch.manual_seed(0)
    head = predictor(cosine_scale=20.0)
    x = torch.randn(5, 8)
    weight = head.cls_score.weight.detach()
    expected = [[20 * float(row @ w) / float(row.norm() * w.norm()) for w in weight] for row in x]
    logits, offsets = head(x)
    torch.testing.assert_close(logits, torch.tensor(expected))
    torch.testing.assert_close(head(7 * x)[0], logits)
    torch.testing.assert_close(offsets, head.bbox_pred(x))
    assert head.cls_score.bias is None
