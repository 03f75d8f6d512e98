import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentum_transfer.backbones.batch_statistics import replace_batch_norm
from momentum_transfer.backbones.norms import Norm
from momentum_transfer.backbones.norms.batch_norm import (
    BatchNorm,
    StudentStatisticsBatchNorm,
    SyncBatchNorm,
    normalise,
    use_fused_sync,
)
from momentum_transfer.core import distributed


def test_torchs_sync_bn_takes_the_place_of_ours_with_its_tensors_names_and_freezing():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), Norm("SyncBN", momentum=0.25)(4), nn.Sequential(Norm("SyncBN")(4)))
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, SyncBatchNorm):
                layer.weight.uniform_()
                layer.running_var.uniform_()
    net[2].requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    use_fused_sync(net)
    assert type(net[1]) is type(net[2][0]) is nn.SyncBatchNorm
    assert net[1].momentum == 0.25
    assert [p.requires_grad for p in net[1].parameters()] == [True, True]
    assert [p.requires_grad for p in net[2].parameters()] == [False, False]
    after = net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_torchs_sync_bn_keeps_the_epsilon_and_activation_of_a_network_of_timm():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = timm.create_model("tf_efficientnet_b0", num_classes=0)  # BatchNormAct2d, eps .001
    replace_batch_norm(net, Norm("SyncBN"))
    x = torch.randn(2, 3, 48, 48)
    expected = copy.deepcopy(net).eval()(x)
    use_fused_sync(net)
    assert any(type(layer) is nn.SyncBatchNorm for layer in net.modules())
    assert torch.equal(net.eval()(x), expected)
    assert {layer.eps for layer in net.modules() if isinstance(layer, nn.SyncBatchNorm)} == {0.001}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5), (6, 4, 3, 2)])
def test_inputs_of_any_shape_are_normalised_by_channel_and_group(shape: tuple[int, ...], groups: int):
    torch.manual_seed(0)
    norm, x = BatchNorm(4, groups).train(), torch.randn(shape) * 3 + 1
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    found = norm(x)
    for group in range(groups):
        torch.testing.assert_close(
            found[group::groups], F.batch_norm(x[group::groups], None, None, norm.weight, norm.bias, training=True)
        )
    first = x[::groups].transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.running_mean, 0.1 * first.mean(1))
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * first.var(1))
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(
        norm.eval()(x), F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    )


def test_a_vector_without_channels_and_a_batch_that_does_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"expected an input \[N, C, …\], found the shape \(4,\)"):
        BatchNorm(4)(torch.randn(4))
    with pytest.raises(ValueError, match="divisible by 2 virtual processes, found 5"):
        BatchNorm(4, 2)(torch.randn(5, 4))


def test_a_grouped_norm_keeps_the_memory_format():
    x = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    assert BatchNorm(3, 2)(x).is_contiguous(memory_format=torch.channels_last)
    assert BatchNorm(3, 2)(x.contiguous()).is_contiguous()


@pytest.mark.parametrize("groups", [1, 2])
def test_students_statistics_are_used_and_left_alone(groups: int):
    torch.manual_seed(0)
    norm, x = StudentStatisticsBatchNorm(3, groups).train(), torch.randn(4, 3, 2, 2)
    for tensor in (*norm.buffers(), norm.weight.data, norm.bias.data):
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 2.0)
    before = {name: tensor.clone() for name, tensor in norm.named_buffers()}
    found, (mean, var) = norm(x), norm.statistics()
    for group in range(groups):
        part = slice(3 * group, 3 * group + 3)
        wanted = F.batch_norm(x[group::groups], mean[part], var[part], norm.weight, norm.bias, eps=norm.eps)
        torch.testing.assert_close(found[group::groups], wanted)
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.named_buffers())
    alone = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    torch.testing.assert_close(norm.eval()(x), alone)
    with pytest.raises(ValueError, match="found the shape"):
        norm(torch.randn(3))


def test_normalise_is_equation_2_of_any_shape():
    for shape in ((5, 3), (5, 3, 2, 2)):
        x = torch.randn(shape)
        mean, var, weight, bias = torch.rand(4, 3) + 0.5
        wanted = F.batch_norm(x, mean, var, weight, bias, eps=0.1)
        torch.testing.assert_close(normalise(x, mean, var, weight, bias, 0.1), wanted)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2)])
def test_sync_bn_is_bn_of_all_processes_images_together(shape, monkeypatch):
    """The other process is played by its statistics, which the mean over processes is told in their order."""
    first, other = 3 * torch.randn(shape) + 1, torch.randn(shape)
    dims = [0, *range(2, len(shape))]
    own_var, own_mean = torch.var_mean(other, dims, correction=0)
    joint = torch.cat([first, other]).mean(dims)
    told = [own_mean, own_var + (own_mean - joint).square()]
    monkeypatch.setattr(distributed, "is_distributed", lambda: True)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "differentiable_mean", lambda own: (own + told.pop(0)) / 2)
    norm, whole = SyncBatchNorm(3), BatchNorm(3)
    for layer in (norm, whole):
        layer.momentum = 0.3
        layer.weight.data, layer.bias.data = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.0, 1.0, -1.0])
    torch.testing.assert_close(norm(first), whole(torch.cat([first, other]))[:4])
    torch.testing.assert_close(norm.running_mean, whole.running_mean)
    torch.testing.assert_close(norm.running_var, whole.running_var)
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.eval()(first), whole.eval()(first))  # exchanges nothing
    assert not told


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2)])
def test_sync_bn_alone_is_bn_and_exchanges_nothing(shape, monkeypatch):
    monkeypatch.setattr(distributed, "differentiable_mean", lambda own: pytest.fail("exchanged with nobody"))
    x, norm, plain = torch.randn(shape), SyncBatchNorm(3), BatchNorm(3)
    assert torch.equal(norm(x), plain(x))
    assert torch.equal(norm.running_var, plain.running_var)
