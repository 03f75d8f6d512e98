"""Low-shot classification with linear SVMs on frozen features (EMAN, arXiv 2101.08482, section 5.2 and table 5).

In each trial, k images of every class are sampled; one squared-hinge linear SVM per class is fitted against the rest on
L2-normalised features for every cost C of 2^-5 … 2^5, by the batched solver or by liblinear, which agree. ``select_c``
"heldout": the C that does best on held-out training images is scored on the test set, trial by trial. "test": the
papers' habit, one C for all trials, whose mean test score is best. Every record names which it was.

Protocols:
    imagenet: top-1 and top-5; a class with fewer than k images is an error.
    inaturalist: the same, but a class with fewer than k images gives all it has (long tail).
    own: as inaturalist, for custom data sets, whose records must not carry a published set's name.
    voc07: images carry several labels; mAP, the area under the envelope of precision over recall, as VISSL and PCL
        compute it. "Difficult" counts as negative.
    voc07-sklearn: the same with scikit-learn's average precision, which has no envelope and is lower.

Class weights: "vissl" has positives cost twice as much as negatives, {1: 2, -1: 1}; "plain" the same. VISSL (Goyal et
al., arXiv 1905.01235) and PCL (Li et al., arXiv 2005.04966) have the former on every data set, one class an image or
several, and EMAN's table follows them: its configs say vissl for all rows. VOC07 is always so unless asked otherwise.

Sampled images of a trial: k images of every class, each a negative of all other classes. Where images carry several
labels, there are two published ways:
    pcl: the union of the k images sampled for each class, with all labels they carry, so that a class may have more
        than k positives (Li et al., as released).
    vissl: exactly k positives of each class, and (classes - 1)·k negatives sampled from the images that do not show it;
        all others are left out of that class (Goyal et al., as released).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.neighbours import chunks, normalized
from momentum_transfer.lowshot.config import SETTINGS
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.identity import Score
from momentum_transfer.lowshot.labelled_data import sample_classes, sample_negatives, set_aside
from momentum_transfer.lowshot.svm.solvers import LinearClassifiers, fit_batched, fit_liblinear, signed_targets
from momentum_transfer.verdicts.outcomes import label_hash

#: name -> what a positive costs; a negative costs 1
CLASS_WEIGHTS = {"plain": 1.0, "vissl": 2.0}
#: name -> what records call the engine
SOLVERS = {"batched": "torch", "liblinear": "scikit-learn"}

_Solver = Callable[[np.ndarray, np.ndarray, Sequence[float], float], LinearClassifiers]
"""(features [n, D], targets [n, classes] of ±1, costs, weight of positives) -> classifiers of all classes and costs."""


@dataclass(frozen=True)
class _Protocol:
    """``metrics``: the first one chooses C. ``class_weights``: unless settings name others. ``envelope``: of mAP."""

    metrics: tuple[str, ...]
    class_weights: str = "plain"
    allow_fewer: bool = False
    envelope: bool = False


PROTOCOLS = {
    "imagenet": _Protocol(("top1", "top5")),
    "inaturalist": _Protocol(("top1", "top5"), allow_fewer=True),
    "own": _Protocol(("top1", "top5"), allow_fewer=True),
    "voc07": _Protocol(("mAP",), class_weights="vissl", envelope=True),
    "voc07-sklearn": _Protocol(("mAP",), class_weights="vissl"),
}


@dataclass(frozen=True)
class LowShot:
    """The settings of one evaluation; :func:`scores` runs it. ``class_weights`` "" are the protocol's."""

    protocol: str = "imagenet"
    shots: tuple[int, ...] = (1, 2, 4, 8, 16)
    trials: int = 5
    costs: tuple[float, ...] = tuple(2.0**power for power in range(-5, 6))
    select_c: str = "heldout"
    held_out_per_class: int = 20
    class_weights: str = ""
    voc_shots: str = "pcl"
    solver: str = "batched"
    device: str | torch.device = "cpu"  # of the batched solver
    seed: int = 0

    def __post_init__(self) -> None:
        SETTINGS["SVM.PRESET"].require(self.protocol)
        for name in ("select_c", "class_weights", "voc_shots", "solver", "shots", "costs"):
            SETTINGS[f"SVM.{name.upper()}"].require(getattr(self, name))
        if self.voc_shots != "pcl" and "mAP" not in PROTOCOLS[self.protocol].metrics:
            raise InputError(
                f"expected SVM.VOC_SHOTS pcl under SVM.PRESET {self.protocol}, found {self.voc_shots}, which is for "
                "images with several labels; leave it out, or set SVM.PRESET voc07"
            )

    @property
    def weights(self) -> str:
        """The class weights by name."""
        return self.class_weights or PROTOCOLS[self.protocol].class_weights

    @property
    def name(self) -> str:
        """The protocol's name in records, such as imagenet/test/vissl: it ends in what is not the protocol's own."""
        parts = [self.protocol, self.select_c]
        parts += [self.weights] * (self.weights != PROTOCOLS[self.protocol].class_weights)
        return "/".join([*parts, *[f"{self.voc_shots}-shots"] * (self.voc_shots != "pcl")])


