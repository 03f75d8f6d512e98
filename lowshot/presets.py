"""The papers' classification protocols by name, each with its source, and what settings change of them.

Learning rates are given for a batch of ``batch_size``; another batch size scales them in proportion.
m2: Momentum² Teacher (arXiv 2101.07525) sections 3.4, 4.5.1 and 4.6. rcf: Revisiting the Critical Factors (arXiv
2208.00275) section 3. eman: EMAN (arXiv 2101.08482) sections 5.2 and 5.3.
"""

from dataclasses import dataclass, replace
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError


@dataclass(frozen=True)
class Schedule:
    """How long, and how the learning rate falls."""

    epochs: float  # passes over the (labelled; in FixMatch: unlabelled) images
    shape: str = "cosine"  # to 0, or "step": ×0.1 at every milestone
    milestones: tuple[float, ...] = ()  # fractions of the run
    warmup: float = 0.0  # epochs of linear growth


@dataclass(frozen=True)
class LinearPreset:
    """A linear classifier on the frozen backbone; no weight decay in any of them."""

    schedule: Schedule
    learning_rates: tuple[float, ...]  # more than one are searched on held-out labelled images
    batch_size: int = 256
    nesterov: bool = False
    normalized: bool = False  # BatchNorm1d on the logits; under torchrun over each process's own images
    optimizer: str = "sgd"  # or "lars", which then adapts weights and biases alike


LINEAR = {
    # learning rate .5 instead of .2 on STL-10: LINEAR.LEARNING_RATES [0.5]
    "m2": LinearPreset(Schedule(80), (0.2,), normalized=True),
    # for backbones that were pretrained with SGD
    "rcf-sgd": LinearPreset(Schedule(100, "step", (0.6, 0.8)), (30.0,)),
    # for backbones that were pretrained with LARS, after BYOL
    "rcf-lars": LinearPreset(Schedule(80), (0.8,), batch_size=1024, nesterov=True),
    # the rates are MoCo's; for BYOL: LINEAR.LEARNING_RATES [0.2, 0.4, 0.8]
    "eman": LinearPreset(Schedule(50, "step", (0.6, 0.8)), (15.0, 30.0, 60.0)),
    # SimSiam (arXiv 2011.10566), the peer of Momentum² Teacher's table 5: LARS, .02 x 4096/256. Others report that the
    # paper's rate needs to be 1.6 for its accuracy: LINEAR.LEARNING_RATES [1.6]
    "simsiam": LinearPreset(Schedule(90), (0.32,), batch_size=4096, optimizer="lars"),
}
#: No paper's: EMAN's schedule, for a user's images, whose batch and rates the config gives.
LINEAR["own"] = LINEAR["eman"]


@dataclass(frozen=True)
class FinetunePreset:
    """Backbone and classifier trained together on the labelled images."""

    epochs: tuple[float, float]  # (up to 1 % of the labels, above)
    learning_rates: tuple[float, ...]  # of the backbone; more than one are searched on held-out labelled images
    head_rate: tuple[float, float] | None  # of the new classifier, as epochs; None for that of the backbone
    batch_size: int
    shape: str = "cosine"
    milestones: tuple[float, ...] = ()
    weight_decay: float = 0.0
    nesterov: bool = False
    recompute: bool = False  # the BN statistics after training

    def schedule(self, fraction: float) -> Schedule:
        return Schedule(self.epochs[fraction > 0.01], self.shape, self.milestones)

    def rate_of_head(self, rate: float, fraction: float) -> float:
        """The classifier's rate beside the backbone's ``rate``, when ``fraction`` of the labels is used."""
        return rate if self.head_rate is None else self.head_rate[fraction > 0.01]


FINETUNE = {
    # The paper names one rate for all, and recomputes (section 4.6). Nesterov without decay is from SimCLR's recipe
    # (arXiv 2002.05709, appendix B.5), which it follows.
    "m2": FinetunePreset((20, 15), (0.08,), None, batch_size=1024, nesterov=True, recompute=True),
    # from random weights (--weights scratch): torchvision's schedule; its ResNet-50 is EMAN's table 2, Supervised
    "supervised": FinetunePreset((90, 90), (0.1,), None, 256, "step", (1 / 3, 2 / 3), weight_decay=1e-4),
    # weight decay and plain momentum are those of the published runs; the paper does not print them
    "eman": FinetunePreset((50, 50), (1e-4, 1e-3, 1e-2), (1.0, 0.1), 256, "step", (0.6, 0.8), weight_decay=1e-4),
}
FINETUNE["own"] = FINETUNE["eman"]  # as LINEAR's


