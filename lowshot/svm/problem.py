"""The optimisation problem that every solver solves, and what it returns.

For each class with targets y = ±1 (0 leaves an image out of this class), over the weights w and the bias b:
    minimise  ½‖w‖² + ½b² + C · Σᵢ sᵢ · max(0, 1 − yᵢ(w·xᵢ + b))²,    sᵢ = positive_weight where yᵢ = +1, 1 where −1.
This is liblinear's L2-regularised squared-hinge SVM as scikit-learn's LinearSVC poses it: the bias is regularised too.

The reference solver: one scikit-learn LinearSVC (liblinear) per class and cost.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from momentum_transfer.core.log import warn


@dataclass(frozen=True)
class LinearClassifiers:
    """One-vs-rest classifiers for every cost: ``weights`` [costs, classes, D], ``biases`` [costs, classes]."""

    weights: np.ndarray
    biases: np.ndarray


def sample_weight(targets: np.ndarray, positive_weight: float) -> np.ndarray:
    """sᵢ of targets ±1 and 0, in their shape."""
    return np.where(targets > 0, positive_weight, np.abs(targets)).astype(np.float64)


def signed_targets(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """[n, classes] int8 of +1 where the image shows the class, -1 elsewhere.

    Args:
        labels: [n] class indices, or [n, classes] of 0 and 1.
    """
    if labels.ndim == 2:
        return np.where(labels > 0, 1, -1).astype(np.int8)
    targets = np.full((len(labels), num_classes), -1, dtype=np.int8)
    targets[np.arange(len(labels)), labels] = 1
    return targets


def objectives(
    classifiers: LinearClassifiers,
    features: np.ndarray,
    targets: np.ndarray,
    costs: Sequence[float],
    positive_weight: float = 1.0,
) -> np.ndarray:
    """The minimised quantity [costs, classes], in float64.

    Args:
        features: [n, D]. targets: [n, classes] of ±1 and 0.
    """
    rows = features.astype(np.float64)
    sample_weights = sample_weight(targets, positive_weight)
    values = np.empty(classifiers.biases.shape)
    for index, cost in enumerate(costs):
        weights = classifiers.weights[index].astype(np.float64)  # [classes, D]
        biases = classifiers.biases[index].astype(np.float64)
        hinge = np.maximum(0.0, 1.0 - targets * (rows @ weights.T + biases))
        values[index] = (
            0.5 * (weights**2).sum(axis=1) + 0.5 * biases**2 + cost * (sample_weights * hinge**2).sum(axis=0)
        )
    return values


def fit_liblinear(
    features: np.ndarray,
    targets: np.ndarray,
    costs: Sequence[float],
    positive_weight: float = 1.0,
    *,
    tol: float = 1e-4,
    max_iter: int = 10000,
) -> LinearClassifiers:
    """Fit every class against the rest, for every cost.

    Args:
        features: [n, D]. targets: [n, classes] of ±1, or 0 where an image is left out; both signs in every column.
        tol, max_iter: liblinear's stopping rule; fits that stop by ``max_iter`` are counted and said.
    """
    rows = np.ascontiguousarray(features, dtype=np.float64)
    weights = np.empty((len(costs), targets.shape[1], rows.shape[1]))
    biases = np.empty(weights.shape[:2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        for index, cost in enumerate(costs):
            for label in range(targets.shape[1]):
                machine = LinearSVC(
                    C=cost, class_weight={1: positive_weight, -1: 1.0}, tol=tol, max_iter=max_iter, random_state=0
                )
                counts = targets[:, label] != 0
                machine.fit(rows[counts], targets[counts, label])
                weights[index, label], biases[index, label] = machine.coef_[0], machine.intercept_[0]
    unfinished = sum(issubclass(item.category, ConvergenceWarning) for item in caught)
    if unfinished:
        warn(f"liblinear stopped {unfinished} of {biases.size} fits after {max_iter} iterations")
    return LinearClassifiers(weights, biases)
