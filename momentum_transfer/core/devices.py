"""The device that a setting names, and how many worker processes read a training's images.

The number of workers is measured on the run's own first steps: the images of a batch do not depend on who reads them,
so each candidate reads the next few batches, nothing is computed twice, and the result is the same for every choice.
"""

import functools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import torch

from momentum_transfer.core.distributed import local_rank
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say
from momentum_transfer.core.machine import available_cores
from momentum_transfer.core.ranges import DEVICE


def choose_device(name: str = "auto", key: str = "the device") -> torch.device:
    """The device of this process; ``key`` is the setting, for messages.

    "auto" is CUDA where there is a device, else the CPU, which is logged once; "cuda" and "cuda:N" never fall back to
    the CPU, where a long job would be a hundred times slower. Under torchrun "auto" and "cuda" are the process's own
    GPU, which also becomes the current one, for NCCL and Detectron2.
    Raises InputError for another name, or a CUDA device that is not there.
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
    """Raise InputError unless ``choose_device`` has a device for the name."""
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

#: The value of WORKERS that asks for the measurement.
MEASURED = -1
#: Batches of a candidate: the first ones fill the workers' queues and are not timed.
UNTIMED, TIMED = 2, 4
#: Nothing is measured where fewer batches are left than this many times those of one candidate.
WORTH_TRYING = 20
#: More workers must save this fraction of a step's time to be worth their memory; this much slower ends the search.
_WORTH, _HOPELESS = 0.05, 1.2


def candidates(processes: int = 1) -> list[int]:
    """Numbers of workers to try, for each of ``processes`` that train on this machine: 0, 1, 2, 4, …, at most 16."""
    own = max(available_cores() // processes, 1)
    return [0, *(count for count in (1, 2, 4, 8, 16) if count <= own)]


def workers_without_measuring(setting: int) -> int:
    """``setting``, or where it is ``MEASURED`` in a pass too short to measure, a worker for each core, up to 4."""
    return min(available_cores(), 4) if setting == MEASURED else setting


def within_cores(workers: int) -> int:
    """``workers``, but at most one for each core (torch would warn in every loader); fewer are logged once."""
    most = available_cores()
    if workers > most:
        _say_once(f"{counted(most, 'worker')} instead of {workers} read the images: one for each core of this process")
    return min(workers, most)


def measured_batches(
    batches_from: Callable[[int, int], Generator[Batch, None, None]],
    first: int,
    total: int,
    choices: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Batch]:
    """Batches ``first`` on of ``total``, read by that number of workers (of ascending ``choices``) which is fastest.

    ``batches_from(first, workers)`` gives endless batches, ``clock()`` the seconds. A candidate's time is that between
    two requests and so includes the training step: on a CPU, workers take cores from it. One far slower than the best
    so far ends the search; where few batches are left, nothing is measured.
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
    fastest = min(seconds.values())
    best = min(workers for workers, value in seconds.items() if value * (1 - _WORTH) <= fastest)
    timed = ", ".join(f"{workers}: {1000 * value:.0f} ms" for workers, value in seconds.items())
    say(f"{counted(best, 'worker')} for reading images, by the time of a batch and its step with each number ({timed})")
    yield from batches_from(first, best)
