"""Run a function in two processes of a gloo group, as torchrun would on two machines without GPUs."""

import os
from collections.abc import Callable
from typing import Any

import torch


def _member(rank: int, port: int, queue: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="localhost")
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    queue.put((rank, work(*arguments)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def in_two_processes(port: int, work: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """What ``work(*arguments)`` returns on rank 0 and on rank 1; results are sent as NumPy arrays and plain values.

    Args:
        port: a number below 1000 that no other test uses, so that tests may run side by side.
    """
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    port = 20000 + 10 * port + os.getpid() % 10
    processes = [context.Process(target=_member, args=(rank, port, queue, work, arguments)) for rank in (0, 1)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(timeout=60)
    return results[0], results[1]
