"""The resumable sampler of every training loop: batch s is a pure function of (seed, s).

An ``Order`` is an endless sequence of images; ``Batches`` cuts it into one process's batches, from any batch on;
``training_loader`` reads them in worker processes. Resuming needs only the number of steps done.
"""

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from momentum_transfer.core.devices import within_cores
from momentum_transfer.core.errors import InputError

Place = tuple[int, int]
"""(epoch, or position in the sequence; index of an image): what the image's random view is drawn from."""


class Epochs:
    """Epoch after epoch, each another permutation (epoch -> indices) cut to ``length``; places are (epoch, index)."""

    def __init__(self, length: int, permutation: Callable[[int], Tensor | np.ndarray]) -> None:
        self.length, self.permutation = length, permutation

    def places(self, first: int) -> Iterator[Place]:
        epoch, offset = divmod(first, self.length)
        while True:
            for index in self.permutation(epoch)[offset : self.length].tolist():
                yield epoch, index
            epoch, offset = epoch + 1, 0


def whole_steps(images: int, step: int, seed: int) -> Epochs:
    """Pretraining's order: shuffled epochs, cut to whole steps of ``step`` images over all processes."""
    if images < step:
        raise InputError(f"expected at least one batch of {step} images, found {images}; lower SOLVER.BATCH_SIZE")

    def permutation(epoch: int) -> Tensor:
        return torch.randperm(images, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))

    return Epochs(images // step * step, permutation)


def shuffled_rows(rows: np.ndarray, seed: int) -> Epochs:
    """Shuffled epochs of all the rows [n], the order with few labels; a batch may run across the end of an epoch."""
    if not len(rows):
        raise InputError("expected at least one image to train on, found none")
    return Epochs(len(rows), lambda epoch: np.random.default_rng([seed, 4, epoch]).permutation(rows))


class RepeatedPasses:
    """Detectron2's TrainingSampler and RepeatFactorTrainingSampler: shuffled passes; places are (position, index).

    ``factors`` [N]: how often each image comes in a pass; fractions are rounded at random, anew in each pass.
    """

    def __init__(self, factors: Tensor, seed: int) -> None:
        self.factors, self.seed = factors, seed

    def places(self, first: int) -> Iterator[Place]:
        begin = 0
        for order in self._passes():
            if first < begin + len(order):
                yield from enumerate(order[max(first - begin, 0) :].tolist(), start=max(first, begin))
            begin += len(order)

    def _passes(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        whole = torch.trunc(self.factors)
        fraction = self.factors - whole
        while True:
            extra = torch.zeros_like(whole)
            if bool((fraction > 0).any()):
                extra = (torch.rand(len(whole), generator=generator) < fraction).float()
            indices = torch.repeat_interleave(torch.arange(len(whole)), (whole + extra).long())
            yield indices[torch.randperm(len(indices), generator=generator)]


Order = Epochs | RepeatedPasses
"""An endless sequence of images, fixed by its seed; ``places(first)`` gives it from a position on."""


class Batches(Sampler[list[Place]]):
    """One process's batches of an order: of every ``world_size`` places the one of its ``rank``.

    Args:
        batch: images of a batch on one process.
        start, stop: the first batch, and the number of batches of the whole run (None: endless).
        groups: group of each image of the data set, where a batch holds one group only (of one orientation, which
            saves padding); a batch comes when its group has filled it.
    """

    def __init__(
        self,
        order: Order,
        batch: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        stop: int | None = None,
        groups: Sequence[Hashable] | None = None,
    ) -> None:
        self.order, self.batch, self.rank, self.world_size = order, batch, rank, world_size
        self.start, self.stop, self.groups = start, stop, groups

    def __iter__(self) -> Iterator[list[Place]]:
        if self.groups is None:
            batches, first = self._plain(), 0
        else:  # which batch is full when depends on all that came before
            batches, first = self._grouped(self.groups), self.start
        return itertools.islice(batches, first, None if self.stop is None else first + self.stop - self.start)

    def _own(self, first: int) -> Iterator[Place]:
        return itertools.islice(self.order.places(first), self.rank, None, self.world_size)

    def _plain(self) -> Iterator[list[Place]]:
        places = self._own(self.start * self.batch * self.world_size)
        while True:
            yield list(itertools.islice(places, self.batch))

    def _grouped(self, groups: Sequence[Hashable]) -> Iterator[list[Place]]:
        waiting: dict[Hashable, list[Place]] = {}
        for place in self._own(0):
            bucket = waiting.setdefault(groups[place[1]], [])
            bucket.append(place)
            if len(bucket) == self.batch:
                yield list(bucket)
                bucket.clear()


def leave_signals_to_the_loop(worker: int = 0) -> None:
    """Make a worker process ignore SIGINT and SIGTERM, except its parent's own SIGTERM; a ``worker_init_fn``.

    A signal to the whole process group (Ctrl-C, a scheduler's SIGTERM) must not end the workers: the loop, which gets
    it too, still needs its step's images before it saves. The parent terminates them at its own exit.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # this thread; _Loader: the others too
        threading.Thread(target=_end_when_the_parent_says, daemon=True).start()
    else:  # macOS
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end_when_the_parent_says() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Block SIGTERM until the end of the block, in this thread and in processes and threads started in it."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class _Loader(DataLoader[Any]):
    """Starts its workers with SIGTERM blocked, which all their threads inherit: torch starts one before the
    ``worker_init_fn``, and a signal to the process goes to any thread that takes it."""

    def __iter__(self) -> Any:
        with signals_held():
            return super().__iter__()


def training_loader(
    dataset: Dataset[Any],
    batches: Batches,
    *,
    workers: int,
    seed: int = 0,
    collate: Callable[[list[Any]], Any] | None = None,
    pin_memory: bool = False,
) -> DataLoader[Any]:
    """The items of the data set at the batches' places, in order; ``dataset[place]`` is a pure function of the place.

    ``workers`` processes (0 reads in this one), whose own generators take ``seed``; ``collate`` makes a batch of items,
    None stacks tensors; ``pin_memory`` is for copies to a CUDA device.
    """
    workers = within_cores(workers)
    return _Loader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        pin_memory=pin_memory,
        prefetch_factor=4 if workers else None,
        collate_fn=collate,
        worker_init_fn=leave_signals_to_the_loop,
        generator=torch.Generator().manual_seed(seed),  # else each iterator uses the global one
    )


def ordered_loader(
    dataset: Dataset[Any],
    batch: int,
    *,
    workers: int,
    collate: Callable[[list[Any]], Any] | None = None,
    pin_memory: bool = False,
) -> DataLoader[Any]:
    """Every item of the data set once, in order; uses no global random number."""
    return _Loader(
        dataset,
        batch,
        num_workers=within_cores(workers),
        pin_memory=pin_memory,
        collate_fn=collate,
        worker_init_fn=leave_signals_to_the_loop,
        generator=torch.Generator(),
    )
