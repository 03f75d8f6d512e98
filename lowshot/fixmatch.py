"""FixMatch, EMA-FixMatch with BN, and FixMatch-EMAN: few labels and many images without.

Sohn et al., "FixMatch" (arXiv 2001.07685) eqs. 2-4; Cai et al., "Exponential Moving Average Normalization" (arXiv
2101.08482) sections 4.1 and 5.3, figure 2. One step sees B labelled images and μ·B unlabelled ones, each unlabelled one
as a weak and a strong view. The teacher labels the weak view; where its confidence reaches the threshold τ, the student
is to give the strong view the same label:

    loss = mean CE(student(weak labelled), label) + λ · mean [confidence ≥ τ] · CE(student(strong), pseudo-label)

The mean of the second term runs over all unlabelled images, confident or not. Labelled and strong images go through the
student in one batch, with the same BN statistics.

Without a teacher this is plain FixMatch: the weak views join the same forward, and no gradient flows through their
labels. A teacher is a moving average of the student's parameters, updated after the optimizer's step; how it normalises
is a choice of ``backbones/norms``: BN (the statistics of its own batch), SyncBN, ShuffleBN, GN, IN, EMAN (a moving
average of the student's statistics), the proxy norms of table 8, Momentum BN. It serves training alone: the student is
what is evaluated ("the teacher model is discarded once training finished", EMAN section 3.1).

FIXMATCH.WEAK_BATCHES: at the end the student labels weak views of the test images, with its running statistics and with
those of each batch. It trained on labelled and strong views together, so its running statistics are of that mixture; a
teacher that normalises weak views with its own batch uses its weights under other statistics (EMAN section 4, and its
table 1: SyncBN's teacher is behind BN's). Here the weights are the same, and only the statistics differ.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from momentum_transfer.backbones import norms
from momentum_transfer.backbones.batch_statistics import has_batch_norm
from momentum_transfer.backbones.build import Backbone, build_backbone
from momentum_transfer.backbones.norms import Norm
from momentum_transfer.backbones.teacher import copy_student, shuffled_forward, update_teacher
from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.core.loggers import read
from momentum_transfer.core.ranges import Choice
from momentum_transfer.images.views import sample_seed
from momentum_transfer.lowshot.augment import SeededView, WeakAndStrong
from momentum_transfer.lowshot.classifier import Classifier, Run, Setup, accuracy, fit, shared_over_processes
from momentum_transfer.lowshot.labelled_data import LabelledData, Stream, steps_of, training_batches
from momentum_transfer.lowshot.presets import FixMatchPreset, FixMatchSetting

#: Normalisations that FixMatch's student and teacher may have.
STUDENTS = tuple(name for name in norms.STUDENT_NORMS if name != "MomentumBN")


def _unlabelled_loss(strong_logits: Tensor, teacher_logits: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """FixMatch eq. 4: (mean over all images of masked cross-entropy, pseudo-labels [N], mask [N] bool).

    Both logits are [N, classes]; no gradient flows into the teacher's.
    """
    confidence, pseudo = teacher_logits.detach().softmax(dim=1).max(dim=1)
    mask = confidence >= threshold
    loss = (cross_entropy(strong_logits, pseudo, reduction="none") * mask).mean()
    return loss, pseudo, mask


def grouped(teacher: str | None) -> bool:
    """Whether virtual processes change a teacher's normalisation: only if it looks at a batch of its own.

    EMAN and StudentPN take the student's statistics, of which there is one set; SyncBN joins all groups.
    """
    return teacher in norms.OWN_BATCH


def check_preset(preset: FixMatchPreset, pretrained: bool) -> None:
    """Raise :class:`InputError` for normalisations that do not go together or with the weights at the start."""
    Choice(STUDENTS).require("FIXMATCH.STUDENT_NORM", preset.student)
    norms.check_norms(preset.student, preset.teacher)
    if pretrained and preset.student in ("GN", "IN"):
        raise InputError(
            f"expected --weights scratch for a student that normalises with {preset.student}, found a checkpoint, "
            "whose weights were trained with batch normalisation; leave the weights out, or take BN or SyncBN"
        )


def check_backbone(preset: FixMatchPreset, backbone: Backbone, size: int) -> None:
    """Raise :class:`InputError` without batch normalisation to replace, or with one position for instance norm."""
    name = backbone.architecture
    if not has_batch_norm(backbone):
        if preset.student != "BN" or preset.teacher not in (None, "BN", "EMAN"):
            asked = preset.teacher if preset.student == "BN" else preset.student
            raise InputError(
                f"expected a network with batch normalisation for FixMatch with {asked}, found {name}, which has none "
                "to replace; take FIXMATCH.PRESET eman, ema-bn or fixmatch"
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


class FixMatch(nn.Module):
    """Student and teacher classifiers, images [N, 3, H, W] -> logits [N, classes].

    ``teacher``: a module of the same parameter names that normalises as ``preset.teacher`` says, overwritten with the
    student; None if the student is the teacher.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module | None, preset: FixMatchPreset) -> None:
        super().__init__()
        if (teacher is None) != (preset.teacher is None):
            raise ValueError(f"teacher {preset.teacher!r} and the module given for it do not fit")
        self.preset, self.student, self.teacher = preset, student, teacher
        self.histories = [] if teacher is None else norms.pair_norms(teacher)
        norms.set_alpha(self.histories, preset.alpha)
        if teacher is not None:
            copy_student(student, teacher)
        self.train()

    def networks(self) -> dict[str, nn.Module]:
        """By name: the student, which is the result, and the teacher where there is one."""
        return {"student": self.student} | ({} if self.teacher is None else {"teacher": self.teacher})

    def forward(
        self, labelled: Tensor, labels: Tensor, weak: Tensor, strong: Tensor, hidden: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """One step's loss, and numbers for the log: the two terms, and how good the pseudo-labels are.

        ``coverage`` is the fraction of unlabelled images whose pseudo-label is confident enough, ``pseudo_accuracy``
        the fraction of those that are right (NaN without any), ``pseudo_top1`` that of all, confident or not.

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
        loss_unlabelled, pseudo, mask = _unlabelled_loss(strong_logits, teacher_logits, self.preset.threshold)
        right = pseudo == hidden
        return loss_labelled + self.preset.weight * loss_unlabelled, {
            "loss_labelled": float(loss_labelled.detach()),
            "loss_unlabelled": float(loss_unlabelled.detach()),
            "coverage": float(mask.float().mean()),
            "pseudo_accuracy": float(right[mask].float().mean()),
            "pseudo_top1": float(right.float().mean()),
        }

    def update_teacher(self) -> None:
        """Move the teacher towards the student (EMAN eqs. 1 and 9); called after the optimizer's step.

        A teacher that normalises with its own batches keeps its own running statistics, which evaluation reads.
        """
        preset = self.preset
        if self.teacher is None or preset.teacher is None:
            return
        update_teacher(self.student, self.teacher, preset.momentum, preset.teacher, preset.statistics_momentum)
        norms.commit_pair(self.histories)


def build_method(
    backbone: Backbone, classes: int, preset: FixMatchPreset, seed: int, device: str | torch.device = "cpu"
) -> FixMatch:
    """Student and teacher, both with the backbone's tensors and one new classifier of random weights."""
    network = build_backbone(backbone.architecture, Norm(preset.student, preset.bn_momentum))
    state = backbone.state_dict()
    network.load_state_dict({name: state[name] for name in network.state_dict()})  # GN and IN have no statistics
    student = Classifier(network, classes, seed).requires_grad_(True)
    teacher = None
    if preset.teacher is not None:
        groups = preset.teacher_groups if grouped(preset.teacher) else 1
        norm = Norm(preset.teacher, preset.bn_momentum, proxy_momentum=preset.bn_momentum, groups=groups)
        teacher = Classifier(build_backbone(backbone.architecture, norm), classes, seed)
    method = FixMatch(student, teacher, preset).to(device)
    if torch.device(device).type == "cuda" and distributed.is_distributed():
        norms.use_fused_sync(method)
    return method


@dataclass(frozen=True)
class FixMatchResult:
    """How the networks and the pseudo-labels (of rank 0's images) did at the end, in fractions."""

    networks: dict[str, dict[str, float]]  # "student" and, if there is one, "teacher" -> top1 and top5 on the test set
    coverage: float  # mean over the last hundredth of the steps
    pseudo_accuracy: float  # the same
    pseudo_labels: dict[str, float]  # ``pseudo_top1`` and ``pseudo_accuracy``, means over all steps
    hits: dict[str, dict[str, np.ndarray]]  # as ``networks``, [N] bool: whether each test image was right
    weak_hits: dict[str, np.ndarray]  # see :func:`weak_label_hits`


_Pair = tuple[Tensor, Tensor]
_Step = tuple[int, _Pair, tuple[_Pair, Tensor]]
"""Step, (labelled images, labels), ((weak, strong views), hidden labels)."""


def evaluate_fixmatch(
    data: LabelledData, views: WeakAndStrong, build: Callable[[], Backbone], setting: FixMatchSetting, setup: Setup
) -> FixMatchResult:
    """Train on the labelled rows and on all others without their labels, then score each network on the test set.

    ``views`` are of unlabelled images; labelled ones see ``data.augment``. ``build`` gives a fresh backbone.
    """
    preset, device = setting.preset, setup.device
    unlabelled_batch = setup.batch_size * preset.unlabelled_ratio
    others = _unlabelled_rows(len(data.train), setup.rows, unlabelled_batch)
    method = build_method(build(), data.num_classes, preset, setup.seed, device)
    total = setting.steps or steps_of(setting.schedule.epochs, len(others), unlabelled_batch)
    outer = shared_over_processes(method, device)

    def test_accuracy() -> dict[str, float]:
        found, _ = _test_accuracy(method, data, setup)
        return {f"{name}_top1": 100 * each["top1"] for name, each in found.items()}  # percent, as records have it

    run = Run(
        modules={"method": method},
        groups=[
            {"params": list(method.student.parameters()), "lr": setting.rate * setup.batch_size / preset.batch_size}
        ],
        schedule=setting.schedule,
        total=total,
        folder=setup.folder / "checkpoints",
        nesterov=preset.nesterov,
        weight_decay=preset.weight_decay,
        after_step=lambda step: method.update_teacher(),
        metrics=setup.folder,
        evaluate=test_accuracy,
        evaluate_every=setting.eval_every,
    )

    def batches(start: int) -> Iterable[_Step]:
        labelled = data.training(Stream(setup.rows, setup.batch_size, total, setup.seed, start))
        stream = Stream(others, unlabelled_batch, total, setup.seed + 1, start)
        unlabelled = training_batches(data.train, views, stream, data.workers)
        return zip(range(start, total), labelled, unlabelled, strict=True)

    def loss_of(inputs: _Step) -> tuple[Tensor, dict[str, float]]:
        step, (images, labels), ((weak, strong), hidden) = inputs
        torch.manual_seed(sample_seed(setup.seed, step, 0))  # of ShuffleBN's order: the same when a run is resumed
        loss, numbers = outer(*(tensor.to(device) for tensor in (images, labels, weak, strong, hidden)))
        return loss, numbers

    fit(run, batches, loss_of, f"FixMatch ({preset.teacher or 'no'} teacher)")
    found, hits = _test_accuracy(method, data, setup)
    sizes = setting.weak_batches
    weak = weak_label_hits(method.student, data, sizes, setup.seed, device) if sizes else {}
    file = setup.folder / "metrics.jsonl"
    return FixMatchResult(found, *_pseudo_labels(read(file) if file.is_file() else [], total), hits, weak)


def _unlabelled_rows(count: int, rows: np.ndarray, batch: int) -> np.ndarray:
    """The rows of ``count`` that are not among the labelled ``rows``; at least a batch of them."""
    others = np.setdiff1d(np.arange(count), rows)
    if not len(others):
        raise InputError("expected unlabelled images besides the labelled ones, found none; lower FIXMATCH.FRACTION")
    if batch > len(others):
        raise InputError(
            f"expected at most {len(others)} unlabelled images a step (all there are), found {batch}; "
            "lower FIXMATCH.BATCH_SIZE or FIXMATCH.UNLABELLED_RATIO"
        )
    return others


@torch.no_grad()
def _test_accuracy(
    method: FixMatch, data: LabelledData, setup: Setup
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, np.ndarray]]]:
    """Top-1 and top-5 of each network on the test set, in evaluation mode, and the hits of each image."""
    found, hits = {}, {}
    for name, network in method.networks().items():
        training = network.training
        on_test, hits[name] = accuracy(network.eval(), data.testing(setup.batch_size), setup.device)
        network.train(training)
        found[name] = {metric: float(value) for metric, value in on_test.items()}
    return found, hits


