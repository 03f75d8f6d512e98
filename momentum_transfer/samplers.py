"""Batches in a fixed order that any step can be reached in: the sampler's position is a function of the step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from momentum_transfer.errors import InputError

Place = tuple[int, int]  # (epoch, index of an image)


class EpochDataset(Protocol):
    """Images whose item is a pure function of epoch and index: ``TwoViewDataset``, ``CanvasDataset``."""

    def at(self, epoch: int, index: int) -> tuple[Any, ...]:
        """The item."""


class EpochImages(Dataset):
    """The images under a key that carries the epoch, so that workers may read across the end of an epoch."""

    def __init__(self, dataset: EpochDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, place: Place) -> tuple[Any, ...]:
        return self.dataset.at(*place)


class EndlessBatches(Sampler[list[Place]]):
    """This process's share of every batch, epoch after epoch, from any micro-batch on.

    Every epoch is a permutation of the images drawn from (seed, epoch), the same on all processes; what does not fill
    a whole step of all processes is left out.

    Args:
        images: number N of images.
        batch: images of one micro-batch on one process.
        seed: of the permutations.
        rank, world: this process's share is images rank, rank + world, … of every joint batch.
        accumulate: micro-batches of one optimiser step; an epoch holds whole steps, so that it is the same images
            however a step is divided.
        start: number of micro-batches already consumed.

    Raises:
        InputError: fewer images than one step takes.
    """

    def __init__(
        self,
        images: int,
        batch: int,
        *,
        seed: int,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        start: int = 0,
    ) -> None:
        self.images, self.batch, self.seed, self.rank, self.world, self.start = images, batch, seed, rank, world, start
        step = batch * world * accumulate
        self.per_epoch = images // step * accumulate
        if self.per_epoch == 0:
            raise InputError(
                f"expected at least one batch of {step} images, found {images} images; "
                "lower SOLVER.BATCH_SIZE or give more data"
            )

    def order(self, epoch: int) -> Tensor:
        """The permutation of an epoch, [N]."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(self.images, generator=generator)

    def __iter__(self) -> Iterator[list[Place]]:
        epoch, position = divmod(self.start, self.per_epoch)
        while True:
            order = self.order(epoch)
            for number in range(position, self.per_epoch):
                joint = order[number * self.batch * self.world : (number + 1) * self.batch * self.world]
                yield [(epoch, int(index)) for index in joint[self.rank :: self.world]]
            epoch, position = epoch + 1, 0


def _leave_signals_to_the_loop(worker: int) -> None:
    """A signal to the whole process group (Ctrl-C, a scheduler's SIGTERM) must not end the workers: the loop, which
    gets it too, still takes its step's images from them before it saves. Workers end with their parent."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def training_loader(
    dataset: EpochDataset, batches: EndlessBatches, *, workers: int, pin_memory: bool
) -> DataLoader[Any]:
    """Endless batches of the dataset's items, collated, from worker processes, in order.

    Args:
        workers: processes; 0 reads in this one.
        pin_memory: for copies to a CUDA device.
    """
    return DataLoader(
        EpochImages(dataset),
        batch_sampler=batches,
        num_workers=workers,
        pin_memory=pin_memory,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_leave_signals_to_the_loop,
        generator=torch.Generator().manual_seed(batches.seed),  # else making an iterator draws from the global one
    )
