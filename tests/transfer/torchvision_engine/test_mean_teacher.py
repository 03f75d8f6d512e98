"""Mean-teacher detection: supervised training where nothing is labelled, resumption, losses and the moving averages."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.config import check_settings
from momentum_transfer.transfer.torchvision_engine import mean_teacher, train
from momentum_transfer.transfer.torchvision_engine.data import with_strong_view
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from momentum_transfer.transfer.torchvision_engine.mean_teacher import MeanTeacher, rates, right_boxes
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Proposals, Sample, Target
from tests.process_group import kill_at
from tests.transfer.torchvision_engine.tiny import shapes_config, tiny_config, tiny_samples, train_tiny
from tests.two_processes import as_torchrun

STEPS = ["SOLVER.MAX_ITER", "4", "SOLVER.STEPS", "()", "SOLVER.WARMUP_ITERS", "0", "SOLVER.BASE_LR", "0.01"]
STEPS += ["MODEL.MASK_ON", "False", "SEMI.LABELLED", "50", "SOLVER.CHECKPOINT_PERIOD", "1"]
TEACHER = ["SEMI.TEACHER", "True", "SEMI.BURN_IN", "1", "SEMI.IMS_PER_BATCH", "2", "SEMI.EMA", "0.5"]
#: Every detection of a network that has learnt nothing becomes a label.
ALL = ["SEMI.THRESHOLD", "0.0", "MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0", "MODEL.RETINANET.SCORE_THRESH_TEST", "0.0"]
ALL += ["MODEL.FCOS.SCORE_THRESH_TEST", "0.0"]
PRECISE = ["TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.NUM_ITER", "2"]


def weights(finetuned):
    return torch.load(finetuned.weights, weights_only=True)["model"]


def same(first, second):
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("detector", ["mask_rcnn", "retinanet", pytest.param("fcos", marks=pytest.mark.slow)])
def test_with_a_score_that_nothing_reaches_the_student_is_the_supervised_one_bit_for_bit(detector, tmp_path):
    common = [*STEPS, *PRECISE, "SEMI.STRONG_LABELLED", "True", "INPUT.RANDOM_FLIP", "horizontal"]
    alone = train_tiny(TorchvisionEngine(), shapes_config(detector, tmp_path, *common), 3, tmp_path / "alone")
    words = [*common, *TEACHER, "SEMI.THRESHOLD", "1.01", "SEMI.RESULT", "student"]
    taught = train_tiny(TorchvisionEngine(), shapes_config(detector, tmp_path, *words), 3, tmp_path / "taught")
    assert same(weights(alone), weights(taught))
    words[words.index("1.01")] = "0.0"
    labelled = train_tiny(
        TorchvisionEngine(), shapes_config(detector, tmp_path, *words, *ALL), 3, tmp_path / "labelled"
    )
    assert not same(weights(alone), weights(labelled))


@pytest.mark.parametrize(
    ("detector", "norm"),
    [("mask_rcnn", "EMAN"), ("retinanet", "MomentumBN"), pytest.param("fcos", "student", marks=pytest.mark.slow)],
)
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(detector, norm, tmp_path):
    words = [
        *STEPS,
        *TEACHER,
        *ALL,
        "SEMI.TEACHER_NORM",
        norm,
        "SEMI.TEACHER_GROUP",
        "1",
        "INPUT.MIN_SIZE_TRAIN",
        "[48,64]",
    ]
    cfg = shapes_config(detector, tmp_path, *words, *(SOFT if detector == "mask_rcnn" else ()))
    whole = train_tiny(TorchvisionEngine(), cfg, 3, tmp_path / "whole")
    kill_at(train.Log, "add", 3, train_tiny, TorchvisionEngine(), cfg, 3, tmp_path / "parts")
    parts = train_tiny(TorchvisionEngine(), cfg, 3, tmp_path / "parts", resume=True)
    assert same(weights(whole), weights(parts))
    ends = [tmp_path / name / "checkpoints/step_0000004.pth" for name in ("whole", "parts")]
    first, second = (torch.load(file, weights_only=True) for file in ends)
    assert same(first["teacher"], second["teacher"])
    assert same(first["teacher_buffers"], second["teacher_buffers"])
    lines = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in ("whole", "parts")
    ]
    assert lines[0]["pseudo_boxes"] == lines[1]["pseudo_boxes"] > 0
    assert lines[0]["pseudo_precision"] == lines[1]["pseudo_precision"]


def taught(detector="retinanet", *words):
    """A student in training and its teacher, which labels everything; samples to label."""
    torch.manual_seed(0)
    cfg = tiny_config(detector, "MODEL.MASK_ON", "False", *TEACHER, *ALL, *words)
    student = build_detector(cfg).train()
    samples = [with_strong_view(sample, False, 0, place) for place, sample in enumerate(tiny_samples(((64, 64),) * 4))]
    return student, MeanTeacher(student, cfg.SEMI), samples


def test_parameters_follow_after_the_step_and_a_teacher_takes_no_gradient():
    student, teacher, samples = taught()
    before = copy.deepcopy(student.state_dict())
    teacher.label(samples, 1)
    for parameter in student.parameters():
        parameter.data += 1
    teacher.follow()
    for name, parameter in teacher.network.named_parameters():
        torch.testing.assert_close(parameter, before[name] + 0.5, rtol=0, atol=1e-6)
        assert not parameter.requires_grad


def test_before_the_burn_in_is_over_the_result_is_the_student():
    student, teacher, _ = taught()
    student.heads.head.cls_score.bias.data += 3
    teacher.follow()
    assert torch.equal(teacher.result().heads.head.cls_score.bias, student.heads.head.cls_score.bias)


def stem_outputs(network, samples):
    """Inputs and outputs of the stem's normalisation when the teacher looks at the samples."""
    seen = {}
    hook = network.network.backbone.bottom_up.bn1.register_forward_hook(
        lambda _, x, y: seen.update(x=x[0].clone(), y=y.clone())
    )
    network._normalise_own_batches()
    network._detect(samples)
    hook.remove()
    return seen["x"], seen["y"]


