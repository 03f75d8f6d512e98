"""The papers' classification protocols by name: numbers only, each with its source.

Learning rates are given for a batch of ``batch_size``; another batch size scales them in proportion.
m2: Momentum² Teacher (arXiv 2101.07525) sections 3.4, 4.5.1 and 4.6. rcf: Revisiting the Critical Factors (arXiv
2208.00275) section 3. eman: EMAN (arXiv 2101.08482) sections 5.2 and 5.3.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """How long, and how the learning rate falls.

    Attributes:
        epochs: passes over the (labelled; in FixMatch: unlabelled) images.
        shape: "cosine" to 0, or "step": ×0.1 at every milestone.
        milestones: fractions of the run.
        warmup: epochs of linear growth.
    """

    epochs: float
    shape: str = "cosine"
    milestones: tuple[float, ...] = ()
    warmup: float = 0.0


@dataclass(frozen=True)
class LinearPreset:
    """A linear classifier on the frozen backbone; no weight decay in any of them.

    Attributes:
        learning_rates: more than one are searched on held-out labelled images.
        optimizer: "sgd" or "lars", which then adapts weights and biases alike.
        normalized: BatchNorm1d on the logits, after the linear layer; under torchrun over each process's own images.
    """

    schedule: Schedule
    learning_rates: tuple[float, ...]
    batch_size: int = 256
    nesterov: bool = False
    normalized: bool = False
    optimizer: str = "sgd"


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
    """Backbone and classifier trained together on the labelled images.

    Attributes:
        learning_rates: of the backbone; more than one are searched on held-out labelled images.
        head_rate: (up to 1 % of the labels, above) of the new classifier; None for that of the backbone.
        epochs: (up to 1 % of the labels, above).
        recompute: the BN statistics are computed again after training.
    """

    epochs: tuple[float, float]
    learning_rates: tuple[float, ...]
    head_rate: tuple[float, float] | None
    batch_size: int
    shape: str = "cosine"
    milestones: tuple[float, ...] = ()
    weight_decay: float = 0.0
    nesterov: bool = False
    recompute: bool = False

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

    Attributes:
        teacher: normalisation of the teacher, of ``pretrain.norms.TEACHER_NORMS``, or None for plain FixMatch: the
            student labels its own weak views, one forward for all.
        student: normalisation of the student.
        momentum: of the teacher. Every momentum is the weight of the new value; the papers print 1 minus it.
        statistics_momentum: of EMAN's statistics, None for ``momentum``; 1 copies the student's.
        bn_momentum: of the BN's running statistics; the student's, and under "TeacherPN" the teacher's too.
        alpha: of a "MomentumBN" teacher: weight of the batch, constant, as Momentum² Teacher has it in MoCo.
        teacher_groups: virtual processes within a teacher's batch of weak views (``pretrain.norms.batch_norm``).
        unlabelled_ratio: μ, unlabelled images for a labelled one.
        weight: λ of the unlabelled loss.
        threshold: confidence from which a pseudo-label counts.
        strong_levels: how the strong view draws the level of each operation, of ``lowshot.rand_augment.LEVELS``.
        nesterov: as FixMatch (its table of hyperparameters); EMAN does not say.
    """

    teacher: str | None
    student: str = "BN"
    momentum: float = 0.001  # .999 in the papers
    statistics_momentum: float | None = None
    bn_momentum: float = 0.1
    alpha: float = 0.064
    teacher_groups: int = 1
    batch_size: int = 64
    unlabelled_ratio: int = 5
    weight: float = 10.0
    threshold: float = 0.7
    learning_rate: float = 0.03
    pretrained_rate: float = 0.003
    weight_decay: float = 1e-4
    strong_levels: str = "eman"
    nesterov: bool = True


FIXMATCH = {
    "fixmatch": FixMatchPreset(None),  # tables 1, 6 and 8: "default", "baseline"
    "eman": FixMatchPreset("EMAN"),
    # table 1
    "ema-bn": FixMatchPreset("BN"),
    "syncbn": FixMatchPreset("SyncBN", "SyncBN"),
    "shufflebn": FixMatchPreset("ShuffleBN"),
    "gn": FixMatchPreset("GN", "GN"),
    "in": FixMatchPreset("IN", "IN"),
    # table 8, whose rows are named by m and α, the shares that are kept
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
