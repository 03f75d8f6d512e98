import json
import re
from pathlib import Path

import pytest
import yaml

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import value_of
from momentum_transfer.transfer import config
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from tests.config_headers import configs_of, header, spelling

ROOT = Path(__file__).parents[2]
PROTOCOLS = configs_of("transfer")
SMOKE = [path for path in configs_of("smoke") if "transfer.py" in header(path)]


@pytest.mark.parametrize("file", [*PROTOCOLS, *SMOKE], ids=lambda file: file.stem)
def test_every_config_is_one_that_the_torchvision_engine_runs(file):
    cfg = config.load(file)
    assert TorchvisionEngine().unsupported(cfg) is None
    assert cfg.PROTOCOL or "Paper: none" in header(file)
    assert max(cfg.SOLVER.STEPS, default=0) < cfg.SOLVER.MAX_ITER


@pytest.mark.parametrize("file", [*PROTOCOLS, *SMOKE], ids=lambda file: file.stem)
def test_every_header_names_its_own_command(file):
    assert header(file).count(f" --config {spelling(file)} --weights OUT.pkl") == 1


@pytest.mark.parametrize("file", PROTOCOLS, ids=lambda file: file.stem)
def test_expected_scores_in_headers_are_the_papers(file):
    text = header(file)
    cited = re.search(r"^# Paper: (.*) \(arXiv .*\), table (\d+)\. Expected (.*):$", text, re.M)
    if cited is None:
        assert "# Paper: none" in text
        return
    keys = {"Momentum": "momentum2", "Unbiased": "unbiased_teacher"}
    key = next((key for word, key in keys.items() if cited[1].startswith(word)), "rcf")
    reference = yaml.safe_load((ROOT / f"configs/reference/{key}_table_{int(cited[2]):02d}.yaml").read_text())
    protocol = config.load(file).PROTOCOL
    wanted = [tuple(what.split()) for what in cited[3].split(", ")]
    columns = [
        next(i for i, column in enumerate(reference["columns"])
             if (column.get("task"), column.get("metric"), column.get("protocol")) == (task, metric, protocol))
        for task, metric in wanted
    ]  # fmt: skip
    rows = {
        re.sub(r"\s+", " ", " ".join(cell for cell in row[:2] if isinstance(cell, str))): row
        for row in reference["rows"]
    }
    printed = re.findall(r"^#   (\S.*?)\s{2,}(.*)$", text, re.M)
    assert printed
    for label, numbers in printed:
        assert [str(rows[label][column]) for column in columns] == numbers.split(" / ")


@pytest.mark.parametrize(("stride", "dropout", "precise"), [(16, 0.0, True), (8, 0.1, False)])
def test_deeplab_drops_out_and_recomputes_statistics_as_each_protocol_has_it(stride, dropout, precise):
    cfg = config.load(ROOT / f"configs/transfer/deeplab_v3_stride{stride}.yaml")
    found = cfg.MODEL.SEM_SEG_HEAD.ASPP_DROPOUT, cfg.TEST.PRECISE_BN.ENABLED
    assert found == (dropout, precise)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown config key MODEL.ROI_HEADS.NUM_CLASS .*nearest.*NUM_CLASSES"):
        config.load(None, ["MODEL.ROI_HEADS.NUM_CLASS", "3"])


def test_a_value_of_another_type_is_refused():
    with pytest.raises(InputError, match=r"SOLVER.MAX_ITER .* expects int"):
        config.load(None, ["SOLVER.MAX_ITER", "many"])


def test_a_key_that_is_not_used_here_is_refused_rather_than_ignored():
    with pytest.raises(InputError, match="KEYPOINT_ON"):
        config.load(None, ["MODEL.KEYPOINT_ON", "True"])


