"""Projectors, predictors and losses of the pretraining methods."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NormLayer = Callable[[int], nn.Module]


def mlp(inputs: int, hidden: int, outputs: int, norm_layer: NormLayer | None) -> nn.Sequential:
    """Linear, normalisation, ReLU, Linear: [N, inputs] -> [N, outputs]; no normalisation after the last linear.

    BYOL (arXiv 2006.07733, 3.3) and Momentum^2 Teacher use 2048 -> 4096 -> 256 ("4098" in the latter is a misprint).
    MoCo v2 (arXiv 2003.04297) has no normalisation: ``norm_layer`` None.
    """
    layers: list[nn.Module] = [nn.Linear(inputs, hidden, bias=norm_layer is None)]
    if norm_layer is not None:
        layers.append(norm_layer(hidden))
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Linear(hidden, outputs))


def simsiam_projector(inputs: int, hidden: int, outputs: int, norm_layer: NormLayer) -> nn.Sequential:
    """SimSiam's three-layer projector, normalised after every linear, the output too (arXiv 2011.10566, 3); that one
    without scale and shift, as in the released model."""
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        norm_layer(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden, bias=False),
        norm_layer(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs, bias=False),
        _without_affine(norm_layer(outputs)),
    )


def _without_affine(layer: nn.Module) -> nn.Module:
    """The normalisation with scale 1 and shift 0, as constants that are neither learned nor saved."""
    for name, constant in (("weight", torch.ones_like), ("bias", torch.zeros_like)):
        values = constant(layer.get_parameter(name).detach())
        delattr(layer, name)
        layer.register_buffer(name, values, persistent=False)
    layer.affine = False  # type: ignore[assignment]  # torch types every attribute as a tensor or module
    return layer


def cosine_regression(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch of 2 - 2 cos(prediction, stop-gradient(target)), [N, D] each (BYOL, eq. 2)."""
    cosine = F.cosine_similarity(prediction.float(), target.detach().float(), dim=1)
    return (2 - 2 * cosine).mean()


def negative_cosine(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch of -cos(prediction, stop-gradient(target)) (SimSiam, arXiv 2011.10566, eqs. 1 and 3)."""
    return -F.cosine_similarity(prediction.float(), target.detach().float(), dim=1).mean()


def info_nce(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """-log softmax of the positive among positive and negatives, mean over the batch (MoCo, arXiv 1911.05722, eq. 1).

    Args:
        query: [N, D]. key: [N, D], the positive of each query. negatives: [K, D], the queue. All L2-normalised.
        temperature: tau.
    """
    query, key = query.float(), key.float()
    positive = (query * key).sum(dim=1, keepdim=True)  # Nx1
    logits = torch.cat([positive, query @ negatives.float().T], dim=1) / temperature  # Nx(1+K)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


@torch.no_grad()
def embedding_std(embedding: Tensor) -> Tensor:
    """Standard deviation over the batch of the L2-normalised embedding [N, D], mean over dimensions, times sqrt(D).

    The collapse monitor (SimSiam, figure 2): 1 for embeddings spread over the sphere, 0 when all images have the same.
    """
    normalised = F.normalize(embedding.float(), dim=1)
    return normalised.std(dim=0, correction=0).mean() * embedding.shape[1] ** 0.5
