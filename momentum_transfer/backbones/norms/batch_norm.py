"""Batch normalisation by one batch's statistics: plain, over all processes, of shuffled images, or the student's.

Virtual processes: with ``groups`` = G a batch of N images is normalised as G processes of N/G images would do it, each
with its own statistics. Process g holds the images g, g + G, g + 2G, …, as the sampler deals them to real processes.

Shuffling BN: MoCo (arXiv 1911.05722), 3.3. EMAN and student proxy norm: arXiv 2101.08482, eq. 8 and table 8.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.core import distributed


class AnyShapeBatchNorm(nn.BatchNorm2d):
    """Batch normalisation of [N, C], [N, C, L] or [N, C, H, W]: one class for the backbone and for the MLP heads.

    A BatchNorm2d, because libraries such as fvcore's precise BN recognise their layers by that type.

    Args:
        num_features: channels C.
        groups: virtual processes G within this process's batch. Above 1 the buffers ``group_mean`` and ``group_var``
            [G C] hold the running statistics of each; ``running_mean`` and ``running_var`` are those of the first, as
            a run of several processes saves the first one's.
    """

    running_mean: Tensor
    running_var: Tensor
    group_mean: Tensor
    group_var: Tensor

    def __init__(self, num_features: int, groups: int = 1) -> None:
        super().__init__(num_features)
        self.groups = groups
        if groups > 1:
            self.register_buffer("group_mean", torch.zeros(groups * num_features))
            self.register_buffer("group_var", torch.ones(groups * num_features))

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input [N, C, …], found the shape {tuple(input.shape)}")

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Running mean and variance of every virtual process, [G C]; of the only one [C]."""
        return (self.group_mean, self.group_var) if self.groups > 1 else (self.running_mean, self.running_var)

    def grouped(self, input: Tensor) -> Tensor:
        """[N, C, …] as [N/G, G C, …]: one channel of one virtual process beside another; no copy of contiguous maps."""
        if self.groups == 1:
            return input
        images, channels, *rest = input.shape
        if images % self.groups:
            raise ValueError(f"expected images divisible by {self.groups} virtual processes, found {images}")
        return input.reshape(images // self.groups, self.groups * channels, *rest)

    def ungrouped(self, output: Tensor, like: Tensor) -> Tensor:
        """The inverse of ``grouped``, in the memory format of ``like``."""
        if self.groups == 1:
            return output
        output = output.view(like.shape)
        if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
            output = output.contiguous(memory_format=torch.channels_last)
        return output

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """gamma and beta for ``grouped`` maps, [G C]."""
        if self.groups == 1:
            return self.weight, self.bias
        return self.weight.repeat(self.groups), self.bias.repeat(self.groups)

    @torch.no_grad()
    def show_first_group(self) -> None:
        """Puts the first virtual process's statistics into ``running_mean`` and ``running_var``."""
        if self.groups > 1:
            self.running_mean.copy_(self.group_mean[: self.num_features])
            self.running_var.copy_(self.group_var[: self.num_features])


class BatchNorm(AnyShapeBatchNorm):
    """Plain batch normalisation: statistics of this process's batch in training, running statistics in evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        if self.groups == 1 or not self.training:
            return super().forward(input)
        x, (mean, var), (weight, bias) = self.grouped(input), self.statistics(), self.scale_and_shift()
        output = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=self.momentum or 0.0, eps=self.eps)
        self.show_first_group()
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return self.ungrouped(output, input)


class StudentStatisticsBatchNorm(AnyShapeBatchNorm):
    """EMAN (eq. 8) and the student proxy norm: always normalises with its buffers, which the teacher's EMA moves."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        x, (mean, var), (weight, bias) = self.grouped(input), self.statistics(), self.scale_and_shift()
        return self.ungrouped(F.batch_norm(x, mean, var, weight, bias, training=False, eps=self.eps), input)


class SyncBatchNorm(AnyShapeBatchNorm):
    """Batch normalisation over the batches of all processes, on any backend.

    torch's own refuses CPU tensors in a process group; on CUDA ``use_fused_sync`` replaces this one by torch's. Every
    process must hold equally many elements a channel. Virtual processes are synchronised too, so it knows no groups.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not distributed.is_distributed():
            return super().forward(input)
        self._check_input_dim(input)
        dims = [d for d in range(input.dim()) if d != 1]
        x = input.to(self.running_mean.dtype)
        # The mean over processes of each one's variance about the joint mean: no difference of large squares.
        own_var, own_mean = torch.var_mean(x, dims, correction=0)
        mean = distributed.differentiable_mean(own_mean)
        var = distributed.differentiable_mean(own_var + (own_mean - mean).square())
        count = input.numel() // input.shape[1] * distributed.world_size()
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum or 0.0)
            self.running_var.lerp_(var * (count / max(count - 1, 1)), self.momentum or 0.0)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked += 1
        return normalise(input, mean, var, self.weight, self.bias, self.eps)


def use_fused_sync(module: nn.Module) -> None:
    """Turns our SyncBatchNorm layers into torch's, for CUDA; tensors, epsilon, hooks and timm's activation stay."""
    for layer in module.modules():
        if isinstance(layer, SyncBatchNorm):
            layer.__class__ = nn.SyncBatchNorm  # type: ignore[assignment]  # both are BatchNorms with the same tensors
            layer.__dict__["process_group"] = None


def normalise(input: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """gamma * (x - mean) / sqrt(var + eps) + beta (eq. 2), differentiable in the statistics too."""
    shape = [1, -1] + [1] * (input.dim() - 2)
    scale = weight * torch.rsqrt(var + eps)
    shift = bias - mean * scale
    return (input * scale.view(shape) + shift.view(shape)).to(input.dtype)
