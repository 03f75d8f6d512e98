"""BatchNorm in a network of any make: whether it has any, and another normalisation in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def replace_batch_norm(network: nn.Module, norm_layer: Callable[[int], nn.Module]) -> None:
    """Put ``norm_layer(channels)`` in the place of every BatchNorm, with its scale and shift, its epsilon, and the
    activation that timm keeps inside some of them; tensor names stay."""
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _replaced(child, norm_layer(child.num_features)))


@torch.no_grad()
def _replaced(old: Any, new: nn.Module) -> nn.Module:
    for name in ("weight", "bias"):
        before, after = getattr(old, name), getattr(new, name, None)
        if before is not None and after is not None:
            after.copy_(before)
    if hasattr(new, "eps"):
        new.__dict__["eps"] = old.eps
    if hasattr(old, "act"):  # timm's BatchNormAct2d
        new.add_module("drop", old.drop)
        new.add_module("act", old.act)
        new.register_forward_hook(_activate)
    return new


def _activate(module: Any, inputs: Any, output: Tensor) -> Tensor:
    return module.act(module.drop(output))


def has_batch_norm(network: nn.Module) -> bool:
    """Whether anything in it keeps running statistics of batches."""
    return any(isinstance(module, _BatchNorm) for module in network.modules())
