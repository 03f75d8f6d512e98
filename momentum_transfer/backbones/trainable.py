"""Which part of a backbone is trained: all, nothing, its last blocks, its normalisations, or low-rank updates (LoRA).

Layers are counted as residual or transformer blocks from the stem (0) on, for rates by layer too (BEiT, arXiv
2106.08254). LoRA: Hu et al., arXiv 2106.09685, section 4.1, on the attention of ViTs.
"""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core.errors import InputError, shown

ALL, FROZEN, LAST, NORMS, LORA = "all", "frozen", "last", "norms", "lora"
#: Rank of ``lora`` without a number.
RANK = 8
_BLOCK = re.compile(r"^(?:layer(\d+)|blocks)\.(\d+)\.")
#: Linear layers that LoRA updates: those of attention, by timm's names.
_ATTENTION = re.compile(r"(?:^|\.)attn\.(?:qkv|proj)$")
_NORM_TYPES = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d)
_UNTRAINED = "untrained"
#: How the names of low-rank updates end.
UPDATES = (".lora_a", ".lora_b")


def layers_of(network: nn.Module) -> dict[str, int]:
    """Parameter name -> its layer: 0 for the stem, then block after block; timm says it of its own networks.

    InputError for a network whose blocks are not known.
    """
    if isinstance(network, TimmBackbone) and hasattr(network.network, "group_matcher"):
        from timm.models import group_parameters

        matcher = network.network.group_matcher(coarse=False)
        layers: dict[str, int] = group_parameters(network.network, matcher, reverse=True)
        return layers
    names = [name for name, _ in network.named_parameters()]
    found = {name: (int(match[1] or 0), int(match[2])) for name in names if (match := _BLOCK.match(name))}
    if not found or isinstance(network, TimmBackbone):
        raise InputError(f"expected a network whose blocks are known, found {_named(network)}; leave rates by layer at "
                         "1, and train all of it, or nothing")  # fmt: skip
    number = {place: 1 + index for index, place in enumerate(sorted(set(found.values())))}
    return {name: number[found[name]] if name in found else 0 for name in names}


def _named(network: nn.Module) -> str:
    return str(getattr(network, "architecture", type(network).__name__))


def rate_factors(network: nn.Module, decay: float) -> dict[str, float]:
    """Parameter name -> factor of the learning rate: ``decay`` to the power of the layers above it, head included."""
    if decay == 1.0:
        return {}
    layers = layers_of(network)
    above = max(layers.values()) + 1
    return {name: decay ** (above - layer) for name, layer in layers.items()}


def check_part(network: nn.Module, part: str) -> None:
    """Raise InputError where ``train_only`` would refuse ``part``; ``network`` may be on the meta device."""
    if part.startswith(LAST):
        layers, count = layers_of(network), int(part.partition("-")[2])
        if count > (most := max(layers.values())):
            raise InputError(f"expected last-1 to last-{most}, found {part}: the network has {most} blocks; lower it")
    if part == NORMS and not any(isinstance(module, _NORM_TYPES) for module in network.modules()):
        raise InputError("expected a network with normalisation layers for norms, found none; train last-K instead")
    if part.startswith(LORA) and not _attention(network):
        raise InputError(f"expected a ViT of timm for {part}, found {_named(network)}; train norms or last-K instead")


def _attention(network: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in network.named_modules()
            if isinstance(module, nn.Linear) and _ATTENTION.search(name)}  # fmt: skip


