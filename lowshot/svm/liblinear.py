"""The reference solver: one scikit-learn LinearSVC (liblinear) per class and cost."""

import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from momentum_transfer.core.log import warn
from momentum_transfer.lowshot.svm.problem import LinearClassifiers


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
