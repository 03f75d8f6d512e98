"""The device that a setting names: one policy for every tool."""

from __future__ import annotations

import functools

import torch

from momentum_transfer.core.distributed import local_rank
from momentum_transfer.core.errors import InputError
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
