"""Low-shot classification with linear SVMs on frozen features (EMAN, arXiv 2101.08482, section 5.2 and table 5).

k images of every class are drawn; one squared-hinge linear SVM per class is fitted against the rest on L2-normalised
features for every cost C of 2^-5 … 2^5, by the batched solver or by liblinear, which agree; the C that does best on
held-out training images is scored on the test set. The papers chose C by the test score itself: ``select_c="test"``
reproduces that, and every record says which it was.

Protocols:
    imagenet: top-1 and top-5; a class with fewer than k images is an error.
    inaturalist: the same, but a class with fewer than k images gives all it has (long tail).
    voc07: images carry several labels: mAP (area under precision and recall); positives weigh twice as much
        (Goyal et al., arXiv 1905.01235). Each class is fitted on the k images drawn for it and, as negatives, on those
        drawn for the other classes that do not show it. "Difficult" counts as negative.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from lowshot.features.feature_set import FeatureSet, chunks, normalized
from lowshot.score import Score
from lowshot.splits import draw_classes, draw_shots, set_aside
from lowshot.svm.batched import fit_batched
from lowshot.svm.liblinear import fit_liblinear
from lowshot.svm.problem import LinearClassifiers, signed_targets
from momentum_transfer.errors import InputError
from momentum_transfer.ranges import COUNT, POSITIVE, Choice, Many


@dataclass(frozen=True)
class Protocol:
    """``metrics``: the first one chooses C. ``positive_weight``: what a positive costs, a negative costs 1."""

    metrics: tuple[str, ...]
    positive_weight: float = 1.0
    allow_fewer: bool = False


PROTOCOLS = {
    "imagenet": Protocol(("top1", "top5")),
    "inaturalist": Protocol(("top1", "top5"), allow_fewer=True),
    "voc07": Protocol(("mAP",), positive_weight=2.0),
}


Solver = Callable[[np.ndarray, np.ndarray, Sequence[float], float], LinearClassifiers]
"""(features [n, D], targets [n, classes] of ±1, costs, weight of positives) -> classifiers of all classes and costs."""

#: name -> what records call the engine
SOLVERS = {"batched": "torch", "liblinear": "scikit-learn"}
SELECT_C = ("heldout", "test")
SHOTS, COSTS = Many(COUNT, least=1), Many(POSITIVE, least=1)


@dataclass(frozen=True)
class LowShot:
    """The settings of one evaluation; :func:`scores` runs it."""

    protocol: str = "imagenet"
    shots: tuple[int, ...] = (1, 2, 4, 8, 16)
    draws: int = 5
    costs: tuple[float, ...] = tuple(2.0**power for power in range(-5, 6))
    select_c: str = "heldout"
    held_out_per_class: int = 20
    solver: str = "batched"
    device: str | torch.device = "cpu"  # of the batched solver
    seed: int = 0

    def __post_init__(self) -> None:
        Choice(PROTOCOLS).require("SVM.PROTOCOL", self.protocol)
        Choice(SELECT_C).require("SVM.SELECT_C", self.select_c)
        Choice(SOLVERS).require("SVM.SOLVER", self.solver)
        SHOTS.require("SVM.SHOTS", self.shots)
        COSTS.require("SVM.COSTS", self.costs)


def scores(
    setup: LowShot, train: FeatureSet, test: FeatureSet, wanted: Callable[[str, str, int], bool]
) -> Iterator[list[Score]]:
    """Scores draw by draw.

    Args:
        wanted: (task, protocol, draw) -> whether it is to be computed: a second run skips what a killed one has done.
    """
    protocol, name = PROTOCOLS[setup.protocol], f"{setup.protocol}/{setup.select_c}"
    check(setup, train.labels, train.name)
    pool, held = _pool_and_held_out(setup, train.labels, train.name)
    plan = [
        (shots, draw, draw_classes(train.labels[pool], shots, draw, setup.seed, allow_fewer=protocol.allow_fewer))
        for shots in setup.shots
        for draw in range(setup.draws)
        if wanted(f"svm/k={shots}", name, draw)
    ]
    if not plan:
        return
    test_features, held_features = normalized(test.features), normalized(train.features[held])
    engine = SOLVERS[setup.solver]
    fit: Solver = partial(fit_batched, device=setup.device) if setup.solver == "batched" else fit_liblinear
    for shots, draw, chosen in plan:
        rows = pool[np.unique(np.concatenate(chosen))]
        targets = _targets(train, rows, [pool[own] for own in chosen])
        features = normalized(train.features[rows])
        classifiers = _fit_present(fit, features, targets, setup.costs, protocol.positive_weight)
        on_test = evaluate(classifiers, test_features, test.labels, protocol.metrics)
        deciding = on_test
        if setup.select_c == "heldout":
            deciding = evaluate(classifiers, held_features, train.labels[held], protocol.metrics)
        best = int(np.argmax(deciding[protocol.metrics[0]]))
        details = {"shots": shots, "cost": setup.costs[best], "select_c": setup.select_c, "images": len(rows)}
        yield [
            Score(f"svm/k={shots}", metric, 100 * float(on_test[metric][best]), name, engine, draw, setup.seed, details)
            for metric in protocol.metrics
        ]


def _targets(train: FeatureSet, rows: np.ndarray, chosen: list[np.ndarray]) -> np.ndarray:
    """[n, classes] of ±1, and 0 for images that show a class but were drawn for others: k shots are k positives."""
    targets = signed_targets(train.labels[rows], train.num_classes)
    if train.multi_label:
        for label, own in enumerate(chosen):
            targets[(targets[:, label] > 0) & ~np.isin(rows, own), label] = 0
    return targets


def check(setup: LowShot, labels: np.ndarray, name: str) -> None:
    """Raise :class:`InputError` where no draw could be made; needs the training set's labels, not its features.

    Args:
        labels: [N] or [N, K]. name: of the training set.
    """
    protocol, multi_label = PROTOCOLS[setup.protocol], labels.ndim == 2
    if multi_label != (protocol.metrics[0] == "mAP"):
        kind = "multi-hot labels" if multi_label else "one class an image"
        raise InputError(f"SVM.PROTOCOL {setup.protocol} does not fit {name}, which has {kind}")
    pool, _ = _pool_and_held_out(setup, labels, name)
    draw_shots(labels[pool], max(setup.shots), 0, setup.seed, allow_fewer=protocol.allow_fewer)


def _pool_and_held_out(setup: LowShot, labels: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Training images to draw from, and those that choose C (none where the test set chooses)."""
    if setup.select_c == "test":
        return np.arange(len(labels)), np.arange(0)
    pool, held = set_aside(labels, setup.held_out_per_class, setup.seed)
    if not len(held):
        raise InputError(f"no image of {name} can be held out to choose C; use SVM.SELECT_C test")
    return pool, held


