import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from momentum_transfer.backbones.norms import Norm
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.loggers import read
from momentum_transfer.images.views import eval_transform
from momentum_transfer.lowshot import classifier as fitting
from momentum_transfer.lowshot import fixmatch as product
from momentum_transfer.lowshot.augment import WeakAndStrong, weak_view
from momentum_transfer.lowshot.classifier import Classifier, Setup
from momentum_transfer.lowshot.fixmatch import (
    FixMatch,
    _unlabelled_loss,
    build_method,
    check_backbone,
    check_preset,
    evaluate_fixmatch,
)
from momentum_transfer.lowshot.labelled_data import LabelledData, training_batches
from momentum_transfer.lowshot.presets import FIXMATCH, FIXMATCH_SCHEDULES, FixMatchSetting, Schedule
from tests.lowshot.toy_data import bright_or_dark
from tests.process_group import outcome_in_own_group, signal_own_group
from tests.two_processes import in_two_processes

CPU = torch.device("cpu")


def backbone():
    torch.manual_seed(0)
    return build_resnet(Architecture("resnet10", 4, "small"))


def network():
    return Classifier(backbone(), 3, 0)


def method(preset, **options):
    return build_method(backbone(), 3, replace(FIXMATCH[preset], **options), seed=0)


def batch(seed=0):
    torch.manual_seed(seed)
    images = torch.randn(14, 3, 16, 16)
    labels = torch.tensor([0, 1, 2, 1])
    return images[:4], labels, images[4:9], images[9:], torch.tensor([0, 1, 2, 0, 1])


def test_presets_are_those_of_the_paper():
    preset = FIXMATCH["eman"]
    assert (preset.momentum, preset.batch_size, preset.unlabelled_ratio, preset.weight) == (0.001, 64, 5, 10.0)
    assert (preset.threshold, preset.learning_rate, preset.pretrained_rate, preset.weight_decay) == (
        0.7, 0.03, 0.003, 1e-4,
    )  # fmt: skip
    steps = (0.6, 0.8)
    assert FIXMATCH_SCHEDULES["1x"] == (Schedule(50, "step", steps, 5), Schedule(100, "step", steps, 5))
    assert FIXMATCH_SCHEDULES["3x"] == (Schedule(150, "cosine", (), 5), Schedule(300, "cosine", (), 5))
    differing = {"teacher", "student", "statistics_momentum", "bn_momentum"}
    for other in FIXMATCH.values():
        assert replace(other, **{name: getattr(preset, name) for name in differing}) == preset


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
    loss, pseudo, mask = _unlabelled_loss(student, teacher, threshold)
    assert float(loss) == pytest.approx(total / 20, abs=1e-6)
    assert int(mask.sum()) == kept
    assert torch.equal(pseudo, teacher.argmax(1))


def test_a_label_as_confident_as_the_threshold_counts():
    assert _unlabelled_loss(torch.zeros(1, 2), torch.zeros(1, 2), 0.5)[2].tolist() == [True]


def test_accuracy_of_pseudo_labels_is_that_of_the_confident_ones():
    fixmatch = method("eman", threshold=0.5)
    labelled, labels, weak, strong, _ = batch()
    logits = torch.tensor([[9.0, 0, 0], [0, 9.0, 0], [0.1, 0, 0], [0.1, 0, 0], [0.1, 0, 0]])
    fixmatch.teacher.forward = lambda images: logits
    _, numbers = fixmatch(labelled, labels, weak, strong, torch.tensor([0, 2, 0, 0, 0]))
    assert (numbers["coverage"], numbers["pseudo_accuracy"]) == (pytest.approx(0.4), 0.5)
    assert numbers["pseudo_top1"] == pytest.approx(0.8), "of all, confident or not"


def test_no_gradient_flows_into_the_pseudo_labels():
    teacher = torch.randn(4, 3, requires_grad=True)
    student = torch.randn(4, 3, requires_grad=True)
    _unlabelled_loss(student, teacher, 0.0)[0].backward()
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
    total, numbers = fixmatch(labelled, labels, weak, strong, hidden)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    assert numbers["coverage"] == 1.0
    assert numbers["pseudo_accuracy"] == pytest.approx(float((teacher.argmax(1) == hidden).float().mean()))


