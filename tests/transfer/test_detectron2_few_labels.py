"""Few labels in Detectron2's engine: the other engine's losses and labels, supervised training, resumption."""

import copy
import json
import os
import signal
from dataclasses import replace

import pytest
import torch

pytest.importorskip("detectron2")

from detectron2.utils.events import EventStorage

from benchmarks.engine_parity import random_pair
from momentum_transfer.transfer.detectron2_engine import train
from momentum_transfer.transfer.detectron2_engine.engine import Detectron2Engine
from momentum_transfer.transfer.detectron2_engine.few_labels import FewLabels
from momentum_transfer.transfer.torchvision_engine.detectors import names
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from momentum_transfer.transfer.torchvision_engine.mean_teacher import MeanTeacher
from momentum_transfer.transfer.torchvision_engine.strong_views import with_strong_view
from tests.transfer.torchvision_engine.test_mean_teacher import ALL, STEPS, TEACHER, joint_config, same, weights
from tests.transfer.torchvision_engine.tiny import predict_tiny, shapes_config, tiny_config, tiny_samples, train_tiny
from tests.two_processes import as_torchrun

pytestmark = pytest.mark.detectron2

SIZES = ((64, 64), (48, 70), (90, 61))
COUNTING = ["SEMI.BOX_LOSS", "True", "SEMI.FOCAL_GAMMA", "1.5"]


@pytest.mark.parametrize("norm", ["student", "EMAN", "MomentumBN", "FrozenBN"])
@pytest.mark.parametrize("detector", ["mask_rcnn", "cascade", "retinanet", "fcos"])
def test_both_engines_have_equal_losses_on_labels_and_on_a_teachers_boxes(detector, norm):
    cfg = tiny_config(detector, "MODEL.MASK_ON", "False", *TEACHER, *ALL, *COUNTING, "SEMI.TEACHER_NORM", norm)
    ours, theirs = random_pair(cfg, tiny_samples(SIZES))
    mine, few = MeanTeacher(ours.train(), cfg.SEMI), FewLabels(theirs, cfg.SEMI)
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.01) for network in (ours, theirs)]
    for step in range(2):
        known, others = tiny_samples(SIZES, seed=step), tiny_samples(SIZES[:2], seed=step + 10)
        batch = [*known, *(with_strong_view(s, False, step, place) for place, s in enumerate(others))]
        torch.manual_seed(step)
        first = mine.weighted(ours.train()(mine.label(batch, step)))
        torch.manual_seed(step)
        with EventStorage():
            second = theirs.train()(batch)
            sum(first.values()).backward()
            sum(second.values()).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            mine.follow()
            few.after_step(step, last=False)
        assert mine.numbers == theirs.teacher.numbers
        assert mine.numbers["pseudo_boxes"] > 0
        assert set(first) == set(second)
        assert sum(name.endswith("_pseudo") for name in first) == len(first) / 2
        assert {name: float(first[name] - second[name]) for name in first} == pytest.approx(
            dict.fromkeys(first, 0.0), abs=1e-6 if step == 0 else 1e-4
        )
    table, state = names(ours), theirs.teacher.network.state_dict()
    for name, value in mine.network.state_dict().items():
        if name in table:
            torch.testing.assert_close(value, state[table[name]], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("detector", ["retinanet", "fcos"])
def test_a_teachers_boxes_leave_the_count_of_foreground_as_the_labels_made_it(detector):
    cfg = tiny_config(detector, "MODEL.MASK_ON", "False", *TEACHER, *ALL)
    _, network = random_pair(cfg, tiny_samples(SIZES))
    alone = copy.deepcopy(network)
    FewLabels(network, cfg.SEMI)
    FewLabels(alone, tiny_config(detector, "SEMI.LABELLED", "50").SEMI)
    samples = tiny_samples(SIZES)
    with EventStorage():
        alone(samples)
        network([*samples, *(with_strong_view(replace(s, target=None), False, 0, 0) for s in samples)])
    assert network.loss_normalizer == alone.loss_normalizer


@pytest.mark.parametrize("detector", ["mask_rcnn", "retinanet", "fcos"])
def test_with_a_score_that_nothing_reaches_the_student_is_the_supervised_one_bit_for_bit(detector, tmp_path):
    common = [*STEPS, "TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.NUM_ITER", "2"]
    common += ["SEMI.STRONG_LABELLED", "True"]
    alone = train_tiny(Detectron2Engine(), shapes_config(detector, tmp_path, *common), 3, tmp_path / "alone")
    words = [*common, *TEACHER, "SEMI.THRESHOLD", "1.01", "SEMI.RESULT", "student"]
    taught = train_tiny(Detectron2Engine(), shapes_config(detector, tmp_path, *words), 3, tmp_path / "taught")
    assert same(weights(alone), weights(taught))
    words[words.index("1.01")] = "0.0"
    labelled = train_tiny(Detectron2Engine(), shapes_config(detector, tmp_path, *words, *ALL), 3, tmp_path / "labelled")
    assert not same(weights(alone), weights(labelled))


def _train_and_die(cfg, folder):
    original = train.FewLabels.after_step

    def after_step(self, step, last):
        if last:  # the third step's checkpoint is written
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, step, last)

    train.FewLabels.after_step = after_step
    train_tiny(Detectron2Engine(), cfg, 3, folder)


