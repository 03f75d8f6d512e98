"""MoCo v2, v2+ and S-MoCo v2+ against the contrast written out, with settings that are not the defaults."""

import pytest
import torch

from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.methods.moco import NegativeQueue

VIEWS = torch.randn(2, 6, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def unit(x):
    return x / x.norm(dim=1, keepdim=True)


def build(tiny_cfg, **settings):
    torch.manual_seed(0)
    names = {"METHOD.NAME": "moco", "MODEL.STEM": "small", "NORM.TEACHER": "BN"}
    return build_method(tiny_cfg({**names, **{f"MOCO.{key}": value for key, value in settings.items()}}), 10)


def contrast(query, key, queue, temperature):
    total = 0.0
    for q, k in zip(query, key, strict=True):
        similar = torch.cat([(q @ k)[None], queue @ q]) / temperature
        total = total + similar.exp().sum().log() - similar[0]
    return total / len(query)


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.2, 0.07])
@pytest.mark.parametrize(
    "settings",
    [{}, {"SYMMETRIC": True, "PREDICTOR": True}, {"SYMMETRIC": True, "PREDICTOR": True, "TEACHER_PREDICTOR": True}],
    ids=["v2", "v2+", "s-v2+"],
)
def test_the_loss_is_the_contrast_of_each_view_with_the_other(settings, temperature, tiny_cfg):
    moco = build(tiny_cfg, TEMPERATURE=temperature, **settings)
    if settings.get("TEACHER_PREDICTOR"):
        moco.teacher.predictor[-1].bias += 1.0  # so that it is not the student's own
    queue = moco.queue.keys.clone()
    student, teacher = moco.student, moco.teacher
    queries = [student.projector(student.backbone(view)) for view in VIEWS]
    if settings.get("PREDICTOR"):
        queries = [student.predictor(query) for query in queries]
    keys = [teacher.projector(teacher.backbone(view)) for view in VIEWS]
    if settings.get("TEACHER_PREDICTOR"):
        keys = [teacher.predictor(key) for key in keys]
    queries, keys = [unit(query) for query in queries], [unit(key) for key in keys]
    expected = contrast(queries[0], keys[1], queue, temperature)
    if settings.get("SYMMETRIC"):
        expected = expected + contrast(queries[1], keys[0], queue, temperature)
    torch.testing.assert_close(moco(*VIEWS)["loss"], expected)
    torch.testing.assert_close(moco.queue.keys[:6], keys[1])
    # The oracle distinguishes images and views.
    assert not torch.isclose(contrast(queries[0], keys[0], queue, temperature), expected, rtol=0.01)
    assert not torch.isclose(contrast(queries[0], keys[1].roll(1, 0), queue, temperature), expected, rtol=0.01)


def test_a_teachers_predictor_follows_the_students(tiny_cfg):
    moco = build(tiny_cfg, PREDICTOR=True, TEACHER_PREDICTOR=True)
    with torch.no_grad():
        moco.teacher.predictor[-1].bias.zero_()
        moco.student.predictor[-1].bias.fill_(1.0)
    moco.update_teacher(0.0)
    torch.testing.assert_close(moco.teacher.predictor[-1].bias, torch.full((8,), moco.rule.momentum_base))


def numbered(first, count):
    return torch.arange(first, first + count).float()[:, None].repeat(1, 2)


def test_oldest_keys_are_overwritten_first_across_the_end():
    queue = NegativeQueue(8, 2)
    for first in (0, 3, 6, 9):
        queue.enqueue(numbered(first, 3))
    assert queue.keys[:, 0].tolist() == [8, 9, 10, 11, 4, 5, 6, 7]
    assert queue.pointer == 4


def test_a_batch_larger_than_the_queue_leaves_its_last_keys():
    queue = NegativeQueue(4, 2)
    queue.enqueue(numbered(0, 10))
    assert sorted(queue.keys[:, 0].tolist()) == [6, 7, 8, 9]
    queue.enqueue(numbered(10, 1))
    assert sorted(queue.keys[:, 0].tolist()) == [7, 8, 9, 10]


def test_queue_starts_with_unit_vectors_and_resumes_with_its_pointer():
    queue, resumed = NegativeQueue(5, 3), NegativeQueue(5, 3)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(5))
    queue.enqueue(torch.ones(3, 3))
    resumed.load_state_dict(queue.state_dict())
    for each in (queue, resumed):
        each.enqueue(torch.zeros(3, 3))
    assert torch.equal(queue.keys, resumed.keys)
