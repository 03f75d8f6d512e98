"""Subsets of a labelled dataset: by class, by fraction, long-tailed, with coarse classes; and stratified splits.

Everything is a pure function of the labels and a seed, so that a resumed or repeated run keeps the same images.
"""

import math
import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.ranges import FRACTION
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.images.labelled_images import LabelledImages

Integers = NDArray[np.int64]


class Selected:
    """The images ``indices`` [n] of a dataset under (possibly) other ``labels`` [n], numbers into ``classes``."""

    def __init__(self, dataset: LabelledImages, indices: Integers, labels: Integers, classes: list[str]) -> None:
        self.dataset = dataset
        self.indices = indices
        self.labels = labels
        self.classes = classes

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]:
        return self.dataset[int(self.indices[index])][0], int(self.labels[index])


def unselected(dataset: LabelledImages) -> tuple[LabelledImages, Integers]:
    """The data set before any selection, and the positions in it, [n], of the images of ``dataset``."""
    positions = np.arange(len(dataset), dtype=np.int64)
    while isinstance(dataset, Selected):
        positions, dataset = dataset.indices[positions], dataset.dataset
    return dataset, positions


def file_names(dataset: LabelledImages) -> list[str] | None:
    """Paths of the images, in order; None for a data set in memory."""
    whole, positions = unselected(dataset)
    paths = getattr(whole, "paths", None)
    return None if paths is None else [os.fsdecode(path) for path in paths[positions]]


def select(
    dataset: LabelledImages,
    *,
    class_fraction: float = 1.0,
    sample_fraction: float = 1.0,
    long_tail: float = 1.0,
    taxonomy: str | Path | None = None,
    seed: int = 0,
) -> LabelledImages:
    """Apply, in this order, a class subset, a long tail, a sample fraction and a coarse taxonomy.

    Args:
        class_fraction: of the classes, chosen by the seed and numbered anew in their old order. Smaller subsets lie
            within larger ones (RCF, class subsets of 10 to 100 %).
        sample_fraction: of every class's images, at least one.
        long_tail: f of the exponential profile `n_i = n_max · f^(i/(C−1))`, C classes in their order (CIFAR-LT; Cui et
            al., arXiv:1901.05555); 1 keeps all.
        taxonomy: file that maps fine classes to coarse ones, see `read_taxonomy`.

    Returns the dataset itself when nothing changes; InputError for a fraction outside (0, 1] or a bad taxonomy.
    """
    for what, value in (("class", class_fraction), ("sample", sample_fraction), ("long-tail", long_tail)):
        FRACTION.require(f"the {what} fraction", value)
    indices = np.arange(len(dataset), dtype=np.int64)
    labels, classes = dataset.labels, dataset.classes
    if class_fraction < 1:
        kept = class_subset(len(classes), class_fraction, seed)
        indices = indices[np.isin(labels, kept)]
        labels = np.searchsorted(kept, labels[indices])
        classes = [classes[k] for k in kept]
    if long_tail < 1:
        counts = long_tail_counts(int(np.bincount(labels).max()), len(classes), long_tail)
        part = draw_per_class(labels, counts, seed)
        indices, labels = indices[part], labels[part]
    if sample_fraction < 1:
        present = np.bincount(labels, minlength=len(classes))
        part = draw_per_class(labels, np.maximum(np.rint(present * sample_fraction), 1).astype(np.int64), seed)
        indices, labels = indices[part], labels[part]
    if taxonomy is not None:
        coarse_of, coarse = read_taxonomy(taxonomy, classes)
        labels, classes = coarse_of[labels], coarse
    if len(indices) == len(dataset) and classes is dataset.classes:
        return dataset
    return Selected(dataset, indices, labels.astype(np.int64), classes)


def without_class(dataset: LabelledImages, name: str) -> LabelledImages:
    """The images of all classes but the named one."""
    if name not in dataset.classes:
        return dataset
    indices = np.flatnonzero(dataset.labels != dataset.classes.index(name)).astype(np.int64)
    return Selected(dataset, indices, dataset.labels[indices], dataset.classes)


def class_subset(number: int, fraction: float, seed: int) -> Integers:
    """Ascending numbers of the classes kept: the first `round(fraction · number)` of a seeded permutation."""
    kept = max(1, round(fraction * number))
    return np.sort(np.random.default_rng(seed).permutation(number)[:kept]).astype(np.int64)


def long_tail_counts(most: int, classes: int, factor: float) -> Integers:
    """Images per class, `n_i = ⌊most · factor^(i/(classes−1))⌋`, at least one."""
    exponent = np.arange(classes) / max(classes - 1, 1)
    # The rounding keeps 500 · .01^1 at 5 where floating point gives 4.9999….
    return np.maximum(np.floor(np.round(most * factor**exponent, 9)), 1).astype(np.int64)


