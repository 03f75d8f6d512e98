"""The labelled images of an evaluation: which rows carry labels, which are held out, in which batches they come.

All of it is seeded. Batches are a pure function of (seed, step), so that a resumed run sees what the first would.
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
from momentum_transfer.lowshot.features.feature_set import check_known

_View = TypeVar("_View")  # a tensor, or FixMatch's pair of them
_Transform = Callable[[PIL.Image.Image], _View]


class _SeededImages(Dataset[tuple[_View, int]], Generic[_View]):
    """``self[epoch, row] -> (transformed image, label)``; the transform's randomness depends on (seed, epoch, row)."""

    def __init__(self, dataset: LabelledImages, transform: _Transform[_View], seed: int) -> None:
        self.dataset, self.transform, self.seed = dataset, transform, seed

    def __getitem__(self, place: Place) -> tuple[_View, int]:
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
        count = distributed.world_size()
        if batch < count or batch % count:
            raise InputError(f"expected a batch size that {count} processes can divide equally, found {batch}")
        order, rank = shuffled_rows(rows, seed), distributed.rank()
        super().__init__(order, batch // count, rank=rank, world_size=count, start=start, stop=steps)
        self.rows, self.steps, self.seed = rows, steps, seed

    def __len__(self) -> int:
        return self.steps - self.start


def steps_of(epochs: float, images: int, batch: int) -> int:
    """Number of steps of a run, at least one."""
    return max(1, round(epochs * images / batch))


def training_batches(
    dataset: LabelledImages, transform: _Transform[_View], stream: Stream, workers: int
) -> DataLoader[tuple[_View, int]]:
    """(transformed images, labels [b]) for every step of the stream; of arrays where the transform has a ``source``."""
    source = getattr(transform, "source", lambda images: images)(dataset)
    images = _SeededImages(source, transform, stream.seed)
    return training_loader(images, stream, workers=workers, seed=stream.seed, pin_memory=_uses_cuda())


class _Rows(Dataset[tuple[_View, int]], Generic[_View]):
    def __init__(self, dataset: LabelledImages, transform: _Transform[_View], rows: np.ndarray) -> None:
        self.dataset, self.transform, self.rows = dataset, transform, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[_View, int]:
        image, label = self.dataset[int(self.rows[index])]
        return self.transform(image), label


def evaluation_batches(
    dataset: LabelledImages, transform: _Transform[_View], rows: np.ndarray, batch: int, workers: int
) -> DataLoader[tuple[_View, int]]:
    """(images, labels) of every world_size-th of ``rows``, each once, in order."""
    own = rows[distributed.rank() :: distributed.world_size()]
    images = _Rows(dataset, transform, own)
    return ordered_loader(images, batch, workers=workers, pin_memory=_uses_cuda())


def _uses_cuda() -> bool:
    """Whether this process has opened a GPU, as a network there does: pinned memory would open one for a CPU's run."""
    return torch.cuda.is_initialized()


def _class_members(labels: np.ndarray) -> list[np.ndarray]:
    """For each class the indices of its images, ascending. Labels [N] of class indices, or [N, K] multi-hot."""
    if labels.ndim == 2:
        return [np.flatnonzero(labels[:, index]) for index in range(labels.shape[1])]
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(int(labels.max()) + 2))
    return [order[begin:end] for begin, end in itertools.pairwise(bounds)]


