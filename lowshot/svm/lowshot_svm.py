"""Low-shot classification with linear SVMs on frozen features (EMAN, arXiv 2101.08482, section 5.2 and table 5).

k images of every class are drawn; one squared-hinge linear SVM per class is fitted against the rest on L2-normalised
features for every cost C of 2^-5 … 2^5, by the batched solver or by liblinear, which agree. ``select_c`` "heldout": in
each draw the C that does best on held-out training images is scored on the test set. "test": the papers' habit, the C
whose test score is best in the mean over all draws, for all of them; every record says which it was.

Protocols:
    imagenet: top-1 and top-5; a class with fewer than k images is an error.
    inaturalist: the same, but a class with fewer than k images gives all it has (long tail).
    own: as inaturalist, for sets of one's own, whose records are to carry no published set's name.
    voc07: images carry several labels, and are drawn as :mod:`lowshot.svm.shots` says; mAP, the area under the envelope
        of precision over recall, as VISSL and PCL compute it. "Difficult" counts as negative.
    voc07-sklearn: the same with scikit-learn's average precision, which has no envelope and is lower.

Class weights: "vissl" has positives cost twice as much as negatives, {1: 2, -1: 1}; "plain" the same. VISSL (Goyal et
al., arXiv 1905.01235) and PCL (Li et al., arXiv 2005.04966) have the former on every data set, one class an image or
several, and EMAN's table follows them: its configs say vissl for all rows. VOC07 is always so unless asked otherwise.

Labelled images of one low-shot trial, and the targets of each one-vs-rest classifier.

One class an image: k images of every class, each a negative of all other classes. Where images carry several labels,
there are two published ways:
    pcl: the union of the k images drawn for each class, with all labels they carry, so that a class may have more than
        k positives (Li et al., arXiv 2005.04966, as released).
    vissl: exactly k positives of each class, and (classes - 1)·k negatives sampled from the images that do not show it;
        all others are left out of that class (Goyal et al., arXiv 1905.01235, as released).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.neighbours import normalized
from momentum_transfer.lowshot.config import SETTINGS
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.labelled_data import draw_classes, draw_negatives, draw_shots, set_aside
from momentum_transfer.lowshot.score import Score
from momentum_transfer.lowshot.svm.batched import fit_batched
from momentum_transfer.lowshot.svm.problem import LinearClassifiers, fit_liblinear, signed_targets
from momentum_transfer.lowshot.svm.scoring import evaluate, joined
from momentum_transfer.verdicts.outcomes import label_hash


@dataclass(frozen=True)
class Labelled:
    """``rows`` [n] of the training set, ascending; ``targets`` [n, classes] of ±1, and 0 where one is left out."""

    rows: np.ndarray
    targets: np.ndarray


def draw_labelled(
    labels: np.ndarray,
    num_classes: int,
    pool: np.ndarray,
    shots: int,
    draw: int,
    seed: int,
    *,
    voc_shots: str = "pcl",
    allow_fewer: bool = False,
) -> Labelled:
    """Draw number ``draw`` of ``shots`` images a class among the rows ``pool``.

    Args:
        labels: [N] of class indices, or [N, classes] of 0 and 1, of the whole training set.
        voc_shots: "pcl" or "vissl", for the latter.
    """
    available = labels[pool]
    positives = draw_classes(available, shots, draw, seed, allow_fewer=allow_fewer)
    if labels.ndim == 2 and voc_shots == "vissl":
        negatives = draw_negatives(available, shots * (num_classes - 1), draw, seed)
        return _own_images(pool, positives, negatives)
    rows = pool[np.unique(np.concatenate(positives))]
    return Labelled(rows, signed_targets(labels[rows], num_classes))


def _own_images(pool: np.ndarray, positives: list[np.ndarray], negatives: list[np.ndarray]) -> Labelled:
    """Every class is fitted on its own images alone."""
    drawn = np.unique(np.concatenate([*positives, *negatives]))
    targets = np.zeros((len(drawn), len(positives)), dtype=np.int8)
    for label, (shown, absent) in enumerate(zip(positives, negatives, strict=True)):
        targets[np.searchsorted(drawn, shown), label] = 1
        targets[np.searchsorted(drawn, absent), label] = -1
    return Labelled(pool[drawn], targets)


@dataclass(frozen=True)
class Protocol:
    """``metrics``: the first one chooses C. ``class_weights``: unless settings name others. ``envelope``: of mAP."""

    metrics: tuple[str, ...]
    class_weights: str = "plain"
    allow_fewer: bool = False
    envelope: bool = False


PROTOCOLS = {
    "imagenet": Protocol(("top1", "top5")),
    "inaturalist": Protocol(("top1", "top5"), allow_fewer=True),
    "own": Protocol(("top1", "top5"), allow_fewer=True),
    "voc07": Protocol(("mAP",), class_weights="vissl", envelope=True),
    "voc07-sklearn": Protocol(("mAP",), class_weights="vissl"),
}

#: name -> what a positive costs; a negative costs 1
CLASS_WEIGHTS = {"plain": 1.0, "vissl": 2.0}


Solver = Callable[[np.ndarray, np.ndarray, Sequence[float], float], LinearClassifiers]
"""(features [n, D], targets [n, classes] of ±1, costs, weight of positives) -> classifiers of all classes and costs."""

#: name -> what records call the engine
SOLVERS = {"batched": "torch", "liblinear": "scikit-learn"}


@dataclass(frozen=True)
class LowShot:
    """The settings of one evaluation; :func:`scores` runs it. ``class_weights`` "" are the protocol's."""

    protocol: str = "imagenet"
    shots: tuple[int, ...] = (1, 2, 4, 8, 16)
    draws: int = 5
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
        SETTINGS["SVM.SELECT_C"].require(self.select_c)
        SETTINGS["SVM.CLASS_WEIGHTS"].require(self.class_weights)
        SETTINGS["SVM.VOC_SHOTS"].require(self.voc_shots)
        SETTINGS["SVM.SOLVER"].require(self.solver)
        SETTINGS["SVM.SHOTS"].require(self.shots)
        SETTINGS["SVM.COSTS"].require(self.costs)
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
        """The protocol's name in records, such as imagenet/test/vissl: what is not the protocol's own is told."""
        parts = [self.protocol, self.select_c]
        parts += [self.weights] * (self.weights != PROTOCOLS[self.protocol].class_weights)
        return "/".join([*parts, *[f"{self.voc_shots}-shots"] * (self.voc_shots != "pcl")])


