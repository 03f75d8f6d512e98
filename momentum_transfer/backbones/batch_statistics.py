"""How noisy a network's batch statistics make its outputs: the same image among other images of the batch.

A teacher that normalises with the statistics of its batch gives one view of an image another target in every batch
("Momentum² Teacher", arXiv 2101.07525, section 3.1, whose Momentum BN blends them with a history; "EMAN", arXiv
2101.08482, section 1: cross-sample dependency). Measured as the cosine distance between the outputs of one view in
different batches, as a fraction of the mean distance between images under the same normalisation: 0 where the other
images do not matter, 1 where they matter as much as the image itself. There is no published number for it.

Also: whether a network has BatchNorm, and another normalisation instead.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from momentum_transfer.core.errors import InputError


def replace_batch_norm(network: nn.Module, norm_layer: Callable[[int], nn.Module]) -> None:
    """Replace every BatchNorm by ``norm_layer(channels)`` with its scale, shift, epsilon and (timm) activation."""
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


#: Images that go through the network at once, at most, but always whole batches.
_AT_ONCE = 512


@dataclass(frozen=True)
class Noise:
    """``relative`` = ``same`` / ``different``: mean cosine distances of one view's outputs, and of different views'."""

    same: float
    different: float

    @property
    def relative(self) -> float:
        """Fraction of the distance between images; 0 of a network that gives all images one output."""
        return self.same / self.different if self.different > 0 else 0.0


def statistics_noise(
    network: nn.Module, views: Tensor, batch: int, alpha: float, sets: int = 4, seed: int = 0
) -> Noise:
    """The noise of the outputs under BN of ``batch`` images.

    Args:
        network: images [N, 3, H, W] -> outputs [N, D]; its statistics and mode stay as they are.
        views: [N, 3, H, W], one of each image; N a multiple of ``batch``.
        alpha: weight of the batch's mean and (biased) variance against the running ones: 1 is plain BN, 0 evaluation.
        sets: random sets of other images for each view, at least 2; drawn with ``seed``.
    """
    check_sizes(len(views), batch, sets)
    if not has_batch_norm(network):
        raise InputError("expected a network with batch normalisation, found none: its outputs have no such noise")
    generator = torch.Generator().manual_seed(seed)
    outputs, mode = [], network.training
    network.eval()
    try:
        with _blended_statistics(network, batch, alpha), torch.no_grad():
            for _ in range(sets):
                order = torch.randperm(len(views), generator=generator).to(views.device)
                outputs.append(_in_order(network, views, order, batch))
    finally:
        network.train(mode)
    return distances(torch.stack(outputs))


def check_sizes(views: int, batch: int, sets: int) -> None:
    """Raise InputError for batches that the views do not fill, or a single set of other images."""
    if batch < 2 or views % batch or views < 2:
        raise InputError(f"expected batches of at least 2 that divide the {views} views, found {batch}; change one")
    if sets < 2:
        raise InputError(f"expected at least 2 sets of other images, found {sets}; raise --other-sets")


def distances(outputs: Tensor) -> Noise:
    """Mean cosine distances of outputs [R, N, D]: of one view over R sets of other images, and between N views."""
    unit = torch.nn.functional.normalize(outputs.double(), dim=-1)
    sets, views = unit.shape[:2]
    # Over all ordered pairs Σ u·v = |Σ u|², of which the R (or N) pairs of a vector with itself are no pairs.
    same = 1 - (unit.sum(0).square().sum(-1) - sets) / (sets * (sets - 1))
    different = 1 - (unit.sum(1).square().sum(-1) - views) / (views * (views - 1))
    return Noise(max(0.0, float(same.mean())), float(different.mean()))


@contextlib.contextmanager
def _blended_statistics(network: nn.Module, batch: int, alpha: float) -> Iterator[None]:
    """Within it every BatchNorm normalises ``batch`` images at a time by a blend of batch and running statistics."""
    layers = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    for layer in layers:
        if layer.running_mean is None:
            raise InputError("expected BatchNorm layers with running statistics, found one without; nothing to blend")
        layer.__dict__["forward"] = _blended(layer, batch, alpha)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _blended(layer: Any, batch: int, alpha: float) -> Callable[[Tensor], Tensor]:
    def forward(input: Tensor) -> Tensor:
        assert layer.running_mean is not None
        assert layer.running_var is not None
        groups = input.reshape(len(input) // batch, batch, input.shape[1], -1)  # G x n x C x positions
        var, mean = torch.var_mean(groups, dim=(1, 3), correction=0, keepdim=True)
        mean = torch.lerp(layer.running_mean.view(1, 1, -1, 1), mean, alpha)
        var = torch.lerp(layer.running_var.view(1, 1, -1, 1), var, alpha)
        output = (groups - mean) * torch.rsqrt(var + layer.eps)
        if layer.weight is not None:
            output = output * layer.weight.view(1, 1, -1, 1)
        if layer.bias is not None:
            output = output + layer.bias.view(1, 1, -1, 1)
        output = output.reshape(input.shape)
        return layer.act(layer.drop(output)) if hasattr(layer, "act") else output  # timm's BatchNormAct2d

    return forward


def _in_order(network: nn.Module, views: Tensor, order: Tensor, batch: int) -> Tensor:
    """Outputs [N, D] of the views, which go through the network in ``order`` and come back in their own."""
    size = max(batch, _AT_ONCE // batch * batch)
    outputs = torch.cat([network(views[part]) for part in order.split(size)])
    return torch.empty_like(outputs).index_copy_(0, order, outputs)
