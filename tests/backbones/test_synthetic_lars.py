"""Synthetic LARS: which function a scaled network computes, how it learns, and the way back by NormRescale."""

import pytest
import torch
from torch import Tensor, nn

from momentum_transfer.backbones.convert import convert_file
from momentum_transfer.backbones.norm_rescale import LARS_SCOPES, rescale_by_constant, rescale_to_anchor, scale_weights
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError

BOTTLENECK = Architecture("resnet50", 4)


def sample(architecture: Architecture = BOTTLENECK) -> tuple[dict[str, Tensor], Tensor]:
    """A state with no gamma or beta at its start, and the images whose batch statistics it stores."""
    torch.manual_seed(0)
    net, images = build_resnet(architecture), torch.randn(8, 3, 64, 64)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return after_a_pass(net.state_dict(), images, architecture), images


def after_a_pass(state: dict[str, Tensor], images: Tensor, architecture: Architecture) -> dict[str, Tensor]:
    """The state with the batch statistics of the images, as the network itself stores them."""
    net = build_resnet(architecture)
    net.load_state_dict(state)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    net.train()(images)
    return net.state_dict()


def loaded(state: dict[str, Tensor], architecture: Architecture = BOTTLENECK) -> nn.Module:
    net = build_resnet(architecture)
    net.load_state_dict(state)
    return net.double().eval()


@pytest.mark.parametrize("scope", LARS_SCOPES)
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_the_function_in_eval_mode_stays_and_only_gamma_and_beta_scale_its_features(scope, stem):
    architecture = Architecture("resnet10", 8, stem)
    state, images = sample(architecture)
    before = loaded(state, architecture)(images.double())
    after = loaded(scale_weights(state, 10.0, scope), architecture)(images.double())
    times = 10.0 if "bn" in scope else 1.0
    torch.testing.assert_close(after / times, before, rtol=0.01, atol=1e-3)  # eps weighs less at ten times the scale


@pytest.mark.parametrize("scope", LARS_SCOPES)
def test_the_statistics_follow_as_the_scaled_network_itself_would_store_them(scope):
    state, images = sample()
    scaled = scale_weights(state, 10.0, scope)
    stored = after_a_pass(scaled, images, BOTTLENECK)
    for name in (name for name in state if "running" in name):
        torch.testing.assert_close(scaled[name], stored[name], rtol=0.02, atol=0.01 * float(stored[name].abs().max()))


def test_a_convolution_times_c_gets_a_gradient_of_one_over_c():
    state, images = sample(Architecture("resnet10", 8))
    gradients = []
    for weights in (state, scale_weights(state, 10.0, "conv")):
        net = loaded(weights, Architecture("resnet10", 8)).train()
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-200  # what the scale is divided out up to
        net(images.double()).square().mean().backward()
        gradients.append({name: p.grad for name, p in net.named_parameters() if p.dim() == 4})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(
            gradients[1][name] * 10, gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max())
        )


@pytest.mark.parametrize("scope", LARS_SCOPES)
def test_normrescale_with_the_original_is_the_way_back_within_rounding(scope):
    state, _ = sample()
    scaled = scale_weights(state, 10.0, scope)
    assert any(not torch.equal(scaled[name], state[name]) for name in state)
    for name, tensor in rescale_to_anchor(scaled, state, "all").items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-6, atol=0)


def test_the_constant_is_the_way_back_of_the_weights_alone():
    state, _ = sample()
    back = rescale_by_constant(scale_weights(state, 10.0), 0.1)
    for name, tensor in back.items():
        power = 0 if "running" not in name else 1 if name.startswith("bn1.") else 2
        power *= 2 if name.endswith("running_var") else 1
        torch.testing.assert_close(tensor, state[name] * 10**power, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("factor", "scope", "found"),
    [
        (0.0, "conv", "expected a positive factor for --scale, found 0"),
        (float("nan"), "conv", "found nan"),
        (10.0, "all", "expected a scope of conv, bn, conv\\+bn for --scale, found 'all'"),
        (1e30, "conv", "overflowing"),
    ],
)
def test_what_cannot_be_scaled_is_refused(factor, scope, found):
    with pytest.raises(InputError, match=found):
        scale_weights(sample()[0], factor, scope)


def test_the_converter_scales_says_so_and_takes_one_way_at_a_time(tmp_path):
    torch.save(sample()[0], tmp_path / "sgd.pth")
    convert_file(tmp_path / "sgd.pth", tmp_path / "x10.safetensors", scale=10.0, scope="conv")
    made, source = load_backbone(tmp_path / "x10.safetensors"), load_backbone(tmp_path / "sgd.pth")
    assert made.metadata["scaled"] == "scale 10 scope conv, statistics follow"
    torch.testing.assert_close(made.state["conv1.weight"], source.state["conv1.weight"] * 10)
    torch.testing.assert_close(made.state["bn1.running_var"], source.state["bn1.running_var"] * 100)
    with pytest.raises(InputError, match="expected one of anchor, constant and scale"):
        convert_file(tmp_path / "sgd.pth", tmp_path / "both.pth", scale=10.0, constant=0.1)
    assert not (tmp_path / "both.pth").exists()
