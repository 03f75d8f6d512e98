"""Terminal output of all tools: lines, progress, tables, errors, signals.

All of it goes through the logger ``momentum_transfer``: silent for callers of the library (``logging.basicConfig`` with
level INFO shows it, raising the logger's level silences it), printed by :func:`run_tool`, which speaks for the tools.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from momentum_transfer import slurm_ranks
from momentum_transfer.errors import InputError
from momentum_transfer.exit_lines import AGAIN, first_to_say, refusal, shortened
from momentum_transfer.extras import missing_package
from momentum_transfer.shipped import as_typed
from momentum_transfer.versions import check_torch

if TYPE_CHECKING:  # rich takes a tenth of a second, and only tables and bars need it
    from rich.console import Console
    from rich.progress import Progress

Item = TypeVar("Item")

#: Plain progress lines (no terminal) come at most this often, in seconds.
PLAIN_INTERVAL = 10.0

#: Longer tables are lines without a frame: rich takes a millisecond a row.
DRAWN = 1000

#: SIGTERM within so many seconds of the first is the same request.
SAME_SIGNAL = 10.0

_LOGGER = logging.getLogger("momentum_transfer")
_LOGGER.addHandler(logging.NullHandler())  # without it, logging prints the warnings of silent libraries itself


class _Terminal(logging.Handler):
    """Lines to standard output as they are, warnings to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        # The streams are looked up at each use, because tests and callers may replace them.
        if record.levelno >= logging.WARNING:
            print(f"warning: {as_typed(record.getMessage())}", file=sys.stderr, flush=True)
        else:
            print(record.getMessage(), flush=True)


@contextlib.contextmanager
def speaking(*, quiet: bool = False) -> Iterator[None]:
    """Print what is said within the block, as the tools do; ``quiet``: warnings and errors only."""
    level, propagate = _LOGGER.level, _LOGGER.propagate
    handler = None if _speaks() else _Terminal()
    if handler is not None:
        _LOGGER.addHandler(handler)
        _LOGGER.propagate = False  # or a handler of the root logger would say everything twice
    if quiet:
        _LOGGER.setLevel(logging.WARNING)
    elif level == logging.NOTSET:
        _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)
        _LOGGER.propagate = propagate
        if handler is not None:
            _LOGGER.removeHandler(handler)


def _speaks() -> bool:
    return any(isinstance(handler, _Terminal) for handler in _LOGGER.handlers)


def _is_main() -> bool:
    """Only the first process of a torchrun job talks. Read from the environment: importing torch takes seconds."""
    return int(os.environ.get("RANK", "0")) == 0


def _console() -> "Console":
    from rich.console import Console

    # Made at each use, like the handler's streams. Off a terminal rich assumes 80 columns and would fold numbers.
    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False, soft_wrap=True)
    return Console(file=sys.stdout, highlight=False, width=140)


def say(text: str = "") -> None:
    """Log one line at level INFO (first process only); tools print it at once."""
    if _is_main():
        _LOGGER.info("%s", text)


def warn(text: str) -> None:
    """Log one warning (first process only); tools print it to standard error."""
    if _is_main():
        _LOGGER.warning("%s", text)


class ProgressLine:
    """Progress of a long job: a rich bar on a terminal, otherwise a plain line every ten seconds and at the end."""

    def __init__(self, description: str, total: int, start: int = 0) -> None:
        self.description, self.total, self.done, self.note = description, total, start, ""
        self._begun = self._printed = time.monotonic()
        self._first = start
        self._bar: Progress | None = None

    def __enter__(self) -> "ProgressLine":
        if _is_main() and _speaks() and _LOGGER.isEnabledFor(logging.INFO) and sys.stdout.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

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
        left = ""
        if self._first < self.done < self.total:
            left = f", about {duration(elapsed * (self.total - self.done) / (self.done - self._first))} left"
        say(f"{self.description}: {self.done}/{self.total} in {elapsed:.0f} s{left}  {self.note}".rstrip())

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        else:
            self._print()