def test_plain_fixmatch_puts_all_views_through_one_forward():
    fixmatch = method("fixmatch", threshold=0.0, weight=1.0)
    labelled, labels, weak, strong, hidden = batch()
    student = network()
    student.train()
    logits = student(torch.cat([labelled, strong, weak]))
    pseudo = logits[9:].argmax(1)
    expected = cross_entropy(logits[:4], labels) + cross_entropy(logits[4:9], pseudo)
    total, _ = fixmatch(labelled, labels, weak, strong, hidden)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    assert fixmatch.networks() == {"student": fixmatch.student}


def train_a_step(fixmatch):
    optimizer = torch.optim.SGD(fixmatch.student.parameters(), lr=0.1)
    fixmatch(*batch())[0].backward()
    optimizer.step()


def test_emans_teacher_follows_parameters_and_statistics_alike():
    fixmatch = method("eman", momentum=0.1)
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
    fixmatch = method("teacher-pn", bn_momentum=0.25)
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


@pytest.mark.parametrize("preset", ["student-pn", "eman"], ids=["student proxy norm", "EMAN of momentum 1"])
def test_statistics_may_have_their_own_momentum(preset):
    fixmatch = method(preset, momentum=0.1, statistics_momentum=1.0, bn_momentum=0.5)
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


def test_a_teachers_groups_are_batches_of_their_own_and_eman_has_none():
    weak = batch()[2][:4]
    grouped, alone = method("ema-bn", teacher_groups=2), method("ema-bn")
    with torch.no_grad():
        together = grouped.teacher(weak)
        parts = [alone.teacher(weak[g::2]) for g in range(2)]
    assert torch.allclose(together[0::2], parts[0], atol=1e-5)
    assert torch.allclose(together[1::2], parts[1], atol=1e-5)
    with torch.no_grad():
        assert torch.equal(method("eman", teacher_groups=2).teacher(weak), method("eman").teacher(weak))


def test_ema_bns_statistics_are_its_own():
    fixmatch = method("ema-bn", momentum=0.1)
    train_a_step(fixmatch)
    own = fixmatch.teacher.state_dict()["backbone.bn1.running_mean"].clone()
    fixmatch.update_teacher()
    assert torch.equal(fixmatch.teacher.state_dict()["backbone.bn1.running_mean"], own)


def test_teacher_starts_as_the_student_and_asks_for_no_gradient():
    fixmatch = method("eman")
    for one, other in zip(fixmatch.student.parameters(), fixmatch.teacher.parameters(), strict=True):
        assert torch.equal(one, other)
        assert not other.requires_grad


def test_table_1_and_8_have_every_row():
    rows = {
        "fixmatch": (None, "BN"),
        "ema-bn": ("BN", "BN"),
        "syncbn": ("SyncBN", "SyncBN"),
        "shufflebn": ("ShuffleBN", "BN"),
        "gn": ("GN", "GN"),
        "in": ("IN", "IN"),
        "eman": ("EMAN", "BN"),
        "teacher-pn": ("TeacherPN", "BN"),
        "student-pn": ("StudentPN", "BN"),
    }
    assert {name: (FIXMATCH[name].teacher, FIXMATCH[name].student) for name in rows} == rows
    assert [FIXMATCH[f"eman-{kept}"].statistics_momentum for kept in ("0.9", "0.99999")] == [0.1, 0.00001]
    assert [FIXMATCH[f"{who}-pn-0.999"].bn_momentum for who in ("teacher", "student")] == [0.001, 0.001]


