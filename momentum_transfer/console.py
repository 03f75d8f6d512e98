"""What a person sees in the terminal: lines, progress, tables, errors; the same for every tool."""

import argparse
import contextlib
import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from momentum_transfer.errors import InputError

Item = TypeVar("Item")

#: Plain progress lines (no terminal) come at most this often, in seconds.
PLAIN_INTERVAL = 10.0


def _is_main() -> bool:
    """Only the first process of a torchrun job talks. Read from the environment: importing torch takes seconds."""
    return int(os.environ.get("RANK", "0")) == 0


def _console() -> Console:
    # Made at each use: tests and tools may replace sys.stdout.
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def say(text: str = "") -> None:
    """Print one line (first process only), at once."""
    if _is_main():
        print(text, flush=True)


def warn(text: str) -> None:
    """Print one warning line to standard error (first process only)."""
    if _is_main():
        print(f"warning: {text}", file=sys.stderr, flush=True)


class ProgressLine:
    """Progress of a long job: a rich bar on a terminal, otherwise a plain line every ten seconds and at the end."""

    def __init__(self, description: str, total: int, start: int = 0) -> None:
        self.description, self.total, self.done, self.note = description, total, start, ""
        self._begun = self._printed = time.monotonic()
        self._first = start
        self._bar: Progress | None = None

    def __enter__(self) -> "ProgressLine":
        if _is_main() and sys.stdout.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=_console())
            self._bar.start()
            self._task = self._bar.add_task(self.description, total=self.total, completed=self.done, note="")
        return self

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count ``count`` more items done; ``note`` (a loss, say) stands at the end of the line."""
        self.done += count
        self.note = note or self.note
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=self.note)
        elif time.monotonic() - self._printed >= PLAIN_INTERVAL:
            self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        elapsed = self._printed - self._begun
        say(f"{self.description}: {self.done}/{self.total} in {elapsed:.0f} s  {self.note}".rstrip())

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        else:
            self._print()


def track(iterable: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Iterate over ``iterable`` and show progress. ``total`` is its length where ``len()`` does not tell."""
    count = total if total is not None else len(iterable)  # type: ignore[arg-type]
    with ProgressLine(description, count) as line:
        for item in iterable:
            yield item
            line.advance()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; the first column is left-aligned, the others right-aligned."""
    if not _is_main():
        return
    drawn = Table(title=Text(title), title_justify="left")
    for index, column in enumerate(columns):
        drawn.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(str(cell)) for cell in row))  # Text: names may hold brackets, rich's markup
    # Off a terminal rich assumes 80 columns and would fold numbers.
    console = _console() if sys.stdout.isatty() else Console(file=sys.stdout, highlight=False, width=140)
    console.print(drawn)


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
def stop_signals() -> Iterator[StopSignal]:
    """Catch SIGINT and SIGTERM inside the block. The first one only sets the flag; a second one ends at once."""
    stop = StopSignal()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.received is not None:
            raise KeyboardInterrupt
        stop.received = signal.Signals(number)
        warn(f"{stop.received.name} received: finishing this step, then saving (once more: stop at once)")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_tool(
    parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], None], argv: Sequence[str] | None = None
) -> int:
    """Parse the command line, run ``main`` and turn what goes wrong into one line and an exit code.

    Codes: 0 done, 2 wrong input, 130 / 143 stopped by SIGINT / SIGTERM, 1 anything else (with a traceback, because
    that is a bug). ``--debug`` shows the traceback of wrong input too.
    """
    parser.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    # Intermixed: KEY VALUE pairs may stand before, between and after the options.
    args = parser.parse_intermixed_args(argv) if parser._subparsers is None else parser.parse_args(argv)
    try:
        with _terminable():
            main(args)
    except InputError as error:
        if args.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        say(str(stopped))
        return stopped.exit_code
    except KeyboardInterrupt:
        print(f"stopped by Ctrl-C; {_AGAIN}", file=sys.stderr)
        return 130
    except _Terminated:
        print(f"stopped by SIGTERM; {_AGAIN}", file=sys.stderr)
        return 143
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if args.debug or error.errno not in (*_DISK_FULL, *_WRONG_PATH):
            raise
        return _explain(error)
    return 0


_AGAIN = "what was written is whole; run the same command again (with --resume where the tool offers it)"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WRONG_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def _explain(error: OSError) -> int:
    """One line for what the file system refused; the exit code."""
    file = error.filename or "a file"
    if error.errno in _DISK_FULL:
        print(f"error: no space left on the disk while writing {file}; free some space; {_AGAIN}", file=sys.stderr)
        return 1
    print(f"error: cannot use {file}: {error.strerror}; choose another path", file=sys.stderr)
    return 2


class _Terminated(BaseException):
    """SIGTERM outside of a loop that saves."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that temporary files are removed."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
