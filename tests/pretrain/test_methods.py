import copy

import pytest
import torch
import torch.nn.functional as F

from momentum_transfer.backbones.norms import MomentumBatchNorm, PairBatchNorm
from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.core.errors import InputError
from momentum_transfer.pretrain.config import WITH_TEACHER
from momentum_transfer.pretrain.methods import METHODS, Method, build_method
from momentum_transfer.pretrain.methods.moco import MoCo

#: Without BN a naive loop over images is an oracle; the small stem's maps are large enough to tell images apart.
GN = {"NORM__STUDENT": "GN", "NORM__TEACHER": "GN", "MODEL__STEM": "small"}


def views(count=6, side=32):
    return torch.randn(2, count, 3, side, side, generator=torch.Generator().manual_seed(1)).unbind(0)


def method(tiny_cfg, **settings):
    torch.manual_seed(0)
    return build_method(tiny_cfg({key.replace("__", "."): value for key, value in settings.items()}), 10)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_what_the_loop_asks_for(name, tiny_cfg):
    built = method(tiny_cfg, METHOD__NAME=name, **GN)
    assert isinstance(built, Method)
    assert isinstance(built.backbone(), ResNet)
    assert built.backbone(network="student") is built.networks()["student"].get_submodule("backbone")
    assert built.update_teacher(0.5).keys() == ({"momentum"} if "teacher" in built.networks() else set())
    assert ("teacher" in built.networks()) == (name in WITH_TEACHER)
    if name not in WITH_TEACHER:
        with pytest.raises(InputError, match="expected a network of student, found 'teacher'"):
            built.backbone(network="teacher")
    if name not in ("random", "supervised"):
        built.begin_step(0.5)
        built(*views())["loss"].backward()  # two views and nothing else
        built.commit_statistics()


def test_byol_loss_is_the_sum_of_both_directions(tiny_cfg):
    byol = method(tiny_cfg, METHOD__NAME="byol", **GN)
    first, second = views()
    with torch.no_grad():
        targets = [F.normalize(byol.teacher(view), dim=1) for view in (first, second)]
        assert (targets[0] - targets[1]).norm(dim=1).min() > 0.01  # else the oracle could not tell the views apart
        assert (targets[0][:1] - targets[0][1:]).norm(dim=1).min() > 0.01  # nor the images
        expected = 0
        for a, b in ((first, second), (second, first)):
            p = F.normalize(byol.student(a), dim=1)
            z = F.normalize(byol.teacher(b), dim=1)
            expected = expected + ((p - z) ** 2).sum(1).mean()
        torch.testing.assert_close(byol(first, second)["loss"], expected)
        torch.testing.assert_close(byol(second, first)["loss"], expected)


