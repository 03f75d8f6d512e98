"""Batches of transformed images as a pure function of (seed, step), so that a resumed run sees what the first would."""

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import PIL.Image
import torch
from torch.utils.data import DataLoader, Dataset

from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.samplers import Batches, Place, ordered_loader, shuffled_rows, training_loader
from momentum_transfer.images.labelled_images import LabelledImages
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
        super().__init__(order, batch // world, rank=rank, world=world, start=start, stop=steps)
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
