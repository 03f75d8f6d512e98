"""The proposal network beside a reference that goes through anchors and boxes one by one."""

import math

import pytest
import torch

from momentum_transfer.transfer.torchvision_engine.boxes import AnchorGenerator
from momentum_transfer.transfer.torchvision_engine.rpn import RPN
from momentum_transfer.transfer.torchvision_engine.structures import Target

LEVELS, SIZE = ["p3", "p4"], (64, 64)


def network(**changes):
    torch.manual_seed(0)
    settings = {
        "coder_weights": (1.0, 1.0, 1.0, 1.0), "thresholds": [0.3, 0.7], "labels": [0, -1, 1], "batch_size": 1000,
        "positive_fraction": 1.0, "pre_nms": (30, 25), "post_nms": (24, 20), "nms_threshold": 0.6, "min_size": 0.0,
        "smooth_l1_beta": 0.0, "loss_weight": 1.0, "box_loss_weight": 1.0,
    }  # fmt: skip
    rpn = RPN(LEVELS, AnchorGenerator([[12.0, 16.0], [24.0, 32.0]], [[1.0]], [8, 16]), 8, **{**settings, **changes})
    for parameter in rpn.parameters():  # far from the small initial values, so that boxes move and scores differ
        torch.nn.init.normal_(parameter, std=0.15)
    return rpn


def maps():
    generator = torch.Generator().manual_seed(1)
    return {"p3": torch.randn(2, 8, 8, 8, generator=generator), "p4": torch.randn(2, 8, 4, 4, generator=generator)}


def targets():
    """The last object is so small that no anchor overlaps it by 0.3."""
    boxes = torch.tensor([[9.0, 10.0, 27.0, 26.0], [30.0, 30.0, 62.0, 60.0], [41.0, 5.0, 46.0, 9.0]])
    return [Target(boxes, torch.tensor([0, 1, 0])), Target(boxes[:1], torch.tensor([1]))]


def overlap(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if min(width, height) <= 0:
        return 0.0
    return width * height / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height)


def wanted_offsets(anchor, box):
    width, height = anchor[2] - anchor[0], anchor[3] - anchor[1]
    return [
        ((box[0] + box[2]) - (anchor[0] + anchor[2])) / 2 / width,
        ((box[1] + box[3]) - (anchor[1] + anchor[3])) / 2 / height,
        math.log((box[2] - box[0]) / width),
        math.log((box[3] - box[1]) / height),
    ]


def moved(anchor, offsets, size):
    """The anchor shifted and scaled by its offsets, clipped to the image."""
    width, height = anchor[2] - anchor[0], anchor[3] - anchor[1]
    x, y = (anchor[0] + anchor[2]) / 2 + offsets[0] * width, (anchor[1] + anchor[3]) / 2 + offsets[1] * height
    width, height = width * math.exp(offsets[2]), height * math.exp(offsets[3])
    sides = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return [min(max(v, 0.0), size[1 - k % 2]) for k, v in enumerate(sides)]


def outputs(rpn):
    """For each level its anchors, and each image's logits and offsets, as lists."""
    features = list(maps().values())
    with torch.no_grad():
        heads = [rpn.rpn_head(x) for x in features]
    return [(a.tolist(), logits.tolist(), offsets.tolist())
            for a, (logits, offsets) in zip(rpn.anchors(features), heads, strict=True)]  # fmt: skip


def naive_losses(rpn):
    """Sums over all anchors: cross-entropy of objectness, absolute differences of offsets, count of foreground."""
    objectness, distance, positives = 0.0, 0.0, 0
    for image, target in enumerate(targets()):
        boxes = target.boxes.tolist()
        rows = [(anchor, level[1][image][k], level[2][image][k])
                for level in outputs(rpn) for k, anchor in enumerate(level[0])]  # fmt: skip
        overlaps = [[overlap(anchor, box) for box in boxes] for anchor, _, _ in rows]
        most = [max(row[k] for row in overlaps) for k in range(len(boxes))]
        for (anchor, logit, offsets), found in zip(rows, overlaps, strict=True):
            positive = max(found) >= 0.7 or any(
                math.isclose(f, m, rel_tol=1e-6) for f, m in zip(found, most, strict=True)
            )
            if positive:
                positives += 1
                wanted = wanted_offsets(anchor, boxes[found.index(max(found))])
                distance += sum(abs(a - b) for a, b in zip(offsets, wanted, strict=True))
            if positive or max(found) < 0.3:
                objectness += math.log1p(math.exp(-logit if positive else logit))
    return objectness, distance, positives


