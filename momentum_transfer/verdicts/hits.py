"""Right or wrong per image: the exact McNemar test, and the bootstrap of a mean per item."""

from collections.abc import Iterator

import numpy as np
from scipy import stats

from momentum_transfer.errors import InputError


def mcnemar(first: np.ndarray, second: np.ndarray) -> tuple[int, int, float]:
    """Exact McNemar test of two classifiers on the same images (McNemar 1947).

    Of the images on which exactly one of them is right, each is as likely to be the first's as the second's if they are
    equally good: a binomial test with probability ½.

    Args:
        first, second: [n] bool, whether each image was classified rightly; the same images in the same order.

    Returns:
        (images only the first has right, only the second, two-sided p).
    """
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"expected hits of the same images, found the shapes {a.shape} and {b.shape}")
    a, b = a.astype(bool), b.astype(bool)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    if only_first + only_second == 0:
        return 0, 0, 1.0
    return only_first, only_second, float(stats.binomtest(only_first, only_first + only_second).pvalue)


def weighted_means(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[B] mean of ``values`` [n] under each row of integer weights [B, n]; the unit weights give NumPy's own mean."""
    values = np.asarray(values)
    return np.array([row.mean() for row in _rows(values, weights)])


def _rows(values: np.ndarray, weights: np.ndarray) -> Iterator[np.ndarray]:
    for row in weights:
        yield np.repeat(values, row)