def normalised(x, mean, var, layer):
    scale = layer.weight / (var + layer.eps).sqrt()
    return x * scale.view(1, -1, 1, 1) + (layer.bias - mean * scale).view(1, -1, 1, 1)


@pytest.mark.parametrize("norm", ["student", "BN", "SyncBN", "FrozenBN", "EMAN", "MomentumBN"])
def test_every_norm_has_its_statistics(norm):
    student, teacher, samples = taught("retinanet", "SEMI.TEACHER_NORM", norm, "SEMI.ALPHA", "0.25")
    layer = student.backbone.bottom_up.bn1
    layer.running_mean += 2
    teacher.label(samples, 1)  # the burn-in's end: a copy
    layer.running_mean += 2
    teacher.follow()
    twin = teacher.network.backbone.bottom_up.bn1
    history = twin.running_mean.clone(), twin.running_var.clone()
    x, y = stem_outputs(teacher, samples)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    if norm == "EMAN":
        torch.testing.assert_close(history[0], layer.running_mean - 1)  # half of the way at an EMA of .5
    if norm == "FrozenBN":
        torch.testing.assert_close(history[0], layer.running_mean - 2)
    expected = {"MomentumBN": tuple(torch.lerp(h, b, 0.25) for h, b in zip(history, (mean, var), strict=True))}
    expected |= {"EMAN": history, "FrozenBN": history}
    torch.testing.assert_close(y, normalised(x, *expected.get(norm, (mean, var)), twin), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["BN", "MomentumBN"])
def test_a_group_of_two_is_normalised_as_a_process_of_two_would(norm):
    words = ["SEMI.TEACHER_NORM", norm, "SEMI.ALPHA", "1.0", "SEMI.IMS_PER_BATCH", "4", "SEMI.TEACHER_GROUP", "2"]
    _, teacher, samples = taught("retinanet", *words)
    x, y = stem_outputs(teacher, samples)
    for group in (slice(0, None, 2), slice(1, None, 2)):
        part = x[group]
        mean, var = part.mean((0, 2, 3)), part.var((0, 2, 3), correction=0)
        expected = normalised(part, mean, var, teacher.network.backbone.bottom_up.bn1)
        torch.testing.assert_close(y[group], expected, rtol=1e-4, atol=1e-4)


