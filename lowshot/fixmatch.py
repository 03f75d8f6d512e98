"""FixMatch, EMA-FixMatch with BN, and FixMatch-EMAN: few labels and many images without.

Sohn et al., "FixMatch" (arXiv 2001.07685) eqs. 2-4; Cai et al., "Exponential Moving Average Normalization" (arXiv
2101.08482) sections 4.1 and 5.3, figure 2. One step sees B labelled images and μ·B unlabelled ones, each unlabelled one
as a weak and a strong view. The teacher labels the weak view; where its confidence reaches the threshold τ, the student
is to give the strong view the same label:

    loss = mean CE(student(weak labelled), label) + λ · mean [confidence ≥ τ] · CE(student(strong), pseudo-label)

The mean of the second term runs over all unlabelled images, confident or not. Labelled and strong images go through the
student together, so they share its BN statistics.

Without a teacher this is plain FixMatch: the weak views join the same forward, and no gradient flows through their
labels. A teacher is a moving average of the student's parameters, moved after the optimiser's step; how it normalises
is a choice of ``pretrain.norms``: BN (the statistics of its own batch), SyncBN, ShuffleBN, GN, IN, EMAN (a moving
average of the student's statistics), the proxy norms of table 8, Momentum BN. It serves training alone: the student is
what is evaluated ("the teacher model is discarded once training finished", EMAN section 3.1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from momentum_transfer.backbones.batch_statistics import has_batch_norm
from momentum_transfer.backbones.build import Backbone, build_backbone
from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.core.ranges import Choice
from momentum_transfer.lowshot.classifier import Classifier
from momentum_transfer.lowshot.presets import FixMatchPreset
from momentum_transfer.pretrain.norms import (
    OWN_BATCH,
    STUDENT_NORMS,
    Norm,
    check_norms,
    commit_pair,
    pair_norms,
    set_alpha,
    use_fused_sync,
)
from momentum_transfer.pretrain.teacher import copy_student, shuffled_forward, update_teacher

#: Normalisations that FixMatch's student and teacher may have.
STUDENTS = tuple(name for name in STUDENT_NORMS if name != "MomentumBN")


@dataclass(frozen=True)
class Losses:
    """One step's result: the two terms, and how good the pseudo-labels are.

    Attributes:
        coverage: share of unlabelled images whose pseudo-label is confident enough.
        pseudo_accuracy: share of those that are right (NaN without any); the hidden labels serve for this alone.
        pseudo_top1: share of all pseudo-labels that are right, confident or not.
    """

    labelled: Tensor
    unlabelled: Tensor
    total: Tensor
    coverage: float
    pseudo_accuracy: float
    pseudo_top1: float

    def numbers(self) -> dict[str, float]:
        return {
            "loss_labelled": float(self.labelled.detach()),
            "loss_unlabelled": float(self.unlabelled.detach()),
            "coverage": self.coverage,
            "pseudo_accuracy": self.pseudo_accuracy,
            "pseudo_top1": self.pseudo_top1,
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


def grouped(teacher: str | None) -> bool:
    """Whether virtual processes change what a teacher's normalisation does: not where it looks at no batch of its own.

    EMAN and StudentPN take the student's statistics, of which there is one set; SyncBN joins all groups.
    """
    return teacher in OWN_BATCH


def check_preset(preset: FixMatchPreset, pretrained: bool) -> None:
    """Raise :class:`InputError` for normalisations that do not go together or with the weights at the start."""
    Choice(STUDENTS).require("FIXMATCH.STUDENT_NORM", preset.student)
    check_norms(preset.student, preset.teacher)
    if pretrained and preset.student in ("GN", "IN"):
        raise InputError(
            f"expected --weights scratch for a student that normalises with {preset.student}, found a checkpoint, "
            "whose weights were trained with batch normalisation; leave the weights out, or take BN or SyncBN"
        )


def check_backbone(preset: FixMatchPreset, backbone: Backbone, size: int) -> None:
    """What the backbone has to say to the preset: its stages' positions, its normalisation.

    Raises:
        InputError: instance normalisation would find a single position in the last stage, or the preset asks for
            another normalisation of a network without batch normalisation.
    """
    name = backbone.architecture
    if not has_batch_norm(backbone):
        if preset.student != "BN" or preset.teacher not in (None, "BN", "EMAN"):
            asked = preset.teacher if preset.student == "BN" else preset.student
            raise InputError(
                f"expected a network with batch normalisation for FixMatch with {asked}, found {name}, which has none "
                "to put it in the place of; take FIXMATCH.PRESET eman, ema-bn or fixmatch"
            )
        what = "" if preset.teacher is None else ": the teacher keeps no statistics, EMAN is an average of weights, EMA"
        say(f"{name} has no batch normalisation{what}")
        return
    stride = max(backbone.strides.values(), default=1)
    if "IN" in (preset.student, preset.teacher) and size <= stride:
        raise InputError(
            f"expected images of more than {stride} px for instance normalisation, which needs several positions in "
            f"every stage, found INPUT.IMAGE_SIZE {size}; raise it, or take the stem small (MODEL.STEM)"
        )


def with_norm(backbone: Backbone, norm: Norm) -> Backbone:
    """The same network with another normalisation; tensors are copied by name (GN and IN have no statistics)."""
    built = build_backbone(backbone.architecture, norm)
    state = backbone.state_dict()
    built.load_state_dict({name: state[name] for name in built.state_dict()})
    return built


class FixMatch(nn.Module):
    """Student and teacher classifiers.

    Args:
        student: images [N, 3, H, W] -> logits [N, classes].
        teacher: a module of the same parameter names that normalises as ``preset.teacher`` says, overwritten with the
            student; None where the student is the teacher.
        preset: see :class:`momentum_transfer.lowshot.presets.FixMatchPreset`.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module | None, preset: FixMatchPreset) -> None:
        super().__init__()
        if (teacher is None) != (preset.teacher is None):
            raise ValueError(f"teacher {preset.teacher!r} and the module given for it do not fit")
        self.preset, self.student, self.teacher = preset, student, teacher
        self.histories = [] if teacher is None else pair_norms(teacher)
        set_alpha(self.histories, preset.alpha)
        if teacher is not None:
            copy_student(student, teacher)
        self.train()

    def networks(self) -> dict[str, nn.Module]:
        """By name: the student, which is the result, and the teacher where there is one."""
        return {"student": self.student} | ({} if self.teacher is None else {"teacher": self.teacher})

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
                shuffle = self.preset.teacher == "ShuffleBN"
                groups = self.preset.teacher_groups
                teacher_logits = shuffled_forward(self.teacher, weak, groups) if shuffle else self.teacher(weak)
            logits, strong_logits = self.student(torch.cat([labelled, strong])).split(parts)
        loss_labelled = cross_entropy(logits, labels)
        loss_unlabelled, pseudo, mask = unlabelled_loss(strong_logits, teacher_logits, self.preset.threshold)
        return Losses(
            loss_labelled,
            loss_unlabelled,
            loss_labelled + self.preset.weight * loss_unlabelled,
            coverage=float(mask.float().mean()),
            pseudo_accuracy=float((pseudo == hidden)[mask].float().mean()),
            pseudo_top1=float((pseudo == hidden).float().mean()),
        )

    def update_teacher(self) -> None:
        """Move the teacher towards the student (EMAN eqs. 1 and 9); called after the optimiser's step.

        The running statistics of a teacher that normalises with its own batches are its own; evaluation reads them.
        """
        preset = self.preset
        if self.teacher is None or preset.teacher is None:
            return
        update_teacher(self.student, self.teacher, preset.momentum, preset.teacher, preset.statistics_momentum)
        commit_pair(self.histories)


def build_method(
    backbone: Backbone, classes: int, preset: FixMatchPreset, seed: int, device: str | torch.device = "cpu"
) -> FixMatch:
    """Student and teacher, both with the backbone's tensors and one new classifier, drawn with ``seed``."""
    student_norm = Norm(preset.student, preset.bn_momentum)
    student = Classifier(with_norm(backbone, student_norm), classes, seed).requires_grad_(True)
    teacher = None
    if preset.teacher is not None:
        groups = preset.teacher_groups if grouped(preset.teacher) else 1
        norm = Norm(preset.teacher, preset.bn_momentum, proxy_momentum=preset.bn_momentum, groups=groups)
        teacher = Classifier(build_backbone(backbone.architecture, norm), classes, seed)
    method = FixMatch(student, teacher, preset).to(device)
    if torch.device(device).type == "cuda" and distributed.is_distributed():
        use_fused_sync(method)
    return method
