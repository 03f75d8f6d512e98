"""Virtual processes: groups of a batch are normalised as processes of their own would do it; layers bit for bit."""

import pytest
import torch
from safetensors.torch import load_file

from momentum_transfer.backbones.norms import Norm, commit_pair, pair_norms, set_alpha
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.backbones.teacher import copy_student, move_statistics, shuffled_forward
from momentum_transfer.core.errors import InputError
from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.train import train

GROUPED = ("BN", "ShuffleBN", "MomentumBN", "TeacherPN", "EMAN", "StudentPN")
G = 4


def batch(seed: int = 0, channels: int = 5) -> torch.Tensor:
    return torch.randn(3 * G, channels, 4, 6, generator=torch.Generator().manual_seed(seed)).double() * 2 + 1


def layers(name: str, groups: int, count: int = 1) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    made = [Norm(name, groups=groups)(5).double() for _ in range(count)]
    for layer in made:
        torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
        torch.nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(2))
    set_alpha([layer for one in made for layer in pair_norms(one)], 0.5)
    return made


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("shape", ["maps", "channels_last", "vectors"])
def test_groups_equal_processes_bit_for_bit_in_outputs_and_statistics(name, shape):
    (virtual,), real = layers(name, G), layers(name, 1, G)
    for seed in range(3):
        for view in (seed, seed + 10):  # a pair of views
            x = batch(view)
            x = x.mean((2, 3)) if shape == "vectors" else x
            x = x.contiguous(memory_format=torch.channels_last) if shape == "channels_last" else x
            x.requires_grad_()
            y = virtual(x)
            weighed = y * batch(99).mean((2, 3)).view(y.shape[0], -1, *[1] * (y.dim() - 2))
            (gradient,) = torch.autograd.grad(weighed.sum(), x)
            if shape == "channels_last":
                assert y.is_contiguous(memory_format=torch.channels_last)
            for g, layer in enumerate(real):
                own = x[g::G].detach().contiguous().requires_grad_()
                output = layer(own)
                assert torch.equal(output, y[g::G])
                weights = batch(99).mean((2, 3))[g::G].view(len(own), -1, *[1] * (y.dim() - 2))
                (own_gradient,) = torch.autograd.grad((output * weights).sum(), own)
                torch.testing.assert_close(own_gradient, gradient[g::G], rtol=1e-13, atol=1e-13)
        commit_pair(pair_norms(virtual))
        commit_pair([norm for layer in real for norm in pair_norms(layer)])
    mean, var = virtual.statistics()
    assert torch.equal(mean, torch.cat([layer.running_mean for layer in real]))
    assert torch.equal(var, torch.cat([layer.running_var for layer in real]))
    assert torch.equal(virtual.running_mean, real[0].running_mean)
    assert torch.equal(virtual.running_var, real[0].running_var)
    assert torch.equal(virtual.eval()(batch(7)), real[0].eval()(batch(7)))


@pytest.mark.parametrize(("policy", "expected"), [("broadcast", "first"), ("reduce", "mean")])
def test_virtual_processes_share_their_histories_as_real_ones_do(policy, expected):
    (virtual,), real = layers("MomentumBN", G), layers("MomentumBN", 1, G)
    with torch.no_grad():
        virtual(batch())
        for g, layer in enumerate(real):
            layer(batch()[g::G])
    commit_pair([virtual], policy)
    commit_pair(real)
    histories = torch.stack([layer.running_mean for layer in real])
    wanted = histories[0] if expected == "first" else histories.mean(0)
    assert torch.equal(virtual.group_mean.view(G, -1), wanted.expand(G, -1))
    assert torch.equal(virtual.running_mean, wanted)


def test_an_eman_teacher_follows_each_virtual_students_statistics():
    (student,), (teacher,) = layers("BN", G), layers("EMAN", G)
    student(batch())
    copy_student(student, teacher)
    assert torch.equal(teacher.group_mean, student.group_mean)
    before = student.group_mean.clone()
    student(batch(5))
    move_statistics(student, teacher, 0.25)
    torch.testing.assert_close(teacher.group_mean, torch.lerp(before, student.group_mean, 0.25), rtol=0, atol=0)


def test_a_student_of_one_statistic_starts_every_virtual_teacher():
    (student,), (teacher,) = layers("SyncBN", G), layers("MomentumBN", G)
    student(batch())
    copy_student(student, teacher)
    assert torch.equal(teacher.group_mean, student.running_mean.repeat(G))