@dataclass(frozen=True)
class FixMatchPreset:
    """FixMatch (arXiv 2001.07685) with ImageNet's settings of EMAN section 5.3.

    ``teacher`` is its normalisation, of ``TEACHER_NORMS`` of backbones/norms, or None for plain FixMatch, whose student
    labels its own weak views, one forward for all. Every momentum is the weight of the new value; papers print 1 − it.
    """

    teacher: str | None
    student: str = "BN"
    momentum: float = 0.001  # of the teacher; .999 in the papers
    statistics_momentum: float | None = None  # of EMAN's statistics, None for ``momentum``; 1 copies the student's
    bn_momentum: float = 0.1  # of running statistics; the student's, and under "TeacherPN" the teacher's too
    alpha: float = 0.064  # of a "MomentumBN" teacher: constant weight of the batch, as Momentum² Teacher has it in MoCo
    teacher_groups: int = 1  # virtual processes within a teacher's batch of weak views (backbones/norms/batch_norm.py)
    batch_size: int = 64
    unlabelled_ratio: int = 5  # μ, unlabelled images for a labelled one
    weight: float = 10.0  # λ of the unlabelled loss
    threshold: float = 0.7  # confidence from which a pseudo-label counts
    learning_rate: float = 0.03
    pretrained_rate: float = 0.003
    weight_decay: float = 1e-4
    strong_levels: str = "eman"  # of ``augment.LEVELS``
    nesterov: bool = True  # as FixMatch (its table of hyperparameters); EMAN does not say


FIXMATCH = {
    "fixmatch": FixMatchPreset(None),  # tables 1, 6 and 8: "default", "baseline"
    "eman": FixMatchPreset("EMAN"),
    # table 1
    "ema-bn": FixMatchPreset("BN"),
    "syncbn": FixMatchPreset("SyncBN", "SyncBN"),
    "shufflebn": FixMatchPreset("ShuffleBN"),
    "gn": FixMatchPreset("GN", "GN"),
    "in": FixMatchPreset("IN", "IN"),
    # table 8, whose rows are named by m and α, the fractions that are kept
    "eman-0.9": FixMatchPreset("EMAN", statistics_momentum=0.1),
    "eman-0.99999": FixMatchPreset("EMAN", statistics_momentum=0.00001),
    "teacher-pn": FixMatchPreset("TeacherPN"),
    "teacher-pn-0.999": FixMatchPreset("TeacherPN", bn_momentum=0.001),
    "student-pn": FixMatchPreset("StudentPN"),
    "student-pn-0.999": FixMatchPreset("StudentPN", bn_momentum=0.001),
    # in neither paper: Momentum² Teacher's normalisation in EMAN's setting
    "momentum-bn": FixMatchPreset("MomentumBN"),
}

#: FixMatch's schedules: name -> (up to 1 % of the labels, above). Five epochs of warm-up in both: "all training uses
#: linear warm-up learning rate for 5 epochs" (EMAN section 5.1, of the 1x runs); section 5.3 changes nothing about it.
FIXMATCH_SCHEDULES = {
    "1x": (Schedule(50, "step", (0.6, 0.8), 5), Schedule(100, "step", (0.6, 0.8), 5)),
    "3x": (Schedule(150, "cosine", (), 5), Schedule(300, "cosine", (), 5)),
}


@dataclass(frozen=True)
class FixMatchSetting:
    """A preset with the schedule and rate that settings choose."""

    preset: FixMatchPreset
    schedule: Schedule
    rate: float  # for the preset's batch of labelled images
    steps: int | None = None  # instead of the schedule's epochs of unlabelled images
    eval_every: int = 0  # steps between accuracies on the test set in metrics.jsonl (EMAN, figure 3 a); 0 for none
    weak_batches: tuple[int, ...] = ()  # sizes of :func:`momentum_transfer.lowshot.fixmatch.weak_label_hits`


def linear_preset(node: CfgNode) -> LinearPreset:
    """What LINEAR asks for."""
    preset = LINEAR[node.PRESET]
    rates = tuple(node.LEARNING_RATES) or preset.learning_rates
    return replace(preset, learning_rates=rates, schedule=_stretched(preset.schedule, node.EPOCHS))


