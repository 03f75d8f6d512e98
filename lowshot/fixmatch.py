"""FixMatch, EMA-FixMatch with BN, and FixMatch-EMAN: few labels and many images without.

Sohn et al., "FixMatch" (arXiv 2001.07685) eqs. 2-4; Cai et al., "Exponential Moving Average Normalization" (arXiv
2101.08482) sections 4.1 and 5.3, figure 2. One step sees B labelled images and μ·B unlabelled ones, each unlabelled one
as a weak and a strong view. The teacher labels the weak view; where its confidence reaches the threshold τ, the student
is to give the strong view the same label:

    loss = mean CE(student(weak labelled), label) + λ · mean [confidence ≥ τ] · CE(student(strong), pseudo-label)

The mean of the second term runs over all unlabelled images, confident or not. Labelled and strong images go through the
student together, so they share its BN statistics.

Teachers: "student" (plain FixMatch: the weak views join the same forward, and no gradient flows through their labels),
"ema-bn" (a moving average of the student's parameters whose BN normalises with its own batch), "eman" (parameters
and BN statistics are moving averages, and BN is in eval mode) and table 8's "teacher-pn" (BN normalises with the
running statistics of the teacher's own earlier batches). The moving averages follow after the optimiser's step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lowshot.presets import FixMatchPreset
from pretrain.errors import InputError
from pretrain.norms import TeacherProxyBatchNorm, commit_pair, pair_norms
from pretrain.teacher import copy_student, move_parameters, move_statistics

TEACHERS = ("student", "ema-bn", "eman", "teacher-pn")


@dataclass(frozen=True)
class Losses:
    """One step's result: the two terms, and how good the pseudo-labels are.

    Attributes:
        coverage: share of unlabelled images whose pseudo-label is confident enough.
        pseudo_accuracy: share of those that are right (NaN without any); the hidden labels serve for this alone.
    """

    labelled: Tensor
    unlabelled: Tensor
    total: Tensor
    coverage: float
    pseudo_accuracy: float

    def numbers(self) -> dict[str, float]:
        return {
            "loss_labelled": float(self.labelled.detach()),
            "loss_unlabelled": float(self.unlabelled.detach()),
            "coverage": self.coverage,
            "pseudo_accuracy": self.pseudo_accuracy,
        }


def unlabelled_loss(strong_logits: Tensor, teacher_logits: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """FixMatch eq. 4: (mean over all images of masked cross-entropy, pseudo-labels [N], mask [N] bool).

    Args:
        strong_logits: [N, classes] of the student. teacher_logits: [N, classes], no gradient flows into them.
    """
    confidence, pseudo = teacher_logits.detach().softmax(dim=1).max(dim=1)
    mask = confidence >= threshold
    loss = (cross_entropy(strong_logits, pseudo, reduction="none") * mask).mean()
    return loss, pseudo, mask


def teacher_norm(preset: FixMatchPreset) -> Callable[[int], nn.Module]:
    """Channels -> the normalisation that the teacher's backbone is built with."""
    if preset.teacher == "teacher-pn":
        return partial(TeacherProxyBatchNorm, alpha=preset.bn_momentum)
    return nn.BatchNorm2d


class FixMatch(nn.Module):
    """Student and teacher classifiers.

    Args:
        student: images [N, 3, H, W] -> logits [N, classes].
        teacher: a module of the same structure (normalised by :func:`teacher_norm`), overwritten with the student; None
            where the student is the teacher.
        preset: see :class:`lowshot.presets.FixMatchPreset`.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module | None, preset: FixMatchPreset) -> None:
        super().__init__()
        if preset.teacher not in TEACHERS:
            raise InputError(f"expected a FixMatch teacher of {', '.join(TEACHERS)}, found {preset.teacher!r}")
        if (teacher is None) != (preset.teacher == "student"):
            raise ValueError(f"teacher {preset.teacher!r} and the module given for it do not fit")
        self.preset, self.student, self.teacher = preset, student, teacher
        for module in student.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = preset.bn_momentum
        self.proxies = [] if teacher is None else pair_norms(teacher)
        if teacher is not None:
            copy_student(student, teacher)
        self.train()

    def train(self, mode: bool = True) -> "FixMatch":
        """EMAN's teacher normalises with its moving averages even in training."""
        super().train(mode)
        if self.teacher is not None and self.preset.teacher == "eman":
            self.teacher.eval()
        return self

    @property
    def evaluated(self) -> nn.Module:
        """The network that is tested: the moving average where there is one, as in FixMatch."""
        return self.student if self.teacher is None else self.teacher

    def forward(self, labelled: Tensor, labels: Tensor, weak: Tensor, strong: Tensor, hidden: Tensor) -> Losses:
        """One step's losses.

        Args:
            labelled: weak views [B, 3, H, W] with ``labels`` [B].
            weak, strong: views of the same unlabelled images [μB, 3, H, W]; ``hidden``: their labels [μB], for the log.
        """
        parts = [len(labelled), len(strong)]
        if self.teacher is None:
            logits, strong_logits, teacher_logits = self.student(torch.cat([labelled, strong, weak])).split(
                [*parts, len(weak)]
            )
        else:
            with torch.no_grad():
                teacher_logits = self.teacher(weak)
            logits, strong_logits = self.student(torch.cat([labelled, strong])).split(parts)
        loss_labelled = cross_entropy(logits, labels)
        loss_unlabelled, pseudo, mask = unlabelled_loss(strong_logits, teacher_logits, self.preset.threshold)
        return Losses(
            loss_labelled,
            loss_unlabelled,
            loss_labelled + self.preset.weight * loss_unlabelled,
            coverage=float(mask.float().mean()),
            pseudo_accuracy=float((pseudo == hidden)[mask].float().mean()),
        )

    def update_teacher(self) -> None:
        """Move the teacher towards the student (EMAN eqs. 1 and 9); called after the optimiser's step.

        The BN counters and, for "ema-bn", the running statistics that evaluation needs are the teacher's own.
        """
        if self.teacher is None:
            return
        share = 1 - self.preset.momentum
        move_parameters(self.student, self.teacher, share)
        if self.preset.teacher == "eman":
            kept = self.preset.statistics_momentum
            move_statistics(self.student, self.teacher, share if kept is None else 1 - kept)
        commit_pair(self.proxies)
