"""A whole FixMatch training: streams of labelled and unlabelled images, schedule, log, score.

How a student labels weak views of held-out images: with its running statistics, or with those of each batch.

A student that trains on labelled and strong views together has running statistics of that mixture. A teacher that
normalises weak views with the statistics of its own batch stands in another world than the weights it was given (EMAN,
arXiv 2101.08482, section 4, and its table 1: SyncBN's teacher is behind BN's). Here the weights are the same, and only
the statistics differ.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.loggers import read
from momentum_transfer.images.views import sample_seed
from momentum_transfer.lowshot.augment import SeededView, WeakAndStrong
from momentum_transfer.lowshot.classifier import Run, accuracy, fit, in_order, shared_over_processes
from momentum_transfer.lowshot.fixmatch import FixMatch, build_method
from momentum_transfer.lowshot.labelled_data import LabelledData, Stream, steps_of, training_batches
from momentum_transfer.lowshot.presets import FixMatchPreset, Schedule

#: The way without batch statistics, and the name of those with them.
RUNNING, BATCHES = "running", "n={}"


def check_weak_batches(sizes: Sequence[int], images: int) -> None:
    """Raise :class:`InputError` for a batch of more weak views than there are test images."""
    if sizes and max(sizes) > images:
        raise InputError(
            f"expected FIXMATCH.WEAK_BATCHES of at most {images} (the images that test), found {max(sizes)}; lower it"
        )


def weak_label_hits(
    student: nn.Module, data: LabelledData, sizes: Sequence[int], seed: int, device: torch.device
) -> dict[str, np.ndarray]:
    """Whether each weak view of the test images gets its image's label: {"running": [N], "n=8": [N], …} bool.

    Args:
        student: images [N, 3, H, W] -> logits; a copy of it is used.
        sizes: images that share batch statistics; companions are drawn with ``seed``, the last batch is filled up with
            the first images of the order.
    """
    view = SeededView(data.augment, seed)
    views = torch.stack([view(data.test[index][0]) for index in range(len(data.test))]).to(device)
    labels = torch.as_tensor(np.asarray(data.test.labels), device=device)
    network = deepcopy(student)
    order = torch.randperm(len(views), generator=torch.Generator().manual_seed(seed)).to(device)
    found = {RUNNING: _labels(network.eval(), views, torch.arange(len(views), device=device), 256)}
    for size in sizes:
        found[BATCHES.format(size)] = _labels(network.train(), views, order, size)
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


@dataclass(frozen=True)
class FixMatchResult:
    """How the networks and the pseudo-labels did at the end, in fractions.

    Attributes:
        networks: "student" and, where there is one, "teacher" -> {"top1": …, "top5": …} on the test set.
        coverage, pseudo_accuracy: means over the last hundredth of the steps, of the first process's images.
        pseudo_labels: means over all steps, of the first process's images: ``pseudo_top1``, right pseudo-labels among
            all, and ``pseudo_accuracy``, right ones among the confident.
        hits: as ``networks``, [N] bool, whether each test image was right.
        weak_hits: how the student labels weak views of the test images, see ``lowshot.weak_labels``: way -> [N] bool.
    """

    networks: dict[str, dict[str, float]]
    coverage: float
    pseudo_accuracy: float
    pseudo_labels: dict[str, float]
    hits: dict[str, dict[str, np.ndarray]]
    weak_hits: dict[str, np.ndarray]


@dataclass(frozen=True)
class FixMatchSetting:
    """What a training needs besides data: numbers of the preset and of the schedule.

    Attributes:
        rate: learning rate for the preset's batch of labelled images.
        steps: instead of the schedule's epochs of unlabelled images, if not None.
        eval_every: steps between accuracies on the test set in metrics.jsonl (EMAN, figure 3 a); 0 for none.
        weak_batches: sizes of ``momentum_transfer.lowshot.fixmatch_run``, for the student at the end.
    """

    preset: FixMatchPreset
    schedule: Schedule
    rate: float
    batch_size: int
    steps: int | None = None
    eval_every: int = 0
    weak_batches: tuple[int, ...] = ()


_Pair = tuple[torch.Tensor, torch.Tensor]
_Step = tuple[int, _Pair, tuple[_Pair, torch.Tensor]]
"""Step, (labelled images, labels), ((weak, strong views), hidden labels)."""


def evaluate_fixmatch(
    data: LabelledData,
    views: WeakAndStrong,
    build: Callable[[], Backbone],
    rows: np.ndarray,
    setting: FixMatchSetting,
    seed: int,
    folder: Path,
    device: torch.device,
) -> FixMatchResult:
    """Train on the labelled ``rows`` and on all others without their labels, then score each network on the test set.

    Args:
        views: of unlabelled images; labelled ones see ``data.augment``.
        build: a fresh backbone, pretrained or not.
    """
    preset, batch = setting.preset, setting.batch_size
    unlabelled_batch = batch * preset.unlabelled_ratio
    others = _unlabelled_rows(len(data.train), rows, unlabelled_batch)
    method = build_method(build(), data.num_classes, preset, seed, device)
    total = setting.steps or steps_of(setting.schedule.epochs, len(others), unlabelled_batch)
    run = _run_of(method, setting, total, folder)
    outer = shared_over_processes(method, device)

    def test_accuracy() -> dict[str, float]:
        found = _test_accuracy(method, data, batch, device)
        return {f"{name}_top1": 100 * each["top1"] for name, each in found.items()}  # percent, as records have it

    run.evaluate, run.evaluate_every = test_accuracy, setting.eval_every

    def batches(start: int) -> Iterable[_Step]:
        labelled = data.training(Stream(rows, batch, total, seed, start))
        stream = Stream(others, unlabelled_batch, total, seed + 1, start)
        unlabelled = training_batches(data.train, views, stream, data.workers)
        return zip(range(start, total), labelled, unlabelled, strict=True)

    def loss_of(inputs: _Step) -> tuple[torch.Tensor, dict[str, float]]:
        step, (images, labels), ((weak, strong), hidden) = inputs
        torch.manual_seed(sample_seed(seed, step, 0))  # ShuffleBN draws an order: the same when a run is resumed
        losses = outer(*(tensor.to(device) for tensor in (images, labels, weak, strong, hidden)))
        return losses.total, losses.numbers()

    fit(run, batches, loss_of, f"FixMatch ({preset.teacher or 'no'} teacher)")
    hits: dict[str, dict[str, np.ndarray]] = {}
    found = _test_accuracy(method, data, batch, device, hits)
    file = folder / "metrics.jsonl"
    weak = weak_label_hits(method.student, data, setting.weak_batches, seed, device) if setting.weak_batches else {}
    return FixMatchResult(found, *_end(file, max(1, total // 100)), _of_all_steps(file), hits, weak)


@torch.no_grad()
def _test_accuracy(
    method: FixMatch,
    data: LabelledData,
    batch: int,
    device: torch.device,
    hits: dict[str, dict[str, np.ndarray]] | None = None,
) -> dict[str, dict[str, float]]:
    """Top-1 and top-5 of each network on the test set, in evaluation mode; ``hits`` gathers those of each image."""
    found = {}
    for name, network in method.networks().items():
        training, kept = network.training, {}  # type: bool, dict[str, list[torch.Tensor]]
        on_test = accuracy(network.eval(), data.testing(batch), device, kept)
        network.train(training)
        found[name] = {metric: float(value) for metric, value in on_test.items()}
        if hits is not None:
            hits[name] = in_order(kept)
    return found


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


def _run_of(method: FixMatch, setting: FixMatchSetting, total: int, folder: Path) -> Run:
    preset = setting.preset
    rate = setting.rate * setting.batch_size / preset.batch_size
    return Run(
        modules={"method": method},
        groups=[{"params": list(method.student.parameters()), "lr": rate}],
        schedule=setting.schedule,
        total=total,
        folder=folder / "checkpoints",
        nesterov=preset.nesterov,
        weight_decay=preset.weight_decay,
        after_step=lambda step: method.update_teacher(),
        metrics=folder,
    )


def _end(file: Path, count: int) -> tuple[float, float]:
    """Means of coverage and pseudo-label accuracy over the last ``count`` steps of a metrics.jsonl."""
    lines = read(file)[-count:] if file.is_file() else []
    right = [line["pseudo_accuracy"] for line in lines if line["pseudo_accuracy"] is not None]
    coverage = [line["coverage"] for line in lines]
    return float(np.mean(coverage or [np.nan])), float(np.mean(right or [np.nan]))


def _of_all_steps(file: Path) -> dict[str, float]:
    """Right pseudo-labels among all, and among the confident, over all steps of a metrics.jsonl."""
    lines = read(file) if file.is_file() else []
    confident = sum(line["coverage"] for line in lines)
    right = sum(line["coverage"] * line["pseudo_accuracy"] for line in lines if line["coverage"])
    found = {"pseudo_top1": float(np.mean([line["pseudo_top1"] for line in lines])) if lines else np.nan}
    return {**found, "pseudo_accuracy": right / confident if confident else np.nan}
