"""How a student labels weak views of held-out images: with its running statistics, or with those of each batch.

A student that trains on labelled and strong views together has running statistics of that mixture. A teacher that
normalises weak views with the statistics of its own batch stands in another world than the weights it was given (EMAN,
arXiv 2101.08482, section 4, and its table 1: SyncBN's teacher is behind BN's). Here the weights are the same, and only
the statistics differ.
"""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot.augment import SeededView
from momentum_transfer.lowshot.labelled_data import LabelledData

#: The way without batch statistics, and the name of those with them.
RUNNING, BATCHES = "running", "n={}"


def check_weak_batches(sizes: Sequence[int], images: int) -> None:
    """Raise :class:`InputError` for a batch of more weak views than there are test images."""
    if sizes and max(sizes) > images:
        raise InputError(
            f"expected FIXMATCH.WEAK_BATCHES of at most {images} (the images that test), found {max(sizes)}; lower it"
        )


def weak_label_hits(
    student: nn.Module, data: LabelledData, sizes: Sequence[int], seed: int, device: torch.device
) -> dict[str, np.ndarray]:
    """Whether each weak view of the test images gets its image's label: {"running": [N], "n=8": [N], …} bool.

    Args:
        student: images [N, 3, H, W] -> logits; a copy of it is used.
        sizes: images that share batch statistics; companions are drawn with ``seed``, the last batch is filled up with
            the first images of the order.
    """
    view = SeededView(data.augment, seed)
    views = torch.stack([view(data.test[index][0]) for index in range(len(data.test))]).to(device)
    labels = torch.as_tensor(np.asarray(data.test.labels), device=device)
    network = deepcopy(student)
    order = torch.randperm(len(views), generator=torch.Generator().manual_seed(seed)).to(device)
    found = {RUNNING: _labels(network.eval(), views, torch.arange(len(views), device=device), 256)}
    for size in sizes:
        found[BATCHES.format(size)] = _labels(network.train(), views, order, size)
    return {way: (given == labels).cpu().numpy() for way, given in found.items()}


@torch.no_grad()
def _labels(network: nn.Module, views: Tensor, order: Tensor, size: int) -> Tensor:
    """[N] labels of the views, which go through the network in batches of ``size`` in that order."""
    given = torch.empty(len(views), dtype=torch.long, device=views.device)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        filled = torch.cat([rows, order[: size - len(rows)]]) if network.training else rows
        given[rows] = network(views[filled]).argmax(1)[: len(rows)]
    return given
