"""Batch normalisations whose statistics are one batch's: plain, over all processes, of shuffled images, of the student.

Shuffling BN: MoCo (arXiv 1911.05722), 3.3. EMAN and student proxy norm: "Exponential Moving Average Normalization"
(arXiv 2101.08482), eq. 8 and table 8.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from momentum_transfer import distributed


class AnyShapeBatchNorm(nn.BatchNorm2d):
    """Batch normalisation of [N, C], [N, C, L] or [N, C, H, W]: one class for the backbone and for the MLP heads.

    A BatchNorm2d, because libraries such as fvcore's precise BN recognise their layers by that type.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input [N, C, …], found the shape {tuple(input.shape)}")


class BatchNorm(AnyShapeBatchNorm):
    """Plain batch normalisation: statistics of this process's batch in training, running statistics in evaluation."""


class ShuffleBatchNorm(AnyShapeBatchNorm):
    """Batch normalisation of a teacher whose images are exchanged between processes before its forward.

    The layer itself is plain; the exchange is done once for the whole network by ``teacher.shuffled_forward``, because
    MoCo shuffles images, not activations. In a single process the shuffled batch is the same set: plain BN.
    """


class StudentStatisticsBatchNorm(AnyShapeBatchNorm):
    """EMAN (eq. 8) and the student proxy norm: always normalises with its buffers, which the teacher's EMA moves."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


class SyncBatchNorm(AnyShapeBatchNorm):
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
        return normalise(input, mean, var, self)


def use_fused_sync(module: nn.Module) -> None:
    """Puts torch's CUDA SyncBatchNorm in the place of ours, under the same names and tensors."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, SyncBatchNorm):
                fused = nn.SyncBatchNorm(layer.num_features, momentum=layer.momentum)
                fused.load_state_dict(layer.state_dict())
                fused.requires_grad_(layer.weight.requires_grad)
                parent.add_module(name, fused.to(layer.weight.device))


def normalise(input: Tensor, mean: Tensor, var: Tensor, layer: _BatchNorm) -> Tensor:
    """gamma * (x - mean) / sqrt(var + eps) + beta (eq. 2), differentiable in the statistics too."""
    shape = [1, -1] + [1] * (input.dim() - 2)
    scale = layer.weight * torch.rsqrt(var + layer.eps)
    shift = layer.bias - mean * scale
    return (input * scale.view(shape) + shift.view(shape)).to(input.dtype)