def scores(
    setup: LowShot, train: FeatureSet, test: FeatureSet, wanted: Callable[[str, str, int], bool]
) -> Iterator[list[Score]]:
    """Scores trial by trial; of all trials of a k together where the test set chooses one C for all of them.

    ``wanted``: (task, protocol, trial) -> whether it is still to be computed.
    """
    check(setup, train.labels, train.name)
    pool, held = _pool_and_held_out(setup, train.labels, train.name)
    plan = {k: [n for n in range(setup.trials) if wanted(f"svm/k={k}", setup.name, n)] for k in setup.shots}
    if not any(plan.values()):
        return
    tested = choosing = FeatureSet(normalized(test.features), test.labels, test.name, test.sha256)
    if setup.select_c == "heldout":
        choosing = FeatureSet(normalized(train.features[held]), train.labels[held], train.name, train.sha256)
    fits = _Fits(setup, train, pool, choosing, tested, label_hash(test.labels))
    for shots, trials in plan.items():
        if setup.select_c == "heldout":
            for index in trials:
                trial = fits.trial(shots, index)
                yield fits.scores(trial, int(np.argmax(trial.deciding)))
        elif trials:
            every = [fits.trial(shots, index) for index in range(setup.trials)]
            best = int(np.argmax(np.mean([trial.deciding for trial in every], axis=0)))
            yield [score for trial in every for score in fits.scores(trial, best)]


@dataclass(frozen=True)
class _Trial:
    """One trial fitted for all costs: fractions [costs] by metric, and those that choose the cost.

    ``hits``: [N, costs] bool by metric, whether each test image was right; none for mAP.
    """

    shots: int
    index: int
    images: int
    on_test: dict[str, np.ndarray]
    deciding: np.ndarray
    hits: dict[str, np.ndarray]


@dataclass(frozen=True)
class _Fits:
    """``choosing`` and ``test`` have normalised features; they are one object where the test set chooses C."""

    setup: LowShot
    train: FeatureSet
    pool: np.ndarray
    choosing: FeatureSet
    test: FeatureSet
    test_set: str

    def trial(self, shots: int, index: int) -> _Trial:
        """Fit one trial for all costs."""
        setup, protocol = self.setup, PROTOCOLS[self.setup.protocol]
        rows, targets = _sample_labelled(setup, self.train, self.pool, shots, index)
        fit: _Solver = partial(fit_batched, device=setup.device) if setup.solver == "batched" else fit_liblinear
        features = normalized(self.train.features[rows])
        classifiers = _fit_present(fit, features, targets, setup.costs, CLASS_WEIGHTS[setup.weights])
        score = partial(evaluate, classifiers, metrics=protocol.metrics, envelope=protocol.envelope)
        hits: dict[str, np.ndarray] = {}
        on_test = deciding = score(self.test.features, self.test.labels, hits=hits)
        if self.choosing is not self.test:
            deciding = score(self.choosing.features, self.choosing.labels)
        return _Trial(shots, index, len(rows), on_test, deciding[protocol.metrics[0]], hits)

    def scores(self, trial: _Trial, best: int) -> list[Score]:
        """The scores of one trial at the cost of index ``best``, in percent."""
        setup = self.setup
        details = {"shots": trial.shots, "cost": setup.costs[best], "select_c": setup.select_c, "images": trial.images}
        details["class_weights"] = setup.weights
        origin = (setup.name, SOLVERS[setup.solver], trial.index, setup.seed, details)
        items = {metric: hits[:, best] for metric, hits in trial.hits.items()}
        return [
            Score(f"svm/k={trial.shots}", metric, 100 * float(values[best]), *origin, items=items.get(metric),
                  test_set=self.test_set)
            for metric, values in trial.on_test.items()
        ]  # fmt: skip


def check(setup: LowShot, labels: np.ndarray, name: str) -> None:
    """Raise :class:`InputError` if the ``labels`` [N] or [N, K] of the training set ``name`` make no trial possible."""
    protocol, multi_label = PROTOCOLS[setup.protocol], labels.ndim == 2
    if multi_label != (protocol.metrics[0] == "mAP"):
        kind = "multi-hot labels" if multi_label else "one class an image"
        raise InputError(f"SVM.PRESET {setup.protocol} does not fit {name}, which has {kind}")
    pool, _ = _pool_and_held_out(setup, labels, name)
    sample_classes(labels[pool], max(setup.shots), 0, setup.seed, allow_fewer=protocol.allow_fewer)


