"""SIGINT and SIGTERM in a long loop: it finishes its step, saves and leaves."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from momentum_transfer.core.log import warn

#: SIGTERM within so many seconds of the first is the same request.
SAME_SIGNAL = 10.0


class StopSignal:
    """Set by SIGINT or SIGTERM; a loop looks at it after each step, saves and leaves."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """The shell's convention: 128 + the signal's number (130 for Ctrl-C, 143 for SIGTERM)."""
        return 128 + (self.received or signal.SIGTERM)


class Stopped(Exception):
    """Work ended early by a signal, after saving. ``message`` says how to resume."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextlib.contextmanager
def stop_signals(then: str = "finishing this step, then saving") -> Iterator[StopSignal]:
    """Catch SIGINT and SIGTERM inside the block. The first one only sets the flag; a second one ends at once.

    Launchers (torchrun, srun, Slurm and what watches a job) each pass a SIGTERM on, so that several within ten seconds
    are one.

    Args:
        then: what happens at the first, for the message.
    """
    stop, at = StopSignal(), 0.0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal at
        if stop.received is not None:
            if number == signal.SIGTERM and time.monotonic() - at < SAME_SIGNAL:
                return
            raise KeyboardInterrupt
        stop.received, at = signal.Signals(number), time.monotonic()
        warn(f"{stop.received.name} received: {then} (once more: stop at once)")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
