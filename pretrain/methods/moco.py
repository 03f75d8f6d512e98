"""MoCo v2 (arXiv 2003.04297), and RCF's MoCo v2+ and S-MoCo v2+ ("Revisiting the Critical Factors of
Augmentation-Invariant Representation Learning", figures 1 and 2), each step of which is a setting.

MoCo v2: hidden layer without BN, no predictor, momentum fixed, one direction. MoCo v2+: SyncBN, BN in the projector's
hidden layer, a predictor on the student, momentum .99 -> 1, both directions. S-MoCo v2+: the teacher has one too.
MoCo-EMAN (arXiv 2101.08482): MoCo v2 with NORM.TEACHER EMAN. The queue: MoCo (arXiv 1911.05722), 3.2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.core import distributed
from momentum_transfer.pretrain.heads import embedding_std, info_nce
from momentum_transfer.pretrain.methods.method import Branch, StudentTeacher, TeacherRule


class NegativeQueue(nn.Module):
    """The last ``size`` keys of all processes, oldest overwritten first.

    Buffers, which resume: ``keys`` [K, D], random unit vectors at first; ``pointer`` [], the next place to be written.
    K need not be a multiple of the batch: a batch that reaches the end goes on at the start.
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


class MoCo(StudentTeacher):
    """Contrast of a query with its key against a queue of earlier keys.

    Args:
        student, teacher, rule: as ``StudentTeacher``; predictors and normalisation come with the branches.
        dim: D of the embeddings. queue_size: keys kept. temperature: tau.
        symmetric: both directions, summed (MoCo v2+), or view 1 as query only (MoCo v2).
    """

    def __init__(
        self, student: Branch, teacher: Branch, rule: TeacherRule, *,
        dim: int, queue_size: int, temperature: float, symmetric: bool,
    ) -> None:  # fmt: skip
        super().__init__(student, teacher, rule)
        self.queue = NegativeQueue(queue_size, dim)
        self.temperature, self.symmetric = temperature, symmetric

    def forward(self, view1: Tensor, view2: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The contrastive loss (MoCo, arXiv 1911.05722, eq. 1), once or for both directions, and the keys' spread.

        Both directions meet the same queue; then, after the logits are taken, view 2's keys enter it.
        """
        with torch.no_grad():
            key2 = F.normalize(self.targets(view2).float(), dim=1)  # NxD
            key1 = F.normalize(self.targets(view1).float(), dim=1) if self.symmetric else None
        loss = self._contrast(view1, key2)
        if key1 is not None:
            loss = loss + self._contrast(view2, key1)
        self.queue.enqueue(key2)
        return {"loss": loss, "embedding_std": embedding_std(key2)}

    def _contrast(self, view: Tensor, key: Tensor) -> Tensor:
        query = F.normalize(self.student(view).float(), dim=1)
        # The queue is overwritten before the backward pass, so its product needs the keys as they are now.
        return info_nce(query, key, self.queue.keys.clone(), self.temperature)