def _pseudo_labels(lines: list[dict[str, Any]], total: int) -> tuple[float, float, dict[str, float]]:
    """Coverage, pseudo-label accuracy and ``pseudo_labels`` of a FixMatchResult, from the lines of a metrics.jsonl."""
    end = lines[-max(1, total // 100) :]
    accurate = [line["pseudo_accuracy"] for line in end if line["pseudo_accuracy"] is not None]
    confident = sum(line["coverage"] for line in lines)
    right = sum(line["coverage"] * line["pseudo_accuracy"] for line in lines if line["coverage"])
    of_all_steps = {
        "pseudo_top1": float(np.mean([line["pseudo_top1"] for line in lines])) if lines else np.nan,
        "pseudo_accuracy": right / confident if confident else np.nan,
    }
    coverage = float(np.mean([line["coverage"] for line in end] or [np.nan]))
    return coverage, float(np.mean(accurate or [np.nan])), of_all_steps


def weak_label_hits(
    student: nn.Module, data: LabelledData, sizes: Sequence[int], seed: int, device: torch.device
) -> dict[str, np.ndarray]:
    """Whether each weak view of the test images gets its image's label: {"running": [N], "n=8": [N], …} bool.

    A copy of ``student`` is used. ``sizes``: of batches with statistics of their own, in a random order of the images;
    the last batch is filled up with the first images of the order.
    """
    view = SeededView(data.augment, seed)
    views = torch.stack([view(data.test[index][0]) for index in range(len(data.test))]).to(device)
    labels = torch.as_tensor(np.asarray(data.test.labels), device=device)
    network = deepcopy(student)
    order = torch.randperm(len(views), generator=torch.Generator().manual_seed(seed)).to(device)
    found = {"running": _labels(network.eval(), views, torch.arange(len(views), device=device), 256)}
    for size in sizes:
        found[f"n={size}"] = _labels(network.train(), views, order, size)
    return {way: (given == labels).cpu().numpy() for way, given in found.items()}


@torch.no_grad()
def _labels(network: nn.Module, views: Tensor, order: Tensor, size: int) -> Tensor:
    """[N] labels of the views, which go through the network in batches of ``size`` in that order."""
    given = torch.empty(len(views), dtype=torch.long, device=views.device)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        filled = torch.cat([rows, order[: size - len(rows)]]) if network.training else rows
        given[rows] = network(views[filled]).argmax(1)[: len(rows)]
    return given