def test_shuffle_bn_exchanges_images_between_virtual_processes_and_restores_their_order():
    (layer,), seen = layers("ShuffleBN", G), []

    def network(images: torch.Tensor) -> torch.Tensor:
        seen.append(images)
        return layer(images).flatten(1)

    torch.manual_seed(3)
    with torch.no_grad():
        outputs = shuffled_forward(network, batch(), G)
    naive = {}
    for g in range(G):
        images = seen[0][g::G]
        mean, var = images.mean((0, 2, 3), keepdim=True), images.var((0, 2, 3), keepdim=True, correction=0)
        shape = (1, -1, 1, 1)
        scaled = (images - mean) / (var + layer.eps).sqrt() * layer.weight.view(shape) + layer.bias.view(shape)
        naive.update({float(image.sum()): output.flatten() for image, output in zip(images, scaled, strict=True)})
    for image, output in zip(batch(), outputs, strict=True):
        torch.testing.assert_close(output, naive[float(image.sum())])
    assert {float(i.sum()) for i in seen[0][::G]} != {float(i.sum()) for i in batch()[::G]}


def test_a_whole_network_in_groups_equals_processes_to_rounding_of_its_convolutions():
    torch.manual_seed(0)
    tiny = Architecture("resnet10", 4, "small")
    virtual = build_resnet(tiny, Norm("BN", groups=2)).double()
    real = [build_resnet(tiny, Norm("BN")).double() for _ in range(2)]
    for network in real:
        network.load_state_dict(virtual.state_dict(), strict=False)
    x = torch.randn(8, 3, 16, 16).double()
    y = virtual(x)
    for g, network in enumerate(real):
        torch.testing.assert_close(network(x[g::2].contiguous()), y[g::2], rtol=1e-12, atol=1e-12)
    first = dict(real[0].named_buffers())
    for name, buffer in virtual.named_buffers():
        if ".group_" not in f".{name}":
            torch.testing.assert_close(buffer, first[name], rtol=1e-12, atol=1e-12)


def test_a_batch_that_does_not_divide_is_refused_by_the_layer_and_before_by_the_settings(tiny_cfg):
    with pytest.raises(ValueError, match="divisible by 4"):
        layers("BN", G)[0](torch.randn(6, 5, 2, 2).double())
    with pytest.raises(
        InputError, match=r"NORM\.GROUP_SIZE to divide a micro-batch of 8 images, found 3; give NORM\.GROUP_SIZE 8"
    ):
        build_method(tiny_cfg({"NORM.GROUP_SIZE": 3}), 10)
    with pytest.raises(InputError, match=r"NORM\.GROUP_SIZE"):
        build_method(tiny_cfg({"NORM.GROUP_SIZE": -1}), 10)


def test_settings_reach_both_networks_and_a_teacher_of_a_synchronised_student_has_no_groups(tiny_cfg):
    method = build_method(tiny_cfg({"NORM.GROUP_SIZE": 4}), 10)
    assert {layer.groups for layer in pair_norms(method)} == {2}
    assert method.student.backbone.bn1.groups == 2
    method = build_method(tiny_cfg({"NORM.GROUP_SIZE": 4, "NORM.STUDENT": "SyncBN", "NORM.TEACHER": "EMAN"}), 10)
    assert method.teacher.backbone.bn1.groups == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"NORM.TEACHER": "BN", "NORM.GROUP_SIZE": 8}, {"NORM.TEACHER": "SyncBN", "NORM.GROUP_SIZE": 2}),
        ({"NORM.TEACHER": "EMAN", "NORM.GROUP_SIZE": 8}, {"NORM.TEACHER": "EMAN", "NORM.GROUP_SIZE": 2}),
    ],
    ids=("SyncBN is BN of the whole batch", "EMAN knows no groups"),
)
def test_beside_a_synchronised_student_runs_end_with_equal_bits(tiny_cfg, tmp_path, one, other):
    ends = []
    for number, variant in enumerate((one, other)):
        folder = tmp_path / str(number)
        train(tiny_cfg({"NORM.STUDENT": "SyncBN", "OUTPUT_DIR": folder, **variant}))
        ends.append(load_file(folder / "backbone.safetensors"))
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(tensor, ends[1][key]) for key, tensor in ends[0].items())