def set_aside(labels: np.ndarray, per_class: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split a training set into (pool, held out), both ascending indices: at most half of each class is held out.

    ``per_class``: images of each class; below 1 a fraction of them, rounded, at least one. With multi-hot labels an
    image counts for all the classes it shows.
    """
    generator = np.random.default_rng([seed, 1])
    held = np.zeros(len(labels), dtype=bool)
    for members in _class_members(labels):
        count = int(per_class) if per_class >= 1 else max(1, round(per_class * len(members)))
        missing = min(count, len(members) // 2) - int(held[members].sum())
        held[generator.permutation(members[~held[members]])[: max(0, missing)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def sample_classes(
    labels: np.ndarray, shots: int, trial: int, seed: int, *, allow_fewer: bool = False
) -> list[np.ndarray]:
    """For each class the indices of ``shots`` random images of it.

    They are the first ``shots`` of one permutation per class: the samples of a trial are nested over ``shots``, and
    every method sees the same ones. With multi-hot labels, the images of each class are sampled among those that show
    it; an image may be sampled for two classes. A class with fewer images is an InputError, or with ``allow_fewer``
    (iNaturalist's tail) gives all it has.
    """
    chosen: list[np.ndarray] = []
    for index, members in enumerate(_class_members(labels)):
        if len(members) < shots and not allow_fewer:
            raise InputError(
                f"class {index} has {counted(len(members), 'image')} to sample from, expected at least "
                f"{shots}; lower SVM.SHOTS or SVM.HELD_OUT_PER_CLASS, or use SVM.PRESET inaturalist, which takes "
                "all images of a small class"
            )
        chosen.append(np.random.default_rng([seed, 2, trial, index]).permutation(members)[:shots])
    return chosen


def sample_negatives(labels: np.ndarray, count: int, trial: int, seed: int) -> list[np.ndarray]:
    """For each column of ``labels`` [N, classes] the indices of ``count`` random zeros, or of all if they are fewer."""
    absent = [np.flatnonzero(column == 0) for column in labels.T]
    return [np.random.default_rng([seed, 5, trial, index]).permutation(own)[:count] for index, own in enumerate(absent)]


def _balanced_fraction(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A seeded class-balanced part, ascending: ``round(fraction · N / classes)`` images of each class, at least one.

    A smaller class gives all it has. ``fraction`` 1 is everything.
    """
    FRACTION.require("the fraction of labels", fraction)
    if fraction == 1:
        return np.arange(len(labels))
    members = _class_members(labels)
    each = max(1, round(fraction * len(labels) / sum(1 for part in members if len(part))))
    parts = [np.random.default_rng([seed, 3, index]).permutation(part)[:each] for index, part in enumerate(members)]
    return np.sort(np.concatenate(parts))


def from_file_list(path: str | Path, files: list[str]) -> np.ndarray:
    """Indices of the images that a list such as SimCLR's 1 % and 10 % subsets names, one file name a line.

    Names are compared without their folders, as the published lists give ``n01440764_10043.JPEG``.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"split file not found: {path}; expected one image name a line")
    wanted = [Path(line).name for line in read_lines(path, "names of images, a line each,") if line]
    if not wanted:
        raise InputError(f"split file {path} is empty; expected one image name a line")
    names = [Path(file).name for file in files]
    index, counts = {name: position for position, name in enumerate(names)}, Counter(names)
    if ambiguous := [name for name in wanted if counts[name] > 1]:
        raise InputError(
            f"split file {path} names {ambiguous[0]}, which {counts[ambiguous[0]]} images of the data set are "
            "called; expected names that are unique without their folders, as ImageNet's are"
        )
    if missing := [name for name in wanted if name not in index]:
        raise InputError(
            f"split file {path} names {len(missing)} of {len(wanted)} images that the data set lacks, "
            f"first {missing[0]}; is it the list of this data set?"
        )
    return np.unique([index[name] for name in wanted])


@dataclass(frozen=True)
class LabelledData:
    """Training and test images with the transforms that go with them."""

    train: LabelledImages
    test: LabelledImages
    augment: Callable[[PIL.Image.Image], Tensor]  # -> random training view
    plain: Callable[[PIL.Image.Image], Tensor]  # -> the evaluation's view
    workers: int = 0

    def __post_init__(self) -> None:
        if self.train.labels.ndim != 1 or self.test.labels.ndim != 1:
            raise InputError("expected one class an image, found several; only svm and retrieval take such images")
        check_classes(self.train, self.test)
        check_known(self.train.labels, self.test.labels, "the training set", "the test set")

    @property
    def num_classes(self) -> int:
        return int(self.train.labels.max()) + 1

    def labelled_rows(self, fraction: float, split_file: str, seed: int) -> np.ndarray:
        """Rows of the training set that keep their labels: a file's (SimCLR's lists), or a seeded balanced fraction."""
        if not split_file:
            return _balanced_fraction(self.train.labels, fraction, seed)
        files = file_names(self.train)
        if files is None:
            raise InputError("a split file needs a data set of image files; leave SPLIT_FILE empty for this one")
        rows = from_file_list(split_file, files)
        named = len(rows) / len(files)
        if not 0.8 * named <= fraction <= 1.2 * named:
            raise InputError(
                f"expected FRACTION {named:.3g}, the fraction of the images that split file {split_file} names, found "
                f"{fraction}; set it: the name of the task, the schedule and the rates depend on it"
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

    Folders and lists number the classes of each split in the order of their names; a class that one of them lacks would
    shift all later ones, and every score would be silently wrong. Classes may be missing at the end.
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