def finetune_preset(node: CfgNode) -> FinetunePreset:
    """What FINETUNE asks for."""
    preset = FINETUNE[node.PRESET]
    rates = tuple(node.LEARNING_RATES) or preset.learning_rates
    return replace(preset, learning_rates=rates, epochs=(node.EPOCHS, node.EPOCHS) if node.EPOCHS else preset.epochs)


def fixmatch_setting(node: CfgNode, pretrained: bool) -> FixMatchSetting:
    """What FIXMATCH asks for; a student that starts from a checkpoint (``pretrained``) has another learning rate."""
    keys = ("UNLABELLED_RATIO", "WEIGHT", "THRESHOLD", "MOMENTUM", "BN_MOMENTUM", "STRONG_LEVELS")
    changes = {key.lower(): node[key] for key in keys if node[key]}
    preset = replace(FIXMATCH[node.PRESET], **changes, **fixmatch_norms(node))
    if node.STATISTICS_MOMENTUM >= 0:
        if preset.teacher != "EMAN":
            raise InputError(f"expected no FIXMATCH.STATISTICS_MOMENTUM, which is EMAN's, for teacher {preset.teacher}")
        preset = replace(preset, statistics_momentum=node.STATISTICS_MOMENTUM)
    if node.BN_MOMENTUM and preset.student in ("GN", "IN"):
        raise InputError(f"expected no FIXMATCH.BN_MOMENTUM for student {preset.student}, which keeps no statistics")
    preset = replace(preset, teacher_groups=_teacher_groups(node, preset))
    if preset.teacher == "ShuffleBN" and distributed.world_size() * preset.teacher_groups == 1:
        raise InputError(
            "expected several processes, or FIXMATCH.TEACHER_GROUP weak views of a virtual one, to shuffle between "
            "under teacher ShuffleBN, found one process that normalises all together, which is plain BN; take "
            "FIXMATCH.TEACHER_GROUP 40, what one of EMAN's 8 GPUs labels, or another divisor"
        )
    rates = node.LEARNING_RATES or [preset.pretrained_rate if pretrained else preset.learning_rate]
    if len(rates) > 1:
        raise InputError(f"expected one value in FIXMATCH.LEARNING_RATES, found {rates}; nothing is searched here")
    schedule = _stretched(FIXMATCH_SCHEDULES[node.SCHEDULE][node.FRACTION > 0.01], node.EPOCHS)
    return FixMatchSetting(preset, schedule, rates[0], node.STEPS or None, node.EVAL_EVERY, tuple(node.WEAK_BATCHES))


def fixmatch_norms(node: CfgNode) -> dict[str, Any]:
    """FIXMATCH.STUDENT_NORM and TEACHER_NORM where they are set, as attributes of the preset."""
    if node.TEACHER_NORM and FIXMATCH[node.PRESET].teacher is None:
        raise InputError(
            f"expected a preset with a teacher under FIXMATCH.TEACHER_NORM, found FIXMATCH.PRESET {node.PRESET}; "
            "take ema-bn or eman"
        )
    given = {"student": node.STUDENT_NORM, "teacher": node.TEACHER_NORM}
    return {key: norm for key, norm in given.items() if norm}


def _teacher_groups(node: CfgNode, preset: FixMatchPreset) -> int:
    """Virtual processes of FIXMATCH.TEACHER_GROUP weak views within one process's; 1 where it is 0."""
    size = node.TEACHER_GROUP
    if size == 0:
        return 1
    weak = (node.BATCH_SIZE or preset.batch_size) * preset.unlabelled_ratio // distributed.world_size()
    if preset.teacher is None or weak % size:
        found = "a preset without teacher" if preset.teacher is None else str(size)
        raise InputError(
            f"expected FIXMATCH.TEACHER_GROUP to divide the {weak} weak views that a teacher labels in a step (of one "
            f"process), found {found}; change it, FIXMATCH.BATCH_SIZE or FIXMATCH.PRESET"
        )
    return int(weak // size)


def _stretched(schedule: Schedule, epochs: float) -> Schedule:
    """The schedule over ``epochs`` (0: its own); milestones and warm-up keep their fractions of it."""
    if not epochs:
        return schedule
    return replace(schedule, epochs=epochs, warmup=schedule.warmup * epochs / schedule.epochs)
