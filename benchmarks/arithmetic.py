"""The convolutions and matrix products of a training step alone: with the same kernels no step can be faster.

And where a whole step goes, by torch's profiler: the network's arithmetic in its kinds, and everything else.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.profiler import ProfilerActivity, profile, record_function

from momentum_transfer.core.log import table

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


#: kind -> names of operators, or of what they are called by, innermost first. "batch_norm" and "network" are marks.
_PARTS = {
    "convolutions and products": r"[Cc]onv|[Aa]ddmm|\bb?mm\b|[Ll]inear",
    "normalisation": r"[Bb]atch_?[Nn]orm",
    "RoIAlign, NMS": r"roi_align|nms",
    "activations, pooling, additions": r"[Rr]elu|threshold|[Pp]ool|[Uu]psample|[Gg]ather|Add|^network|Accumulate",
    "optimizer, teacher's weights": r"Optimizer\.|foreach_lerp",
}
OTHER = "everything else"


def _part(event: Any) -> str:
    while event is not None:
        for kind, pattern in _PARTS.items():
            if re.search(pattern, event.name):
                return kind
        event = event.cpu_parent
    return OTHER


def split(title: str, step: Step, networks: list[nn.Module], rounds: int) -> None:
    """Print what fraction of a step on the CPU each kind of operator takes; Python and all the rest are ``OTHER``.

    Args:
        networks: the sums within their forwards, of residual blocks, count as the network's.
    """
    hooks = []

    def mark(module: nn.Module, name: str) -> None:
        open_marks: list[Any] = []

        def enter(*_: Any) -> None:
            open_marks.append(record_function(name))
            open_marks[-1].__enter__()

        def leave(*_: Any) -> None:
            open_marks.pop().__exit__(None, None, None)

        hooks.extend((module.register_forward_pre_hook(enter), module.register_forward_hook(leave)))

    for network in networks:
        mark(network, "network")
        for module in network.modules():
            if isinstance(module, _BatchNorm):
                mark(module, "batch_norm")
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(rounds):
            with record_function("step"):
                step()
    for hook in hooks:
        hook.remove()
    spent = dict.fromkeys((*_PARTS, OTHER), 0.0)
    for event in found.events() or ():
        spent[_part(event)] += event.self_cpu_time_total
    whole = sum(spent.values())
    rows = [(kind, f"{value / rounds / 1000:.1f}", f"{value / whole:.1%}") for kind, value in spent.items()]
    table(title, ("where a step goes", "ms", "of the step"), [row for row in rows if row[2] != "0.0%"])