def test_every_batch_norm_of_the_momentum2_teacher_is_replaced_and_none_of_the_student(tiny_cfg):
    m2 = method(tiny_cfg)
    norms = [m for m in m2.teacher.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    assert all(isinstance(layer, MomentumBatchNorm) for layer in norms)
    assert isinstance(m2.teacher.projector[1], MomentumBatchNorm)
    assert not any(isinstance(layer, PairBatchNorm) for layer in m2.student.modules())
    assert m2.teacher.predictor is None
    assert m2.backbone() is m2.teacher.backbone


def test_no_gradient_reaches_the_teacher_and_every_student_parameter_has_one(tiny_cfg):
    for name in ("momentum2", "byol", "moco"):
        model = method(tiny_cfg, METHOD__NAME=name)
        model(*views())["loss"].backward()
        assert all(p.grad is None for p in model.teacher.parameters())
        assert all(p.grad is not None for p in model.student.parameters())


def test_teacher_moves_by_the_cosine_of_progress(tiny_cfg):
    m2 = method(tiny_cfg, TEACHER__MOMENTUM_BASE=0.2)
    with torch.no_grad():
        m2.student.backbone.conv1.weight.fill_(1.0)
        m2.teacher.backbone.conv1.weight.zero_()
    assert m2.update_teacher(0.5) == pytest.approx({"momentum": 0.1})
    assert m2.begin_step(0.5) == pytest.approx({"alpha": 0.5})
    torch.testing.assert_close(m2.teacher.backbone.conv1.weight, torch.full_like(m2.teacher.backbone.conv1.weight, 0.1))
    assert m2.teacher.backbone.bn1.alpha == 0.5


def test_fixed_alpha_stays(tiny_cfg):
    m2 = method(tiny_cfg, NORM__ALPHA_SCHEDULE="constant", NORM__ALPHA_BASE=0.064)
    assert m2.begin_step(0.9)["alpha"] == pytest.approx(0.064)


def test_momentum2_history_moves_once_a_pair(tiny_cfg):
    m2 = method(tiny_cfg)
    with torch.no_grad():
        m2(*views())
        assert m2.teacher.backbone.bn1.pending_count == 2
        assert torch.equal(m2.teacher.backbone.bn1.running_mean, torch.zeros(4))
        maps = [m2.teacher.backbone.conv1(view) for view in views()]
    m2.commit_statistics()
    expected = sum(m.mean((0, 2, 3)) for m in maps) / 2  # alpha 1
    torch.testing.assert_close(m2.teacher.backbone.bn1.running_mean, expected)
    assert m2.teacher.backbone.bn1.pending_count == 0


def test_eman_statistics_may_have_their_own_momentum(tiny_cfg):
    for own, expected in ((-1.0, 0.5), (0.25, 0.25)):
        byol = method(
            tiny_cfg,
            METHOD__NAME="byol",
            NORM__TEACHER="EMAN",
            TEACHER__MOMENTUM_BASE=0.5,
            TEACHER__MOMENTUM_SCHEDULE="constant",
            NORM__STATISTICS_MOMENTUM=own,
        )
        byol.student.backbone.bn1.running_mean.fill_(1.0)
        byol.update_teacher(0.0)
        assert byol.teacher.backbone.bn1.running_mean[0].item() == pytest.approx(expected)


def test_student_proxy_norm_copies_the_students_statistics(tiny_cfg):
    byol = method(tiny_cfg, METHOD__NAME="byol", NORM__TEACHER="StudentPN")
    byol.student.backbone.bn1.running_var.fill_(7.0)
    byol.update_teacher(0.9)
    assert torch.equal(byol.teacher.backbone.bn1.running_var, byol.student.backbone.bn1.running_var)


def moco(tiny_cfg, **settings) -> MoCo:
    return method(tiny_cfg, METHOD__NAME="moco", **GN, **settings)


@torch.no_grad()
@pytest.mark.parametrize("symmetric", [False, True])
def test_moco_equals_a_naive_contrast_and_enqueues_view_two_afterwards(symmetric, tiny_cfg):
    model = moco(tiny_cfg, MOCO__SYMMETRIC=symmetric)
    first, second = views()
    queue = model.queue.keys.clone()
    expected = 0.0
    for a, b in ((first, second), (second, first))[: 2 if symmetric else 1]:
        query, key = F.normalize(model.student(a), dim=1), F.normalize(model.teacher(b), dim=1)
        logits = torch.stack([torch.cat([(q @ k)[None], queue @ q]) for q, k in zip(query, key, strict=True)]) / 0.2
        expected = expected - logits.log_softmax(1)[:, 0].mean()
    torch.testing.assert_close(model(first, second)["loss"], expected)
    torch.testing.assert_close(model.queue.keys[:6], F.normalize(model.teacher(second), dim=1))
    assert torch.equal(model.queue.keys[6:], queue[6:])


def test_moco_v2_has_no_norm_in_its_projector_and_plus_has_predictors_where_asked(tiny_cfg):
    plain = moco(tiny_cfg, HEAD__PROJECTOR_NORM=False)
    assert [type(m).__name__ for m in plain.student.projector] == ["Linear", "ReLU", "Linear"]
    assert plain.student.predictor is None
    symmetric = moco(tiny_cfg, MOCO__PREDICTOR=True, MOCO__TEACHER_PREDICTOR=True)
    assert torch.equal(symmetric.student.predictor[0].weight, symmetric.teacher.predictor[0].weight)


def test_moco_backward_survives_the_overwritten_queue(tiny_cfg):
    model = moco(tiny_cfg, MOCO__SYMMETRIC=True)
    fresh = copy.deepcopy(model)
    pair = views()
    loss = model(*pair)["loss"]
    model.queue.keys.normal_()  # as later batches would
    loss.backward()
    fresh(*pair)["loss"].backward()
    for overwritten, kept in zip(model.student.parameters(), fresh.student.parameters(), strict=True):
        torch.testing.assert_close(overwritten.grad, kept.grad)


def test_simsiam_is_symmetric_and_stops_the_gradient_of_its_targets(tiny_cfg):
    model = method(tiny_cfg, METHOD__NAME="simsiam", **GN)
    first, second = views()
    loss = model(first, second)["loss"]
    torch.testing.assert_close(loss, model(second, first)["loss"])
    loss.backward()
    gradient = model.student.projector[0].weight.grad.clone()
    model.zero_grad()
    with torch.no_grad():
        targets = [model.student.projector(model.student.backbone(view)) for view in (second, first)]
    for view, target in zip((first, second), targets, strict=True):
        prediction = model.student.predictor(model.student.projector(model.student.backbone(view)))
        (-F.cosine_similarity(prediction, target).mean() / 2).backward()
    torch.testing.assert_close(model.student.projector[0].weight.grad, gradient, rtol=1e-4, atol=1e-7)


def test_supervised_is_cross_entropy_of_the_first_view(tiny_cfg):
    model = method(tiny_cfg, METHOD__NAME="supervised", **GN)
    first, second = views()
    labels = torch.arange(6)
    outputs = model(first, second, labels)
    logits = model.student.fc(model.student.backbone(first))
    torch.testing.assert_close(outputs["loss"], F.cross_entropy(logits, labels))
    assert outputs["top1"] == 100 * (logits.argmax(1) == labels).float().mean()
    with pytest.raises(ValueError, match="expected labels"):
        model(first, second)


def test_a_teachers_predictor_needs_a_students(tiny_cfg):
    with pytest.raises(InputError, match=r"expected MOCO\.PREDICTOR True"):
        moco(tiny_cfg, MOCO__TEACHER_PREDICTOR=True)


@pytest.mark.parametrize("name", ["simsiam", "supervised"])
def test_alpha_of_a_momentum_bn_student_follows_its_schedule_without_a_teacher_too(name, tiny_cfg):
    falling = method(tiny_cfg, METHOD__NAME=name, NORM__STUDENT="MomentumBN", NORM__ALPHA_BASE=0.8)
    assert falling.backbone().bn1.alpha == pytest.approx(0.8)
    assert falling.begin_step(0.5) == pytest.approx({"alpha": 0.4})
    assert falling.backbone().bn1.alpha == pytest.approx(0.4)
    assert method(tiny_cfg, METHOD__NAME=name, NORM__STUDENT="BN").begin_step(0.5) == {}


@pytest.mark.parametrize(("own", "width"), [(0, 16), (5, 5)])
def test_a_predictors_hidden_layer_is_as_wide_as_the_projectors_unless_told(own, width, tiny_cfg):
    for name in ("byol", "simsiam"):
        student = build_method(tiny_cfg({"METHOD.NAME": name, "HEAD.PREDICTOR_HIDDEN": own}), 10).student
        assert student.predictor[0].out_features == student.predictor[3].in_features == width
        assert student.predictor[3].out_features == 8


@pytest.mark.parametrize("norm", ["ShuffleBN", "BN"])
def test_only_under_shuffle_bn_a_teacher_sees_the_images_in_another_order(norm, tiny_cfg):
    built = method(tiny_cfg, METHOD__NAME="moco", MOCO__QUEUE=8, NORM__TEACHER=norm, NORM__GROUP_SIZE=2)
    view, seen = torch.arange(8.0).view(8, 1), []
    built.teacher = torch.nn.Sequential(torch.nn.Identity())
    built.teacher.register_forward_pre_hook(lambda _, images: seen.append(images[0]))
    torch.manual_seed(0)
    assert torch.equal(built.targets(view), view)
    assert torch.equal(seen[0], view) == (norm == "BN")
    assert torch.equal(seen[0].sort(dim=0).values, view)


def test_a_random_network_has_no_history_that_only_training_commits(tiny_cfg):
    built = method(tiny_cfg, METHOD__NAME="random", NORM__STUDENT="MomentumBN")
    assert not [layer for layer in built.modules() if isinstance(layer, PairBatchNorm)]