def duration(seconds: float) -> str:
    """A length of time as people say it: ``40 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def track(iterable: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Iterate over ``iterable`` and show progress. ``total`` is its length where ``len()`` does not tell."""
    count = total if total is not None else len(iterable)  # type: ignore[arg-type]  # without a total it has a length
    with ProgressLine(description, count) as line:
        for item in iterable:
            yield item
            line.advance()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; the first column is left-aligned, the others right-aligned. Over ``DRAWN`` rows have no frame."""
    if not (_is_main() and _LOGGER.isEnabledFor(logging.INFO)):
        return
    cells = [[str(cell) for cell in row] for row in rows]
    if len(cells) > DRAWN:
        say("\n".join([title, *_aligned([list(columns), *cells])]))
        return
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title), title_justify="left")
    for index, column in enumerate(columns):
        drawn.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in cells:
        drawn.add_row(*map(Text, row))  # Text: names may hold brackets, rich's markup
    console = _console()
    with console.capture() as captured:
        console.print(drawn)
    say(captured.get().rstrip("\n"))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line a row, the cells of each column equally wide."""
    from rich.cells import cell_len

    rows = [[" ".join(cell.split()) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        spaces = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        aligned = [row[0] + spaces[0], *(space + cell for space, cell in zip(spaces[1:], row[1:], strict=True))]
        yield "  ".join(aligned).rstrip()


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


def run_tool(
    parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], None], argv: Sequence[str] | None = None
) -> int:
    """Parse the command line, run ``main`` and turn what goes wrong into one line and an exit code.

    Codes: 0 done, 2 wrong input, 130 / 143 stopped by SIGINT / SIGTERM, 1 anything else (with a traceback, because
    that is a bug). ``--debug`` shows the traceback of wrong input too; ``--quiet`` prints warnings and errors only.
    """
    tool_environment()
    parser.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    parser.description, parser.epilog = as_typed(parser.description), as_typed(parser.epilog)
    # Intermixed: KEY VALUE pairs may stand before, between and after the options.
    args = parser.parse_intermixed_args(argv) if parser._subparsers is None else parser.parse_args(argv)
    with speaking(quiet=args.quiet):
        return _exit_code(main, args)


def tool_environment() -> None:
    """What a tool sets for its process before torch is imported; the library leaves the environment alone.

    Threads that wait spin briefly, then sleep. Spinning without end makes a step many times slower as soon as another
    process wants a core; sleeping at once makes it up to twice as slow on an idle machine.
    """
    slurm_ranks.adopt(os.environ)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    threading.excepthook = _background_error
    # fvcore.nn decorates functions with torch.jit.script at import; nothing here uses them and no user can act on it.
    warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated", category=FutureWarning)


def _background_error(args: threading.ExceptHookArgs) -> None:
    """Of what a full disk does to TensorBoard's thread nothing is printed: the loop's next write raises the same."""
    if not issubclass(args.exc_type, OSError):
        threading.__excepthook__(args)


def _exit_code(main: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> int:
    try:
        check_torch()
        with _terminable():
            main(args)
    except InputError as error:
        if args.debug:
            traceback.print_exc()
        _say_error(str(error) if args.debug else shortened(str(error)))
        return 2
    except ModuleNotFoundError as error:
        if args.debug or (said := missing_package(error.name or "")) is None:
            raise
        _say_error(said)
        return 2
    except Stopped as stopped:
        say(as_typed(str(stopped)))
        return stopped.exit_code
    except KeyboardInterrupt:
        print(f"stopped by Ctrl-C; {AGAIN}", file=sys.stderr)
        return 130
    except _Terminated:
        print(f"stopped by SIGTERM; {AGAIN}", file=sys.stderr)
        return 143
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if args.debug or (refused := refusal(error)) is None:
            raise
        line, code = refused
        _say_error(line)
        return code
    return 0


def _say_error(text: str) -> None:
    """One line on standard error; under torchrun of the first process that has it to say."""
    if first_to_say(text):
        print(f"error: {as_typed(text)}", file=sys.stderr, flush=True)


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
