"""Norms by name, convolutions with them, and how layers begin: against torch and closed forms."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.torchvision_engine.layers import (
    ChannelNorm,
    ConvNorm,
    FrozenBatchNorm2d,
    ScaleGradient,
    msra_fill,
    norm_layer,
    normal_fill,
    xavier_fill,
)


def test_norms_have_detectron2s_names():
    assert norm_layer("") is None
    names = {"BN": nn.BatchNorm2d, "SyncBN": nn.SyncBatchNorm, "FrozenBN": FrozenBatchNorm2d, "LN": ChannelNorm}
    for name, kind in {**names, "GN": nn.GroupNorm}.items():
        make = norm_layer(name)
        assert make is not None
        assert isinstance(make(64), kind)
    with pytest.raises(InputError, match=r"expected a NORM among BN, .* found 'XN'"):
        norm_layer("XN")


def test_ln_is_torchs_over_the_channels_of_each_pixel():
    torch.manual_seed(0)
    norm, x = ChannelNorm(6), torch.randn(2, 6, 3, 4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    wanted = F.layer_norm(x.permute(0, 2, 3, 1), (6,), norm.weight, norm.bias, eps=1e-6).permute(0, 3, 1, 2)
    torch.testing.assert_close(norm(x), wanted)
    assert [p.unique().tolist() for p in ChannelNorm(6).parameters()] == [[1.0], [0.0]]


@pytest.mark.parametrize("gradient", [False, True])
def test_a_frozen_norm_uses_what_it_holds(gradient: bool):
    torch.manual_seed(0)
    norm, x = FrozenBatchNorm2d(3, eps=1e-3).train(), torch.randn(2, 3, 4, 4, requires_grad=gradient)
    for buffer in norm.buffers():
        buffer.uniform_(0.5, 2.0)
    before = {name: tensor.clone() for name, tensor in norm.named_buffers()}
    mean, var, weight, bias = (
        getattr(norm, name)[:, None, None] for name in ("running_mean", "running_var", "weight", "bias")
    )
    torch.testing.assert_close(norm(x), (x - mean) / (var + 1e-3).sqrt() * weight + bias)
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.named_buffers())


def test_a_convolution_has_a_norm_or_a_bias_and_a_relu_if_asked():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 5)
    plain, normed, rectified = ConvNorm(3, 4, 3), ConvNorm(3, 4, 3, norm="BN"), ConvNorm(3, 4, 3, relu=True, padding=1)
    assert plain.bias is not None
    assert normed.bias is None
    torch.testing.assert_close(plain(x), F.conv2d(x, plain.weight, plain.bias))
    torch.testing.assert_close(normed(x), F.batch_norm(F.conv2d(x, normed.weight), None, None, training=True))
    torch.testing.assert_close(rectified(x), F.conv2d(x, rectified.weight, rectified.bias, padding=1).clamp(min=0))
    assert (plain(x) < 0).any()


def test_layers_begin_as_their_papers_say():
    torch.manual_seed(0)
    convolution, linear = nn.Conv2d(64, 32, 3), nn.Linear(400, 300)
    msra_fill(convolution)
    assert convolution.weight.std().item() == pytest.approx(math.sqrt(2 / (32 * 9)), rel=0.03)
    xavier_fill(linear)
    assert linear.weight.abs().max().item() == pytest.approx(math.sqrt(3 / 400), rel=0.01)
    assert linear.weight.std().item() == pytest.approx(math.sqrt(1 / 400), rel=0.02)
    for layer in (convolution, linear):
        assert not layer.bias.any()
    normal_fill(linear, std=0.3)
    assert linear.weight.std().item() == pytest.approx(0.3, rel=0.02)
    assert not linear.bias.any()
    normal_fill(linear, std=0.3, bias=-4.5)
    assert linear.bias.unique().tolist() == [-4.5]
    for fill in (msra_fill, xavier_fill, lambda layer: normal_fill(layer, 0.1)):
        fill(nn.Conv2d(3, 4, 1, bias=False))


def test_a_scaled_gradient_leaves_the_value():
    x = torch.randn(5, requires_grad=True)
    y = ScaleGradient.apply(x, 0.25)
    assert torch.equal(y, x)
    (y * torch.arange(5)).sum().backward()
    assert x.grad.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
