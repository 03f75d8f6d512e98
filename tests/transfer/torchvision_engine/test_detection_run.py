"""Predictions one image at a time, as entries of COCO's result form, and how often rare classes come."""

import json
import math
import time

import numpy as np
import pytest
import torch

from momentum_transfer.transfer.data.annotations import decode_mask
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.torchvision_engine import detection_run
from momentum_transfer.transfer.torchvision_engine.data import annotated_images
from momentum_transfer.transfer.torchvision_engine.detection_run import (
    mapper_of,
    predict_each,
    repeat_factors,
    result_entries,
    write_entries,
)
from momentum_transfer.transfer.torchvision_engine.structures import Detections
from tests.transfer.torchvision_engine.tiny import shapes_config


def test_corners_become_sides_and_masks_run_lengths():
    masks = torch.zeros(2, 6, 8, dtype=torch.bool)
    masks[1, 2:5, 3:4] = True
    boxes = torch.tensor([[1.5, 2, 4, 6], [0, 0, 3, 1]])
    found = Detections(boxes, torch.tensor([0.75, 0.5]), torch.tensor([2, 0]), masks)
    first, second = result_entries(9, found, [11, 22, 33])
    assert first.pop("segmentation")
    assert first == {"image_id": 9, "category_id": 33, "bbox": [1.5, 2.0, 2.5, 4.0], "score": 0.75}
    assert (second["category_id"], second["bbox"]) == (11, [0.0, 0.0, 3.0, 1.0])
    assert np.array_equal(decode_mask(second["segmentation"], 6, 8), masks[1].numpy())
    plain = Detections(found.boxes, found.scores, found.classes)
    assert all("segmentation" not in entry for entry in result_entries(9, plain, [11, 22, 33]))


class Slow(torch.nn.Module):
    """Takes five hundredths of a second an image."""

    def forward(self, samples):
        assert not self.training
        assert not torch.is_grad_enabled()
        time.sleep(0.05)
        return [sample.image_id for sample in samples]


@pytest.mark.parametrize(("rank", "count"), [(0, 2), (1, 2), (2, 1)])
def test_each_process_predicts_every_nth_image_and_tells_seconds_an_image(rank, count, tmp_path, monkeypatch):
    cfg = shapes_config("retinanet", tmp_path)
    images, seen = annotated_images(open_task(cfg).test[0]) * 2, []
    monkeypatch.setattr(detection_run, "rank", lambda: rank)
    monkeypatch.setattr(detection_run, "world_size", lambda: 3)
    seconds = predict_each(Slow().train(), images[:5], cfg, lambda sample, found: seen.append(found))
    assert seen == [image.image_id for image in images[:5]][rank::3]
    assert len(seen) == count
    assert 0.05 <= seconds < 0.5
    assert predict_each(Slow(), [], cfg, lambda *_: None) < 0.5


def test_one_process_writes_a_file_and_several_are_joined_by_image(tmp_path, monkeypatch):
    entries = [{"image_id": k, "score": s} for k, s in ((3, 0.9), (1, 0.8), (3, 0.7))]
    write_entries(entries, tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text()) == entries
    (tmp_path / "two.part1.json").write_text(json.dumps([{"image_id": 2, "score": 0.5}]))
    monkeypatch.setattr(detection_run, "world_size", lambda: 2)
    write_entries(entries, tmp_path / "two.json")
    assert [(e["image_id"], e["score"]) for e in json.loads((tmp_path / "two.json").read_text())] == [
        (1, 0.8), (2, 0.5), (3, 0.9), (3, 0.7)
    ]  # fmt: skip
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.json", "two.json"]


@pytest.mark.parametrize("sqrt", [True, False])
def test_images_of_rare_classes_come_more_often(sqrt):
    classes = [{0}, {0, 1}, {0}, {0, 2}, set(), {1}, {0}, {0}]
    frequency = {0: 6 / 8, 1: 2 / 8, 2: 1 / 8}
    repeats = {k: max(1.0, (math.sqrt if sqrt else float)(0.5 / f)) for k, f in frequency.items()}
    wanted = [max([repeats[k] for k in one], default=1.0) for one in classes]
    assert repeat_factors(classes, 0.5, sqrt).tolist() == pytest.approx(wanted)
    assert repeat_factors(classes, 0.5).tolist() == repeat_factors(classes, 0.5, True).tolist()


def test_training_and_test_images_have_their_own_sizes_and_masks(tmp_path):
    words = ["INPUT.MIN_SIZE_TRAIN", "(40,48)", "INPUT.MIN_SIZE_TEST", "56", "INPUT.MAX_SIZE_TRAIN", "90",
             "INPUT.MAX_SIZE_TEST", "91", "INPUT.RANDOM_FLIP", "horizontal", "INPUT.FORMAT", "BGR"]  # fmt: skip
    cfg = shapes_config("mask_rcnn", tmp_path, *words)
    train, test = mapper_of(cfg, train=True), mapper_of(cfg, train=False)
    assert (train.short_edges, train.long_edge, train.flip, train.mask_format) == ([40, 48], 90, True, "bitmask")
    assert (test.short_edges, test.long_edge, test.mask_format) == ([56], 91, None)
    assert train.bgr
    assert test.bgr
    assert not mapper_of(shapes_config("retinanet", tmp_path), train=True).bgr