@dataclass(frozen=True)
class _Draw:
    """One draw fitted for all costs: fractions [costs] by metric, and those that choose the cost.

    ``hits``: [N, costs] bool by metric, whether each test image was right; none for mAP.
    """

    index: int
    images: int
    on_test: dict[str, np.ndarray]
    deciding: np.ndarray
    hits: dict[str, np.ndarray]


def scores(
    setup: LowShot, train: FeatureSet, test: FeatureSet, wanted: Callable[[str, str, int], bool]
) -> Iterator[list[Score]]:
    """Scores draw by draw; of all draws of a k together where the test set chooses C, which is one for all of them.

    Args:
        wanted: (task, protocol, draw) -> whether it is to be computed: a second run skips what a killed one has done.
    """
    check(setup, train.labels, train.name)
    pool, held = _pool_and_held_out(setup, train.labels, train.name)
    plan = {k: [draw for draw in range(setup.draws) if wanted(f"svm/k={k}", setup.name, draw)] for k in setup.shots}
    if not any(plan.values()):
        return
    test_set = label_hash(test.labels)
    tested = FeatureSet(normalized(test.features), test.labels, test.name, test.sha256)
    held_out = FeatureSet(normalized(train.features[held]), train.labels[held], train.name, train.sha256)
    for shots, draws in plan.items():
        if setup.select_c == "heldout":
            for draw in draws:
                found = _fit_draw(setup, train, pool, held_out, tested, shots, draw)
                yield _scores(setup, shots, found, int(np.argmax(found.deciding)), test_set)
        elif draws:
            every = [_fit_draw(setup, train, pool, tested, tested, shots, draw) for draw in range(setup.draws)]
            best = int(np.argmax(np.mean([found.deciding for found in every], axis=0)))
            yield [score for found in every for score in _scores(setup, shots, found, best, test_set)]


def _fit_draw(
    setup: LowShot, train: FeatureSet, pool: np.ndarray, choosing: FeatureSet, test: FeatureSet, shots: int, draw: int
) -> _Draw:
    """Fit one draw for all costs.

    Args:
        choosing, test: normalised features; the same object where the test set chooses.
    """
    protocol = PROTOCOLS[setup.protocol]
    labelled = draw_labelled(
        *(train.labels, train.num_classes, pool, shots, draw, setup.seed),
        voc_shots=setup.voc_shots,
        allow_fewer=protocol.allow_fewer,
    )
    fit: Solver = partial(fit_batched, device=setup.device) if setup.solver == "batched" else fit_liblinear
    features = normalized(train.features[labelled.rows])
    classifiers = _fit_present(fit, features, labelled.targets, setup.costs, CLASS_WEIGHTS[setup.weights])
    kept: dict[str, list[np.ndarray]] = {}
    on_test = evaluate(classifiers, test.features, test.labels, protocol.metrics, kept, protocol.envelope)
    deciding = on_test
    if choosing is not test:
        deciding = evaluate(
            classifiers, choosing.features, choosing.labels, protocol.metrics, envelope=protocol.envelope
        )
    return _Draw(draw, len(labelled.rows), on_test, deciding[protocol.metrics[0]], joined(kept))


def _scores(setup: LowShot, shots: int, found: _Draw, best: int, test_set: str) -> list[Score]:
    """The scores of one draw at the cost of index ``best``, in percent."""
    details = {"shots": shots, "cost": setup.costs[best], "select_c": setup.select_c, "images": found.images}
    details["class_weights"] = setup.weights
    origin = (setup.name, SOLVERS[setup.solver], found.index, setup.seed, details)
    items = {metric: hits[:, best] for metric, hits in found.hits.items()}
    return [
        Score(
            *(f"svm/k={shots}", metric, 100 * float(values[best]), *origin),
            items=items.get(metric),
            test_set=test_set,
        )
        for metric, values in found.on_test.items()
    ]


def check(setup: LowShot, labels: np.ndarray, name: str) -> None:
    """Raise :class:`InputError` where no draw could be made; needs the training set's labels, not its features.

    Args:
        labels: [N] or [N, K]. name: of the training set.
    """
    protocol, multi_label = PROTOCOLS[setup.protocol], labels.ndim == 2
    if multi_label != (protocol.metrics[0] == "mAP"):
        kind = "multi-hot labels" if multi_label else "one class an image"
        raise InputError(f"SVM.PRESET {setup.protocol} does not fit {name}, which has {kind}")
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
