"""Which part of a backbone is trained; LoRA against peft."""

import copy

import pytest
import torch
from torch import nn

from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.backbones.trainable import (
    LoRALinear,
    check_part,
    describe_trained,
    layers_of,
    load_trained_state,
    merged_state,
    rate_factors,
    train_only,
    trained_state,
)
from momentum_transfer.core.errors import InputError

VIT, SMALL = "timm:test_vit?img_size=32", "resnet10?width=4"


def network_of(text):
    torch.manual_seed(0)
    return build_backbone(text)


def trained(network):
    return {name for name, parameter in network.named_parameters() if parameter.requires_grad}


def test_layers_of_a_resnet_are_its_blocks_from_the_stem_on():
    layers = layers_of(network_of("resnet18?width=4"))
    assert (layers["conv1.weight"], layers["bn1.bias"], layers["layer1.0.conv1.weight"]) == (0, 0, 1)
    assert (layers["layer1.1.conv1.weight"], layers["layer4.1.bn2.weight"]) == (2, 8)


def test_layers_of_a_vit_are_its_blocks_and_the_norm_belongs_to_the_last():
    network = network_of(VIT)
    layers = layers_of(network)
    assert (layers["pos_embed"], layers["blocks.0.norm1.weight"]) == (0, 1)
    assert layers["norm.weight"] == layers[f"blocks.{network.depth - 1}.mlp.fc2.weight"] == network.depth
    factors = rate_factors(network, 0.5)
    assert (factors["norm.weight"], factors["pos_embed"]) == (0.5, 0.5 ** (network.depth + 1))


@pytest.mark.parametrize(
    ("text", "part", "belongs"),
    [
        (SMALL, "frozen", lambda name: False),
        (SMALL, "last-2", lambda name: name.startswith(("layer3", "layer4"))),
        (SMALL, "norms", lambda name: "bn" in name or "downsample.1" in name),
        (VIT, "norms", lambda name: "norm" in name),
        (VIT, "last-1", lambda name: name.startswith("norm.") or ".".join(name.split(".")[:2]) == LAST_BLOCK),
        (VIT, "lora-2", lambda name: name.endswith(("lora_a", "lora_b"))),
    ],
)
def test_only_the_part_that_is_named_takes_gradients(text, part, belongs):
    network = network_of(text)
    train_only(network, part)
    names = [name for name, _ in network.named_parameters()]
    assert trained(network) == {name for name in names if belongs(name)}


LAST_BLOCK = f"blocks.{network_of(VIT).depth - 1}"


def test_statistics_of_frozen_layers_stay_whatever_mode_is_asked_and_those_of_trained_ones_move():
    network = network_of(SMALL)
    train_only(network, "last-1")
    before = copy.deepcopy(network.state_dict())
    network.train()(torch.randn(4, 3, 32, 32))
    moved = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith("layer4") and ("running" in name or "tracked" in name)}
    frozen = network_of(SMALL)
    train_only(frozen, "frozen")
    frozen.train()
    assert not any(module.training for module in frozen.modules())


def test_the_trained_state_and_the_weights_make_the_network_again():
    network = network_of(VIT)
    train_only(network, "lora-2")
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    state = trained_state(network)
    assert set(state) == trained(network)
    other = network_of(VIT)
    train_only(other, "lora-2", seed=1)
    load_trained_state(other, state)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(other.eval()(images), network.eval()(images))
    with pytest.raises(RuntimeError):
        load_trained_state(other, {})
    with pytest.raises(RuntimeError, match="trained tensors alone"):
        load_trained_state(other, network.state_dict())


def test_lora_starts_as_the_network_and_merges_into_plain_weights():
    network, images = network_of(VIT).eval(), torch.randn(2, 3, 32, 32)
    plain, shapes = network(images), {name: value.shape for name, value in network.state_dict().items()}
    train_only(network, "lora")
    assert torch.equal(network(images), plain)
    torch.manual_seed(1)
    for module in network.modules():
        if isinstance(module, LoRALinear):
            nn.init.normal_(module.lora_b, std=0.1)
    updated, merged = network(images), merged_state(network)
    assert not torch.allclose(updated, plain, atol=1e-3)
    assert {name: value.shape for name, value in merged.items()} == shapes
    again = network_of(VIT).eval()
    again.load_state_dict(merged)
    torch.testing.assert_close(again(images), updated, rtol=1e-4, atol=1e-5)


def test_lora_equals_peft_in_outputs_and_gradients():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    ours, plain = network_of(VIT).double(), network_of(VIT).double()
    train_only(ours, "lora-4", seed=3)
    config = peft.LoraConfig(r=4, lora_alpha=4, target_modules=r".*attn\.(qkv|proj)", lora_dropout=0.0)
    wrapped = peft.get_peft_model(plain, config)
    layers = {name.removeprefix("base_model.model."): module for name, module in wrapped.named_modules()
              if hasattr(module, "lora_A") and len(module.lora_A)}  # fmt: skip
    own = {name: module for name, module in ours.named_modules() if isinstance(module, LoRALinear)}
    assert own.keys() == layers.keys()
    torch.manual_seed(7)
    with torch.no_grad():
        for name, module in own.items():
            module.lora_b.normal_(std=0.1)
            layers[name].lora_A["default"].weight.copy_(module.lora_a)
            layers[name].lora_B["default"].weight.copy_(module.lora_b)
    outputs = [network(images) for network in (ours, wrapped)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-6)
    for output in outputs:
        output.square().sum().backward()
    for name, module in own.items():
        torch.testing.assert_close(module.lora_a.grad, layers[name].lora_A["default"].weight.grad, rtol=0, atol=1e-6)
        torch.testing.assert_close(module.lora_b.grad, layers[name].lora_B["default"].weight.grad, rtol=0, atol=1e-6)
    counts = [sum(p.numel() for p in network.parameters() if p.requires_grad) for network in (ours, wrapped)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("text", "part", "message"),
    [
        (SMALL, "lora", r"expected a ViT of timm for lora, found resnet10\?width=4"),
        (SMALL, "last-5", "last-1 to last-4, found last-5: the network has 4 blocks"),
        (None, "last-1", "a network whose blocks are known, found Linear"),
        (None, "norms", "a network with normalisation layers for norms, found none"),
    ],
)
def test_a_part_that_a_network_does_not_have_is_refused(text, part, message):
    with pytest.raises(InputError, match=message):
        check_part(network_of(text) if text else nn.Linear(2, 2), part)


def test_what_is_trained_is_said_as_a_count_and_a_fraction():
    network = nn.Sequential(nn.Linear(9, 10), nn.LayerNorm(10))
    train_only(network, "norms")
    assert describe_trained(network.parameters()) == "20 of 120 parameters are trained (16.67%)"
