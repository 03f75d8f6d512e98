"""Settings that make no sense end in one line before anything is read or computed."""

from pathlib import Path

import pytest

from momentum_transfer.errors import InputError
from momentum_transfer.settings import value_of
from tests.transfer.torchvision_engine.tiny import DETECTORS, SEGMENTORS, tiny_config
from transfer import config
from transfer.engines import choose_engine
from transfer.settings_check import RANGES, check_settings

ROOT = Path(__file__).parents[2]
CONFIGS = [p for room in ("transfer", "smoke") for p in sorted((ROOT / "configs" / room).glob("*.yaml"))]
CONFIGS = [path for path in CONFIGS if "tools/transfer.py" in path.read_text()]


@pytest.mark.parametrize("name", DETECTORS | SEGMENTORS)
def test_settings_of_the_tiny_networks_pass(name):
    check_settings(tiny_config(name))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_config_passes(file):
    check_settings(config.load(file))


@pytest.mark.parametrize("key", RANGES)
def test_a_number_out_of_its_range_is_refused(key):
    cfg = tiny_config("mask_rcnn").clone()
    cfg.defrost()
    section, _, name = key.rpartition(".")
    (value_of(cfg, section) if section else cfg)[name] = -7
    with pytest.raises(InputError, match=rf"expected {key} .* found -7"):
        check_settings(cfg)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("INPUT.MIN_SIZE_TRAIN ()", "expected a size in INPUT.MIN_SIZE_TRAIN"),
        ("INPUT.MIN_SIZE_TRAIN (0,)", "INPUT.MIN_SIZE_TRAIN of at least 1, found 0"),
        ("INPUT.MIN_SIZE_TRAIN ('a',)", "INPUT.MIN_SIZE_TRAIN of at least 1, found 'a'"),
        ("INPUT.MIN_SIZE_TRAIN (80,40) INPUT.MIN_SIZE_TRAIN_SAMPLING range", "two ascending sizes"),
        ("SOLVER.STEPS (-1,)", "SOLVER.STEPS of at least 0, found -1"),
        ("SOLVER.BASE_LR 0.0", "SOLVER.BASE_LR more than 0, found 0.0"),
        ("SOLVER.MOMENTUM 1.5", "SOLVER.MOMENTUM between 0 and 1, found 1.5"),
        ("SOLVER.NESTEROV True SOLVER.MOMENTUM 0.0", "SOLVER.MOMENTUM above 0"),
        ("MODEL.DEVICE tpu", "expected MODEL.DEVICE cpu, cuda, cuda:N or mps, found 'tpu'"),
        ("MODEL.PIXEL_MEAN [1.0]", "expected 3 numbers in MODEL.PIXEL_MEAN"),
        ("MODEL.PIXEL_STD [0.0,0.0,0.0]", "MODEL.PIXEL_STD more than 0"),
        ("MODEL.ANCHOR_GENERATOR.SIZES []", "found an empty list"),
        ("MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS [[0.0]]", "ASPECT_RATIOS more than 0"),
        ("MODEL.RPN.IOU_THRESHOLDS [0.7,0.3]", "expected ascending MODEL.RPN.IOU_THRESHOLDS"),
        ("MODEL.RPN.BBOX_REG_WEIGHTS (1.0,1.0)", "expected 4 numbers in MODEL.RPN.BBOX_REG_WEIGHTS"),
        ("MODEL.FCOS.PRIOR_PROB 1.0", "MODEL.FCOS.PRIOR_PROB between 0 and 1, ends excluded"),
        ("MODEL.FPN.OUT_CHANNELS 48 MODEL.FPN.NORM GN", "a multiple of 32 in MODEL.FPN.OUT_CHANNELS"),
        ("MODEL.BACKBONE.FREEZE_AT 9", "MODEL.BACKBONE.FREEZE_AT between 0 and 5"),
        ("MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS ((1.0,),)", "four weights a stage"),
        ("MODEL.ROI_HEADS.IOU_THRESHOLDS [0.3,0.5]", "ROI_HEADS.IOU_LABELS is not one longer"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        check_settings(tiny_config("mask_rcnn", *settings.split()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("MODEL.ROI_BOX_CASCADE_HEAD.IOUS (0.4,0.6,0.7)", "IOU_THRESHOLDS is not the first"),
        ("MODEL.ROI_BOX_CASCADE_HEAD.IOUS (0.5,0.6)", "not of one length"),
        ("MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG False", "CLS_AGNOSTIC_BBOX_REG is not True"),
    ],
)
def test_cascades_that_detectron2_would_not_build_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        check_settings(tiny_config("cascade", *settings.split()))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mask_rcnn", "MODEL.ANCHOR_GENERATOR.SIZES [[16],[32]]", "SIZES is not one list, or 5 lists"),
        ("retinanet", "MODEL.ANCHOR_GENERATOR.SIZES [[16,20],[32],[64],[99],[200]]", "5 lists of one length"),
        ("retinanet", "MODEL.RETINANET.IN_FEATURES ['p9']", "names p9, but this backbone gives p3, p4, p5, p6, p7"),
        ("mask_rcnn", "MODEL.RPN.IN_FEATURES []", "MODEL.RPN.IN_FEATURES is empty"),
        ("mask_rcnn", "MODEL.FPN.IN_FEATURES ['res2','res4']", "are not the stages from one on to res5"),
        ("mask_rcnn", "MODEL.FPN.IN_FEATURES []", "are not the stages from one on to res5"),
        ("faster_rcnn_c4", "MODEL.ROI_HEADS.IN_FEATURES ['res5']", "names res5, but this backbone gives res4"),
        ("faster_rcnn_c4", "MODEL.RPN.IN_FEATURES ['res3','res4']", "names res3, but this backbone gives res4"),
        ("mask_rcnn", "SOLVER.AMP.ENABLED True MODEL.DEVICE cuda", "float16 needs a GPU"),
    ],
)
def test_levels_and_devices_that_are_not_there_are_refused(name, settings, message):
    with pytest.raises(InputError, match=message):
        choose_engine("torchvision", tiny_config(name, *settings.split()))
