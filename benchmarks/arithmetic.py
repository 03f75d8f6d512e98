"""The convolutions and matrix products of a training step alone: with the same kernels no step can be faster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[], None]
Call = tuple[nn.Module, Tensor, Tensor]  # a layer, what it was given, a gradient of its output
_KINDS: tuple[Any, ...] = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


@contextmanager
def recorded(network: nn.Module) -> Iterator[list[Call]]:
    """Every call of a convolution or linear layer within the block, for `alone`."""
    calls: list[Call] = []

    def keep(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        inner = inputs[0].detach().clone().requires_grad_(inputs[0].requires_grad)
        calls.append((layer, inner, torch.randn_like(output)))

    hooks = [layer.register_forward_hook(keep) for layer in network.modules() if isinstance(layer, _KINDS)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def alone(trained: list[Call], forwards: list[Call]) -> Step:
    """The layers of ``trained`` forward and backward, those of ``forwards`` without gradients, each on its own.

    A norm or an activation that a layer brings along is left out.
    """

    def output(layer: nn.Module, given: Tensor) -> Tensor:
        kind = next(kind for kind in _KINDS if isinstance(layer, kind))
        result: Tensor = kind.forward(layer, given)
        return result

    def step() -> None:
        for layer, given, gradient in trained:
            if given.numel() == 0:
                continue
            given.grad = None
            layer.zero_grad(set_to_none=True)
            found = output(layer, given)
            if found.requires_grad:
                found.backward(gradient)
        with torch.no_grad():
            for layer, given, _ in forwards:
                output(layer, given)

    return step
