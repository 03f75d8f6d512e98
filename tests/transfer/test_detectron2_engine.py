"""Both engines, same weights, same images: what one computes the other computes too."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("detectron2")

from detectron2.config import get_cfg
from detectron2.structures import BitMasks as TheirBitMasks
from detectron2.structures import Boxes, Instances
from detectron2.utils.events import EventStorage

from tests.transfer.torchvision_engine.tiny import DETECTORS, tiny_config, tiny_samples
from transfer import config
from transfer.config import add_own_keys
from transfer.detectron2_engine import build_model, detectron2_config
from transfer.torchvision_engine.models import build_detector
from transfer.torchvision_engine.structures import Sample
from transfer.torchvision_engine.weights import export_state, load_detector, names

pytestmark = pytest.mark.detectron2

#: Every candidate is a detection, so that there is something to compare at random weights.
KEEP_ALL = [
    *("MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0", "MODEL.RETINANET.SCORE_THRESH_TEST", "0.0"),
    *("MODEL.FCOS.SCORE_THRESH_TEST", "0.0"),
]
ROOT = Path(__file__).parents[2]
SIZES = ((64, 64), (48, 70), (90, 61))  # multiples of 32 and not


def their_inputs(samples: Sequence[Sample]) -> list[dict]:
    found = []
    for sample in samples:
        instances = Instances(tuple(sample.image.shape[1:]))
        instances.gt_boxes = Boxes(sample.target.boxes.clone())
        instances.gt_classes = sample.target.classes.clone()
        instances.gt_masks = TheirBitMasks(sample.target.masks.bitmaps.clone())
        found.append({"image": sample.image, "instances": instances, "height": sample.height, "width": sample.width})
    return found


@pytest.fixture(params=DETECTORS)
def pair(request, tmp_path):
    """Detectron2's model with random weights, and ours with the same."""
    cfg = tiny_config(request.param, *KEEP_ALL)
    torch.manual_seed(3)
    theirs = build_model(detectron2_config(cfg, seed=0, out_dir=tmp_path))
    for parameter in theirs.parameters():
        if parameter.dim() > 1:  # the initial heads are so flat that scores tie
            parameter.data.add_(torch.randn_like(parameter) * 0.02)
    with torch.no_grad(), EventStorage():
        theirs.train()(their_inputs(tiny_samples(SIZES)))  # gives BatchNorm statistics of these images
    ours = build_detector(cfg)
    load_detector(ours, theirs.state_dict(), "theirs")
    if hasattr(theirs, "loss_normalizer"):
        del theirs.loss_normalizer
    return ours, theirs


def test_both_name_the_same_tensors(pair):
    ours, theirs = pair
    assert set(export_state(ours)) == set(theirs.state_dict())


def test_losses_and_gradients_agree(pair):
    ours, theirs = pair
    samples = tiny_samples(SIZES)
    torch.manual_seed(0)
    mine = ours.train()(samples)
    torch.manual_seed(0)
    with EventStorage():
        other = theirs.train()(their_inputs(samples))
    assert set(mine) == set(other)
    for name, value in other.items():
        assert mine[name].item() == pytest.approx(value.item(), abs=1e-6), name
    sum(mine.values()).backward()
    sum(other.values()).backward()
    table, others = names(ours), dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, others[table[name]].grad, rtol=1e-4, atol=1e-6)


def test_detections_agree(pair):
    ours, theirs = pair
    ours.eval()
    theirs.eval()
    samples = tiny_samples(SIZES)
    samples[1].height, samples[1].width = 96, 140  # scaled back to another size
    with torch.no_grad():
        for sample, given in zip(samples, their_inputs(samples), strict=True):
            mine, other = ours([sample])[0], theirs([given])[0]["instances"]
            assert len(mine) > 0
            assert torch.equal(mine.boxes, other.pred_boxes.tensor)
            assert torch.equal(mine.classes, other.pred_classes)
            torch.testing.assert_close(mine.scores, other.scores, rtol=0, atol=1e-6)
            if mine.masks is not None:
                assert torch.equal(mine.masks, other.pred_masks)


@pytest.mark.parametrize("name", ["mask_rcnn", "retinanet"])
def test_twenty_iterations_follow_the_same_losses(name, tmp_path):
    cfg = tiny_config(name)
    torch.manual_seed(3)
    theirs = build_model(detectron2_config(cfg, seed=0, out_dir=tmp_path)).train()
    ours = build_detector(cfg)
    load_detector(ours, theirs.state_dict(), "theirs")
    from detectron2.solver import build_optimizer

    from transfer.torchvision_engine.run import build_training
    from transfer.torchvision_engine.training_state import Position

    their_optimizer = build_optimizer(detectron2_config(cfg, seed=0, out_dir=tmp_path), theirs)
    my_optimizer = build_training(cfg, ours, Position(0, (), ())).optimizer
    for step in range(20):
        samples = tiny_samples(seed=step)
        torch.manual_seed(step)
        mine = sum(ours(samples).values())
        torch.manual_seed(step)
        with EventStorage():
            other = sum(theirs(their_inputs(samples)).values())
        assert mine.item() == pytest.approx(other.item(), rel=1e-4), step
        for loss, optimizer in ((mine, my_optimizer), (other, their_optimizer)):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_weights_of_each_engine_load_into_the_other(pair, tmp_path):
    ours, theirs = pair
    torch.save({"model": theirs.state_dict()}, tmp_path / "theirs.pth")
    torch.save({"model": export_state(ours)}, tmp_path / "ours.pth")
    from transfer.detectron2_engine import load_initial
    from transfer.initial_weights import InitialWeights, read_detector

    load_detector(ours, read_detector(tmp_path / "theirs.pth"), "theirs")
    loaded, new = load_initial(theirs, InitialWeights("ours", detector=read_detector(tmp_path / "ours.pth")))
    assert new == []
    assert len(loaded) == len(theirs.state_dict())


CONFIGS = [path for room in ("transfer", "smoke") for path in sorted((ROOT / "configs" / room).glob("*.yaml"))]
CONFIGS = [path for path in CONFIGS if "tools/transfer.py" in path.read_text()]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_config_merges_into_detectron2_as_a_file_and_as_settings(file, tmp_path):
    cfg = config.load(file)
    merged = add_own_keys(get_cfg())
    merged.merge_from_file(str(file))
    theirs = detectron2_config(cfg, seed=0, out_dir=tmp_path)
    for key in ("MODEL.ROI_HEADS.NAME", "SOLVER.STEPS", "SOLVER.BASE_LR", "MODEL.ANCHOR_GENERATOR.SIZES"):
        values = [functools.reduce(operator.getitem, key.split("."), one) for one in (merged, theirs, cfg)]
        assert values[0] == values[1] == values[2], key