def draw_per_class(labels: Integers, counts: Integers, seed: int) -> Integers:
    """Ascending positions of `counts[k]` images of every class k (all of them where there are fewer)."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # class after class, each in random order
    first = np.searchsorted(labels[order], np.arange(len(counts)))
    place = np.arange(len(order)) - first[labels[order]]
    return np.sort(order[place < counts[labels[order]]]).astype(np.int64)


def read_taxonomy(path: str | Path, classes: list[str]) -> tuple[Integers, list[str]]:
    """Read a coarse taxonomy: lines `fine coarse` (class names without spaces, or tab-separated), `#` for comments.

    Returns the coarse class of every fine one, [len(classes)], and the coarse names in alphabetical order. Raises
    InputError if there is no such file, a line is malformed, or a class is not mapped.
    """
    if not Path(path).is_file():
        raise InputError(f"expected a taxonomy file of `fine coarse` lines, found no file {path}")
    coarse_name: dict[str, str] = {}
    for number, line in enumerate(read_lines(Path(path), "a taxonomy"), 1):
        if not line or line.startswith("#"):
            continue
        parts = line.split("\t" if "\t" in line else None)
        if len(parts) != 2:
            raise InputError(f"expected `fine coarse` at {path}:{number}, found {shown(line)}")
        coarse_name[parts[0].strip()] = parts[1].strip()
    missing = [name for name in classes if name not in coarse_name]
    if missing:
        raise InputError(
            f"expected a coarse class for all {len(classes)} classes in {path}, found none for {len(missing)}: "
            + ", ".join(missing[:10])
        )
    coarse = sorted({coarse_name[name] for name in classes})
    return np.asarray([coarse.index(coarse_name[name]) for name in classes], dtype=np.int64), coarse


def stretched_epochs(epochs: int, all_images: int, kept_images: int, batch_size: int) -> int:
    """Epochs over a subset that take at least the iterations of `epochs` over the whole, in whole batches."""
    if kept_images < batch_size:
        raise InputError(f"expected at least one batch of {batch_size} images in the subset, found {kept_images}")
    iterations = epochs * (all_images // batch_size)
    return math.ceil(iterations / (kept_images // batch_size))


def stratified_split(
    labels: Sequence[Collection[int]], fraction: float, seed: int, groups: Integers | None = None
) -> NDArray[np.bool_]:
    """Which items train, bool [N]: iterative stratification (Sechidis et al., ECML 2011) into two parts.

    The rarest class goes first; each of its items goes where most of that class is still wanted, then where most items
    are, then at random. Items without a label come last. Both parts get an item at least.

    ``labels`` are the classes of each item (none, one or several), ``fraction`` of the items train, and ``seed`` fixes
    the order and the random choices. With ``groups`` [N] (numbers 0 … G − 1) whole groups are divided, the largest of a
    class first, and count by their items. Raises InputError for a fraction outside 0..1, or fewer than two items or
    groups.
    """
    groups = np.arange(len(labels)) if groups is None else groups
    if not 0 < fraction < 1:
        raise InputError(f"expected a training fraction between 0 and 1 (--split 0.8), found {fraction:g}")
    sizes = np.bincount(groups)
    count = len(sizes)
    if count < 2:
        raise InputError(f"expected at least two images to split, or groups of them, found {count}; add some, or "
                         "give --val")  # fmt: skip
    random = np.random.default_rng(seed)
    classes = [Counter[int]() for _ in range(count)]  # items of each class
    for group, found in zip(groups.tolist(), labels, strict=True):
        classes[group].update(set(found))
    number = sorted(set().union(*classes))
    fractions = np.array([fraction, 1 - fraction])
    wanted = {k: fractions * sum(found[k] for found in classes) for k in number}
    room = fractions * len(labels)
    part = np.full(count, -1)
    order = random.permutation(count)

    def place(item: int, want: NDArray[np.float64]) -> None:
        keys = [(want[side], room[side], random.random()) for side in (0, 1)]
        side = 0 if keys[0] > keys[1] else 1
        part[item] = side
        room[side] -= sizes[item]
        for k, items in classes[item].items():
            wanted[k][side] -= items

    members: dict[int, list[int]] = {k: [] for k in number}
    for item in (int(i) for i in order):
        for k in classes[item]:
            members[k].append(item)
    left = set(number)
    while left:
        rarest = min(left, key=lambda k: (wanted[k].sum(), k))  # what is wanted is not yet placed
        for item in sorted(members[rarest], key=lambda one: -classes[one][rarest]):
            if part[item] < 0:
                place(item, wanted[rarest])
        left.discard(rarest)
    for item in (int(i) for i in order if part[i] < 0):
        place(item, room)
    for side in (0, 1):
        if not (part == side).any():
            part[order[0]] = side
    return np.asarray(part == 0)[groups]
