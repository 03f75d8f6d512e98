"""A backbone with a linear classifier, and its top-1 and top-5 accuracy."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.core import distributed


def linear_head(features: int, classes: int, seed: int) -> nn.Linear:
    """Weights N(0, 0.01²) drawn with ``seed``, zero biases."""
    head = nn.Linear(features, classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.normal_(0, 0.01, generator=generator)
        head.bias.zero_()
    return head


class Classifier(nn.Module):
    """images [N, 3, H, W] -> logits [N, classes].

    Args:
        backbone: of ``momentum_transfer.backbones.build.build_backbone``.
    """

    def __init__(self, backbone: Backbone, classes: int, seed: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = linear_head(backbone.num_features, classes, seed)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.backbone(images))
        return logits


@torch.inference_mode()
def accuracy(
    logits_of: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    kept: dict[str, list[Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Fractions top1 and top5, over the batches of all processes.

    Args:
        logits_of: inputs -> logits [N, classes], or [heads, N, classes] of several classifiers at once.
        kept: gathers whether each image of this process was a hit, bool [.., N] for top1 and top5.

    Returns:
        ``{"top1": …, "top5": …}``, scalars or [heads].
    """
    count = torch.zeros((), device=device)
    right = {"top1": torch.zeros((), device=device), "top5": torch.zeros((), device=device)}
    for inputs, labels in batches:
        logits, labels = logits_of(inputs.to(device)), labels.to(device)
        ranked = logits.topk(min(5, logits.shape[-1]), dim=-1).indices
        hits = ranked == labels[:, None]
        count = count + len(labels)
        for name, each in (("top1", hits[..., 0]), ("top5", hits.any(-1))):
            right[name] = right[name] + each.sum(-1)
            if kept is not None:
                kept.setdefault(name, []).append(each.cpu())
    total = distributed.all_reduce_mean(count)
    return {name: distributed.all_reduce_mean(hits) / total for name, hits in right.items()}


def in_order(kept: dict[str, list[Tensor]], dealt: bool = True) -> dict[str, np.ndarray]:
    """Hits [N] bool of the whole test set in its order, by metric, from what ``accuracy`` kept of one classifier.

    Args:
        dealt: the processes had every world_size-th image each, as ``evaluation_batches`` deals them.
    """
    found = {}
    for name, parts in kept.items():
        own = torch.cat([part.reshape(-1) for part in parts])
        if not dealt or not distributed.is_distributed():
            found[name] = own.numpy()
            continue
        shares: list[Any] = [None] * distributed.world_size()
        torch.distributed.all_gather_object(shares, own)
        whole = torch.zeros(sum(map(len, shares)), dtype=torch.bool)
        for rank, share in enumerate(shares):
            whole[rank :: len(shares)] = share
        found[name] = whole.numpy()
    return found
