"""The normalisations that the papers compare, and the name -> constructor table behind NORM.STUDENT and NORM.TEACHER.

Momentum BN: "Momentum^2 Teacher" (arXiv 2101.07525), eqs. 1-3, 5, 6, 8. EMAN, teacher and student proxy norm:
"Exponential Moving Average Normalization" (arXiv 2101.08482), eqs. 8, 9 and table 8. Shuffling BN: MoCo
(arXiv 1911.05722), 3.3.

One notation throughout: a momentum is the weight of the NEW value, as in torch's BatchNorm; EMAN's .999 is .001 here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pretrain import distributed
from pretrain.errors import InputError

STUDENT_NORMS = ("BN", "SyncBN", "GN", "IN", "MomentumBN")
TEACHER_NORMS = ("BN", "SyncBN", "ShuffleBN", "GN", "IN", "EMAN", "TeacherPN", "StudentPN", "MomentumBN")
FOLLOWS_STUDENT = ("EMAN", "StudentPN")  # statistics come from the student's running statistics
POLICIES = ("local", "broadcast", "reduce")
GROUPS = 32  # Group Normalization's default (arXiv 1803.08494)


class _AnyShapeBatchNorm(nn.BatchNorm2d):
    """Batch normalisation of [N, C], [N, C, L] or [N, C, H, W]: one class for the backbone and for the MLP heads.

    A BatchNorm2d, because libraries such as fvcore's precise BN recognise their layers by that type.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input [N, C, …], found the shape {tuple(input.shape)}")


class BatchNorm(_AnyShapeBatchNorm):
    """Plain batch normalisation: statistics of this process's batch in training, running statistics in evaluation."""


class ShuffleBatchNorm(_AnyShapeBatchNorm):
    """Batch normalisation of a teacher whose images are exchanged between processes before its forward.

    The layer itself is plain; the exchange is done once for the whole network by ``teacher.shuffled_forward``, because
    MoCo shuffles images, not activations. In a single process the shuffled batch is the same set: plain BN.
    """


class StudentStatisticsBatchNorm(_AnyShapeBatchNorm):
    """EMAN (eq. 8) and the student proxy norm: always normalises with its buffers, which the teacher's EMA moves."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


class SyncBatchNorm(_AnyShapeBatchNorm):
    """Batch normalisation over the batches of all processes, on any backend.

    torch's own refuses CPU tensors in a process group, which would leave the distributed run untested there; on CUDA
    ``use_fused_sync`` puts torch's in its place. Every process must hold equally many elements a channel.
    """

    running_mean: Tensor
    running_var: Tensor

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not distributed.is_distributed():
            return super().forward(input)
        self._check_input_dim(input)
        dims = [d for d in range(input.dim()) if d != 1]
        x = input.to(self.running_mean.dtype)
        mean, mean_square = distributed.differentiable_mean(torch.stack([x.mean(dims), (x * x).mean(dims)]))
        var = (mean_square - mean * mean).clamp_min(0)  # rounding can take it below zero
        count = input.numel() // input.shape[1] * distributed.world_size()
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum or 0.0)
            self.running_var.lerp_(var * (count / max(count - 1, 1)), self.momentum or 0.0)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked += 1
        return _normalise(input, mean, var, self)


def use_fused_sync(module: nn.Module) -> None:
    """Puts torch's CUDA SyncBatchNorm in the place of ours, under the same names and tensors."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, SyncBatchNorm):
                fused = nn.SyncBatchNorm(layer.num_features, momentum=layer.momentum)
                fused.load_state_dict(layer.state_dict())
                fused.requires_grad_(layer.weight.requires_grad)
                parent.add_module(name, fused.to(layer.weight.device))