#: As detectron2/config/defaults.py (0.6) and projects/DeepLab have them; FCOS as detectron2's fcos.py and the paper.
DETECTRON2 = """
MODEL: {PIXEL_MEAN: [103.53, 116.28, 123.675], PIXEL_STD: [1.0, 1.0, 1.0], MASK_ON: False}
MODEL.BACKBONE: {NAME: build_resnet_backbone, FREEZE_AT: 2}
MODEL.FPN: {IN_FEATURES: [], OUT_CHANNELS: 256, NORM: ""}
MODEL.RESNETS: {DEPTH: 50, NORM: FrozenBN, WIDTH_PER_GROUP: 64, STRIDE_IN_1X1: True, RES5_DILATION: 1,
  RES2_OUT_CHANNELS: 256, STEM_OUT_CHANNELS: 64, RES4_DILATION: 1, RES5_MULTI_GRID: [1, 2, 4]}
MODEL.ANCHOR_GENERATOR: {SIZES: [[32, 64, 128, 256, 512]], ASPECT_RATIOS: [[0.5, 1.0, 2.0]], OFFSET: 0.0}
MODEL.RPN: {CONV_DIMS: [-1], IOU_THRESHOLDS: [0.3, 0.7], IOU_LABELS: [0, -1, 1], BATCH_SIZE_PER_IMAGE: 256,
  POSITIVE_FRACTION: 0.5, BBOX_REG_LOSS_WEIGHT: 1.0, BBOX_REG_WEIGHTS: [1.0, 1.0, 1.0, 1.0], SMOOTH_L1_BETA: 0.0,
  LOSS_WEIGHT: 1.0, PRE_NMS_TOPK_TRAIN: 12000, PRE_NMS_TOPK_TEST: 6000, POST_NMS_TOPK_TRAIN: 2000,
  POST_NMS_TOPK_TEST: 1000, NMS_THRESH: 0.7}
MODEL.PROPOSAL_GENERATOR: {MIN_SIZE: 0}
MODEL.ROI_HEADS: {NUM_CLASSES: 80, IOU_THRESHOLDS: [0.5], IOU_LABELS: [0, 1], BATCH_SIZE_PER_IMAGE: 512,
  POSITIVE_FRACTION: 0.25, SCORE_THRESH_TEST: 0.05, NMS_THRESH_TEST: 0.5, PROPOSAL_APPEND_GT: True}
MODEL.ROI_BOX_HEAD: {BBOX_REG_LOSS_WEIGHT: 1.0, BBOX_REG_WEIGHTS: [10.0, 10.0, 5.0, 5.0], SMOOTH_L1_BETA: 0.0,
  POOLER_RESOLUTION: 14, POOLER_SAMPLING_RATIO: 0, NUM_FC: 0, FC_DIM: 1024, NUM_CONV: 0, CONV_DIM: 256,
  CLS_AGNOSTIC_BBOX_REG: False}
MODEL.ROI_BOX_CASCADE_HEAD: {IOUS: [0.5, 0.6, 0.7],
  BBOX_REG_WEIGHTS: [[10.0, 10.0, 5.0, 5.0], [20.0, 20.0, 10.0, 10.0], [30.0, 30.0, 15.0, 15.0]]}
MODEL.ROI_MASK_HEAD: {POOLER_RESOLUTION: 14, POOLER_SAMPLING_RATIO: 0, NUM_CONV: 0, CONV_DIM: 256,
  CLS_AGNOSTIC_MASK: False}
MODEL.RETINANET: {NUM_CLASSES: 80, NUM_CONVS: 4, IOU_THRESHOLDS: [0.4, 0.5], IOU_LABELS: [0, -1, 1], PRIOR_PROB: 0.01,
  SCORE_THRESH_TEST: 0.05, TOPK_CANDIDATES_TEST: 1000, NMS_THRESH_TEST: 0.5, BBOX_REG_WEIGHTS: [1.0, 1.0, 1.0, 1.0],
  FOCAL_LOSS_GAMMA: 2.0, FOCAL_LOSS_ALPHA: 0.25, SMOOTH_L1_LOSS_BETA: 0.1}
MODEL.FCOS: {NUM_CLASSES: 80, NUM_CONVS: 4, PRIOR_PROB: 0.01, CENTER_SAMPLING_RADIUS: 1.5, FOCAL_LOSS_GAMMA: 2.0,
  FOCAL_LOSS_ALPHA: 0.25, SCORE_THRESH_TEST: 0.2, NMS_THRESH_TEST: 0.6, TOPK_CANDIDATES_TEST: 1000}
MODEL.SEM_SEG_HEAD: {IGNORE_VALUE: 255, NUM_CLASSES: 54, CONVS_DIM: 128, COMMON_STRIDE: 4, LOSS_WEIGHT: 1.0,
  ASPP_CHANNELS: 256, ASPP_DILATIONS: [6, 12, 18], ASPP_DROPOUT: 0.1, USE_DEPTHWISE_SEPARABLE_CONV: False}
INPUT: {MIN_SIZE_TRAIN: [800], MAX_SIZE_TRAIN: 1333, MIN_SIZE_TEST: 800, MAX_SIZE_TEST: 1333, FORMAT: BGR}
INPUT.CROP: {ENABLED: False, SIZE: [0.9, 0.9], SINGLE_CATEGORY_MAX_AREA: 1.0}
DATALOADER: {NUM_WORKERS: 4, ASPECT_RATIO_GROUPING: True, REPEAT_THRESHOLD: 0.0, REPEAT_SQRT: True,
  FILTER_EMPTY_ANNOTATIONS: True}
TEST: {EVAL_PERIOD: 0, DETECTIONS_PER_IMAGE: 100}
TEST.PRECISE_BN: {ENABLED: False, NUM_ITER: 200}
SOLVER: {MAX_ITER: 40000, BASE_LR: 0.001, BASE_LR_END: 0.0, MOMENTUM: 0.9, NESTEROV: False, WEIGHT_DECAY: 0.0001,
  WEIGHT_DECAY_NORM: 0.0, GAMMA: 0.1, STEPS: [30000], WARMUP_FACTOR: 0.001, WARMUP_ITERS: 1000,
  CHECKPOINT_PERIOD: 5000, IMS_PER_BATCH: 16, POLY_LR_POWER: 0.9, POLY_LR_CONSTANT_ENDING: 0.0}
SOLVER.CLIP_GRADIENTS: {ENABLED: False, CLIP_VALUE: 1.0, NORM_TYPE: 2.0}
SOLVER.AMP: {ENABLED: False}
"""