def _pool_and_held_out(setup: LowShot, labels: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Training images to sample from, and those that choose C (none where the test set chooses)."""
    if setup.select_c == "test":
        return np.arange(len(labels)), np.arange(0)
    pool, held = set_aside(labels, setup.held_out_per_class, setup.seed)
    if not len(held):
        raise InputError(f"no image of {name} can be held out to choose C; use SVM.SELECT_C test")
    return pool, held


def _sample_labelled(
    setup: LowShot, train: FeatureSet, pool: np.ndarray, shots: int, trial: int
) -> tuple[np.ndarray, np.ndarray]:
    """``shots`` images a class among the rows ``pool``: rows [n], ascending, and targets [n, classes].

    A target is ±1, and 0 where the image is left out of the class.
    """
    available, allow_fewer = train.labels[pool], PROTOCOLS[setup.protocol].allow_fewer
    positives = sample_classes(available, shots, trial, setup.seed, allow_fewer=allow_fewer)
    if not (train.multi_label and setup.voc_shots == "vissl"):
        rows = pool[np.unique(np.concatenate(positives))]
        return rows, signed_targets(train.labels[rows], train.num_classes)
    negatives = sample_negatives(available, shots * (train.num_classes - 1), trial, setup.seed)
    sampled = np.unique(np.concatenate([*positives, *negatives]))
    targets = np.zeros((len(sampled), len(positives)), dtype=np.int8)
    for label, (shown, absent) in enumerate(zip(positives, negatives, strict=True)):
        targets[np.searchsorted(sampled, shown), label] = 1
        targets[np.searchsorted(sampled, absent), label] = -1
    return pool[sampled], targets


def _fit_present(
    fit: _Solver, features: np.ndarray, targets: np.ndarray, costs: Sequence[float], positive_weight: float
) -> LinearClassifiers:
    """Fit the classes that some of the sampled images show and others do not.

    One that none of them shows (a gap in the labels) is never predicted; one that all of them show gives every image
    the same score.
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
    classifiers: LinearClassifiers, features: np.ndarray, labels: np.ndarray, metrics: Sequence[str], *,
    envelope: bool = False, hits: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Fractions [costs] for every metric, from one matrix product for all costs per chunk of images.

    The features' mean goes into the biases, and what all biases of a cost have in common is left out, both in float64:
    what distinguishes images and classes is then not rounded away in float32, even if a backbone has all but collapsed.

    Args:
        features: [N, D] float32, normalised. labels: [N] class indices (top1, top5) or [N, classes] 0/1 (mAP).
        envelope: of mAP, see :func:`_average_precision`.
        hits: gets whether each image was right, bool [N, costs] for top1 and top5.
    """
    costs, classes, dim = classifiers.weights.shape
    stacked = classifiers.weights.reshape(costs * classes, dim).astype(np.float32).T
    centre = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    offsets = classifiers.biases + classifiers.weights.astype(np.float64) @ centre.astype(np.float64)
    biases = (offsets - offsets.max(axis=1, keepdims=True)).reshape(-1).astype(np.float32)
    step = max(1, 2**22 // (costs * classes))  # 16 MiB: the counting below then reads from the cache
    products = np.empty((step, costs * classes), np.float32)
    parts = []
    for part in chunks(len(features), step):
        decisions = np.matmul(features[part] - centre, stacked, out=products[: part.stop - part.start])
        decisions += biases
        decisions = decisions.reshape(-1, costs, classes)
        if "mAP" in metrics:
            parts.append(decisions.copy())
        else:  # how many other classes are as high as the right one
            own = np.take_along_axis(decisions, labels[part, None, None], axis=2)
            parts.append(np.count_nonzero(decisions >= own, axis=2) - 1)
    whole = np.concatenate(parts)
    if "mAP" in metrics:
        return {"mAP": np.array([_mean_average_precision(labels, whole[:, cost], envelope) for cost in range(costs)])}
    found = {"top1": whole == 0, "top5": whole < 5}
    if hits is not None:
        hits.update(found)
    return {metric: right.mean(axis=0) for metric, right in found.items()}


def _mean_average_precision(labels: np.ndarray, decisions: np.ndarray, envelope: bool) -> float:
    """Mean over classes of :func:`_average_precision`, both [N, classes]; classes without a positive are left out."""
    present = np.flatnonzero(labels.any(axis=0))
    return float(np.mean([_average_precision(labels[:, index], decisions[:, index], envelope) for index in present]))


def _average_precision(relevant: np.ndarray, decisions: np.ndarray, envelope: bool) -> float:
    """Σ (Rₙ − Rₙ₋₁)·Pₙ over the distinct scores, descending: the area under precision and recall.

    Images of equal score enter together, as one step, so that their order does not matter. (VISSL and PCL take them one
    by one, in whatever order sorting leaves them; without ties the numbers are the same.)

    Args:
        relevant: [N] of 0 and 1, at least one 1. decisions: [N].
        envelope: Pₙ is the highest precision at this recall or above, as in VOC's own AP from 2010 on (Everingham et
            al., IJCV 2010, section 4.2), VISSL and PCL; otherwise it is the precision at n, as in scikit-learn's
            ``average_precision_score``.
    """
    order = np.argsort(-decisions, kind="stable")
    hits = np.cumsum(relevant[order])
    ordered = decisions[order]
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(order) - 1)  # last place of each distinct score
    precision = hits[last] / (last + 1)
    recall = hits[last] / hits[-1]
    if envelope:
        precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))
