import copy

import pytest
import torch
from torch import nn

from momentum_transfer.backbones.norms import Norm
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.backbones.teacher import (
    copy_student,
    move_parameters,
    move_statistics,
    shuffled_forward,
    update_teacher,
)

SMALL = Architecture("resnet10", width=4)


def network(norm="BN", seed=0):
    torch.manual_seed(seed)
    return build_resnet(SMALL, Norm(norm))


def test_fused_parameter_update_equals_a_loop():
    student, teacher = network(seed=1), network(seed=2)
    expected = copy.deepcopy(teacher)
    for (_, t), (_, s) in zip(expected.named_parameters(), student.named_parameters(), strict=True):
        t.data = (1 - 0.3) * t.data + 0.3 * s.data
    move_parameters(student, teacher, 0.3)
    for t, e in zip(teacher.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(t, e, rtol=1e-6, atol=1e-7)


def test_eman_moves_statistics_like_parameters_and_copies_counters():
    student, teacher = network(seed=1), network("EMAN", seed=2)
    student(torch.randn(8, 3, 32, 32))  # running statistics and counters move
    before = {name: buffer.clone() for name, buffer in teacher.named_buffers()}
    move_statistics(student, teacher, 0.01)
    for name, buffer in teacher.named_buffers():
        source = dict(student.named_buffers())[name]
        if name.endswith("num_batches_tracked"):
            assert buffer == source == 1
        else:
            torch.testing.assert_close(buffer, 0.99 * before[name] + 0.01 * source)


def test_eman_teacher_output_of_an_image_does_not_depend_on_the_others():
    teacher, images = network("EMAN").train(), torch.randn(6, 3, 32, 32)
    with torch.no_grad():
        together, alone = teacher(images), teacher(images[:1])
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-5)


def test_copy_starts_equal_and_frozen_whatever_the_norm():
    student = network()
    student(torch.randn(8, 3, 32, 32))
    for norm in ("BN", "EMAN", "MomentumBN", "GN", "TeacherPN"):
        teacher = network(norm, seed=5)
        copy_student(student, teacher)
        assert not any(parameter.requires_grad for parameter in teacher.parameters())
        assert all(torch.equal(a, b) for a, b in zip(student.parameters(), teacher.parameters(), strict=True))
        if norm != "GN":
            assert torch.equal(student.bn1.running_mean, teacher.bn1.running_mean)


@pytest.mark.parametrize(
    ("norm", "own", "weight"), [("EMAN", None, 0.25), ("EMAN", 0.5, 0.5), ("StudentPN", 0.5, 1.0), ("BN", 0.5, 0.0)]
)
def test_teacher_takes_the_students_part_of_weights_and_of_statistics_where_they_follow(norm, own, weight):
    student, teacher = network(seed=1), network(norm, seed=2)
    student(torch.randn(8, 3, 32, 32))
    before, mean = teacher.conv1.weight.clone(), teacher.bn1.running_mean.clone()
    update_teacher(student, teacher, 0.25, norm, own)
    torch.testing.assert_close(teacher.conv1.weight, 0.75 * before + 0.25 * student.conv1.weight)
    torch.testing.assert_close(teacher.bn1.running_mean, (1 - weight) * mean + weight * student.bn1.running_mean)


def test_momentum_one_copies_and_zero_keeps():
    student, teacher = network(seed=1), network(seed=2)
    kept = teacher.conv1.weight.clone()
    move_parameters(student, teacher, 0.0)
    assert torch.equal(teacher.conv1.weight, kept)
    move_parameters(student, teacher, 1.0)
    assert torch.equal(teacher.conv1.weight, student.conv1.weight)


def test_student_without_a_tensor_of_the_teacher_is_refused():
    with pytest.raises(ValueError, match=r"missing: 1\.weight"):
        move_parameters(nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 0.1)


def test_shuffled_forward_alone_is_the_plain_forward():
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    assert torch.equal(shuffled_forward(layer, x), layer(x))
