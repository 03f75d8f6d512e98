"""The normalisations that the papers compare, by the names of NORM.STUDENT and NORM.TEACHER.

A momentum is the weight of the NEW value, as in torch's BatchNorm; EMAN's .999 is .001 here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from momentum_transfer.backbones.norms.batch_norm import (
    BatchNorm,
    StudentStatisticsBatchNorm,
    SyncBatchNorm,
    use_fused_sync,
)
from momentum_transfer.backbones.norms.momentum_batch_norm import (
    POLICIES,
    MomentumBatchNorm,
    PairBatchNorm,
    TeacherProxyBatchNorm,
    commit_pair,
    pair_norms,
    set_alpha,
)
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.ranges import Choice

__all__ = ["POLICIES", "PairBatchNorm", "commit_pair", "pair_norms", "set_alpha", "use_fused_sync"]

STUDENT_NORMS = ("BN", "SyncBN", "GN", "IN", "MomentumBN")
TEACHER_NORMS = ("BN", "SyncBN", "ShuffleBN", "GN", "IN", "EMAN", "TeacherPN", "StudentPN", "MomentumBN")
FOLLOWS_STUDENT = ("EMAN", "StudentPN")  # statistics come from the student's running statistics
OWN_BATCH = ("BN", "ShuffleBN", "TeacherPN", "MomentumBN")  # statistics of one (virtual) process's images
_GROUPS = 32  # Group Normalization's default (arXiv 1803.08494)
_GROUP_CHANNELS = 2  # at least, as in the 64 channels of a ResNet's stem: of one channel it would be IN


@dataclass(frozen=True)
class Norm:
    """A normalisation by name, called with a number of channels.

    Args:
        name: of ``STUDENT_NORMS`` or ``TEACHER_NORMS``.
        momentum: of BatchNorm's running statistics, which evaluation and EMAN read.
        proxy_momentum: of the teacher proxy norm's history; EMAN's table 8 alpha = .9 is .1 here.
        groups: virtual processes within one process's batch (``norms.batch_norm``), for all but SyncBN, GN and IN.
        eager: Momentum BN's history moves with each view instead of once a pair.
    """

    name: str = "BN"
    momentum: float = 0.1
    proxy_momentum: float = 0.1
    groups: int = 1
    eager: bool = False

    def __call__(self, channels: int) -> nn.Module:
        """The layer for feature maps [N, C, H, W]."""
        layer = _LAYERS[self.name](self, channels)
        if isinstance(layer, _BatchNorm):
            layer.momentum = self.momentum
        return layer

    def for_vectors(self, channels: int) -> nn.Module:
        """The layer for the hidden units [N, C] of an MLP.

        A vector has no spatial extent: IN becomes layer normalisation, and a group of GN holds at least 16 units.
        """
        if self.name == "IN":
            return nn.GroupNorm(1, channels)
        if self.name == "GN":
            return nn.GroupNorm(_groups(channels, 16), channels)
        return self(channels)


def _groups(channels: int, at_least: int) -> int:
    """32 groups, or the largest smaller power of two that leaves ``at_least`` channels in each."""
    return next((g for g in (_GROUPS, 16, 8, 4, 2) if channels % g == 0 and channels // g >= at_least), 1)


_LAYERS: dict[str, Callable[[Norm, int], nn.Module]] = {
    "BN": lambda norm, channels: BatchNorm(channels, norm.groups),
    "SyncBN": lambda norm, channels: SyncBatchNorm(channels),
    "ShuffleBN": lambda norm, channels: BatchNorm(channels, norm.groups),  # after teacher.shuffled_forward
    "GN": lambda norm, channels: nn.GroupNorm(_groups(channels, _GROUP_CHANNELS), channels),
    "IN": lambda norm, channels: nn.InstanceNorm2d(channels, affine=True),
    "EMAN": lambda norm, channels: StudentStatisticsBatchNorm(channels, norm.groups),
    "StudentPN": lambda norm, channels: StudentStatisticsBatchNorm(channels, norm.groups),
    "TeacherPN": lambda norm, channels: TeacherProxyBatchNorm(channels, norm.proxy_momentum, norm.groups),
    "MomentumBN": lambda norm, channels: MomentumBatchNorm(channels, groups=norm.groups, eager=norm.eager),
}


def check_norms(student: str, teacher: str | None) -> None:
    """Raises InputError for an unknown name, or a teacher with the statistics of a student that keeps none."""
    Choice(STUDENT_NORMS).require("NORM.STUDENT", student)
    if teacher is None:
        return
    Choice(TEACHER_NORMS).require("NORM.TEACHER", teacher)
    if teacher in FOLLOWS_STUDENT and student in ("GN", "IN"):
        raise InputError(
            f"expected a student with running statistics under NORM.TEACHER {teacher}, found NORM.STUDENT {student}; "
            "use BN, SyncBN or MomentumBN for the student"
        )
