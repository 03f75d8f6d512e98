"""Similarity of two backbones: linear CKA of their features by block, and the norms of their weights.

CKA: Kornblith et al., "Similarity of Neural Network Representations Revisited" (arXiv 1905.00414), linear kernel:
``CKA = HSIC(K, L) / sqrt(HSIC(K, K) · HSIC(L, L))``, K = X X^T, L = Y Y^T. Estimated from mini-batches as in Nguyen et
al., "Do Wide and Deep Networks Learn the Same Things?" (arXiv 2010.15327), equations 3 and 4: each HSIC is the mean
over batches of the unbiased estimator of Song et al. (JMLR 2012), so memory does not grow with the number of images.
The ratio of unbiased estimates is consistent, and may leave [0, 1] slightly. The biased estimator that most code uses
tends to 1 where features outnumber images.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.network_input import IMAGENET_MEAN, IMAGENET_STD
from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core.errors import InputError

#: Fewer images leave the unbiased estimator undefined (it divides by n - 3).
MIN_BATCH = 4


def unbiased_hsic(first: Tensor, second: Tensor) -> Tensor:
    """Unbiased HSIC [A, B] of every pair of Gram matrices [A, n, n] and [B, n, n] of the same n samples; can be < 0
    (Song et al. 2012, equation 5)."""
    n = first.shape[-1]
    if n < MIN_BATCH:
        raise InputError(f"expected at least {MIN_BATCH} images a batch for the unbiased HSIC, found {n}; give more")
    eye = torch.eye(n, dtype=torch.bool, device=first.device)
    k, l_ = first.masked_fill(eye, 0.0), second.masked_fill(eye, 0.0)  # the diagonals are what biases HSIC
    k_rows, l_rows = k.sum(-1), l_.sum(-1)  # [A, n], [B, n]
    trace = torch.einsum("anm,bnm->ab", k, l_)
    totals = k_rows.sum(-1)[:, None] * l_rows.sum(-1)[None, :]
    return (trace + totals / ((n - 1) * (n - 2)) - 2 / (n - 2) * k_rows @ l_rows.T) / (n * (n - 3))


class MinibatchCKA:
    """Linear CKA between every layer of one network and every layer of another, fed batches of one size."""

    def __init__(self) -> None:
        self._cross: Tensor | float = 0.0
        self._first: Tensor | float = 0.0
        self._second: Tensor | float = 0.0
        self.batches = 0

    def update(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
        """Add a batch: features [n, …] of the layers of both networks, for the same n images."""
        self.update_grams(_grams(first), _grams(second))

    def update_grams(self, k: Tensor, l_: Tensor) -> None:
        """Add a batch by its Gram matrices [layers, n, n] of both networks."""
        self._cross = self._cross + unbiased_hsic(k, l_)
        self._first = self._first + torch.cat([unbiased_hsic(gram[None], gram[None])[0] for gram in k])
        self._second = self._second + torch.cat([unbiased_hsic(gram[None], gram[None])[0] for gram in l_])
        self.batches += 1

    def compute(self) -> Tensor:
        """CKA [layers of the first, layers of the second]; NaN where the features of a layer do not vary."""
        if not (isinstance(self._first, Tensor) and isinstance(self._second, Tensor)):
            raise InputError("expected at least one batch of images, found none; give more images or a smaller batch")
        scale = self._first.clamp_min(0).sqrt()[:, None] * self._second.clamp_min(0).sqrt()[None, :]
        return torch.where(scale > 0, self._cross / scale, torch.nan)


def _grams(layers: Iterable[Tensor]) -> Tensor:
    """Linear Gram matrices [layers, n, n] in float64, one layer at a time.

    The features' mean over the batch is subtracted first: HSIC does not see it, and large means would cost digits.
    """
    flat = (features.flatten(1).double() for features in layers)
    return torch.stack([(x - x.mean(0)) @ (x - x.mean(0)).T for x in flat])


def block_outputs(network: Backbone, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Outputs of a network's blocks for images [N, 3, H, W], by name.

    Yields:
        of a ResNet ("stem", [N, C, H', W']) before pooling, ("res2.0", …), … of every residual block; of another
        hierarchical network ("res2", …), … of every stage; of a plain ViT ("block.0", [N, T, C]), … the tokens of every
        block after its final norm; last ("avgpool", [N, C]), the features as the network pools them.
    """
    if isinstance(network, ResNet):
        yield from _residual_blocks(network, images)
    elif isinstance(network, TimmBackbone) and network.plain:
        for number, (prefix, patches) in enumerate(network.tokens(images, network.depth)):
            yield f"block.{number}", torch.cat([prefix, patches.flatten(2).transpose(1, 2)], dim=1)
        yield "avgpool", network(images)
    elif network.strides:
        stages = network.stages(images)
        yield from ((name, stages[name]) for name in network.strides)
        yield "avgpool", stages["pooled"]
    else:
        yield "avgpool", network(images)


def _residual_blocks(network: ResNet, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    x = network.relu(network.bn1(network.conv1(images)))
    yield "stem", x
    x = network.maxpool(x)
    for name, stage in network.named_stages():
        for index, block in enumerate(stage):
            x = block(x)
            yield f"{name}.{index}", x
    yield "avgpool", network.avgpool(x).flatten(1)


def block_names(network: Backbone) -> list[str]:
    """The names that ``block_outputs`` yields."""
    if isinstance(network, ResNet):
        blocks = [f"{name}.{index}" for name, stage in network.named_stages() for index in range(len(stage))]
        return ["stem", *blocks, "avgpool"]
    if isinstance(network, TimmBackbone) and network.plain:
        return [*(f"block.{number}" for number in range(network.depth)), "avgpool"]
    return [*network.strides, "avgpool"]


def stage_ends(names: Sequence[str]) -> dict[str, str]:
    """stem, res2 to res5 (of a plain ViT: block) and avgpool -> the last block of each: common to all depths."""
    return {name.split(".")[0]: name for name in names}


@torch.no_grad()
def cka_of_networks(first: Backbone, second: Backbone, batches: Iterable[Tensor]) -> Tensor:
    """CKA [blocks of first, blocks of second], in the order of ``block_names``; depths and widths may differ.

    Args:
        batches: images [n, 3, H, W] normalised by ImageNet's statistics, the same number n each time; a network with
            statistics of its own sees them normalised by those.
    """
    cka = MinibatchCKA()
    for images in batches:
        grams = [
            _grams(output for _, output in block_outputs(network, _normalised(images, network)))
            for network in (first, second)
        ]
        cka.update_grams(*grams)
    return cka.compute()


def _normalised(images: Tensor, network: Backbone) -> Tensor:
    mean, std = network.input.mean, network.input.std
    if (mean, std) == (IMAGENET_MEAN, IMAGENET_STD):
        return images
    was, is_, by, now = (images.new_tensor(values).view(1, 3, 1, 1)
                         for values in (IMAGENET_MEAN, mean, IMAGENET_STD, std))  # fmt: skip
    return (images * by + was - is_) / now


def weight_norms(state: Mapping[str, Tensor], kernel: int | None = None) -> dict[str, float]:
    """2-norm of each convolution, in network order; with ``kernel`` only those of this side (RCF figure 3a: 3)."""
    return {
        name.removesuffix(".weight"): float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
        for name, tensor in state.items()
        if tensor.dim() == 4 and (kernel is None or tensor.shape[2:] == (kernel, kernel))
    }
