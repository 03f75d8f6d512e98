"""The device that a setting names: one policy for every tool.

How many worker processes read a training's images: as many as the run's own first steps show to be fastest.

The images of a batch do not depend on who reads them, so each candidate reads the next few batches of the run itself:
nothing is computed twice, and the result is the same for every choice.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import torch

from momentum_transfer.core.distributed import local_rank
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say
from momentum_transfer.core.ranges import DEVICE


def choose_device(name: str = "auto", key: str = "the device") -> torch.device:
    """The device of this process.

    Args:
        name: "auto" is CUDA where there is a device, else the CPU, said aloud once; "cuda" and "cuda:N" are never
            replaced by the CPU, where a long job would be a hundred times slower; "cpu". Under torchrun "auto" and
            "cuda" are the process's own GPU, which also becomes the current one: collectives of NCCL, and all of
            Detectron2, run there.
        key: the setting, for the message.

    Raises:
        InputError: another name, or a CUDA device that is not there.
    """
    check_device(name, key)
    if runs_on_cpu(name):
        if name == "auto":
            _say_once("no CUDA device: running on the CPU")
        return torch.device("cpu")
    index = int(name.partition(":")[2]) if ":" in name else local_rank()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def check_device(name: str, key: str) -> None:
    """Raises InputError unless ``choose_device`` has a device for the name."""
    DEVICE.require(key, name)
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"expected a CUDA device under {key} {name}, found none; use cpu or auto")
    if ":" in name and int(name.partition(":")[2]) >= torch.cuda.device_count():
        raise InputError(f"expected {key} below cuda:{torch.cuda.device_count()}, found {name}; use auto")


def runs_on_cpu(name: str) -> bool:
    """Whether the name stands for the CPU here."""
    return name == "cpu" or (name == "auto" and not torch.cuda.is_available())


@functools.cache
def _say_once(text: str) -> None:
    say(text)


Batch = TypeVar("Batch")

#: The setting that asks for the measurement.
MEASURED = -1
#: Batches of a candidate: the first ones fill the workers' queues and are not timed.
UNTIMED, TIMED = 2, 4
#: Trials that the rest of a run must be worth, or none is made.
WORTH_TRYING = 20
#: More processes must save this share of a step's time to be worth their memory.
_WORTH = 0.05
_HOPELESS = 1.2


def candidates(processes: int = 1) -> list[int]:
    """Numbers of workers to try, for each of ``processes`` that train on this machine: 0, 1, 2, 4, …, at most 16."""
    own = max(available_cores() // processes, 1)
    return [0, *(count for count in (1, 2, 4, 8, 16) if count <= own)]


def available_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_without_measuring(setting: int) -> int:
    """``setting``, or for a pass too short to measure in: one worker for each core, up to 4."""
    return min(available_cores(), 4) if setting == MEASURED else setting


def within_cores(workers: int) -> int:
    """``workers``, but at most one for each core, of which torch would warn in every loader; fewer are said once."""
    most = available_cores()
    if workers > most:
        _say_fewer(most, workers)
    return min(workers, most)


@functools.cache
def _say_fewer(most: int, workers: int) -> None:
    say(f"{counted(most, 'worker')} instead of {workers} read the images: one for each core of this process")


def measured_batches(
    batches_from: Callable[[int, int], Generator[Batch, None, None]],
    first: int,
    total: int,
    choices: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Batch]:
    """Batches ``first`` on, read by the number of workers that turns out fastest.

    A candidate's time is that between two requests, so it holds the training step as well: on a CPU, workers take
    cores from it. The candidates come in ascending order; one far slower than the best so far ends the trials.

    Args:
        batches_from: (first batch, workers) -> endless batches.
        total: batches of the whole run. Where few are left, nothing is measured.
        choices: numbers of workers to try, ascending.
        clock: seconds.
    """
    trial = UNTIMED + TIMED
    if total - first < WORTH_TRYING * trial or len(choices) < 2:
        yield from batches_from(first, choices[-1])
        return
    seconds: dict[int, float] = {}
    for workers in choices:
        source = batches_from(first, workers)
        times = []
        for batch in islice(source, trial):
            yield batch
            times.append(clock())
        source.close()  # its workers end
        first += trial
        seconds[workers] = (times[-1] - times[UNTIMED - 1]) / TIMED
        if seconds[workers] > _HOPELESS * min(seconds.values()):
            break
    best = _choose(seconds)
    timed = ", ".join(f"{workers}: {1000 * value:.0f} ms" for workers, value in seconds.items())
    say(f"{counted(best, 'worker')} for reading images, by the time of a batch and its step with each number ({timed})")
    yield from batches_from(first, best)


def _choose(seconds: dict[int, float]) -> int:
    """The fewest workers of which no other number saves a worthwhile share."""
    fastest = min(seconds.values())
    return min(workers for workers, value in seconds.items() if value * (1 - _WORTH) <= fastest)
