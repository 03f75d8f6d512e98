"""MoCo's dictionary as a queue (arXiv 1911.05722, 3.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.core import distributed


class NegativeQueue(nn.Module):
    """The last ``size`` keys of all processes, oldest overwritten first; keys and pointer are buffers, so they resume.

    Args:
        size: keys K; need not be a multiple of the batch: a batch that reaches the end goes on at the start.
        dim: dimension D of a key.

    Buffers: ``keys`` [K, D], random unit vectors at first; ``pointer`` [], the next place to be written.
    """

    keys: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Writes the keys [N, D] of every process, in rank order; of more than K keys the last K stay."""
        keys = distributed.all_gather_tensor(keys.detach().to(self.keys.dtype))
        size = len(self.keys)
        places = (self.pointer + torch.arange(len(keys), device=keys.device)) % size
        self.keys[places[-size:]] = keys[-size:]
        self.pointer.copy_((self.pointer + len(keys)) % size)