@pytest.mark.parametrize(
    ("detector", "norm"), [("mask_rcnn", "EMAN"), ("retinanet", "MomentumBN"), ("fcos", "student")]
)
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(detector, norm, tmp_path):
    words = [*STEPS, *TEACHER, *ALL, "SEMI.TEACHER_NORM", norm, "SEMI.TEACHER_GROUP", "1"]
    cfg = shapes_config(detector, tmp_path, *words, "INPUT.MIN_SIZE_TRAIN", "[48,64]")
    whole = train_tiny(Detectron2Engine(), cfg, 3, tmp_path / "whole")
    process = torch.multiprocessing.get_context("fork").Process(target=_train_and_die, args=(cfg, tmp_path / "parts"))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    parts = train_tiny(Detectron2Engine(), cfg, 3, tmp_path / "parts", resume=True)
    assert same(weights(whole), weights(parts))
    ends = [torch.load(tmp_path / name / "model_final.pth", weights_only=True) for name in ("whole", "parts")]
    first, second = (end["trainer"]["few_labels"]["teacher"] for end in ends)
    assert same(first, second)
    for name in weights(whole):  # the result is the teacher
        assert torch.equal(weights(whole)[name], first[name])


def test_the_engines_train_the_same_teacher_on_the_same_data_and_hand_it_over(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *STEPS, *TEACHER, *ALL, "SEMI.TEACHER_NORM", "MomentumBN")
    theirs = train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "theirs")
    lines = [json.loads(line) for line in (tmp_path / "theirs/metrics.json").read_text().splitlines()]
    ours = train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "ours")
    assert set(weights(theirs)) == set(weights(ours))
    assert {"pseudo_boxes", "pseudo_images", "pseudo_precision", "pseudo_recall"} <= set(lines[-1])
    one, other = (predict_tiny(engine, cfg, theirs.weights, tmp_path / engine.name)[0].results.read_text()
                  for engine in (Detectron2Engine(), TorchvisionEngine()))  # fmt: skip
    assert [e["bbox"] for e in json.loads(one)] == [e["bbox"] for e in json.loads(other)]


def _in_processes(folder):
    train_tiny(Detectron2Engine(), joint_config(folder), 0, folder / "two")


def test_two_processes_equal_one_on_the_same_batches(tmp_path):
    alone = weights(train_tiny(Detectron2Engine(), joint_config(tmp_path), 0, tmp_path / "one"))
    as_torchrun(_in_processes, tmp_path)
    together = torch.load(tmp_path / "two/model_final.pth", weights_only=True)["model"]
    for name, value in alone.items():
        torch.testing.assert_close(
            together[name], value, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_what_it_cannot_run_with_few_labels_is_said_before_any_compute():
    words = [*STEPS, *TEACHER, *ALL]
    engine = Detectron2Engine()
    assert "set TEST.EVAL_PERIOD 0" in engine.unsupported(tiny_config("fcos", *words, "TEST.EVAL_PERIOD", "2"))
    assert "torchvision engine's, which cannot" in engine.unsupported(
        tiny_config("fcos", *words, "INPUT.CROP.ENABLED", "True")
    )
    assert engine.unsupported(tiny_config("fcos", *words)) is None
