import math

import pytest
import torch

from momentum_transfer.transfer.torchvision_engine.boxes import AnchorGenerator
from momentum_transfer.transfer.torchvision_engine.dense import (
    MovingCount,
    PerLevelNorm,
    RetinaNet,
    RetinaNetHead,
    flatten_cells,
)
from momentum_transfer.transfer.torchvision_engine.fcos import FCOS, FCOSHead, centreness_targets
from momentum_transfer.transfer.torchvision_engine.structures import Target

INFERENCE = {"score_threshold": 0.05, "candidates": 20, "nms_threshold": 0.5, "detections": 5}
TOWERS = {"convs": 1, "norm": "", "prior": 0.01, "levels": 2}
LEVELS = ["p3", "p4"]


def retinanet():
    return RetinaNet(
        LEVELS, RetinaNetHead(8, 2, 1, **TOWERS), AnchorGenerator([[16.0], [32.0]], [[1.0]], [8, 16]),
        coder_weights=(1.0, 1.0, 1.0, 1.0), thresholds=[0.4, 0.5], labels=[0, -1, 1], alpha=0.25, gamma=2.0,
        box_loss="smooth_l1", smooth_l1_beta=0.0, **INFERENCE,
    )  # fmt: skip


def fcos():
    points = AnchorGenerator([[8.0], [16.0]], [[1.0]], [8, 16], offset=0.5)
    return FCOS(LEVELS, FCOSHead(8, 2, **TOWERS), points, radius=1.5, alpha=0.25, gamma=2.0, **INFERENCE)


def maps():
    torch.manual_seed(1)
    return {"p3": torch.randn(2, 8, 8, 8), "p4": torch.randn(2, 8, 4, 4)}


def targets():
    return [
        Target(torch.tensor([[9.0, 10.0, 27.0, 26.0], [30.0, 30.0, 62.0, 60.0]]), torch.tensor([0, 1])),
        Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)),
    ]


def focal(logit, positive):
    p = 1 / (1 + math.exp(-logit))
    p, weight = (p, 0.25) if positive else (1 - p, 0.75)
    return -weight * (1 - p) ** 2 * math.log(p)


def test_retinanets_losses_are_the_written_out_sums():
    detector, features = retinanet().train(), maps()
    _, losses = detector(features, [(64, 64)] * 2, targets())
    anchors = torch.cat(detector.anchors(list(features.values())))
    logits, offsets = (torch.cat(x, 1) for x in detector.head(list(features.values())))
    total, distance, foreground = 0.0, 0.0, 0
    for image, target in enumerate(targets()):
        classes, boxes = detector._label(anchors, target)
        for anchor in range(len(anchors)):
            category = classes[anchor].item()
            if category >= 0:
                total += sum(focal(logits[image, anchor, c].item(), c == category) for c in range(2))
            if category in (0, 1):
                foreground += 1
                wanted = detector.coder.encode(anchors[anchor][None], boxes[anchor][None])[0]
                distance += (offsets[image, anchor] - wanted).abs().sum().item()
    normalizer = 0.9 * 100 + 0.1 * foreground
    assert foreground > 0
    assert losses["loss_cls"].item() == pytest.approx(total / normalizer, rel=1e-4)
    assert losses["loss_box_reg"].item() == pytest.approx(distance / normalizer, rel=1e-4)


def naive_fcos_label(point, stride, lower, upper, target):
    """Section 3.1.2 of the paper, one point at a time: the smallest box that takes the point, or None."""
    best = None
    x, y = point
    for number, (x1, y1, x2, y2) in enumerate(target.boxes.tolist()):
        sides = (x - x1, y - y1, x2 - x, y2 - y)
        near = max(abs(x - (x1 + x2) / 2), abs(y - (y1 + y2) / 2)) < 1.5 * stride
        size = (x2 - x1) * (y2 - y1)
        if min(sides) > 0 and near and lower < max(sides) < upper and (best is None or size < best[0]):
            best = (size, number)
    return best and best[1]


def test_fcos_assigns_points_as_written_in_the_paper():
    detector = fcos()
    points = detector.points(list(maps().values()))
    overlapping = Target(torch.tensor([[2.0, 2.0, 50.0, 58.0], [10.0, 10.0, 40.0, 36.0]]), torch.tensor([1, 0]))
    for target in (targets()[0], overlapping):
        classes, boxes = detector.label(points, target)
        ranges = [(8, 0, 64)] * len(points[0]) + [(16, 64, math.inf)] * len(points[1])
        seen = set()
        for row, (box, (stride, lower, upper)) in enumerate(zip(torch.cat(points).tolist(), ranges, strict=True)):
            number = naive_fcos_label(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2), stride, lower, upper, target)
            expected = 2 if number is None else target.classes[number].item()
            assert classes[row].item() == expected
            if number is not None:
                assert boxes[row].tolist() == target.boxes[number].tolist()
                seen.add(number)
        assert seen == {0, 1}


