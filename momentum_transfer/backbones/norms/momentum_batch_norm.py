"""Momentum BN and teacher proxy norm: batch normalisation whose history moves once for a pair of views.

Momentum BN: "Momentum^2 Teacher" (arXiv 2101.07525), eqs. 1-3, 5, 6, 8. Teacher proxy norm: EMAN (arXiv 2101.08482),
table 8. A momentum is the weight of the NEW value, as in torch's BatchNorm.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.backbones.norms.batch_norm import AnyShapeBatchNorm, normalise
from momentum_transfer.core import distributed
from momentum_transfer.core.optimization import momentum_at

POLICIES = ("local", "broadcast", "reduce")


class PairBatchNorm(AnyShapeBatchNorm):
    """Batch normalisation whose history moves once for a pair of views, when ``commit`` says so, never in ``forward``.

    In training every forward adds its batch statistics to the pending ones. The history (``running_mean``,
    ``running_var``) stays that of the previous iteration until ``commit``, so the second view never sees the first
    (the lazy update of Momentum^2 Teacher 3.2). In evaluation the history alone normalises.

    The history keeps the n/(n-1) variance, as torch's BatchNorm does; normalising uses the batch's biased one (eq. 1).

    Args:
        num_features: channels C.
        alpha: weight of the pair's mean statistics in ``commit``; changed by ``set_alpha``.
        groups: virtual processes G, each with its own history, see ``norms.batch_norm``.

    Buffers beside BatchNorm's: ``alpha`` [], ``pending_mean`` [G C], ``pending_var`` [G C], ``pending_count`` [].
    """

    alpha: Tensor
    pending_mean: Tensor
    pending_var: Tensor
    pending_count: Tensor

    def __init__(self, num_features: int, alpha: float = 1.0, groups: int = 1) -> None:
        super().__init__(num_features, groups)
        self.register_buffer("alpha", torch.tensor(float(alpha)))
        self.register_buffer("pending_mean", torch.zeros(groups * num_features))
        self.register_buffer("pending_var", torch.zeros(groups * num_features))
        self.register_buffer("pending_count", torch.tensor(0.0))

    def _record(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the grouped batch's statistics to the pending ones; returns its mean and biased variance [G C]."""
        mean, var = _batch_statistics(input, self.running_mean.dtype)
        count = input.numel() // input.shape[1]
        if count < 2:
            raise ValueError(f"expected more than 1 value per channel in training, found shape {tuple(input.shape)}")
        with torch.no_grad():
            self.pending_mean += mean
            self.pending_var.add_(var, alpha=count / (count - 1))
            self.pending_count += 1
        return mean, var

    def normalising_statistics(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and variance [G C] that normalise a training batch of these statistics."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        x, (weight, bias) = self.grouped(input), self.scale_and_shift()
        mean, var = self.normalising_statistics(*self._record(x))
        if mean.requires_grad:  # a student: the gradient runs through the batch's part of the statistics
            output = normalise(x, mean, var, weight, bias, self.eps)
        else:
            output = F.batch_norm(x, mean, var, weight, bias, training=False, eps=self.eps)
        return self.ungrouped(output, input)


class MomentumBatchNorm(PairBatchNorm):
    """Momentum BN: both views normalise with alpha * batch + (1 - alpha) * history (eqs. 3 and 5, read by eq. 8).

    Equations 3, 5 and 6 print the blend the other way round; eq. 8, section 4.4 and table 6 (fixed alpha = 1 equals
    plain BN) settle that alpha weighs the batch. Every process keeps its own statistics by intent; see ``commit_pair``.

    Args:
        eager: the history moves with each view, so that the second view's contains the first: "Momentum BN
            straightforward", which 3.2 expects to leak.
    """

    def __init__(self, num_features: int, alpha: float = 1.0, groups: int = 1, eager: bool = False) -> None:
        super().__init__(num_features, alpha, groups)
        self.eager = eager

    def normalising_statistics(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        history_mean, history_var = self.statistics()
        blend = torch.lerp(history_mean, mean, self.alpha), torch.lerp(history_var, var, self.alpha)
        if self.eager:
            commit_pair([self])  # by this view alone; the one at the iteration's end finds nothing pending
        return blend


class TeacherProxyBatchNorm(PairBatchNorm):
    """Teacher proxy norm (EMAN, table 8): the teacher's own history of previous iterations normalises the batch."""

    def normalising_statistics(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return self.statistics()


def _batch_statistics(input: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [C] of a batch [N, C, …], in the statistics' own precision."""
    dims = [d for d in range(input.dim()) if d != 1]
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        var, mean = torch.var_mean(input.to(dtype), dims, correction=0)  # differentiable, and fused by the compiler
        return mean, var
    x = input if input.is_cuda else input.to(dtype)
    if x.is_cuda or x.dim() == 2 or not x.is_contiguous():
        return torch.batch_norm_update_stats(x, None, None, 0.0)  # one pass; on a GPU in float32 for 16-bit inputs too
    # For [N, C, H, W] in this order torch's kernel is not vectorised: two vectorised passes take half its time.
    mean = x.mean(dims)
    return mean, (x - mean.view(1, -1, *[1] * (x.dim() - 2))).square_().mean(dims)


def pair_norms(module: nn.Module) -> list[PairBatchNorm]:
    """Every layer of the module whose history moves by ``commit_pair``."""
    return [layer for layer in module.modules() if isinstance(layer, PairBatchNorm)]


@torch.no_grad()
def commit_pair(layers: Sequence[PairBatchNorm], policy: str = "local") -> None:
    """Ends an iteration: history <- alpha * (mean of the pending statistics) + (1 - alpha) * history (eq. 6).

    Pending are the two views' statistics (of all micro-batches under gradient accumulation); afterwards none are.

    Args:
        layers: of ``pair_norms``; those without pending statistics keep their history.
        policy: "local", each process its own history (the method as published; rank 0's is saved); "broadcast",
            rank 0's everywhere; "reduce", the mean over processes by one all-reduce of a flat buffer. Virtual processes
            count as processes.
    """
    if not layers:
        return
    for layer in layers:
        count = layer.pending_count.clamp(min=1)
        weight = layer.alpha * (layer.pending_count > 0)  # on the device: no synchronisation
        history_mean, history_var = layer.statistics()
        history_mean.lerp_(layer.pending_mean / count, weight)
        history_var.lerp_(layer.pending_var / count, weight)
    _forget(layers)
    if policy != "local":
        _exchange(layers, policy)
    for layer in layers:
        layer.show_first_group()


def _forget(layers: Sequence[PairBatchNorm]) -> None:
    torch._foreach_zero_([layer.pending_mean for layer in layers])
    torch._foreach_zero_([layer.pending_var for layer in layers])
    torch._foreach_zero_([layer.pending_count for layer in layers])


def forget_pending(module: nn.Module) -> None:
    """Drop the statistics of a batch that is not to count."""
    if layers := pair_norms(module):
        _forget(layers)


def _exchange(layers: Sequence[PairBatchNorm], policy: str) -> None:
    """Gives all processes, real and virtual, the first one's history ("broadcast") or the mean of all ("reduce")."""
    if not distributed.is_distributed() and all(layer.groups == 1 for layer in layers):
        return
    # [G, C] each; the copies below write into the buffers themselves.
    histories = [history.view(layer.groups, -1) for layer in layers for history in layer.statistics()]
    own = [history[0] if policy == "broadcast" else history.mean(0) for history in histories]
    flat = torch.cat(own)
    flat = distributed.broadcast(flat) if policy == "broadcast" else distributed.all_reduce_mean(flat)
    for history, joint in zip(histories, flat.split([len(h) for h in own]), strict=True):
        history.copy_(joint)


@torch.no_grad()
def set_alpha(layers: Iterable[PairBatchNorm], alpha: float) -> None:
    """Sets the weight of the batch in the Momentum BN layers; the teacher proxy norm keeps its fixed momentum."""
    for layer in layers:
        if isinstance(layer, MomentumBatchNorm):
            layer.alpha.fill_(alpha)


def schedule_alpha(module: nn.Module, base: float, schedule: str, progress: float) -> dict[str, float]:
    """Sets alpha at the fraction ``progress`` of the run (k/K of eq. 8) in every Momentum BN layer, by ``momentum_at``.

    Returns the alpha in use, for the log; nothing without such layers.
    """
    layers, alpha = pair_norms(module), momentum_at(base, progress, schedule)
    set_alpha(layers, alpha)
    return {"alpha": alpha} if layers else {}