def test_norms_one_a_level_share_their_scale_in_the_teacher_too():
    student, teacher, samples = taught("retinanet", "MODEL.RETINANET.NORM", "BN", "SEMI.TEACHER_NORM", "MomentumBN")
    assert [name for name, _ in teacher.network.named_parameters()] == [name for name, _ in student.named_parameters()]
    teacher.label(samples, 1)
    teacher.follow()


def test_a_student_without_bn_that_trains_has_no_statistics_to_follow():
    with pytest.raises(InputError, match=r"expected a student with BN layers for SEMI.TEACHER_NORM EMAN, found none"):
        taught("retinanet", "MODEL.RESNETS.NORM", "FrozenBN", "SEMI.TEACHER_NORM", "EMAN")
    _, teacher, samples = taught("fcos", "MODEL.RESNETS.NORM", "GN", "MODEL.FCOS.NORM", "GN")
    assert len(teacher.label(samples, 1)) == 4


def test_labels_are_the_detections_above_the_score_on_weak_views_and_images_without_any_are_left_out():
    _, teacher, samples = taught()
    every = teacher.network.eval()([Sample(s.image, 0, 64, 64) for s in samples])
    scores = sorted(float(one.scores.max()) for one in every)
    teacher.norm = "FrozenBN"
    teacher.semi.defrost()
    teacher.semi.THRESHOLD = (scores[1] + scores[2]) / 2  # two images have a better detection
    given = teacher.label([*tiny_samples(), *samples], 1)
    kept = [(s, d) for s, d in zip(samples, every, strict=True) if float(d.scores.max()) >= teacher.semi.THRESHOLD]
    assert [s.pseudo for s in given] == [False, False, True, True]
    for sample, (source, found) in zip(given[2:], kept, strict=True):
        assert torch.equal(sample.image, source.strong)
        count = int((found.scores >= teacher.semi.THRESHOLD).sum())
        assert torch.equal(sample.target.boxes, found.boxes[:count])
        assert torch.equal(sample.target.classes, found.classes[:count])
    assert teacher.numbers["pseudo_images"] == 0.5
    assert teacher.numbers["true_boxes"] == 2
    losses = {
        name: torch.tensor(2.0) for name in ("loss_cls", "loss_cls_pseudo", "loss_box_reg", "loss_box_reg_pseudo")
    }
    weighted = {name: float(value) for name, value in teacher.weighted(losses).items()}
    assert weighted == {"loss_cls": 2, "loss_cls_pseudo": 2 * 4 * 0.5, "loss_box_reg": 2}
    teacher.semi.BOX_LOSS = True
    assert float(teacher.weighted(losses)["loss_box_reg_pseudo"]) == 4


@pytest.mark.parametrize("detector", ["retinanet", "fcos", "mask_rcnn", "cascade"])
def test_a_teachers_boxes_that_are_the_truth_give_the_losses_of_the_truth(detector):
    torch.manual_seed(0)
    words = ["MODEL.MASK_ON", "False", "MODEL.RESNETS.NORM", "FrozenBN", "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", "4000"]
    network = build_detector(tiny_config(detector, *words, "MODEL.RPN.BATCH_SIZE_PER_IMAGE", "9000")).train()
    samples = tiny_samples(((64, 64), (64, 64)))
    plain = list(network(samples))
    pseudo = [dataclasses.replace(s, pseudo=True) for s in samples]
    both = {name: float(value.detach()) for name, value in network([*samples, *pseudo]).items()}
    assert len(both) == 2 * len(plain)
    for name in plain:
        assert both[f"{name}_pseudo"] == pytest.approx(both[name], rel=1e-5)


