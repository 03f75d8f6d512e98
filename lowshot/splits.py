"""Which images carry labels: low-shot draws, held-out parts, fractions, file lists. All seeded, all reproducible."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np

from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.ranges import SHARE
from momentum_transfer.core.text_files import read_lines


def class_members(labels: np.ndarray) -> list[np.ndarray]:
    """For each class the indices of its images, ascending. Labels [N] of class indices, or [N, K] multi-hot."""
    if labels.ndim == 2:
        return [np.flatnonzero(labels[:, index]) for index in range(labels.shape[1])]
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(int(labels.max()) + 2))
    return [order[begin:end] for begin, end in itertools.pairwise(bounds)]


def set_aside(labels: np.ndarray, per_class: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split a training set into (pool, held out): ``per_class`` images of each class, at most half of it, held out.

    Below 1 it is a share of each class's images, rounded, at least one. With multi-hot labels an image counts for all
    the classes it shows. Both are ascending index arrays.
    """
    generator = np.random.default_rng([seed, 1])
    held = np.zeros(len(labels), dtype=bool)
    for members in class_members(labels):
        count = int(per_class) if per_class >= 1 else max(1, round(per_class * len(members)))
        wanted = min(count, len(members) // 2)
        already = int(held[members].sum())
        free = members[~held[members]]
        held[generator.permutation(free)[: max(0, wanted - already)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def draw_shots(labels: np.ndarray, shots: int, draw: int, seed: int, *, allow_fewer: bool = False) -> np.ndarray:
    """Indices of a low-shot training set, ascending, none twice: the union of :func:`draw_classes`."""
    return np.unique(np.concatenate(draw_classes(labels, shots, draw, seed, allow_fewer=allow_fewer)))


def draw_classes(
    labels: np.ndarray, shots: int, draw: int, seed: int, *, allow_fewer: bool = False
) -> list[np.ndarray]:
    """For each class the indices of ``shots`` random images of it.

    The first ``shots`` of one permutation per class are taken, so the draws of one number are nested over ``shots``,
    and every method sees the same ones. With multi-hot labels, images are drawn for each class among those that show
    it; an image may be drawn for two classes.

    Args:
        allow_fewer: take all images of a class that has fewer (iNaturalist's tail); otherwise that is an error.

    Raises:
        InputError: a class has fewer than ``shots`` images; it is named with its count.
    """
    chosen: list[np.ndarray] = []
    for index, members in enumerate(class_members(labels)):
        if len(members) < shots and not allow_fewer:
            raise InputError(
                f"class {index} has {counted(len(members), 'image')} to draw from, expected at least "
                f"{shots}; lower SVM.SHOTS or SVM.HELD_OUT_PER_CLASS, or use SVM.PROTOCOL inaturalist, which takes "
                "all images of a small class"
            )
        generator = np.random.default_rng([seed, 2, draw, index])
        chosen.append(generator.permutation(members)[:shots])
    return chosen


def draw_negatives(labels: np.ndarray, count: int, draw: int, seed: int) -> list[np.ndarray]:
    """For each class the indices of ``count`` random images that do not show it, or of all where they are fewer.

    Args:
        labels: [N, classes] of 0 and 1.
    """
    others = [np.flatnonzero(labels[:, index] == 0) for index in range(labels.shape[1])]
    return [np.random.default_rng([seed, 5, draw, index]).permutation(own)[:count] for index, own in enumerate(others)]


def balanced_fraction(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A seeded class-balanced part: ``round(fraction · N / classes)`` images of each class, at least one, ascending.

    A smaller class gives all it has. ``fraction`` 1 is everything.
    """
    SHARE.require("the fraction of labels", fraction)
    if fraction == 1:
        return np.arange(len(labels))
    members = class_members(labels)
    each = max(1, round(fraction * len(labels) / sum(1 for part in members if len(part))))
    parts = [np.random.default_rng([seed, 3, index]).permutation(part)[:each] for index, part in enumerate(members)]
    return np.sort(np.concatenate(parts))


def from_file_list(path: str | Path, files: list[str]) -> np.ndarray:
    """Indices of the images that a list such as SimCLR's 1 % and 10 % subsets names, one file name a line.

    Names are compared without their folders, as the published lists give ``n01440764_10043.JPEG``.

    Raises:
        InputError: no such list, an empty one, or one that names images the data set lacks.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"split file not found: {path}; expected one image name a line")
    wanted = [Path(line).name for line in read_lines(path, "names of images, a line each,") if line]
    if not wanted:
        raise InputError(f"split file {path} is empty; expected one image name a line")
    index = {Path(name).name: position for position, name in enumerate(files)}
    if len(index) < len(files):
        counts = Counter(Path(name).name for name in files)
        ambiguous = [name for name in wanted if counts[name] > 1]
        if ambiguous:
            raise InputError(
                f"split file {path} names {ambiguous[0]}, which {counts[ambiguous[0]]} images of the data set are "
                "called; expected names that are unique without their folders, as ImageNet's are"
            )
    missing = [name for name in wanted if name not in index]
    if missing:
        raise InputError(
            f"split file {path} names {len(missing)} of {len(wanted)} images that the data set lacks, "
            f"first {missing[0]}; is it the list of this data set?"
        )
    return np.unique([index[name] for name in wanted])
