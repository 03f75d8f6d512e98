"""Few labels and shots in Detectron2's engine: the other engine's losses, labels and steps; resumption."""

import copy
import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("detectron2")

from detectron2.utils.events import EventStorage

from benchmarks.engine_parity import loss_differences, prediction_differences, random_pair
from momentum_transfer.core import records
from momentum_transfer.transfer.detectron2_engine.engine import Detectron2Engine
from momentum_transfer.transfer.detectron2_engine.few_labels import FewLabels
from momentum_transfer.transfer.experiment import Experiment
from momentum_transfer.transfer.initial_weights import InitialWeights, read_detector
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.torchvision_engine.data import with_strong_view
from momentum_transfer.transfer.torchvision_engine.detectors import LAST_LAYERS, names
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from momentum_transfer.transfer.torchvision_engine.mean_teacher import MeanTeacher
from tests.process_group import kill_at
from tests.transfer.test_few_shot_weights import TFA, stage
from tests.transfer.torchvision_engine.test_mean_teacher import ALL, SOFT, STEPS, TEACHER, joint_config, same, weights
from tests.transfer.torchvision_engine.tiny import predict_tiny, shapes_config, tiny_config, tiny_samples, train_tiny
from tests.two_processes import as_torchrun

pytestmark = pytest.mark.detectron2

SIZES = ((64, 64), (48, 70), (90, 61))
COUNTING = ["SEMI.BOX_LOSS", "True", "SEMI.FOCAL_GAMMA", "1.5"]


@pytest.mark.parametrize("norm", ["student", "EMAN", "MomentumBN", "FrozenBN"])
@pytest.mark.parametrize("detector", ["mask_rcnn", "cascade", "retinanet", "fcos"])
def test_both_engines_have_equal_losses_on_labels_and_on_a_teachers_boxes(detector, norm):
    soft = SOFT if detector == "mask_rcnn" and norm in ("EMAN", "FrozenBN") else ()
    cfg = tiny_config(detector, "MODEL.MASK_ON", "False", *TEACHER, *ALL, *COUNTING, *soft, "SEMI.TEACHER_NORM", norm)
    ours, detectron2s = random_pair(cfg, tiny_samples(SIZES))
    mine, few = MeanTeacher(ours.train(), cfg.SEMI), FewLabels(detectron2s, cfg.SEMI)
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.01) for network in (ours, detectron2s)]
    for step in range(2):
        known, others = tiny_samples(SIZES, seed=step), tiny_samples(SIZES[:2], seed=step + 10)
        batch = [*known, *(with_strong_view(s, False, step, place) for place, s in enumerate(others))]
        torch.manual_seed(step)
        first = mine.weighted(ours.train()(mine.label(batch, step)))
        torch.manual_seed(step)
        with EventStorage():
            second = detectron2s.train()(batch)
            sum(first.values()).backward()
            sum(second.values()).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            mine.follow()
            few.after_step(step, last=False)
        assert mine.numbers == detectron2s.teacher.numbers
        assert mine.numbers["pseudo_boxes"] > 0
        assert set(first) == set(second)
        assert sum(name.endswith("_pseudo") for name in first) == len(first) / 2
        assert {name: float(first[name] - second[name]) for name in first} == pytest.approx(
            dict.fromkeys(first, 0.0), abs=1e-6 if step == 0 else 1e-4
        )
    table, state = names(ours), detectron2s.teacher.network.state_dict()
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


@pytest.mark.parametrize(
    ("detector", "norm"), [("mask_rcnn", "EMAN"), ("retinanet", "MomentumBN"), ("fcos", "student")]
)
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(detector, norm, tmp_path):
    words = [*STEPS, *TEACHER, *ALL, "SEMI.TEACHER_NORM", norm, "SEMI.TEACHER_GROUP", "1"]
    cfg = shapes_config(detector, tmp_path, *words, "INPUT.MIN_SIZE_TRAIN", "[48,64]")
    whole = train_tiny(Detectron2Engine(), cfg, 3, tmp_path / "whole")
    kill_at(FewLabels, "after_step", 4, train_tiny, Detectron2Engine(), cfg, 3, tmp_path / "parts")
    parts = train_tiny(Detectron2Engine(), cfg, 3, tmp_path / "parts", resume=True)
    assert same(weights(whole), weights(parts))
    ends = [torch.load(tmp_path / name / "model_final.pth", weights_only=True) for name in ("whole", "parts")]
    first, second = (end["trainer"]["few_labels"]["teacher"] for end in ends)
    assert same(first, second)
    for name in weights(whole):  # the result is the teacher
        assert torch.equal(weights(whole)[name], first[name])


