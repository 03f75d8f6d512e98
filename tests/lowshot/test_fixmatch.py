import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lowshot import fitting
from lowshot.augment import WeakAndStrong, weak_view
from lowshot.classifier import Classifier
from lowshot.fixmatch import FixMatch, teacher_norm, unlabelled_loss
from lowshot.fixmatch_run import FixMatchSetting, evaluate_fixmatch
from lowshot.labelled_data import LabelledData
from lowshot.presets import FIXMATCH, FIXMATCH_SCHEDULES, Schedule
from pretrain.backbones import Architecture, build_backbone
from pretrain.errors import InputError
from pretrain.images import ArrayImages
from pretrain.views import eval_transform

CPU = torch.device("cpu")


def network(seed=0):
    torch.manual_seed(seed)
    return Classifier(build_backbone(Architecture("resnet10", 4, "small")), 3, seed)


def method(teacher, **options):
    preset = replace(FIXMATCH[{"student": "fixmatch"}.get(teacher, teacher)], **options)
    return FixMatch(network(), None if teacher == "student" else network(1), preset)


def batch(seed=0):
    torch.manual_seed(seed)
    images = torch.randn(14, 3, 16, 16)
    labels = torch.tensor([0, 1, 2, 1])
    return images[:4], labels, images[4:9], images[9:], torch.tensor([0, 1, 2, 0, 1])


def test_presets_are_those_of_the_paper():
    preset = FIXMATCH["eman"]
    assert (preset.momentum, preset.batch_size, preset.unlabelled_ratio, preset.weight) == (0.999, 64, 5, 10.0)
    assert (preset.threshold, preset.learning_rate, preset.pretrained_rate, preset.weight_decay) == (
        0.7, 0.03, 0.003, 1e-4,
    )  # fmt: skip
    assert FIXMATCH_SCHEDULES["1x"][0] == Schedule(50, "step", (0.6, 0.8), 5)
    assert FIXMATCH_SCHEDULES["3x"][1] == Schedule(300, "cosine", (), 5)


@pytest.mark.parametrize("threshold", [0.0, 0.4, 0.6, 1.1])
def test_unlabelled_loss_equals_a_naive_loop(threshold):
    torch.manual_seed(3)
    student, teacher = torch.randn(20, 5), 2 * torch.randn(20, 5)
    total, kept = 0.0, 0
    for own, other in zip(student.tolist(), teacher.tolist(), strict=True):
        exponentials = [math.exp(value) for value in other]
        confidence = max(exponentials) / sum(exponentials)
        if confidence >= threshold:
            pseudo = other.index(max(other))
            total += math.log(sum(math.exp(value) for value in own)) - own[pseudo]
            kept += 1
    loss, pseudo, mask = unlabelled_loss(student, teacher, threshold)
    assert float(loss) == pytest.approx(total / 20, abs=1e-6)
    assert int(mask.sum()) == kept
    assert torch.equal(pseudo, teacher.argmax(1))


def test_no_gradient_flows_into_the_pseudo_labels():
    teacher = torch.randn(4, 3, requires_grad=True)
    student = torch.randn(4, 3, requires_grad=True)
    unlabelled_loss(student, teacher, 0.0)[0].backward()
    assert teacher.grad is None
    assert student.grad.abs().sum() > 0


