"""Run a function in two processes with torchrun's environment, without GPUs and without importing anything again."""

import os
from collections.abc import Callable
from queue import Empty
from typing import Any

import torch

from momentum_transfer.core import distributed

Work = Callable[..., Any]


def as_torchrun(work: Work, *arguments: Any) -> tuple[Any, Any]:
    """What ``work(*arguments)`` returns on rank 0 and on rank 1; results are sent as NumPy arrays and plain values.

    The processes are forks of this one. As under torchrun the store that they meet in is the parent's and outlives
    their groups; its port is one that the system had free.
    """
    context = torch.multiprocessing.get_context("fork")
    results: Any = context.Queue()
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    processes = [context.Process(target=_member, args=(rank, store.port, results, work, arguments)) for rank in (0, 1)]
    for process in processes:
        process.start()
    try:
        returned = dict(_next(results, processes) for _ in processes)
    finally:
        for process in processes:
            process.join(timeout=20)
            process.kill()
    return returned[0], returned[1]


def in_two_processes(work: Work, *arguments: Any) -> tuple[Any, Any]:
    """`as_torchrun`, inside a gloo group."""
    return as_torchrun(_in_group, work, *arguments)


def _in_group(work: Work, *arguments: Any) -> Any:
    with distributed.process_group(torch.device("cpu")):
        result = work(*arguments)
        distributed.barrier()
        return result


def _member(rank: int, port: int, results: Any, work: Work, arguments: tuple[Any, ...]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    results.put((rank, work(*arguments)))


def _next(results: Any, processes: list[Any]) -> tuple[int, Any]:
    """The next result, however long it takes on a busy machine; an error as soon as a process died."""
    while True:
        try:
            found: tuple[int, Any] = results.get(timeout=1)
            return found
        except Empty:
            codes = [process.exitcode for process in processes if process.exitcode]
            assert not codes, f"a process ended with exit code {codes[0]}; its traceback is in the captured output"
