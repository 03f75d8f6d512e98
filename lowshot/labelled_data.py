"""The labelled images of an evaluation: which rows carry labels, which are held out, how they are read.

Batches of transformed images as a pure function of (seed, step), so that a resumed run sees what the first would.

Which images carry labels: low-shot draws, held-out parts, fractions, file lists. All seeded, all reproducible.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.ranges import FRACTION
from momentum_transfer.core.samplers import Batches, Place, ordered_loader, shuffled_rows, training_loader
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.images.subsets import file_names
from momentum_transfer.images.views import sample_seed

View = TypeVar("View")  # a tensor, or FixMatch's pair of them
Transform = Callable[[PIL.Image.Image], View]


class SeededImages(Dataset[tuple[View, int]], Generic[View]):
    """``self[epoch, row] -> (transformed image, label)``; the transform's randomness depends on (seed, epoch, row)."""

    def __init__(self, dataset: LabelledImages, transform: Transform[View], seed: int) -> None:
        self.dataset, self.transform, self.seed = dataset, transform, seed

    def __getitem__(self, place: Place) -> tuple[View, int]:
        epoch, row = place
        image, label = self.dataset[row]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(sample_seed(self.seed, epoch, row))
            return self.transform(image), label


class Stream(Batches):
    """Batches of an endless sequence of permutations of ``rows``; batches run across the ends of epochs.

    So any number of images fills any batch, and step s is always images [s·batch, (s+1)·batch) of the sequence. Every
    process gets each world-size-th image of the batch.

    Args:
        rows: [n] rows of the data set.
        batch: images of one step, on all processes together.
        steps: of the whole run. start: the first step to give.
    """

    def __init__(self, rows: np.ndarray, batch: int, steps: int, seed: int, start: int = 0) -> None:
        rank, world = distributed.rank(), distributed.world_size()
        if batch < world or batch % world:
            raise InputError(f"expected a batch size that {world} processes can share equally, found {batch}")
        order = shuffled_rows(rows, seed)
        super().__init__(order, batch // world, rank=rank, world_size=world, start=start, stop=steps)
        self.rows, self.steps, self.seed = rows, steps, seed

    def __len__(self) -> int:
        return self.steps - self.start


def steps_of(epochs: float, images: int, batch: int) -> int:
    """Number of steps of a run, at least one."""
    return max(1, round(epochs * images / batch))


def training_batches(
    dataset: LabelledImages, transform: Transform[View], stream: Stream, workers: int
) -> DataLoader[tuple[View, int]]:
    """(transformed images, labels [b]) for every step of the stream."""
    images, pinned = SeededImages(dataset, transform, stream.seed), torch.cuda.is_available()
    return training_loader(images, stream, workers=workers, seed=stream.seed, pin_memory=pinned)


class _Rows(Dataset[tuple[View, int]], Generic[View]):
    def __init__(self, dataset: LabelledImages, transform: Transform[View], rows: np.ndarray) -> None:
        self.dataset, self.transform, self.rows = dataset, transform, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[View, int]:
        image, label = self.dataset[int(self.rows[index])]
        return self.transform(image), label


def evaluation_batches(
    dataset: LabelledImages, transform: Transform[View], rows: np.ndarray, batch: int, workers: int
) -> DataLoader[tuple[View, int]]:
    """(images, labels) of this process's share of ``rows``, each once, in order."""
    own = rows[distributed.rank() :: distributed.world_size()]
    images, pinned = _Rows(dataset, transform, own), torch.cuda.is_available()
    return ordered_loader(images, batch, workers=workers, pin_memory=pinned)


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
                f"{shots}; lower SVM.SHOTS or SVM.HELD_OUT_PER_CLASS, or use SVM.PRESET inaturalist, which takes "
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
    FRACTION.require("the fraction of labels", fraction)
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


@dataclass(frozen=True)
class LabelledData:
    """Training and test images with the transforms that go with them.

    Attributes:
        train, test: ``dataset[i] -> (PIL image, label)`` with ``.labels`` and ``.classes``.
        augment: PIL image -> random training view. plain: PIL image -> the evaluation's view.
    """

    train: LabelledImages
    test: LabelledImages
    augment: Callable[[PIL.Image.Image], Tensor]
    plain: Callable[[PIL.Image.Image], Tensor]
    workers: int = 0

    def __post_init__(self) -> None:
        if self.train.labels.ndim != 1 or self.test.labels.ndim != 1:
            raise InputError("expected one class an image, found several; only svm and retrieval take such images")
        check_classes(self.train, self.test)
        known = np.unique(self.train.labels)
        if len(known) < 2:
            raise InputError(f"the training images show one class only (label {known[0]}); expected at least two")
        unknown = np.setdiff1d(self.test.labels, known)
        if len(unknown):
            raise InputError(
                f"labels do not match: the test images show classes that the training images lack: {unknown[:10]}; "
                "were both splits indexed by the same list of classes?"
            )

    @property
    def num_classes(self) -> int:
        return int(self.train.labels.max()) + 1

    def labelled_rows(self, fraction: float, split_file: str, seed: int) -> np.ndarray:
        """Rows of the training set that keep their labels: a file's (SimCLR's lists), or a seeded balanced fraction."""
        if not split_file:
            return balanced_fraction(self.train.labels, fraction, seed)
        files = file_names(self.train)
        if files is None:
            raise InputError("a split file needs a data set of image files; leave SPLIT_FILE empty for this one")
        rows = from_file_list(split_file, files)
        share = len(rows) / len(files)
        if not 0.8 * share <= fraction <= 1.2 * share:
            raise InputError(
                f"expected FRACTION {share:.3g}, the share of the images that split file {split_file} names, found "
                f"{fraction}; set it: the name of the task, the schedule and the rates go by it"
            )
        if len(np.unique(self.train.labels[rows])) < 2:
            raise InputError(f"split file {split_file} names images of one class only; expected at least two")
        return rows

    def training(self, stream: Stream) -> DataLoader[tuple[Tensor, int]]:
        return training_batches(self.train, self.augment, stream, self.workers)

    def held_out(self, rows: np.ndarray, batch: int) -> DataLoader[tuple[Tensor, int]]:
        return evaluation_batches(self.train, self.plain, rows, batch, self.workers)

    def testing(self, batch: int) -> DataLoader[tuple[Tensor, int]]:
        return evaluation_batches(self.test, self.plain, np.arange(len(self.test)), batch, self.workers)


def check_classes(train: LabelledImages, test: LabelledImages) -> None:
    """Raise :class:`InputError` where both splits name their classes and number them differently.

    Folders and lists number the classes of each split by itself, in the order of their names; a class that one of them
    lacks would shift all later ones, and every score would be wrong in silence. Classes may be missing at the end.
    """
    for number, names in enumerate(zip(train.classes, test.classes, strict=False)):
        if names[0] != names[1]:
            raise InputError(
                f"labels do not match: class {number} is {names[0]!r} in the training images and {names[1]!r} in the "
                f"test images ({len(train.classes)} and {len(test.classes)} classes); expected the same classes in "
                "both: add the missing ones, or remove those that only one of them has"
            )


def search_split(labels: np.ndarray, rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit on, and rows that choose the learning rate: a fifth of each class, one where a class has only two."""
    fitted, held = set_aside(labels[rows], 0.2, seed)
    if not len(held):
        raise InputError(
            "the learning rate cannot be searched: no class has two labelled images; give a single LEARNING_RATES value"
        )
    return rows[fitted], rows[held]
