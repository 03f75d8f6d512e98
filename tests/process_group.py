"""Run a function in a process that is killed, or in a process group of its own that is signalled, as schedulers do."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

from momentum_transfer.core.command import Stopped


def signal_own_group() -> None:
    """SIGTERM to every process of the group from another process, and time to end those that do not hold it off."""
    subprocess.run(["kill", "-TERM", "--", f"-{os.getpgrp()}"], check=False)
    time.sleep(0.5)


def _leader(queue: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.setsid()
    torch.set_num_threads(1)
    try:
        work(*arguments)
        queue.put("finished")
    except Stopped as stopped:
        queue.put(f"Stopped {stopped.exit_code}: {stopped}")
    except BaseException as error:
        queue.put(f"{type(error).__name__}: {error}")


def outcome_in_own_group(work: Callable[..., Any], *arguments: Any) -> str:
    """How ``work(*arguments)`` ended: "finished", "Stopped CODE: …" or the error that it raised."""
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_leader, args=(queue, work, arguments))
    process.start()
    outcome = queue.get(timeout=120)
    process.join(timeout=60)
    return outcome


def _die(kind: type, method: str, call: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    original, calls = getattr(kind, method), []

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **named)

    setattr(kind, method, counted)
    work(*arguments)


def kill_at(kind: type, method: str, call: int, work: Callable[..., Any], *arguments: Any) -> None:
    """Run ``work(*arguments)`` in a fork that SIGKILL ends as the ``call``-th call of a class's method begins."""
    given = (kind, method, call, work, arguments)
    process = torch.multiprocessing.get_context("fork").Process(target=_die, args=given)
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
