"""The process group: ranks, sizes, gathers. Every function is inert in a single process."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: How long a process waits for the others. The 10 minutes of NCCL end a run whose first process scores COCO alone, or
#: waits for another job's features; torchrun ends the others where one has died.
_PATIENCE = timedelta(days=2)

_groups = itertools.count()  # how many groups this process has joined


def is_distributed() -> bool:
    """Whether a process group of more than one process is up."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """This process's rank; 0 alone. Before the group is up, torchrun's RANK."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """This process's rank on its machine, torchrun's LOCAL_RANK; 0 alone."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_world_size() -> int:
    """Number of processes on this machine, torchrun's LOCAL_WORLD_SIZE; 1 alone."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def world_size() -> int:
    """Number of processes; 1 alone."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this process prints and writes files."""
    return rank() == 0


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join torchrun's group (NCCL on CUDA, gloo on CPU) for the body; inert outside torchrun and inside another."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield
        return
    # torchrun's store outlives a group: without a place of its own the next group would meet this one's addresses.
    store, index, size = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(f"group_{next(_groups)}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=index, world_size=size, timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def barrier() -> None:
    """Wait for every process."""
    if is_distributed():
        dist.barrier()


def all_gather_tensor(tensor: Tensor) -> Tensor:
    """Concatenate every rank's tensor [n, …], of one shape, in rank order: [world_size · n, …], without gradient."""
    if not is_distributed():
        return tensor
    tensor = tensor.contiguous()  # so that the parts are too
    parts = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def all_reduce_mean(tensor: Tensor) -> Tensor:
    """The mean over ranks of a tensor of equal shape everywhere, without gradient; alone, the tensor itself."""
    if not is_distributed():
        return tensor
    reduced = tensor.clone()
    dist.all_reduce(reduced)
    return reduced / world_size()


class _MeanOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return all_reduce_mean(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return all_reduce_mean(gradients[0])  # every loss depends on every tensor, by 1/size


def differentiable_mean(tensor: Tensor) -> Tensor:
    """The mean over ranks; the gradient is that of the sum of all ranks' losses. Every rank must run the backward."""
    return _MeanOverProcesses.apply(tensor)


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on at least one rank: a decision that all ranks take together."""
    if not is_distributed():
        return flag
    value = torch.tensor(float(flag), device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value.item())


def broadcast(tensor: Tensor, source: int = 0) -> Tensor:
    """Overwrite the tensor in place with that of the source rank and return it; inert alone."""
    if is_distributed():
        dist.broadcast(tensor, source)
    return tensor
