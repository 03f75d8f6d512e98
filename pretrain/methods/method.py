"""What the training loop asks of every method, and the base of methods with a teacher."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.norms.momentum_batch_norm import commit_pair, pair_norms, schedule_alpha, set_alpha
from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.backbones.teacher import copy_student, shuffled_forward, update_teacher
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.optimization import momentum_at


class Method(nn.Module):
    """Two views to a loss, and the moments at which the loop calls a method.

    A step is: ``begin_step``, ``update_teacher`` where the paper moves the teacher before the forwards, ``forward``
    and the backward pass once for each micro-batch, ``commit_statistics``, the optimizer, ``update_teacher`` where the
    paper moves it after.
    """

    #: network whose backbone the paper evaluates
    network_default = "student"

    def forward(self, view1: Tensor, view2: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The "loss" to be minimised and other metrics for the log, of two views [N, 3, H, W] of N images.

        Args:
            labels: classes [N]; all but the supervised baseline ignore them.
        """
        raise NotImplementedError

    def __init__(
        self, student: nn.Module, alpha_base: float = 1.0, alpha_schedule: str = "cosine", policy: str = "local"
    ) -> None:
        """The student, which holds the ``backbone``; Momentum BN's weight of the batch; the policy of the processes'
        histories (``norms.commit_pair``)."""
        super().__init__()
        self.student = student
        self.alpha_base, self.alpha_schedule, self.policy = alpha_base, alpha_schedule, policy
        set_alpha(pair_norms(self), alpha_base)

    def begin_step(self, progress: float) -> dict[str, float]:
        """Sets Momentum BN's alpha for the forwards at the fraction ``progress`` of the run; returns it for the log."""
        return schedule_alpha(self, self.alpha_base, self.alpha_schedule, progress)

    def update_teacher(self, progress: float) -> dict[str, float]:
        """Moves the teacher, at the fraction ``progress`` (k/K, eq. 8) of the run; returns the momentum for the log."""
        return {}

    def commit_statistics(self) -> None:
        """Ends the iteration's pair of views for normalisations that keep pending statistics."""
        commit_pair(pair_norms(self), self.policy)

    def networks(self) -> dict[str, nn.Module]:
        """The networks by name: "student", and "teacher" where there is one; each has a ``backbone``."""
        return {name: child for name, child in self.named_children() if name in ("student", "teacher")}

    def backbone(self, network: str | None = None) -> Backbone:
        """The backbone of the "student" or the "teacher"; by default of the network that the paper evaluates.

        Raises:
            InputError: the method has no such network.
        """
        networks, name = self.networks(), network or self.network_default
        if name not in networks:
            raise InputError(f"expected a network of {' and '.join(networks)}, found {name!r}")
        backbone = networks[name].get_submodule("backbone")
        assert isinstance(backbone, (ResNet, TimmBackbone))
        return backbone


class Branch(nn.Module):
    """Backbone, projector and, where the method has one, predictor: images [N, 3, H, W] -> embedding [N, D]."""

    def __init__(self, backbone: Backbone, projector: nn.Module, predictor: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone, self.projector, self.predictor = backbone, projector, predictor

    def forward(self, images: Tensor) -> Tensor:
        embedding = self.projector(self.backbone(images))
        return embedding if self.predictor is None else self.predictor(embedding)


@dataclass(frozen=True)
class TeacherRule:
    """How the teacher follows the student. Every momentum is the weight of the new value."""

    norm: str = "BN"  # the teacher's normalisation, of norms.TEACHER_NORMS
    momentum_base: float = 0.01  # of the parameters
    momentum_schedule: str = "cosine"  # to 0; or constant
    moves: str = "after"  # the optimizer step (BYOL, RCF's MoCo); "before": the forwards (Momentum^2 Teacher)
    statistics_momentum: float | None = None  # EMAN's own, for the statistics; None takes the parameters'
    alpha_base: float = 1.0  # Momentum BN's weight of the batch
    alpha_schedule: str = "cosine"
    policy: str = "local"  # of the processes' Momentum BN histories, see norms.commit_pair
    groups: int = 1  # virtual processes within this one's batch, among which ShuffleBN exchanges images too


class StudentTeacher(Method):
    """A student and a teacher that starts as its copy and follows it by ``rule``.

    The teacher has the student's parameter names, possibly without predictor, possibly of another normalisation.
    """

    student: Branch

    def __init__(self, student: Branch, teacher: Branch, rule: TeacherRule) -> None:
        super().__init__(student, rule.alpha_base, rule.alpha_schedule, rule.policy)
        self.teacher, self.rule = teacher, rule
        copy_student(student, teacher)
        set_alpha(pair_norms(self), rule.alpha_base)

    def update_teacher(self, progress: float) -> dict[str, float]:
        rule = self.rule
        momentum = momentum_at(rule.momentum_base, progress, rule.momentum_schedule)
        update_teacher(self.student, self.teacher, momentum, rule.norm, rule.statistics_momentum)
        return {"momentum": momentum}

    @torch.no_grad()
    def targets(self, view: Tensor) -> Tensor:
        """The teacher's embedding [N, D] of a view, without gradient; under ShuffleBN from exchanged batches."""
        if self.rule.norm != "ShuffleBN":
            return self.teacher(view)
        return shuffled_forward(self.teacher, view, self.rule.groups)