@pytest.mark.parametrize("preset", FIXMATCH)
def test_every_normalisation_trains_and_its_teacher_follows(preset):
    fixmatch = method(preset, threshold=0.0, momentum=0.5)
    before = None if fixmatch.teacher is None else fixmatch.teacher.fc.weight.clone()
    train_a_step(fixmatch)
    fixmatch.update_teacher()
    assert all(torch.isfinite(tensor).all() for tensor in fixmatch.state_dict().values())
    if before is not None:
        assert torch.allclose(fixmatch.teacher.fc.weight, (before + fixmatch.student.fc.weight) / 2, atol=1e-6)
    *_, labelling = fixmatch.networks().values()
    kinds = {type(module).__name__ for module in labelling.modules() if "Norm" in type(module).__name__}
    assert kinds == {type(Norm(fixmatch.preset.teacher or "BN")(4)).__name__}


def test_momentum_bn_teacher_blends_batch_and_history_by_alpha():
    fixmatch = method("momentum-bn", alpha=0.25)
    weak = batch()[2]
    with torch.no_grad():
        maps = fixmatch.teacher.backbone.conv1(weak)
        fixmatch.teacher(weak)
    fixmatch.update_teacher()
    expected = 0.25 * maps.mean((0, 2, 3))  # the history of a fresh network has mean 0
    assert torch.allclose(fixmatch.teacher.backbone.bn1.running_mean, expected, atol=1e-6)


@pytest.mark.parametrize("norm", ["BN", "SyncBN", "GN", "IN"])
def test_with_norm_keeps_every_tensor_that_the_normalisation_has(norm):
    before = backbone().state_dict()
    after = build_method(backbone(), 2, replace(FIXMATCH["fixmatch"], student=norm), 0).student.backbone.state_dict()
    statistics = {name for name in before if "running" in name or "num_batches" in name}
    assert set(before) - set(after) == (statistics if norm in ("GN", "IN") else set())
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


def test_shuffle_bn_alone_is_bn():
    weak = batch()[2]
    with torch.no_grad():
        outputs = [method(name).teacher(weak) for name in ("shufflebn", "ema-bn")]
    assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("change", "pretrained", "message"),
    [
        ({"teacher": "best"}, False, "expected NORM.TEACHER of BN, SyncBN, ShuffleBN"),
        ({"student": "LN"}, False, "expected FIXMATCH.STUDENT_NORM of BN, SyncBN"),
        ({"student": "MomentumBN"}, False, "expected FIXMATCH.STUDENT_NORM of BN, SyncBN, GN, IN"),
        ({"student": "GN"}, False, "expected a student with running statistics"),
        ({"student": "GN", "teacher": "GN"}, True, "expected --weights scratch for a student that normalises with GN"),
    ],
)
def test_normalisations_that_do_not_fit_are_refused(change, pretrained, message):
    with pytest.raises(InputError, match=message):
        check_preset(replace(FIXMATCH["eman"], **change), pretrained)


def test_instance_norm_needs_more_than_one_position():
    check_backbone(FIXMATCH["in"], build_resnet(Architecture("resnet10", 4, "small")), 16)
    check_backbone(FIXMATCH["gn"], build_resnet(Architecture("resnet10")), 32)
    with pytest.raises(InputError, match=r"images of more than 32 px .* found INPUT\.IMAGE_SIZE 32"):
        check_backbone(FIXMATCH["in"], build_resnet(Architecture("resnet10")), 32)


def test_teacher_and_preset_must_fit():
    with pytest.raises(ValueError, match="do not fit"):
        FixMatch(network(), None, FIXMATCH["eman"])


DATA = LabelledData(bright_or_dark(60, 0), bright_or_dark(20, 1), weak_view("digits", 16), eval_transform("digits", 16))
PRESET = replace(FIXMATCH["eman"], unlabelled_ratio=2, weight=1.0, momentum=0.5, threshold=0.6)


def train(folder, steps, preset=PRESET, rows=10, workers=0, rate=3.0, eval_every=0):
    setting = FixMatchSetting(preset, Schedule(1), rate=rate, steps=steps, eval_every=eval_every)
    data, views = replace(DATA, workers=workers), WeakAndStrong("digits", 16)
    return evaluate_fixmatch(data, views, backbone, setting, Setup(np.arange(rows), 4, 0, folder, CPU))