class PairBatchNorm(_AnyShapeBatchNorm):
    """Batch normalisation whose history moves once for a pair of views, when ``commit`` says so, never in ``forward``.

    In training every forward adds its batch statistics to the pending ones. The history (``running_mean``,
    ``running_var``) stays that of the previous iteration until ``commit``, so the second view never sees the first
    (the lazy update of Momentum^2 Teacher 3.2). In evaluation the history alone normalises.

    The history keeps the n/(n-1) variance, as torch's BatchNorm does; normalising uses the batch's biased one (eq. 1).

    Args:
        num_features: channels C.
        alpha: weight of the pair's mean statistics in ``commit``; changed by ``set_alpha``.

    Buffers beside BatchNorm's: ``alpha`` [], ``pending_mean`` [C], ``pending_var`` [C], ``pending_count`` [].
    """

    running_mean: Tensor
    running_var: Tensor
    alpha: Tensor
    pending_mean: Tensor
    pending_var: Tensor
    pending_count: Tensor

    def __init__(self, num_features: int, alpha: float = 1.0) -> None:
        super().__init__(num_features)
        self.register_buffer("alpha", torch.tensor(float(alpha)))
        self.register_buffer("pending_mean", torch.zeros(num_features))
        self.register_buffer("pending_var", torch.zeros(num_features))
        self.register_buffer("pending_count", torch.tensor(0.0))

    def _record(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the batch's statistics to the pending ones; returns its mean and biased variance [C]."""
        mean, var = _batch_statistics(input, self.running_mean.dtype)
        count = input.numel() // input.shape[1]
        if count < 2:
            raise ValueError(
                f"expected more than 1 value per channel in training, found the shape {tuple(input.shape)}"
            )
        with torch.no_grad():
            self.pending_mean += mean
            self.pending_var.add_(var, alpha=count / (count - 1))
            self.pending_count += 1
        return mean, var

    def normalising_statistics(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and variance [C] that normalise a training batch of these statistics."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        mean, var = self.normalising_statistics(*self._record(input))
        if mean.requires_grad:  # a student: the gradient runs through the batch's share of the statistics
            return _normalise(input, mean, var, self)
        return F.batch_norm(input, mean, var, self.weight, self.bias, training=False, eps=self.eps)


class MomentumBatchNorm(PairBatchNorm):
    """Momentum BN: both views normalise with alpha * batch + (1 - alpha) * history (eqs. 3 and 5, read by eq. 8).

    Equations 3, 5 and 6 print the blend the other way round; eq. 8, section 4.4 and table 6 (fixed alpha = 1 equals
    plain BN) settle that alpha weighs the batch. Every process keeps its own statistics by intent; see ``commit_pair``.
    """

    def normalising_statistics(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return torch.lerp(self.running_mean, mean, self.alpha), torch.lerp(self.running_var, var, self.alpha)


class TeacherProxyBatchNorm(PairBatchNorm):
    """Teacher proxy norm (EMAN, table 8): the teacher's own history of previous iterations normalises the batch."""

    def normalising_statistics(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        return self.running_mean, self.running_var


def _batch_statistics(input: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        dims = [d for d in range(input.dim()) if d != 1]
        var, mean = torch.var_mean(input.to(dtype), dims, correction=0)  # differentiable, and fused by the compiler
    else:
        # One pass, as fast as BN's own statistics; on the CPU it would round them to a 16-bit input's precision.
        mean, var = torch.batch_norm_update_stats(input if input.is_cuda else input.to(dtype), None, None, 0.0)
    return mean, var


def _normalise(input: Tensor, mean: Tensor, var: Tensor, layer: _BatchNorm) -> Tensor:
    """gamma * (x - mean) / sqrt(var + eps) + beta (eq. 2), differentiable in the statistics too."""
    shape = [1, -1] + [1] * (input.dim() - 2)
    scale = layer.weight * torch.rsqrt(var + layer.eps)
    shift = layer.bias - mean * scale
    return (input * scale.view(shape) + shift.view(shape)).to(input.dtype)


def pair_norms(module: nn.Module) -> list[PairBatchNorm]:
    """Every layer of the module whose history moves by ``commit_pair``."""
    return [layer for layer in module.modules() if isinstance(layer, PairBatchNorm)]


@torch.no_grad()
def commit_pair(layers: Sequence[PairBatchNorm], policy: str = "local") -> None:
    """Ends an iteration: history <- alpha * (mean of the pending statistics) + (1 - alpha) * history (eq. 6).

    Pending are the two views' statistics (of all micro-batches under gradient accumulation); afterwards none are.

    Args:
        layers: as of ``pair_norms``. Layers without pending statistics keep their history.
        policy: "local", each process its own history (the method as published; rank 0's is saved); "broadcast",
            rank 0's everywhere; "reduce", the mean over processes by one all-reduce of a flat buffer.
    """
    if not layers:
        return
    for layer in layers:
        count = layer.pending_count.clamp(min=1)
        weight = layer.alpha * (layer.pending_count > 0)  # on the device: no synchronisation
        layer.running_mean.lerp_(layer.pending_mean / count, weight)
        layer.running_var.lerp_(layer.pending_var / count, weight)
    torch._foreach_zero_([layer.pending_mean for layer in layers])
    torch._foreach_zero_([layer.pending_var for layer in layers])
    torch._foreach_zero_([layer.pending_count for layer in layers])
    if policy == "local" or not distributed.is_distributed():
        return
    histories = [history for layer in layers for history in (layer.running_mean, layer.running_var)]
    flat = torch.cat(histories)
    flat = distributed.broadcast(flat) if policy == "broadcast" else distributed.all_reduce_mean(flat)
    torch._foreach_copy_(histories, list(flat.split([len(h) for h in histories])))


@torch.no_grad()
def set_alpha(layers: Iterable[PairBatchNorm], alpha: float) -> None:
    """Sets the weight of the batch in the Momentum BN layers; the teacher proxy norm keeps its fixed momentum."""
    for layer in layers:
        if isinstance(layer, MomentumBatchNorm):
            layer.alpha.fill_(alpha)


@dataclass(frozen=True)
class Norm:
    """A normalisation by name.

    Args:
        name: of ``STUDENT_NORMS`` or ``TEACHER_NORMS``.
        momentum: of BatchNorm's running statistics, which evaluation and EMAN read.
        proxy_momentum: of the teacher proxy norm's history; EMAN's table 8 alpha = .9 is .1 here.
    """

    name: str = "BN"
    momentum: float = 0.1
    proxy_momentum: float = 0.1

    def __call__(self, channels: int) -> nn.Module:
        """The layer for feature maps [N, C, H, W]."""
        layer = LAYERS[self.name](self, channels)
        if isinstance(layer, _BatchNorm):
            layer.momentum = self.momentum
        return layer

    def for_vectors(self, channels: int) -> nn.Module:
        """The layer for the hidden units [N, C] of an MLP.

        A vector has no spatial extent to normalise over: instance normalisation becomes layer normalisation there, and
        a group holds at least 16 units (of a single unit group normalisation would leave only its shift).
        """
        if self.name == "IN":
            return nn.GroupNorm(1, channels)
        if self.name == "GN":
            return nn.GroupNorm(math.gcd(GROUPS, max(channels // 16, 1)), channels)
        return self(channels)


LAYERS: dict[str, Callable[[Norm, int], nn.Module]] = {
    "BN": lambda norm, channels: BatchNorm(channels),
    "SyncBN": lambda norm, channels: SyncBatchNorm(channels),
    "ShuffleBN": lambda norm, channels: ShuffleBatchNorm(channels),
    # widths below 32 or not divisible by it get the largest number of groups that fits
    "GN": lambda norm, channels: nn.GroupNorm(math.gcd(GROUPS, channels), channels),
    "IN": lambda norm, channels: nn.InstanceNorm2d(channels, affine=True),
    "EMAN": lambda norm, channels: StudentStatisticsBatchNorm(channels),
    "StudentPN": lambda norm, channels: StudentStatisticsBatchNorm(channels),
    "TeacherPN": lambda norm, channels: TeacherProxyBatchNorm(channels, norm.proxy_momentum),
    "MomentumBN": lambda norm, channels: MomentumBatchNorm(channels),
}


def check_norms(student: str, teacher: str | None) -> None:
    """Refuses a combination that has no meaning.

    Raises:
        InputError: an unknown name, or a teacher that takes its statistics from a student that keeps none.
    """
    if student not in STUDENT_NORMS:
        raise InputError(f"expected NORM.STUDENT of {', '.join(STUDENT_NORMS)}, found {student!r}; correct the config")
    if teacher is None:
        return
    if teacher not in TEACHER_NORMS:
        raise InputError(f"expected NORM.TEACHER of {', '.join(TEACHER_NORMS)}, found {teacher!r}; correct the config")
    if teacher in FOLLOWS_STUDENT and student in ("GN", "IN"):
        raise InputError(
            f"expected a student with running statistics under NORM.TEACHER {teacher}, found NORM.STUDENT {student}; "
            "use BN, SyncBN or MomentumBN for the student"
        )