def test_centreness_is_one_at_the_centre_and_falls_towards_the_sides():
    found = centreness_targets(torch.tensor([[5.0, 5.0, 5.0, 5.0], [1.0, 5.0, 9.0, 5.0], [1.0, 1.0, 9.0, 9.0]]))
    torch.testing.assert_close(found, torch.tensor([1.0, 1 / 3, 1 / 9]))


def test_fcos_scores_are_geometric_means_of_class_and_centreness():
    detector, features = fcos().eval(), maps()
    detector.score_threshold = 0.0
    with torch.no_grad():
        logits, _, centreness = detector.head(list(features.values()))
        found, _ = detector(features, [(64, 64)] * 2, None)
        best = max(torch.sqrt(a[0].sigmoid() * b[0].sigmoid()).max() for a, b in zip(logits, centreness, strict=True))
    assert found[0].scores[0].item() == pytest.approx(best.item())
    assert len(found[0]) <= 5


@pytest.mark.parametrize("make", [retinanet, fcos])
def test_no_object_at_all_still_trains_the_classifier(make):
    detector = make().train()
    empty = [targets()[1]] * 2
    _, losses = detector(maps(), [(64, 64)] * 2, empty)
    values = {name.split("_")[-1]: value.item() for name, value in losses.items()}
    assert values.pop("cls") > 0
    assert set(values.values()) == {0.0}


def test_the_moving_count_starts_where_it_is_told_and_is_part_of_the_state():
    count = MovingCount(100.0)
    assert count.update(50) == pytest.approx(95.0)
    assert count.update(0) == pytest.approx(0.9 * 95 + 0.1)
    assert count.state_dict()["value"].item() == pytest.approx(85.6)


def test_initial_foreground_probability_is_the_prior():
    head = RetinaNetHead(8, 3, 2, **{**TOWERS, "levels": 1})
    assert torch.sigmoid(head.cls_score.bias).mean().item() == pytest.approx(0.01)


def test_cells_keep_their_order_when_flattened():
    x = torch.arange(2 * 3 * 2 * 2.0).view(1, 6, 2, 2)  # 2 anchors of 3 numbers
    assert flatten_cells(x, 3)[0, 1].tolist() == x[0, 3:, 0, 0].tolist()
    assert flatten_cells(x, 3)[0, 2].tolist() == x[0, :3, 0, 1].tolist()


def test_each_level_has_statistics_of_its_own():
    torch.manual_seed(0)
    norm = PerLevelNorm(2, 4, "BN")
    for _ in range(200):
        norm(torch.randn(8, 4, 4, 4))
        norm(torch.randn(8, 4, 2, 2) + 5)
    assert norm[0].running_mean.abs().max() < 0.5
    assert (norm[1].running_mean - 5).abs().max() < 0.5


def test_gn_is_torchs_and_a_group_of_one_value_is_told():
    from torch import nn

    from momentum_transfer.core.errors import InputError
    from momentum_transfer.transfer.torchvision_engine.layers import norm_layer

    norm, images = norm_layer("GN")(64), torch.randn(2, 64, 3, 3)
    assert torch.equal(norm(images), nn.GroupNorm(32, 64)(images))
    with pytest.raises(InputError, match="found a map of 1 x 1 with 32 channels"):
        norm_layer("GN")(32)(torch.zeros(1, 32, 1, 1))


def test_retinanets_anchors_are_labelled_by_their_overlap():
    """Below 0.4 background (class number K), from 0.5 on the object's, between ignored; always an object's best."""
    detector = retinanet()
    anchors = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 4.5], [0, 0, 10, 3.9], [50, 50, 60, 60],
                            [90, 90, 99, 99]])  # fmt: skip
    target = Target(torch.tensor([[0.0, 0, 10, 10], [56, 56, 70, 70]]), torch.tensor([1, 0]))
    classes, boxes = detector._label(anchors, target)
    assert classes.tolist() == [1, 1, -1, 2, 0, 2]
    assert boxes[[0, 1, 4]].tolist() == target.boxes[[0, 0, 1]].tolist()
    classes, boxes = detector._label(anchors, targets()[1])
    assert classes.tolist() == [2] * 6
    assert not boxes.any()
