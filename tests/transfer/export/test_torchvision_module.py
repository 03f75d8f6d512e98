"""Why there is no torchvision export: torchvision's own RetinaNet around the same network finds other boxes.

It clips boxes before suppression too, and ours, as Detectron2's, after it.
"""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList

from momentum_transfer.transfer.detector_run import load_run
from momentum_transfer.transfer.torchvision_engine.structures import Sample
from tests.transfer.export.test_write import LOW
from tests.transfer.test_detector_run import write_run


class _Maps(nn.Module):
    def __init__(self, network, channels: int) -> None:
        super().__init__()
        self.network, self.out_channels = network, channels

    def forward(self, x):
        features = self.network.backbone(x)
        return OrderedDict((name, features[name]) for name in self.network.heads.levels)


class _Head(nn.Module):
    def __init__(self, network) -> None:
        super().__init__()
        self.network = network

    def forward(self, maps):
        logits, offsets = self.network.heads.head(maps)
        return {"cls_logits": torch.cat(logits, 1), "bbox_regression": torch.cat(offsets, 1)}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    found = load_run(write_run(tmp_path_factory.mktemp("run"), "retinanet", *LOW)).predictor.network
    with torch.no_grad():
        features = found.backbone(found.batch([torch.rand(3, 128, 128) * 255])[0])
        maps = [features[name] for name in found.heads.levels]
        for index, score in enumerate((found.heads.head.cls_score, found.heads.head.bbox_pred)):
            score.weight.mul_((0.5, 0.2)[index] / torch.cat(found.heads.head(maps)[index], dim=1).std())
    return found


def torchvisions(network, anchors: str, size: tuple[int, int]) -> RetinaNet:
    """All that its arguments allow; anchors: "rounded" as it makes them, or "ours" put in the place of its own."""
    heads, channels = network.heads, network.heads.head.cls_score.in_channels
    cells = [getattr(heads.anchors, f"cell_{level}") for level in range(len(heads.levels))]
    generator = AnchorGenerator(((8,) * 3,) * len(cells), ((0.5, 1.0, 2.0),) * len(cells))
    generator.cell_anchors = [cell.round() if anchors == "rounded" else cell for cell in cells]
    mean, std = network.pixel_mean.flatten().tolist(), network.pixel_std.flatten().tolist()
    return RetinaNet(
        _Maps(network, channels), heads.num_classes, min(size), max(size), mean, std, anchor_generator=generator,
        head=_Head(network), score_thresh=heads.score_threshold, nms_thresh=heads.nms_threshold,
        detections_per_img=heads.detections, topk_candidates=heads.candidates,
        size_divisible=network.backbone.size_divisibility,
    ).eval()  # fmt: skip


def difference(network, anchors: str, size: tuple[int, int]) -> float:
    """Largest distance of corresponding boxes in pixels, of one image."""
    image = torch.rand(3, *size, generator=torch.Generator().manual_seed(1)) * 255
    with torch.no_grad():
        (ours,), (theirs,) = network([Sample(image, 0, *size)]), torchvisions(network, anchors, size)([image])
    assert len(ours) == len(theirs["boxes"]) > 1
    return float((ours.boxes - theirs["boxes"]).abs().max())


def test_its_anchors_are_whole_pixels_which_moves_boxes(network):
    assert difference(network, "rounded", (128, 128)) > 0.1
    assert difference(network, "ours", (128, 128)) < 1e-4  # which no argument reaches


@pytest.mark.parametrize(("size", "same"), [((128, 256), True), ((96, 160), False)])
def test_its_strides_follow_from_the_image_and_are_wrong_where_a_level_is_rounded_up(network, size, same):
    with torch.no_grad():
        features = network.backbone(torch.zeros(1, 3, *size))
    maps = [features[name] for name in network.heads.levels]
    theirs = torchvisions(network, "ours", size).anchor_generator(ImageList(torch.zeros(1, 3, *size), [size]), maps)
    assert torch.equal(torch.cat(network.heads.anchors(maps)), theirs[0]) is same