def _fit_present(
    fit: Solver, features: np.ndarray, targets: np.ndarray, costs: Sequence[float], positive_weight: float
) -> LinearClassifiers:
    """Fit the classes that some of the drawn images show and others do not.

    One that none of them shows (a gap in the labels) is never predicted; one that all of them show tells no image from
    another: its scores are all equal.
    """
    shown, hidden = np.any(targets > 0, axis=0), np.any(targets < 0, axis=0)
    weights = np.zeros((len(costs), targets.shape[1], features.shape[1]))
    biases = np.where(shown, 1.0, -np.inf) * np.ones((len(costs), 1))
    both = shown & hidden
    if both.any():
        fitted = fit(features, targets[:, both], costs, positive_weight)
        weights[:, both], biases[:, both] = fitted.weights, fitted.biases
    return LinearClassifiers(weights, biases)


def evaluate(
    classifiers: LinearClassifiers, features: np.ndarray, labels: np.ndarray, metrics: Sequence[str]
) -> dict[str, np.ndarray]:
    """Fractions [costs] for every metric, from one matrix product for all costs per chunk of images.

    The features' mean goes into the biases, and what all biases of a cost share is left out, both in float64: what
    tells images and classes apart is then not rounded away in float32, even where a backbone has all but collapsed.

    Args:
        features: [N, D] float32, normalised. labels: [N] class indices (top1, top5) or [N, classes] 0/1 (mAP).
    """
    costs, classes, dim = classifiers.weights.shape
    stacked = classifiers.weights.reshape(costs * classes, dim).astype(np.float32).T
    centre = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    offsets = classifiers.biases + classifiers.weights.astype(np.float64) @ centre.astype(np.float64)
    biases = (offsets - offsets.max(axis=1, keepdims=True)).reshape(-1).astype(np.float32)
    step = max(1, 2**22 // (costs * classes))  # 16 MiB: the counting below then reads from the cache
    products = np.empty((step, costs * classes), np.float32)
    everything, top1, top5 = [], np.zeros(costs), np.zeros(costs)
    for part in chunks(len(features), step):
        decisions = np.matmul(features[part] - centre, stacked, out=products[: part.stop - part.start])
        decisions += biases
        decisions = decisions.reshape(-1, costs, classes)
        if "mAP" in metrics:
            everything.append(decisions.copy())
            continue
        own = np.take_along_axis(decisions, labels[part, None, None], axis=2)
        rivals = np.count_nonzero(decisions >= own, axis=2) - 1  # other classes that are as high as the right one
        top1 += (rivals == 0).sum(axis=0)
        top5 += (rivals < 5).sum(axis=0)
    if "mAP" not in metrics:
        return {"top1": top1 / len(features), "top5": top5 / len(features)}
    scored = np.concatenate(everything)
    return {"mAP": np.array([mean_average_precision(labels, scored[:, cost]) for cost in range(costs)])}


def mean_average_precision(labels: np.ndarray, decisions: np.ndarray) -> float:
    """Mean over classes of :func:`average_precision`; classes without a positive are left out.

    Args:
        labels: [N, classes] of 0 and 1. decisions: [N, classes].
    """
    present = np.flatnonzero(labels.any(axis=0))
    return float(np.mean([average_precision(labels[:, index], decisions[:, index]) for index in present]))


def average_precision(relevant: np.ndarray, decisions: np.ndarray) -> float:
    """Σ (Rₙ − Rₙ₋₁)·Pₙ over the distinct thresholds, descending; the "area" AP, equal scores counted together.

    Args:
        relevant: [N] of 0 and 1, at least one 1. decisions: [N].
    """
    order = np.argsort(-decisions, kind="stable")
    hits = np.cumsum(relevant[order])
    last = np.append(np.flatnonzero(np.diff(decisions[order])), len(order) - 1)  # last place of each distinct score
    precision = hits[last] / (last + 1)
    recall = hits[last] / hits[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))
