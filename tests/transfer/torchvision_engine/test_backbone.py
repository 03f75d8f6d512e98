"""Stages, what of them is frozen, and pyramids: against written-out sums of convolutions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.transfer.torchvision_engine.backbone import (
    FPN,
    BottomUp,
    ConvP6P7,
    MaxPoolP6,
    SimplePyramid,
    SingleScale,
    dilate,
    freeze_norms,
)
from momentum_transfer.transfer.torchvision_engine.layers import FrozenBatchNorm2d

SOURCES = ["res2", "res3", "res4", "res5"]


def resnet(name: str = "resnet18") -> nn.Module:
    torch.manual_seed(0)
    return build_resnet(Architecture(name, 8))


@pytest.mark.parametrize(("name", "widths"), [("resnet18", [8, 16, 32, 64]), ("resnet50", [32, 64, 128, 256])])
@torch.no_grad()
def test_stages_have_their_strides_and_channels(name: str, widths: list[int]):
    bottom_up = BottomUp(resnet(name))
    maps = bottom_up(torch.randn(1, 3, 64, 96))
    assert [tuple(m.shape) for m in maps.values()] == [
        (1, width, 64 // stride, 96 // stride) for width, stride in zip(widths, (4, 8, 16, 32), strict=True)
    ]
    assert bottom_up.channels == dict(zip(SOURCES, widths, strict=True))
    assert bottom_up.strides == dict(zip(SOURCES, (4, 8, 16, 32), strict=True))
    assert list(BottomUp(resnet(name), last="res4").channels) == SOURCES[:3]


@pytest.mark.parametrize("freeze_at", range(6))
def test_the_first_stages_are_frozen_with_their_norms(freeze_at: int):
    bottom_up = BottomUp(resnet(), freeze_at=freeze_at)
    parts = [["conv1", "bn1"], ["layer1"], ["layer2"], ["layer3"], ["layer4"]]
    for number, names in enumerate(parts, 1):
        for module in (getattr(bottom_up, name) for name in names):
            assert all(parameter.requires_grad == (number > freeze_at) for parameter in module.parameters())
            norms = [one for one in module.modules() if isinstance(one, (nn.BatchNorm2d, FrozenBatchNorm2d))]
            assert all(isinstance(one, FrozenBatchNorm2d) == (number <= freeze_at) for one in norms)


@torch.no_grad()
def test_frozen_norms_compute_what_the_norms_did():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.BatchNorm2d(4, eps=0.1), nn.SyncBatchNorm(4)))
    for layer in network[1]:
        for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
            tensor.uniform_(0.5, 2.0)
    x = torch.randn(2, 3, 4, 4)
    before = network.eval()[1][0](network[0](x))
    frozen = freeze_norms(network)
    torch.testing.assert_close(frozen.train()[1][0](frozen[0](x)), before)
    assert all(isinstance(layer, FrozenBatchNorm2d) for layer in frozen[1])


def test_dilation_takes_turns_and_keeps_the_size():
    stage = resnet("resnet50").layer4
    dilate(stage, [2, 4])
    blocks = list(stage.children())
    assert [block.conv2.dilation for block in blocks] == [(2, 2), (4, 4), (2, 2)]
    assert [block.conv2.padding for block in blocks] == [(2, 2), (4, 4), (2, 2)]
    convolutions = [module for module in stage.modules() if isinstance(module, nn.Conv2d)]
    assert {module.stride for module in convolutions} == {(1, 1)}
    assert {module.dilation for module in convolutions if module.kernel_size == (1, 1)} == {(1, 1)}
    assert stage(torch.randn(2, 128, 5, 7)).shape[-2:] == (5, 7)


@pytest.mark.parametrize("norm", ["", "BN"])
@torch.no_grad()
def test_a_pyramid_is_the_sum_of_what_comes_from_the_side_and_from_above(norm: str):
    pyramid = FPN(BottomUp(resnet()), SOURCES, 12, norm=norm, top_block=MaxPoolP6()).eval()
    x = torch.randn(1, 3, 64, 96)
    stages, found = pyramid.bottom_up(x), pyramid(x)
    assert list(found) == ["p2", "p3", "p4", "p5", "p6"]
    above = None
    for level in (5, 4, 3, 2):
        lateral = getattr(pyramid, f"fpn_lateral{level}")(stages[f"res{level}"])
        if above is not None:
            lateral = lateral + above.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        above = lateral
        torch.testing.assert_close(found[f"p{level}"], getattr(pyramid, f"fpn_output{level}")(lateral))
    assert torch.equal(found["p6"], found["p5"][:, :, ::2, ::2])
    assert pyramid.strides == {"p2": 4, "p3": 8, "p4": 16, "p5": 32, "p6": 64}
    assert pyramid.channels == dict.fromkeys(found, 12)
    assert (pyramid.size_divisibility, pyramid.square) == (32, 0)
    layer = pyramid.get_submodule("fpn_output3")
    assert (layer.kernel_size, layer.padding, layer.norm is None) == ((3, 3), (1, 1), norm == "")
    assert layer.weight.abs().max().item() == pytest.approx((3 / (12 * 9)) ** 0.5, rel=0.02)
    assert (layer(torch.randn(1, 12, 4, 4)) < 0).any()  # no ReLU


@pytest.mark.parametrize(("source", "inputs"), [("res5", 64), ("p5", 12)])
@torch.no_grad()
def test_dense_detectors_have_two_strided_levels_above(source: str, inputs: int):
    pyramid = FPN(BottomUp(resnet()), SOURCES[1:], 12, norm="", top_block=ConvP6P7(inputs, 12, source), square=64)
    x = torch.randn(1, 3, 64, 64)
    found, top = pyramid(x), pyramid.top_block
    below = pyramid.bottom_up(x)["res5"] if source == "res5" else found["p5"]
    p6 = F.conv2d(below, top.p6.weight, top.p6.bias, stride=2, padding=1)
    torch.testing.assert_close(found["p6"], p6)
    torch.testing.assert_close(found["p7"], F.conv2d(p6.clamp(min=0), top.p7.weight, top.p7.bias, stride=2, padding=1))
    assert list(found) == ["p3", "p4", "p5", "p6", "p7"]
    assert pyramid.strides["p7"] == 128
    assert pyramid.square == 64
    assert not top.p6.bias.any()


class OneMap(nn.Module):
    """A network with one map of stride 16."""

    def __init__(self) -> None:
        super().__init__()
        self.channels, self.proj = {"last_feat": 16}, nn.Conv2d(3, 16, 16, stride=16)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"last_feat": self.proj(x)}


@torch.no_grad()
def test_a_simple_pyramid_makes_all_levels_of_one_map():
    torch.manual_seed(0)
    levels = ["p2", "p3", "p4", "p5"]
    pyramid = SimplePyramid(OneMap(), levels, 12, norm="LN", top_block=MaxPoolP6(), square=128)
    found = pyramid(torch.randn(1, 3, 64, 96))
    strides = {"p2": 4, "p3": 8, "p4": 16, "p5": 32, "p6": 64}
    assert {name: tuple(m.shape) for name, m in found.items()} == {
        name: (1, 12, -(-64 // stride), -(-96 // stride)) for name, stride in strides.items()
    }
    assert pyramid.strides == strides
    assert pyramid.channels == dict.fromkeys(strides, 12)
    assert (pyramid.size_divisibility, pyramid.square) == (32, 128)
    x = torch.randn(1, 16, 4, 6)
    first, norm, gelu, second, one, three = pyramid.simfp_2
    up = F.gelu(norm(F.conv_transpose2d(x, first.weight, first.bias, stride=2)))
    up = F.conv_transpose2d(up, second.weight, second.bias, stride=2)
    assert [m.shape[1] for m in (norm(first(x)), up)] == [8, 4]
    torch.testing.assert_close(pyramid.simfp_2(x), three(one(up)))
    assert isinstance(gelu, nn.GELU)
    assert [layer.out_channels for layer in pyramid.simfp_3 if isinstance(layer, nn.ConvTranspose2d)] == [8]
    assert len(pyramid.simfp_4) == 2
    torch.testing.assert_close(pyramid.simfp_5(x), pyramid.simfp_5[2](pyramid.simfp_5[1](F.max_pool2d(x, 2))))
    with pytest.raises(ValueError, match="needs a norm"):
        SimplePyramid(OneMap(), levels, 12, norm="", top_block=MaxPoolP6())


def test_a_single_scale_keeps_what_is_below_it():
    scale = SingleScale(BottomUp(resnet()))
    assert (scale.size_divisibility, scale.square) == (1, 0)
    assert scale.strides == scale.bottom_up.strides
    assert scale.channels["res5"] == 64