@pytest.mark.parametrize(("preset", "workers"), [("eman", 2), ("momentum-bn", 0)])
def test_training_resumes_bit_for_bit_with_its_log(tmp_path, monkeypatch, preset, workers):
    preset = replace(PRESET, teacher=FIXMATCH[preset].teacher)
    whole = train(tmp_path / "whole", 6, preset)
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
        train(tmp_path / "cut", 6, preset, workers=workers)
    monkeypatch.setattr(fitting.Run, "save", saved)
    (tmp_path / "cut" / "metrics.jsonl").open("a").write('{"step": 4, "coverage": 1')
    np.testing.assert_equal(asdict(train(tmp_path / "cut", 6, preset, workers=workers)), asdict(whole))
    one, other = (
        torch.load(tmp_path / name / "checkpoints" / "step_0000006.pt", weights_only=True)["modules"]["method"]
        for name in ("whole", "cut")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    logs = [[{**line, "seconds": 0} for line in read(tmp_path / name / "metrics.jsonl")] for name in ("whole", "cut")]
    assert logs[0] == logs[1]
    assert [line["step"] for line in logs[0]] == list(range(1, 7))


def _fraction_right(classifier):
    images = torch.stack([DATA.plain(image) for image, _ in (DATA.test[row] for row in range(len(DATA.test)))])
    with torch.no_grad():
        return float((classifier.eval()(images).argmax(1).numpy() == DATA.test.labels).mean())


def test_student_is_scored_and_the_teacher_beside_it(tmp_path):
    """EMAN 3.1: the teacher is discarded. It hardly moves here and predicts one class; the student has learned."""
    found = train(tmp_path, 12, replace(PRESET, momentum=1e-6), rate=1.0).networks
    state = torch.load(tmp_path / "checkpoints" / "step_0000012.pt", weights_only=True)["modules"]["method"]
    expected = {}
    for name in ("student", "teacher"):
        classifier = Classifier(backbone(), 2, 0)
        classifier.load_state_dict({k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(name)})
        expected[name] = _fraction_right(classifier)
    assert expected["student"] > expected["teacher"] + 0.2
    assert {name: values["top1"] for name, values in found.items()} == pytest.approx(expected)


def _train_and_signal_the_group(folder):
    steps, update = [], FixMatch.update_teacher

    def interrupt(fixmatch):
        update(fixmatch)
        steps.append(len(steps))
        if len(steps) == 2:
            signal_own_group()

    FixMatch.update_teacher = interrupt
    train(folder, 6, workers=2)


def test_signal_to_the_whole_group_leaves_workers_alive_until_the_step_is_saved(tmp_path):
    outcome = outcome_in_own_group(_train_and_signal_the_group, tmp_path / "cut")
    assert outcome.startswith("Stopped 143")
    assert "saved after step 2" in outcome
    resumed, whole = (train(tmp_path / name, 6) for name in ("cut", "whole"))
    np.testing.assert_equal(asdict(resumed), asdict(whole))


def test_log_holds_coverage_and_pseudo_label_accuracy(tmp_path):
    found = train(tmp_path, 4, replace(PRESET, threshold=0.0))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["coverage"] == 1 and 0 <= line["pseudo_accuracy"] <= 1 for line in lines)
    assert found.coverage == 1
    means = {key: np.mean([line[key] for line in lines]) for key in ("pseudo_top1", "pseudo_accuracy")}
    assert found.pseudo_labels == pytest.approx(means), "all are confident, so that both are the mean over all steps"
    assert all(math.isfinite(line["loss_unlabelled"]) for line in lines)


@pytest.mark.parametrize("preset", ["eman", "ema-bn", "fixmatch"])
def test_accuracy_on_the_way_is_logged_and_changes_nothing(tmp_path, preset):
    settings = replace(FIXMATCH[preset], unlabelled_ratio=2)
    plain, watched = (train(tmp_path / str(every), 5, settings, eval_every=every) for every in (0, 2))
    np.testing.assert_equal(watched.networks, plain.networks)
    lines = read(tmp_path / "2" / "metrics.jsonl")
    key = "student_top1"
    assert [line["step"] for line in lines if key in line] == [2, 4, 5]
    assert lines[-1][key] == 100 * plain.networks["student"]["top1"]
    assert ("teacher_top1" in lines[-1]) == (preset != "fixmatch")
    assert not any(key in line for line in read(tmp_path / "0" / "metrics.jsonl"))


