"""Settings that make no sense are refused in one line; what a setting decides is in identity, claims and resumption."""

import pytest
import torch

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import value_of
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.page import build
from momentum_transfer.report.read_inputs import read_records
from momentum_transfer.transfer import config
from momentum_transfer.transfer import run as run_module
from momentum_transfer.transfer.config import SETTINGS, check_settings, get_cfg, identity
from momentum_transfer.transfer.detector_run import choose_engine
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.verdicts.corrections import NOT_COMPARED
from tests.config_headers import configs_of, header
from tests.transfer.torchvision_engine.tiny import DETECTORS, SEGMENTORS, shapes_config, tiny_config

CONFIGS = [path for room in ("transfer", "smoke") for path in configs_of(room) if "tools/transfer.py" in header(path)]


@pytest.mark.parametrize("name", DETECTORS | SEGMENTORS)
def test_settings_of_the_tiny_networks_pass(name):
    check_settings(tiny_config(name))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_config_passes(file):
    check_settings(config.load(file))


@pytest.mark.parametrize("key", SETTINGS)
def test_a_value_out_of_its_range_is_refused(key):
    cfg = tiny_config("mask_rcnn").clone()
    cfg.defrost()
    section, _, name = key.rpartition(".")
    wrong = "a\0b" if isinstance(value_of(cfg, key), str) else -7
    (value_of(cfg, section) if section else cfg)[name] = [-1.5] if "ALPHA" in key or "PIXEL_MEAN" in key else wrong
    with pytest.raises(InputError, match=rf"expected {key} .* found .*; "):
        check_settings(cfg)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "INPUT.MIN_SIZE_TRAIN ()",
            "as a list of one or more whole numbers between 1 and 65536 px",
        ),
        ("INPUT.MIN_SIZE_TRAIN (0,)", r"expected INPUT.MIN_SIZE_TRAIN .*found \(0,\)"),
        ("INPUT.MIN_SIZE_TRAIN ('a',)", r"expected INPUT.MIN_SIZE_TRAIN .*found \('a',\)"),
        ("INPUT.MIN_SIZE_TRAIN (80,40) INPUT.MIN_SIZE_TRAIN_SAMPLING range", "two ascending sizes"),
        ("SOLVER.STEPS (-1,)", r"SOLVER.STEPS as a list of whole numbers of at least 0 iterations, found \(-1,\)"),
        ("SOLVER.BASE_LR 0.0", "SOLVER.BASE_LR above 0, found 0.0"),
        ("SOLVER.MOMENTUM 1.5", "SOLVER.MOMENTUM between 0 and 1, found 1.5"),
        ("SOLVER.NESTEROV True SOLVER.MOMENTUM 0.0", "SOLVER.MOMENTUM above 0"),
        ("MODEL.DEVICE tpu", "expected MODEL.DEVICE of auto, cuda, cuda:N, cpu, found 'tpu'"),
        ("MODEL.PIXEL_MEAN [1.0]", "MODEL.PIXEL_MEAN as a list of 3 numbers, found"),
        ("MODEL.PIXEL_STD [0.0,0.0,0.0]", "MODEL.PIXEL_STD as a list of 3 numbers above 0"),
        (
            "MODEL.ANCHOR_GENERATOR.SIZES []",
            r"SIZES as a list, or lists, of one or more .*found \[\]",
        ),
        (
            "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS [[0.0]]",
            "ASPECT_RATIOS as a list, or lists, of one or more",
        ),
        (
            "MODEL.RPN.IOU_THRESHOLDS [0.7,0.3]",
            "IOU_THRESHOLDS as a list of ascending numbers between",
        ),
        ("MODEL.RPN.BBOX_REG_WEIGHTS (1.0,1.0)", "MODEL.RPN.BBOX_REG_WEIGHTS as a list of 4 numbers above 0"),
        ("MODEL.FCOS.PRIOR_PROB 1.0", "MODEL.FCOS.PRIOR_PROB above 0 and below 1"),
        ("MODEL.FPN.OUT_CHANNELS 48 MODEL.FPN.NORM GN", "a multiple of 32 in MODEL.FPN.OUT_CHANNELS"),
        ("MODEL.BACKBONE.FREEZE_AT 9", "MODEL.BACKBONE.FREEZE_AT between 0 and 5"),
        (
            "MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS ((1.0,),)",
            "as a list of lists of 4 numbers above 0",
        ),
        ("MODEL.ROI_HEADS.IOU_THRESHOLDS [0.3,0.5]", "ROI_HEADS.IOU_LABELS one longer"),
        ("SOLVER.OPTIMIZER Adam", "SOLVER.OPTIMIZER of SGD, AdamW, found 'Adam'"),
        ("SOLVER.BETAS (0.9,1.0)", "SOLVER.BETAS as a list of 2 numbers"),
        (
            "MODEL.BACKBONE.FROZEN True MODEL.BACKBONE.NAME build_resnet_backbone",
            "FROZEN with a pyramid, found a C4 detector",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        check_settings(tiny_config("mask_rcnn", *settings.split()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("MODEL.ROI_BOX_CASCADE_HEAD.IOUS (0.4,0.6,0.7)", r"IOU_THRESHOLDS \[0.4\], the cascade"),
        ("MODEL.ROI_BOX_CASCADE_HEAD.IOUS (0.5,0.6)", "as many BBOX_REG_WEIGHTS as IOUS"),
        ("MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG False", "CLS_AGNOSTIC_BBOX_REG True for a cascade"),
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
        ("mask_rcnn", "SOLVER.AMP.ENABLED True MODEL.DEVICE auto", "float16 needs a GPU"),
    ],
)
def test_levels_and_devices_that_are_not_there_are_refused(name, settings, message):
    with pytest.raises(InputError, match=message):
        choose_engine("torchvision", tiny_config(name, *settings.split()))


SHORT = ["SOLVER.MAX_ITER", "2", "SOLVER.STEPS", "()", "ENGINE", "torchvision", "PROTOCOL", "tiny", "TEST.VISUALS", "0"]


def test_two_backbones_given_by_model_weights_are_compared(tmp_path):
    files = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        file = tmp_path / f"backbone_{seed}.pth"
        torch.save(build_resnet(Architecture("resnet10", 32)).state_dict(), file)
        out = tmp_path / f"run_{seed}"
        cfg = shapes_config("retinanet", tmp_path, *SHORT, "MODEL.WEIGHTS", str(file), "OUTPUT_DIR", str(out))
        run(cfg, Request(cfg.MODEL.WEIGHTS))
        files.append(out / "results.jsonl")
    report = build(read_records(files)[0], resamples=10)
    assert report.results.unlike == {}
    words = Comparisons(report.results, 10).words("backbone_1", "backbone_0")
    assert words
    assert NOT_COMPARED not in words.values()


@pytest.mark.parametrize("key", SETTINGS)
def test_identity_follows_the_table_for_every_setting(key):
    before, after = get_cfg(), get_cfg()
    section, _, name = key.rpartition(".")
    value = value_of(before, key)
    other = (["another"] if isinstance(value, (list, tuple)) else not value if isinstance(value, bool)
             else f"{value}x" if isinstance(value, str) else value + 1)  # fmt: skip
    (value_of(after, section) if section else after)[name] = type(value)(other)
    decides = SETTINGS[key].decides
    assert (identity(before) != identity(after)) == (decides != "nothing")
    assert (identity(before, evaluation=False) != identity(after, evaluation=False)) == (decides == "training")


def test_what_decides_nothing_or_scores_may_change_at_a_resumption_and_the_rest_may_not(tmp_path, monkeypatch):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    run(cfg, Request("none"))
    out = tmp_path / "out"
    (out / "model_final.pth").unlink()
    (out / "results.jsonl").unlink()
    free = ["MODEL.WEIGHTS", "elsewhere.pth", "TEST.DETECTIONS_PER_IMAGE", "7", "DATALOADER.NUM_WORKERS", "1"]
    run(shapes_config("retinanet", tmp_path, *SHORT, *free), Request("none", resume=True))
    assert (out / "model_final.pth").is_file()
    (out / "model_final.pth").unlink()
    monkeypatch.setattr(run_module, "_claim", lambda *_, **__: None)  # the checkpoint's own settings are a second check
    other = shapes_config("retinanet", tmp_path, *SHORT, "SOLVER.BASE_LR", "0.5")
    with pytest.raises(InputError, match=r"cannot resume .*: SOLVER.BASE_LR was 0\.\d+ and is 0\.5"):
        run(other, Request("none", resume=True))