def test_focal_loss_of_the_second_stage_is_cross_entropy_that_hard_regions_dominate():
    network = build_detector(tiny_config("mask_rcnn", "SEMI.FOCAL_GAMMA", "1.5"))
    predictor = network.roi_heads.box_predictor
    logits, classes = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 3, 0])
    region = regions(classes)
    p = logits.softmax(1)[torch.arange(6), classes].double()
    found = predictor.losses(logits, torch.zeros(6, 12), [region])["loss_cls"]
    assert float(found) == pytest.approx(float((-((1 - p) ** 1.5) * p.log()).mean()), rel=1e-5)


def regions(classes):
    boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0]]).repeat(len(classes), 1)
    return Proposals(boxes, (64, 64), classes, torch.zeros(len(classes), dtype=torch.int64), boxes)


def test_right_boxes_are_matched_one_to_one_by_class_and_overlap():
    truth = Target(torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]]), torch.tensor([1, 2]))
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [20, 20, 30, 24], [50, 50, 60, 60]])
    found = Detections(boxes, torch.linspace(0.9, 0.5, 5), torch.tensor([1, 1, 1, 2, 2]))
    assert right_boxes(found, truth) == 1  # a second hit, another class, little overlap and nothing there do not count
    assert right_boxes(found, Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))) == 0
    assert rates({"pseudo_boxes": 4.0, "pseudo_right": 1.0, "true_boxes": 2.0}) == {
        "pseudo_precision": 25.0, "pseudo_recall": 50.0
    }  # fmt: skip
    assert np.isnan(rates({"pseudo_boxes": 0.0, "pseudo_right": 0.0, "true_boxes": 2.0})["pseudo_precision"])
    assert rates({"loss": 1.0}) == {}


def test_a_score_at_which_nothing_is_labelled_is_said_once_with_what_to_try(monkeypatch, capsys):
    monkeypatch.setattr(mean_teacher, "PATIENCE", 2)
    _, teacher, samples = taught("retinanet", "SEMI.THRESHOLD", "0.99")
    for step in range(1, 5):
        teacher.label(samples, step)
    said = "".join(capsys.readouterr())
    assert said.count("labelled nothing in 2 steps, up to iteration 3") == 1
    assert "lower SEMI.THRESHOLD" in " ".join(said.split())


def test_strong_views_are_a_function_of_seed_and_place_and_keep_the_channels():
    sample = tiny_samples(((64, 48),))[0]
    one, again = (with_strong_view(sample, False, 3, 5).strong for _ in range(2))
    assert torch.equal(one, again)
    assert one.shape == sample.image.shape
    assert one.dtype == torch.uint8
    others = [with_strong_view(sample, False, seed, place).strong for seed, place in ((3, 6), (4, 5))]
    assert all(not torch.equal(one, other) for other in others)
    swapped = dataclasses.replace(sample, image=sample.image.flip(0))
    assert torch.equal(with_strong_view(swapped, True, 3, 5).strong.flip(0), one)


def _in_processes(folder):
    train_tiny(TorchvisionEngine(), joint_config(folder), 0, folder / "two")


def joint_config(folder):
    """Settings under which neither sampling nor statistics depend on how images are dealt to processes."""
    words = ["MODEL.RESNETS.NORM", "FrozenBN", "SOLVER.IMS_PER_BATCH", "2", "MODEL.RPN.BATCH_SIZE_PER_IMAGE", "5000"]
    words += ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", "500", "MODEL.ROI_HEADS.PROPOSAL_APPEND_GT", "False"]
    words += ["MODEL.RPN.POST_NMS_TOPK_TRAIN", "4", "SOLVER.MAX_ITER", "3"]
    return shapes_config("mask_rcnn", folder, *STEPS, *TEACHER, *ALL, *words)


