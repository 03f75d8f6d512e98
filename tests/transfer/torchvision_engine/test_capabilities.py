"""No setting is without effect: each is read somewhere, or refused when it is changed."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import pytest
import torch
from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.config import get_cfg
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.torchvision_engine.capabilities import WORDS, unsupported
from momentum_transfer.transfer.torchvision_engine.engine import _predict, build, build_training, training_loader
from momentum_transfer.transfer.torchvision_engine.train import train
from momentum_transfer.transfer.torchvision_engine.training_state import Position
from tests.transfer.test_any_backbone import VIT, WINDOWS
from tests.transfer.torchvision_engine.test_semantic import labels_config
from tests.transfer.torchvision_engine.tiny import DETECTORS, SEGMENTORS, check_data, shapes_config, tiny_config


class Recorder(CfgNode):
    """Settings that write down which of them are asked for."""

    seen: ClassVar[set[str]] = set()

    @classmethod
    def of(cls, cfg: CfgNode, prefix: str = "") -> Recorder:
        made = cls()
        for key, value in dict.items(cfg):
            dict.__setitem__(made, key, cls.of(value, f"{prefix}{key}.") if isinstance(value, CfgNode) else value)
        made.__dict__["prefix"] = prefix
        return made

    def __getitem__(self, key):
        if "prefix" in self.__dict__:
            self.seen.add(self.__dict__["prefix"] + key)
        return super().__getitem__(key)

    def __getattr__(self, key):
        if key in self:
            return self[key]
        raise AttributeError(key)


#: Read by the tool and by transfer/run.py, for both engines.
OUTSIDE = {"MODEL.WEIGHTS", "ENGINE", "TRIALS", "PROTOCOL", "SEED", "MODEL.BACKBONE.PIXELS",
           "FIT_RATE", "FIT_TO_DATA", "FEW_SHOT.NOVEL_WEIGHTS"}  # fmt: skip
#: Branches that a tiny training does not take by itself.
BRANCHES = [*("SOLVER.CLIP_GRADIENTS.ENABLED", "True"),
            *("SOLVER.AMP.ENABLED", "True", "SOLVER.AMP.PRECISION", "bfloat16"),
            *("TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.NUM_ITER", "1", "TEST.EVAL_PERIOD", "1"),
            *("DATALOADER.SAMPLER_TRAIN", "RepeatFactorTrainingSampler", "TEST.VISUALS", "1"),
            *("SOLVER.MAX_ITER", "1", "SOLVER.STEPS", "()")]  # fmt: skip


#: A linear probe in the place of DeepLab.
LINEAR = [*("MODEL.SEM_SEG_HEAD.NAME", "LinearHead", "MODEL.BACKBONE.FROZEN", "True"),
          *("MODEL.RESNETS.RES5_DILATION", "1"),
          *("MODEL.SEM_SEG_HEAD.LOSS_TYPE", "cross_entropy")]  # fmt: skip


def leaves(cfg, prefix=""):
    for key, value in cfg.items():
        yield from leaves(value, f"{prefix}{key}.") if isinstance(value, CfgNode) else [prefix + key]


def configs(folder):
    few_shot = ["FEW_SHOT.NOVEL", "['square']", "FEW_SHOT.STAGE", "all", "FEW_SHOT.SHOTS", "1"]
    yield shapes_config("mask_rcnn", folder / "shapes", *BRANCHES, *few_shot)
    for name in DETECTORS:
        yield shapes_config(name, folder / "shapes", *BRANCHES)
    crop = ["INPUT.CROP.ENABLED", "True", "INPUT.CROP.TYPE", "absolute", "INPUT.CROP.SIZE", "[32, 32]"]
    yield labels_config("stride16", folder / "labels", *BRANCHES[:-4], "SOLVER.MAX_ITER", "1", *crop)
    yield labels_config("stride16", folder / "labels", *BRANCHES[:-4], "SOLVER.MAX_ITER", "1", *LINEAR)
    any_network = ["MODEL.BACKBONE.ARCH", VIT, "MODEL.FPN.NORM", "LN", "SOLVER.LAYER_DECAY", "0.9"]
    for form in (["MODEL.BACKBONE.NORM", "FrozenBN"], WINDOWS):
        yield shapes_config("retinanet", folder / "shapes", *any_network, *form, *BRANCHES)
    for schedule in ("WarmupCosineLR", "WarmupMultiStepLR"):
        optimizer = ["SOLVER.OPTIMIZER", "AdamW"] if schedule == "WarmupCosineLR" else []
        yield shapes_config("retinanet", folder / "shapes", *BRANCHES, "SOLVER.LR_SCHEDULER_NAME", schedule, *optimizer)


def test_every_setting_is_read_or_refused(tmp_path):
    Recorder.seen = set()
    for number, cfg in enumerate(configs(tmp_path)):
        recorder = Recorder.of(cfg)
        assert unsupported(recorder) is None
        if number == 0:
            check_data(recorder)
        task = open_task(recorder)
        torch.manual_seed(0)
        detector = build(recorder)
        training = build_training(recorder, detector, Position(0, (), ()))
        out = tmp_path / str(number)
        out.mkdir()
        with contextlib.suppress(InputError):  # a random network's loss may be anything
            loader = training_loader(recorder, task, 0, 0, detector)
            train(training, loader, recorder, out, evaluate=lambda position: None)
        _predict(recorder, detector.eval(), task.test[0], out)
    bottlenecks = [*("MODEL.RESNETS.DEPTH", "50", "MODEL.RESNETS.STEM_OUT_CHANNELS", "64")]
    unsupported(Recorder.of(tiny_config("mask_rcnn", *bottlenecks, "MODEL.RESNETS.RES2_OUT_CHANNELS", "256")))
    sections = {key for key in Recorder.seen if key not in set(leaves(get_cfg()))}
    assert "MODEL.RPN" in sections
    assert sorted(set(leaves(get_cfg())) - Recorder.seen - OUTSIDE) == []


@pytest.mark.parametrize("key", WORDS)
def test_a_word_that_the_engine_does_not_know_is_refused(key):
    other = "7" if isinstance(WORDS[key][0], int) else "vertical"
    assert unsupported(tiny_config("mask_rcnn")) is None
    assert f"{key} is none of" in unsupported(tiny_config("mask_rcnn", key, other))


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("mask_rcnn", "MODEL.BACKBONE.NAME build_resnet_backbone", "not build_resnet_fpn_backbone"),
        ("mask_rcnn", "MODEL.RESNETS.OUT_FEATURES ['res2','res3','res4']", "OUT_FEATURES lacks res5"),
        ("retinanet", "MODEL.RESNETS.RES5_DILATION 2", "RES5_DILATION other than 1"),
        ("fcos", "INPUT.CROP.ENABLED True", "INPUT.CROP is for semantic"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(name, settings, reason):
    assert reason in unsupported(tiny_config(name, *settings.split()))


def test_all_tiny_networks_are_supported():
    assert [unsupported(tiny_config(name)) for name in DETECTORS | SEGMENTORS] == [None] * 9