def test_total_is_labelled_plus_weighted_unlabelled_from_one_student_forward():
    fixmatch = method("eman", threshold=0.0, weight=3.0)
    labelled, labels, weak, strong, hidden = batch()
    with torch.no_grad():
        teacher = fixmatch.teacher(weak)
    student = network()
    student.train()
    logits = student(torch.cat([labelled, strong]))
    expected = cross_entropy(logits[:4], labels) + 3 * cross_entropy(logits[4:], teacher.argmax(1))
    losses = fixmatch(labelled, labels, weak, strong, hidden)
    assert float(losses.total.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    assert losses.coverage == 1.0
    assert losses.pseudo_accuracy == pytest.approx(float((teacher.argmax(1) == hidden).float().mean()))


def test_plain_fixmatch_puts_all_views_through_one_forward():
    fixmatch = method("student", threshold=0.0, weight=1.0)
    labelled, labels, weak, strong, hidden = batch()
    student = network()
    student.train()
    logits = student(torch.cat([labelled, strong, weak]))
    pseudo = logits[9:].argmax(1)
    expected = cross_entropy(logits[:4], labels) + cross_entropy(logits[4:9], pseudo)
    assert float(fixmatch(labelled, labels, weak, strong, hidden).total.detach()) == pytest.approx(
        float(expected.detach()), abs=1e-5
    )
    assert fixmatch.evaluated is fixmatch.student


def train_a_step(fixmatch):
    optimizer = torch.optim.SGD(fixmatch.student.parameters(), lr=0.1)
    fixmatch(*batch()).total.backward()
    optimizer.step()


def test_emans_teacher_follows_parameters_and_statistics_alike():
    fixmatch = method("eman", momentum=0.9)
    before = {name: tensor.clone() for name, tensor in fixmatch.teacher.state_dict().items()}
    train_a_step(fixmatch)
    student = fixmatch.student.state_dict()
    for name, tensor in fixmatch.teacher.state_dict().items():
        assert torch.equal(tensor, before[name]), "the teacher's forward must leave its statistics alone"
    fixmatch.update_teacher()
    for name, tensor in fixmatch.teacher.state_dict().items():
        if "num_batches" in name:
            assert torch.equal(tensor, student[name])
        else:
            assert torch.allclose(tensor, 0.9 * before[name] + 0.1 * student[name], atol=1e-6)


def test_teacher_proxy_norm_uses_the_history_of_earlier_batches_and_then_moves_it():
    torch.manual_seed(1)
    preset = replace(FIXMATCH["teacher-pn"], bn_momentum=0.25)
    proxy = Classifier(build_backbone(Architecture("resnet10", 4, "small"), teacher_norm(preset)), 3, 1)
    fixmatch = FixMatch(network(), proxy, preset)
    weak = batch()[2]
    before = fixmatch.teacher.backbone.bn1.running_mean.clone()
    with torch.no_grad():
        together = fixmatch.teacher(weak)
        alone = network().eval()(weak)
        maps = fixmatch.teacher.backbone.conv1(weak)
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.equal(fixmatch.teacher.backbone.bn1.running_mean, before)
    fixmatch.update_teacher()
    expected = 0.75 * before + 0.25 * maps.mean((0, 2, 3))
    assert torch.allclose(fixmatch.teacher.backbone.bn1.running_mean, expected, atol=1e-6)


def test_statistics_may_have_their_own_momentum():
    fixmatch = method("eman", momentum=0.9, statistics_momentum=0.0, bn_momentum=0.5)
    before = fixmatch.teacher.fc.weight.clone()
    train_a_step(fixmatch)
    fixmatch.update_teacher()
    student = fixmatch.student
    assert torch.equal(fixmatch.teacher.backbone.bn1.running_mean, student.backbone.bn1.running_mean)
    assert torch.allclose(fixmatch.teacher.fc.weight, 0.9 * before + 0.1 * student.fc.weight, atol=1e-7)
    assert student.backbone.bn1.momentum == 0.5


def test_emans_labels_do_not_depend_on_the_other_images_of_the_batch_but_ema_bns_do():
    weak = batch()[2]
    for teacher, independent in (("eman", True), ("ema-bn", False)):
        fixmatch = method(teacher)
        with torch.no_grad():
            together = fixmatch.teacher(weak)
            alone = torch.cat([fixmatch.teacher(image[None]) for image in weak])
        assert torch.allclose(together, alone, atol=1e-5) == independent


def test_ema_bns_statistics_are_its_own():
    fixmatch = method("ema-bn", momentum=0.9)
    train_a_step(fixmatch)
    own = fixmatch.teacher.state_dict()["backbone.bn1.running_mean"].clone()
    fixmatch.update_teacher()
    assert torch.equal(fixmatch.teacher.state_dict()["backbone.bn1.running_mean"], own)


def test_teacher_starts_as_the_student_and_asks_for_no_gradient():
    fixmatch = method("eman")
    for one, other in zip(fixmatch.student.parameters(), fixmatch.teacher.parameters(), strict=True):
        assert torch.equal(one, other)
        assert not other.requires_grad
    fixmatch.train()
    assert not any(module.training for module in fixmatch.teacher.modules() if isinstance(module, nn.BatchNorm2d))


def test_unknown_teacher_is_refused():
    with pytest.raises(InputError, match="a FixMatch teacher of student, ema-bn, eman, teacher-pn, found 'best'"):
        FixMatch(network(), network(), replace(FIXMATCH["eman"], teacher="best"))


def bright_or_dark(count, seed):
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    pictures = generator.integers(0, 80, (count, 16, 16, 3))
    pictures[labels == 1, :8] += 120
    return ArrayImages(pictures.astype(np.uint8), labels, ["a", "b"])


DATA = LabelledData(bright_or_dark(60, 0), bright_or_dark(20, 1), weak_view("digits", 16), eval_transform("digits", 16))
PRESET = replace(FIXMATCH["eman"], unlabelled_ratio=2, weight=1.0, momentum=0.5, threshold=0.6)


def train(folder, steps, preset=PRESET, rows=10):
    setting = FixMatchSetting(preset, Schedule(1), rate=3.0, batch_size=4, steps=steps)
    build = lambda: build_backbone(Architecture("resnet10", 4, "small"))  # noqa: E731
    torch.manual_seed(0)
    views = WeakAndStrong("digits", 16)
    return evaluate_fixmatch(DATA, views, build, np.arange(rows), setting, 0, folder, CPU)


def test_training_resumes_bit_for_bit_with_its_log(tmp_path, monkeypatch):
    whole = train(tmp_path / "whole", 6)
    saved = fitting.Run.save

    def save_then_die(run, step):
        saved(run, step)
        if step == 3:
            raise RuntimeError("power cut")

    original = fitting.Run.__init__
    monkeypatch.setattr(
        fitting.Run, "__init__", lambda run, *a, **options: original(run, *a, **{**options, "checkpoint_every": 3})
    )
    monkeypatch.setattr(fitting.Run, "save", save_then_die)
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path / "cut", 6)
    monkeypatch.setattr(fitting.Run, "save", saved)
    (tmp_path / "cut" / "metrics.jsonl").open("a").write('{"step": 4, "coverage": 1')
    assert train(tmp_path / "cut", 6) == whole
    one, other = (
        torch.load(tmp_path / name / "checkpoints" / "step_0000006.pt", weights_only=True)["modules"]["method"]
        for name in ("whole", "cut")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]
    assert [json.loads(line)["step"] for line in logs[0].splitlines()] == list(range(6))


def test_log_holds_coverage_and_pseudo_label_accuracy(tmp_path):
    found = train(tmp_path, 4, replace(PRESET, threshold=0.0))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["coverage"] == 1 and 0 <= line["pseudo_accuracy"] <= 1 for line in lines)
    assert found.coverage == 1
    assert all(math.isfinite(line["loss_unlabelled"]) for line in lines)


def test_without_unlabelled_images_there_is_nothing_to_do(tmp_path):
    with pytest.raises(InputError, match="expected unlabelled images"):
        train(tmp_path, 2, rows=60)