def test_defaults_are_detectron2s():
    cfg = config.get_cfg()
    for section, settings in yaml.safe_load(DETECTRON2).items():
        found = value_of(cfg, section)
        assert json.loads(json.dumps({key: found[key] for key in settings})) == settings, section


def test_default_mean_is_imagenets_in_bytes_and_detectron2s_order():
    assert pytest.approx([255 * value for value in (0.406, 0.456, 0.485)]) == config.get_cfg().MODEL.PIXEL_MEAN


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("INPUT.MIN_SIZE_TRAIN_SAMPLING range INPUT.MIN_SIZE_TRAIN (40,80)", ""),
        ("INPUT.MIN_SIZE_TRAIN_SAMPLING range INPUT.MIN_SIZE_TRAIN (40,40)", ""),
        ("INPUT.MIN_SIZE_TRAIN_SAMPLING range INPUT.MIN_SIZE_TRAIN (40,)", "two ascending sizes"),
        ("INPUT.MIN_SIZE_TRAIN_SAMPLING range INPUT.MIN_SIZE_TRAIN (40,50,60)", "two ascending sizes"),
        ("INPUT.MIN_SIZE_TRAIN (80,40)", ""),
        ("SOLVER.NESTEROV True", ""),
        ("SOLVER.MOMENTUM 0.0", ""),
        ("MODEL.ROI_BOX_HEAD.NORM GN MODEL.ROI_BOX_HEAD.CONV_DIM 48", r"32 in MODEL\.ROI_BOX_HEAD\.CONV_DIM"),
        ("MODEL.ROI_BOX_HEAD.NORM GN MODEL.ROI_BOX_HEAD.CONV_DIM 64", ""),
        ("MODEL.ROI_BOX_HEAD.NORM BN MODEL.ROI_BOX_HEAD.CONV_DIM 48", ""),
        ("MODEL.META_ARCHITECTURE FCOS MODEL.FCOS.NORM GN MODEL.FPN.OUT_CHANNELS 48", r"FPN\.OUT_CHANNELS for GN"),
        ("MODEL.META_ARCHITECTURE RetinaNet MODEL.FCOS.NORM GN MODEL.FPN.OUT_CHANNELS 48", ""),
        ("MODEL.META_ARCHITECTURE RetinaNet MODEL.MASK_ON True", "MASK_ON False for RetinaNet, which has no mask head"),
        ("MODEL.META_ARCHITECTURE FCOS MODEL.MASK_ON True", "MASK_ON False for FCOS, which has no mask head"),
        ("MODEL.META_ARCHITECTURE GeneralizedRCNN MODEL.MASK_ON True", ""),
        ("MODEL.RPN.IOU_LABELS [0,1]", r"MODEL\.RPN\.IOU_LABELS one longer"),
        ("MODEL.BACKBONE.SQUARE 64", r"MODEL\.BACKBONE\.ARCH with MODEL\.BACKBONE\.SQUARE"),
        ("MODEL.ROI_HEADS.NAME CascadeROIHeads", "CLS_AGNOSTIC_BBOX_REG True for a cascade"),
        ("MODEL.ROI_HEADS.NAME CascadeROIHeads MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG True", ""),
        ("MODEL.ROI_HEADS.NAME CascadeROIHeads MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG True "
         "MODEL.ROI_HEADS.IOU_THRESHOLDS [0.6]", "the cascade's first of IOUS, found"),
        ("MODEL.ROI_HEADS.NAME CascadeROIHeads MODEL.ROI_BOX_CASCADE_HEAD.IOUS (0.5,)", "as many BBOX_REG_WEIGHTS"),
        ("FEW_SHOT.NOVEL ['cat','dog'] FEW_SHOT.STAGE all FEW_SHOT.TRAINED last", ""),
        ("FEW_SHOT.NOVEL ['cat','dog','cat']", "every class of FEW_SHOT.NOVEL once, found 'cat' again"),
        ("FEW_SHOT.NOVEL [7]", r"FEW_SHOT.NOVEL as a list of words as names of classes, found \(7,\)"),
        ("FEW_SHOT.STAGE all", "FEW_SHOT.NOVEL with FEW_SHOT.STAGE and TRAINED, found none"),
        ("FEW_SHOT.NOVEL ['cat'] MODEL.META_ARCHITECTURE SemanticSegmentor", "a detector with FEW_SHOT.NOVEL"),
        ("MODEL.ROI_BOX_HEAD.COSINE_SCALE 20.0 MODEL.META_ARCHITECTURE FCOS", "COSINE_SCALE 0 for FCOS"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(settings: str, said: str):
    cfg = config.load(None, settings.split())
    if not said:
        config.check_settings(cfg)
        return
    with pytest.raises(InputError, match=said):
        config.check_settings(cfg)


def test_what_counts_things_is_whole():
    for key, setting in config.SETTINGS.items():
        if type(setting.default) is int and key != "MODEL.PROPOSAL_GENERATOR.MIN_SIZE":  # a length
            cfg = config.get_cfg()
            section, _, name = key.rpartition(".")
            (value_of(cfg, section) if section else cfg)[name] = setting.default + 0.5
            with pytest.raises(InputError, match=f"expected {key} "):
                config.check_settings(cfg)
