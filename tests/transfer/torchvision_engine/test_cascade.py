"""Cascade heads beside their stages run one after another by hand."""

import pytest
import torch
from torch import nn

from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.region_heads import BoxHead, BoxPredictor
from momentum_transfer.transfer.torchvision_engine.roi_heads import (
    CascadeRoIHeads,
    ProposalSampler,
    RoIPooler,
    label_proposals,
)
from momentum_transfer.transfer.torchvision_engine.structures import Proposals, Target

CLASSES, SIZE, THRESHOLDS = 2, (64, 64), [0.5, 0.6, 0.7]


def predictor(weights):
    made = BoxPredictor(
        16, CLASSES, coder_weights=weights, class_agnostic=True, box_loss="smooth_l1", smooth_l1_beta=0.0,
        box_loss_weight=1.0, score_threshold=0.2, nms_threshold=0.5, detections=100,
    )  # fmt: skip
    nn.init.normal_(made.cls_score.weight, std=0.3)
    nn.init.normal_(made.bbox_pred.weight, std=0.1)
    return made


@pytest.fixture
def heads():
    torch.manual_seed(0)
    boxes = [BoxHead(4, 3, convs=0, conv_dim=0, fcs=1, fc_dim=16, norm="") for _ in THRESHOLDS]
    predictors = [
        predictor(weights) for weights in ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
    ]
    sampled = {"batch_size": 100, "positive_fraction": 1.0, "append_ground_truth": True}
    sampler = ProposalSampler(CLASSES, [THRESHOLDS[0]], [0, 1], **sampled)
    return CascadeRoIHeads(["p2"], sampler, RoIPooler(3, [4]), boxes, predictors, thresholds=THRESHOLDS)


def inputs():
    features = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(1))
    target = Target(torch.tensor([[8.0, 8.0, 30.0, 28.0], [34.0, 30.0, 60.0, 62.0]]), torch.tensor([0, 1]))
    proposed = Proposals(
        torch.tensor([[7.0, 9.0, 29.0, 30.0], [30.0, 32.0, 58.0, 63.0], [0.0, 40.0, 20.0, 60.0]]), SIZE
    )
    return features, proposed, target


def run_stage(heads, stage, features, boxes):
    return heads.box_predictor[stage](heads.box_head[stage](heads.box_pooler([features], [boxes])))


def naive_losses(heads, features, proposed, target):
    """Losses of all stages without any scaling of gradients; what each stage was given."""
    drawn, given, losses = heads.sampler([proposed], [target])[0], [], []
    for stage, threshold in enumerate(THRESHOLDS):
        if stage:
            drawn = label_proposals(drawn, target, [threshold], [0, 1], CLASSES)
        given.append(drawn)
        logits, offsets = run_stage(heads, stage, features, drawn.boxes)
        losses += heads.box_predictor[stage].losses(logits, offsets, [drawn]).values()
        following = box_ops.clip(heads.box_predictor[stage].coder.decode(offsets.detach(), drawn.boxes), SIZE)
        sides = following[:, 2:] - following[:, :2]
        drawn = Proposals(following[(sides > 0).all(dim=1)], SIZE)
    return losses, given


def test_the_shared_features_take_a_third_of_the_three_stages_gradient(heads):
    features, proposed, target = inputs()
    shared, alone = features.clone().requires_grad_(), features.clone().requires_grad_()
    torch.manual_seed(3)
    _, losses = heads.train()({"p2": shared}, [proposed], [target])
    torch.manual_seed(3)
    expected, _ = naive_losses(heads, alone, proposed, target)
    names = [f"{name}_stage{stage}" for stage in range(3) for name in ("loss_cls", "loss_box_reg")]
    assert list(losses) == names
    torch.testing.assert_close(torch.stack(list(losses.values())), torch.stack(expected))
    head = heads.box_head[0].fc1.weight
    own = torch.autograd.grad(sum(losses.values()), (shared, head))
    by_hand = torch.autograd.grad(sum(expected), (alone, head))
    assert by_hand[0].abs().max() > 0
    torch.testing.assert_close(own[0], by_hand[0] / 3)
    torch.testing.assert_close(own[1], by_hand[1])  # a stage's own layers take the whole


def test_each_stage_asks_for_more_overlap_than_the_one_before(heads):
    features, _, target = inputs()
    shifts = torch.tensor([[3.0, 0.0, 3.0, 0.0], [5.0, 0.0, 5.0, 0.0], [7.0, 0.0, 7.0, 0.0]])
    proposed = Proposals(target.boxes[0] + shifts, SIZE)  # overlaps of 0.76, 0.63, 0.52 with the object
    heads.sampler.append_ground_truth = False
    torch.manual_seed(3)
    _, losses = heads.train()({"p2": features}, [proposed], [target])
    torch.manual_seed(3)
    expected, given = naive_losses(heads, features, proposed, target)
    assert [(stage.classes == 0).sum().item() for stage in given] == [3, 2, 1]
    torch.testing.assert_close(torch.stack(list(losses.values())), torch.stack(expected))


def test_boxes_that_became_empty_do_not_train_the_next_stage(heads):
    features, proposed, target = inputs()
    nn.init.constant_(heads.box_predictor[0].bbox_pred.bias[:1], 20.0)  # all boxes go two widths to the right
    proposed.boxes[0] = torch.tensor([2.0, 9.0, 10.0, 30.0])
    torch.manual_seed(3)
    _, losses = heads.train()({"p2": features}, [proposed], [target])
    torch.manual_seed(3)
    expected, given = naive_losses(heads, features, proposed, target)
    assert 0 < len(given[1].boxes) < len(given[0].boxes)
    torch.testing.assert_close(torch.stack(list(losses.values())), torch.stack(expected))


def test_scores_are_the_mean_of_all_stages_and_boxes_are_the_last_ones(heads):
    features, proposed, _ = inputs()
    heads.eval()
    with torch.no_grad():
        found = heads({"p2": features}, [proposed], None)[0][0]
        boxes, scores = proposed.boxes, torch.zeros(3, CLASSES + 1)
        for stage in range(3):
            logits, offsets = run_stage(heads, stage, features, boxes)
            scores += logits.softmax(dim=1) / 3
            boxes = box_ops.clip(heads.box_predictor[stage].coder.decode(offsets, boxes), SIZE)
    rows = [(scores[r, c].item(), c, boxes[r]) for r in range(3) for c in range(CLASSES) if scores[r, c] > 0.2]
    rows.sort(key=lambda row: -row[0])
    assert len(rows) > 1
    assert len(found) == len(rows)  # the three regions lie apart: none suppresses another
    torch.testing.assert_close(found.scores, torch.tensor([row[0] for row in rows]))
    assert found.classes.tolist() == [row[1] for row in rows]
    torch.testing.assert_close(found.boxes, torch.stack([row[2] for row in rows]))