def test_streams_and_run_follow_the_setting(tmp_path, monkeypatch):
    """Twice as many unlabelled images as labelled ones, none of them labelled; rates scaled with the batch."""
    streams, runs = [], []
    monkeypatch.setattr(product, "training_batches", lambda *a: streams.append(a) or training_batches(*a))
    monkeypatch.setattr(product, "fit", lambda run, batches, *_: runs.append((run, next(iter(batches(0))))))
    train(tmp_path, 2, rate=3.0)
    ((_, views, stream, _),) = streams
    assert (stream.batch, stream.steps) == (4 * 2, 2)
    assert stream.rows.tolist() == list(range(10, 60))
    assert isinstance(views, WeakAndStrong)
    ((run, (step, (images, labels), ((weak, strong), hidden))),) = runs
    assert step == 0
    assert (len(images), len(labels), len(weak), len(strong), len(hidden)) == (4, 4, 8, 8, 8)
    assert not torch.equal(weak, strong)
    assert run.groups[0]["lr"] == pytest.approx(3.0 * 4 / 64)
    assert (run.weight_decay, run.nesterov, run.total) == (1e-4, True, 2)


def test_without_unlabelled_images_there_is_nothing_to_do(tmp_path):
    with pytest.raises(InputError, match="expected unlabelled images"):
        train(tmp_path, 2, rows=60)


def test_batch_that_the_unlabelled_images_cannot_fill_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"at most 5 unlabelled images a step \(all there are\), found 8"):
        train(tmp_path, 2, rows=55)


def _teacher_weights(folder, preset):
    train(folder, 3, preset, rate=0.1)
    (newest,) = (folder / "checkpoints").glob("step_*.pt")
    state = torch.load(newest, weights_only=True)["modules"]["method"]
    return {name: tensor.numpy() for name, tensor in state.items() if name.startswith("teacher.")}


@pytest.mark.parametrize("norm", ["GN", "SyncBN"])
def test_two_processes_train_the_teacher_of_one(tmp_path, norm):
    """Without statistics of a process's own batch, two halves of a batch are the batch."""
    preset = replace(PRESET, student=norm, teacher=norm, threshold=0.0)
    alone = _teacher_weights(tmp_path / "one", preset)
    for found in in_two_processes(_teacher_weights, tmp_path / "two", preset):
        assert all(np.allclose(found[name], alone[name], rtol=1e-3, atol=1e-4) for name in alone)


def test_shuffle_bn_takes_the_same_orders_again(tmp_path):
    preset = replace(PRESET, teacher="ShuffleBN", threshold=0.0)
    once, again = (in_two_processes(_teacher_weights, tmp_path / name, preset)[0] for name in ("once", "again"))
    assert all(np.array_equal(once[name], again[name]) for name in once)


def _shuffled_statistics(preset):
    """Per channel, the mean over the images that normalised the teacher's first layer, and over this process's own."""
    fixmatch = build_method(backbone(), 3, preset, seed=0)
    labelled, labels, weak, strong, hidden = batch()
    weak = torch.cat([weak, weak + 1, strong[:2]])[torch.distributed.get_rank() :: 2]
    fixmatch(labelled, labels, weak, weak, hidden[[0] * len(weak)])
    with torch.no_grad():
        own = fixmatch.teacher.backbone.conv1(weak).mean((0, 2, 3))
    return fixmatch.teacher.backbone.bn1.running_mean.numpy(), own.numpy()


def test_shuffle_bn_teacher_normalises_images_of_both_processes():
    preset = replace(FIXMATCH["shufflebn"], bn_momentum=1.0)
    results = in_two_processes(_shuffled_statistics, preset)
    means = [result[0] for result in results]
    own = [result[1] for result in results]
    assert np.allclose(means[0] + means[1], own[0] + own[1], atol=1e-5), "together they saw every image once"
    assert not np.allclose(means[0], own[0], atol=1e-3), "but not each its own"