def train_only(network: nn.Module, part: str, seed: int = 0) -> None:
    """Let only ``part`` of a backbone take gradients, in place.

    BatchNorm layers without trained parameters keep their running statistics, and normalise with them.

    Args:
        part: "all"; "frozen"; "last-K", the last K blocks; "norms", scales and shifts of all normalisations; "lora" or
            "lora-R", low-rank updates of rank R beside the linear layers of a ViT's attention.
        seed: of the random half of the updates.

    Raises:
        InputError: the network has no such part.
    """
    if part == ALL:
        return
    check_part(network, part)
    trained: set[str] = set()
    if part.startswith(LAST):
        layers = layers_of(network)
        first = max(layers.values()) - int(part.partition("-")[2]) + 1
        trained = {name for name, layer in layers.items() if layer >= first}
    if part == NORMS:
        modules = [item for item in network.named_modules() if isinstance(item[1], _NORM_TYPES)]
        trained = {f"{name}.{key}" for name, module in modules for key, _ in module.named_parameters(recurse=False)}
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in trained)
    untrained = {name for name, _ in network.named_parameters() if name not in trained}
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm) and not any(p.requires_grad for p in module.parameters()):
            keep_statistics(module)
            untrained |= {f"{name}.{key}" for key, _ in module.named_buffers()}
    if part.startswith(LORA):
        rank = int(part.partition("-")[2] or RANK)
        generator = torch.Generator().manual_seed(seed)
        for layer in _attention(network).values():
            _add_updates(layer, rank, generator)
    if part == FROZEN:  # drop path too
        network.eval()
        network.__dict__["train"] = partial(_stay, network)
    network.__dict__[_UNTRAINED] = frozenset(untrained)


def keep_statistics(module: nn.Module) -> None:
    """Keep every BatchNorm of a module in evaluation mode, whatever ``train`` is asked."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()
            layer.__dict__["train"] = partial(_stay, layer)


def use_batch_statistics(module: nn.Module) -> None:
    """Let every BatchNorm of a module normalise with its batch, but those that keep their statistics.

    The rest stays in its mode: no dropout, no drop path. Before a training its network is tried so, because stored
    statistics need not fit weights that were rescaled (RCF, arXiv 2208.00275, section 4.1).
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.train()


def _stay(layer: nn.Module, mode: bool = True) -> nn.Module:
    return layer


class LoRALinear(nn.Linear):
    """y = x Wᵀ + b + x Aᵀ Bᵀ, eq. 3 with α = r: ``lora_a`` [r, in] at random, ``lora_b`` [out, r] from 0."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter

    def forward(self, input: Tensor) -> Tensor:
        update = F.linear(F.linear(input, self.lora_a), self.lora_b)
        return super().forward(input) + update


def _add_updates(layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
    """Make a linear layer a `LoRALinear` in place: its tensors keep their names."""
    layer.__class__ = LoRALinear
    options: Any = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    bound = layer.in_features**-0.5  # peft's: He's for a slope of √5
    random = torch.rand(rank, layer.in_features, generator=generator) * 2 * bound - bound
    layer.lora_a = nn.Parameter(random.to(**options))
    layer.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank, **options))


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The module's state with every low-rank update added to its layer's weights: that of a plain network."""
    state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    for name in [name for name in state if name.endswith(UPDATES[0])]:
        layer = name.removesuffix(UPDATES[0])
        update = state.pop(layer + UPDATES[1]) @ state.pop(name)
        state[f"{layer}.weight"] = state[f"{layer}.weight"] + update
    return state


def describe_trained(parameters: Iterable[nn.Parameter]) -> str:
    """For the log: how many parameters are trained, and which fraction."""
    every = list(parameters)
    trained = sum(p.numel() for p in every if p.requires_grad)
    total = sum(p.numel() for p in every)
    return f"{trained:,} of {total:,} parameters are trained ({trained / max(total, 1):.2%})"


def untrained_names(module: nn.Module) -> set[str]:
    """Names of the tensors that `train_only` left as the weights have them, anywhere in a module."""
    return {f"{prefix}.{name}" if prefix else name for prefix, inner in module.named_modules()
            for name in inner.__dict__.get(_UNTRAINED, ())}  # fmt: skip


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """A module's state without what `train_only` left as its weights have it."""
    untrained = untrained_names(module)
    return {name: tensor for name, tensor in module.state_dict().items() if name not in untrained}


def load_trained_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what `trained_state` gave; RuntimeError where it is not all of it, or more."""
    untrained = untrained_names(module)
    if more := sorted(untrained.intersection(state)):
        raise RuntimeError(f"expected trained tensors alone, found {shown(more[0])}")
    kept = {name: tensor for name, tensor in module.state_dict().items() if name in untrained}
    module.load_state_dict({**state, **kept})