def test_two_processes_equal_one_on_the_same_batches(tmp_path):
    cfg = joint_config(tmp_path)
    alone = weights(train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "one"))
    as_torchrun(_in_processes, tmp_path)
    together = torch.load(tmp_path / "two/model_final.pth", weights_only=True)["model"]
    for name, value in alone.items():
        torch.testing.assert_close(
            together[name], value, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_only_bn_layers_of_a_backbone_that_trains_use_their_own_batch():
    student, teacher, _ = taught("retinanet")
    student.backbone.bottom_up.bn1.eval()
    teacher._normalise_own_batches()
    layers = [m.training for m in teacher.network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert layers.count(False) == 1


def test_a_group_that_does_not_divide_a_processs_images_is_refused():
    with pytest.raises(InputError, match=r"SEMI.TEACHER_GROUP to divide a process's 2 unlabelled images, found 4"):
        taught("retinanet", "SEMI.TEACHER_GROUP", "4")


SOFT = ["SEMI.SOFT_BACKGROUND", "True"]


def soft_taught():
    """A Faster R-CNN, its teacher, two images that it has labelled, and their weak views."""
    student, teacher, samples = taught("mask_rcnn", "SEMI.IMS_PER_BATCH", "4", "MODEL.RESNETS.NORM", "FrozenBN", *SOFT)
    return student, teacher, teacher.label(samples[:2], 1), samples[:2]


def test_a_teachers_scores_of_regions_are_those_of_its_detections():
    _, teacher, given, samples = soft_taught()
    x, sizes = teacher.network.batch([sample.image for sample in samples])
    maps = teacher.network.backbone(x)
    proposals, _ = teacher.network.proposal_generator(maps, sizes, None)
    heads = teacher.network.roi_heads
    logits, _ = heads.box_predictor(heads.box_head(heads.box_pooler([maps[n] for n in heads.levels],
                                                                    [p.boxes for p in proposals])))  # fmt: skip
    expected = logits.softmax(1)[:, 3].split([len(p.boxes) for p in proposals])
    for sample, region, scores in zip(given, proposals, expected, strict=True):
        torch.testing.assert_close(sample.target.background(region.boxes), scores)


def test_background_weighs_in_the_class_loss_as_the_teachers_score_of_it():
    student, _, given, _ = soft_taught()
    predictor, target = student.roi_heads.box_predictor, given[1].target
    boxes = torch.cat((target.boxes[:3], torch.tensor([[1.0, 1.0, 30.0, 40.0], [20.0, 5.0, 60.0, 33.0]])))
    scores, zeros = target.background(boxes), torch.zeros(5, 12)
    logits, classes = torch.randn(5, 4), torch.tensor([0, 2, 1, 3, 3])
    found = predictor.losses(logits, zeros, [regions(classes)], [scores])["loss_cls"]
    terms, weights = [], []
    for row, label, score in zip(logits.double(), classes.tolist(), scores.double(), strict=True):
        weights.append(float(score) if label == 3 else 1.0)
        terms.append(-weights[-1] * float((row[label].exp() / row.exp().sum()).log()))
    assert float(found) == pytest.approx(sum(terms) / sum(weights), rel=1e-5)
    plain, ones = (predictor.losses(logits, zeros, [regions(classes)], x)["loss_cls"] for x in ((), [torch.ones(5)]))
    assert float(plain) == pytest.approx(float(ones))


def test_a_students_class_loss_is_soft_on_the_teachers_images_alone():
    student, _, given, _ = soft_taught()
    losses = []
    for score in (None, torch.ones_like, torch.zeros_like):
        soft = [lambda boxes, score=score: score(boxes[:, 0])] if score else [None]
        samples = [dataclasses.replace(s, target=dataclasses.replace(s.target, background=soft[0])) for s in given]
        torch.manual_seed(1)
        losses.append({k: float(v.detach()) for k, v in student([*tiny_samples(), *samples]).items()})
    plain, ones, zeros = losses
    assert ones == pytest.approx(plain)
    assert {name for name in plain if zeros[name] != pytest.approx(plain[name])} == {"loss_cls_pseudo"}


@pytest.mark.parametrize("detector", ["retinanet", "cascade", "faster_rcnn_c4"])
def test_soft_background_needs_a_faster_rcnn(detector):
    with pytest.raises(InputError, match=r"expected a Faster R-CNN with a pyramid for SEMI.SOFT_BACKGROUND"):
        check_settings(tiny_config(detector, "MODEL.MASK_ON", "False", *TEACHER, *SOFT))
