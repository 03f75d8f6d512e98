"""The convolutions and matrix products of a training step alone: with the same kernels no step can be faster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[], None]


@contextmanager
def recorded(network: nn.Module) -> Iterator[list[tuple[nn.Module, Tensor, Tensor]]]:
    """Every call of a convolution or linear layer in the block: the layer, its input and its output, for `alone`."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        inner = inputs[0].detach().clone().requires_grad_(inputs[0].requires_grad)
        calls.append((layer, inner, torch.randn_like(output)))

    kinds = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
    hooks = [layer.register_forward_hook(keep) for layer in network.modules() if isinstance(layer, kinds)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def alone(trained: list[tuple[nn.Module, Tensor, Tensor]], forwards: list[tuple[nn.Module, Tensor, Tensor]]) -> Step:
    """The layers of ``trained`` forward and backward, those of ``forwards`` without gradients, each on its own."""

    def step() -> None:
        for layer, given, gradient in trained:
            if given.numel() == 0:
                continue
            given.grad = None
            layer.zero_grad(set_to_none=True)
            output = layer(given)
            if output.requires_grad:
                output.backward(gradient)
        with torch.no_grad():
            for layer, given, _ in forwards:
                layer(given)

    return step