def test_the_engines_train_the_same_teacher_on_the_same_data_and_hand_it_over(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *STEPS, *TEACHER, *ALL, "SEMI.TEACHER_NORM", "MomentumBN")
    detectron2s = train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "detectron2")
    lines = [json.loads(line) for line in (tmp_path / "detectron2/metrics.json").read_text().splitlines()]
    ours = train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "ours")
    assert set(weights(detectron2s)) == set(weights(ours))
    assert {"pseudo_boxes", "pseudo_images", "pseudo_precision", "pseudo_recall"} <= set(lines[-1])
    one, other = (predict_tiny(engine, cfg, detectron2s.weights, tmp_path / engine.name)[0].results.read_text()
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


SHOTS = ["FEW_SHOT.NOVEL", "['triangle']", "FEW_SHOT.STAGE", "all", "FEW_SHOT.SHOTS", "2", "MODEL.MASK_ON", "False"]
WAYS = {"TFA": TFA, "linear": TFA[:2], "frozen": ["MODEL.BACKBONE.FROZEN", "True"], "full": TFA[2:]}
KEEP = ["MODEL.RETINANET.SCORE_THRESH_TEST", "0.0", "MODEL.FCOS.SCORE_THRESH_TEST", "0.0"]
KEEP += ["MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0"]


@pytest.mark.parametrize(
    ("detector", "way"),
    [(detector, way) for detector in ("mask_rcnn", "cascade") for way in WAYS]
    + [(detector, way) for detector in ("retinanet", "fcos") for way in ("linear", "frozen")]
    + [("faster_rcnn_c4", way) for way in ("TFA", "full")],
)
def test_every_way_of_few_shots_has_equal_losses_gradients_and_detections_in_both_engines(detector, way):
    ours, detectron2s = random_pair(tiny_config(detector, *SHOTS, *KEEP, *WAYS[way]), tiny_samples(SIZES))
    found = loss_differences(ours, detectron2s, tiny_samples(SIZES))
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-6)
    if way != "TFA":  # nothing is detected through random frozen norms; "full" has the same network
        assert set(prediction_differences(ours, detectron2s, tiny_samples(SIZES)).values()) == {0.0}
    trained = {names(ours)[name] for name, p in ours.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in detectron2s.named_parameters() if p.requires_grad}
    if way in ("TFA", "linear"):
        assert trained == {name for name in dict(detectron2s.named_parameters()) if LAST_LAYERS.search(name)}


@pytest.mark.parametrize("way", WAYS)
def test_both_engines_take_equal_steps_on_the_same_shots(way, tmp_path):
    start = tiny_config("mask_rcnn", *SHOTS, *WAYS[way])
    state = random_pair(start, tiny_samples(SIZES))[1].state_dict()
    cfg = joint_config(tmp_path)
    cfg.merge_from_list([*SHOTS, *WAYS[way], "SEMI.TEACHER", "False", "SEMI.LABELLED", "100.0", "SEMI.BURN_IN", "2000"])
    cfg.merge_from_list(["SEMI.IMS_PER_BATCH", "16", "SEMI.EMA", "0.9996", "SEMI.THRESHOLD", "0.7"])
    task = open_task(cfg).with_shots(3)
    initial = InitialWeights("base", detector=state)
    mine, other = (
        engine.finetune(Experiment(cfg, task, initial), 0, tmp_path / engine.name)
        for engine in (TorchvisionEngine(), Detectron2Engine())
    )
    first, second = weights(mine), weights(other)
    assert set(first) == set(second)
    moved = {name for name, value in second.items() if not torch.equal(value, state[name])}
    assert moved == {name for name, value in first.items() if not torch.equal(value, state[name])}
    assert moved
    for name in moved:
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-6, msg=lambda m, name=name: name + m)


def test_a_base_stage_of_one_engine_goes_on_in_the_other_with_records_by_draw(tmp_path):
    run(stage(tmp_path, "base"), Request("none"))
    base, other = str(tmp_path / "base/model_final.pth"), ["ENGINE", "detectron2"]
    run(stage(tmp_path, "novel", *other, *TFA[:2], classes=1), Request(base))
    few = ["TRIALS", "2", *TFA, *other, "FEW_SHOT.NOVEL_WEIGHTS", str(tmp_path / "novel/model_final.pth")]
    run(stage(tmp_path, "all", *few, classes=3), Request(base))
    found = records.read(tmp_path / "all/results.jsonl")[0]
    assert {record["task"] for record in found} == {f"coco/bbox{part}" for part in ("", "/base", "/novel")}
    assert {(record["engine"], record["draw"]) for record in found} == {("detectron2", 0), ("detectron2", 1)}
    before, after = read_detector(base), read_detector(tmp_path / "all/trial_0/model_final.pth")
    changed = {name for name in after if not torch.equal(before.get(name, torch.zeros(0)), after[name])}
    assert changed == {name for name in after if LAST_LAYERS.search(name)}


def test_shots_killed_and_resumed_equal_uninterrupted_ones_bit_for_bit(tmp_path):
    few = ["ENGINE", "detectron2", "SOLVER.MAX_ITER", "4", "SOLVER.CHECKPOINT_PERIOD", "1", *TFA[2:]]
    few += ["INPUT.MIN_SIZE_TRAIN", "[48,64]"]
    whole, parts = (
        stage(tmp_path, "all", *few, "OUTPUT_DIR", str(tmp_path / k), classes=3) for k in ("whole", "parts")
    )
    run(whole, Request("none"))
    kill_at(FewLabels, "after_step", 4, run, parts, Request("none"))
    run(parts, Request("none", resume=True))
    assert same(*(read_detector(tmp_path / name / "model_final.pth") for name in ("whole", "parts")))