def test_losses_are_the_written_out_sums_over_both_images():
    rpn = network(loss_weight=2.0, box_loss_weight=3.0).train()
    _, losses = rpn(maps(), [SIZE] * 2, targets())
    objectness, distance, positives = naive_losses(rpn)
    assert positives >= 4
    assert losses["loss_rpn_cls"].item() == pytest.approx(objectness / (1000 * 2) * 2, rel=1e-4)
    assert losses["loss_rpn_loc"].item() == pytest.approx(distance / (1000 * 2) * 2 * 3, rel=1e-4)


def test_every_object_takes_the_anchors_that_overlap_it_most_however_little():
    rpn = network().train()
    anchors = torch.cat(rpn.anchors(list(maps().values())))
    small = Target(targets()[0].boxes[2:], torch.tensor([0]))
    overlaps = torch.tensor([overlap(anchor, small.boxes[0].tolist()) for anchor in anchors.tolist()])
    assert 0 < overlaps.max() < 0.3
    label, boxes = rpn._label(anchors, small)
    assert torch.equal(label == 1, overlaps >= overlaps.max() - 1e-6)
    assert (label[overlaps < overlaps.max() - 1e-6] == 0).all()
    assert (boxes == small.boxes).all()


def test_a_batch_of_anchors_holds_no_more_than_its_share_of_foreground():
    rpn = network(batch_size=8, positive_fraction=0.25, thresholds=[0.1, 0.2]).train()
    anchors = torch.cat(rpn.anchors(list(maps().values())))
    label, _ = rpn._label(anchors, targets()[0])
    assert (label == 1).sum() == 2
    assert (label == 0).sum() == 6


def naive_proposals(rpn, image, pre, post, size):
    candidates = []
    for number, (anchors, logits, offsets) in enumerate(outputs(rpn)):
        order = sorted(range(len(anchors)), key=lambda k: -logits[image][k])[:pre]
        for k in order:
            box = moved(anchors[k], offsets[image][k], size)
            if box[2] - box[0] > rpn.min_size and box[3] - box[1] > rpn.min_size:
                candidates.append((logits[image][k], number, box))
    kept = []
    for score, level, box in sorted(candidates, reverse=True):
        if all(other != level or overlap(box, b) <= 0.6 for _, other, b in kept):
            kept.append((score, level, box))
    return kept[:post], len(kept)


@pytest.mark.parametrize(("training", "pre", "post"), [(True, 30, 24), (False, 30, 20), (True, 7, 99), (False, 6, 99)])
def test_proposals_are_the_best_of_each_level_after_greedy_suppression(training, pre, post):
    limits = {"pre_nms": (pre, 50) if training else (50, pre), "post_nms": (post, 50) if training else (50, post)}
    rpn = network(min_size=6.0, **limits).train(training)
    found, _ = rpn(maps(), [SIZE, (50, 60)], targets())
    for image, size in enumerate((SIZE, (50, 60))):
        expected, survivors = naive_proposals(rpn, image, pre, post, size)
        assert survivors > post or pre < 10  # one of the two limits cuts something off
        assert {level for _, level, _ in expected} == {0, 1}
        torch.testing.assert_close(found[image].boxes, torch.tensor([b for _, _, b in expected]), rtol=1e-4, atol=1e-4)


def test_levels_do_not_suppress_each_other():
    rpn = network(nms_threshold=0.5).eval()
    box = torch.tensor([[4.0, 4.0, 30.0, 30.0]]).repeat(3, 1)
    found = rpn._suppress(box, torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 1]), SIZE, 10)
    assert len(found.boxes) == 2


def test_what_is_not_finite_is_left_out_at_test_and_an_error_in_training():
    rpn, boxes = network(), torch.tensor([[4.0, 4.0, 30.0, 30.0], [40.0, 40.0, 60.0, float("nan")]])
    arguments = (boxes, torch.zeros(2), torch.tensor([0, 0]), SIZE, 10)
    assert len(rpn.eval()._suppress(*arguments).boxes) == 1
    with pytest.raises(FloatingPointError, match="diverged"):
        rpn.train()._suppress(*arguments)
