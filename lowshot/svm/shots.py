"""Labelled images of one low-shot trial, and the targets of each one-vs-rest classifier.

One class an image: k images of every class, each a negative of all other classes. Where images carry several labels,
there are two published ways:
    pcl: the union of the k images drawn for each class, with all labels they carry, so that a class may have more than
        k positives (Li et al., arXiv 2005.04966, as released).
    vissl: exactly k positives of each class, and (classes - 1)·k negatives sampled from the images that do not show it;
        all others are left out of that class (Goyal et al., arXiv 1905.01235, as released).
"""

from dataclasses import dataclass

import numpy as np

from momentum_transfer.lowshot.splits import draw_classes, draw_negatives
from momentum_transfer.lowshot.svm.problem import signed_targets

#: How images with several labels are drawn.
VOC_SHOTS = ("pcl", "vissl")


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
        voc_shots: of ``VOC_SHOTS``, for the latter.
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
