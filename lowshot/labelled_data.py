"""The labelled images of an evaluation: which rows carry labels, which are held out, how they are read."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import PIL.Image
from torch import Tensor
from torch.utils.data import DataLoader

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.images.subsets import file_names
from momentum_transfer.lowshot.labelled_stream import Stream, evaluation_batches, training_batches
from momentum_transfer.lowshot.splits import balanced_fraction, from_file_list, set_aside


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
