"""Terminal output of all tools: lines, progress, tables.

Everything goes through the logger ``momentum_transfer``: silent for callers of the library (``logging.basicConfig``
with level INFO shows it), printed by ``command.run_tool``. Text may hold names from untrusted files: it passes through
``errors.printable``.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from momentum_transfer.core.errors import printable
from momentum_transfer.core.shipped import as_typed

if TYPE_CHECKING:  # rich takes a tenth of a second, and only tables and bars need it
    from rich.console import Console
    from rich.progress import Progress

Item = TypeVar("Item")

#: Plain progress lines (no terminal) come at most this often, in seconds: a line within five seconds.
PLAIN_INTERVAL = 4.5

#: Longer tables are printed without a frame: rich takes a millisecond a row.
DRAWN = 1000

_LOGGER = logging.getLogger("momentum_transfer")
_LOGGER.addHandler(logging.NullHandler())  # without it, logging prints the warnings of silent libraries itself


class _Terminal(logging.Handler):
    """Lines to standard output as they are, warnings to standard error; ``last``: when the latest came."""

    last = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        _Terminal.last = time.monotonic()
        # The streams are looked up at each use, because tests and callers may replace them.
        if record.levelno >= logging.WARNING:
            with contextlib.suppress(OSError):  # a full standard error ends no run
                print(f"warning: {as_typed(record.getMessage())}", file=sys.stderr, flush=True)
        else:
            print(record.getMessage(), flush=True)


@contextlib.contextmanager
def speaking(*, quiet: bool = False) -> Iterator[None]:
    """Print what is logged within the block, as the tools do; ``quiet``: warnings and errors only."""
    level, propagate = _LOGGER.level, _LOGGER.propagate
    handler = None if _speaks() else _Terminal()
    if handler is not None:
        _LOGGER.addHandler(handler)
        _LOGGER.propagate = False  # a handler of the root logger would print everything twice
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
    """Only rank 0 logs. Read from the environment, because importing torch takes seconds."""
    return int(os.environ.get("RANK", "0")) == 0


def _console() -> "Console":
    from rich.console import Console

    # Made at each use, like the handler's streams. Off a terminal rich assumes 80 columns and would fold numbers.
    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False, soft_wrap=True)
    return Console(file=sys.stdout, highlight=False, width=140)


def say(text: str = "") -> None:
    """Log one line at level INFO (rank 0 only); tools print it."""
    if _is_main():
        _LOGGER.info("%s", printable(text))


def warn(text: str) -> None:
    """Log one warning (rank 0 only); tools print it to standard error."""
    if _is_main():
        _LOGGER.warning("%s", printable(text))


#: What logs where the work stands, the innermost last: progress lines, blocks of `never_silent`.
_stands: list[Callable[[], None]] = []


class ProgressLine:
    """Progress of a long job: a rich bar on a terminal, otherwise a plain line every few seconds and at the end."""

    def __init__(self, description: str, total: int, start: int = 0) -> None:
        self.description, self.total, self.done, self.note = description, total, start, ""
        self._begun = self._printed = time.monotonic()
        self._first = start
        self._bar: Progress | None = None

    def __enter__(self) -> "ProgressLine":
        if _is_main() and _speaks() and _LOGGER.isEnabledFor(logging.INFO) and sys.stdout.isatty():
            from rich import progress as rich_progress

            # Without markup: names may hold brackets.
            title, note = (
                rich_progress.TextColumn(field, markup=False) for field in ("{task.description}", "{task.fields[note]}")
            )
            times = (rich_progress.TimeElapsedColumn(), rich_progress.TimeRemainingColumn())
            columns = (title, rich_progress.BarColumn(), rich_progress.MofNCompleteColumn(), *times, note)
            self._bar = rich_progress.Progress(*columns, console=_console())
            self._bar.start()
            self._task = self._bar.add_task(printable(self.description), total=self.total, completed=self.done, note="")
        _stands.append(self.still)
        return self

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count ``count`` more items as done; ``note`` (a loss, say) ends the line."""
        self.done += count
        self.note = note or self.note
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=printable(self.note))
        elif time.monotonic() - self._printed >= PLAIN_INTERVAL:
            self._print()

    def still(self) -> None:
        """Repeat a plain line while nothing advances; a bar shows its own clock."""
        if self._bar is None:
            self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        elapsed = self._printed - self._begun
        left = ""
        if self._first < self.done < self.total:
            left = f", about {duration(elapsed * (self.total - self.done) / (self.done - self._first))} left"
        say(f"{self.description}: {self.done}/{self.total} in {elapsed:.0f} s{left}  {self.note}".rstrip())

    def __exit__(self, *_: object) -> None:
        _stands.remove(self.still)
        if self._bar is not None:
            self._bar.stop()
        else:
            self._print()


@contextlib.contextmanager
def standing(line: Callable[[], None]) -> Iterator[None]:
    """A block within which ``line`` is what `never_silent` logs."""
    _stands.append(line)
    try:
        yield
    finally:
        _stands.remove(line)


def silent() -> contextlib.AbstractContextManager[None]:
    """A block without lines of `never_silent`: the user is asked, or another process shows what it does."""
    return standing(lambda: None)


def _silence(every: float, elapsed: float) -> float:
    """Seconds without a line that are allowed: a sixtieth of those so far, so that a day's log stays readable."""
    return max(every, elapsed / 60)


@contextlib.contextmanager
def never_silent(what: str = "working,", every: float = PLAIN_INTERVAL) -> Iterator[None]:
    """Log where the work stands whenever no line has come for ``every`` seconds of the block: imports, long steps."""
    ended, begun = threading.Event(), time.monotonic()
    _Terminal.last = begun

    def tick() -> None:
        while not ended.wait(min(every, 0.25)):
            now = time.monotonic()
            if now - _Terminal.last >= _silence(every, now - begun):
                _Terminal.last = time.monotonic()  # a bar logs nothing
                _stands[-1]()

    thread = threading.Thread(target=tick, daemon=True)
    with standing(lambda: say(f"{what} {time.monotonic() - begun:.0f} s so far")):
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def waiting(what: str, every: float = PLAIN_INTERVAL) -> contextlib.AbstractContextManager[None]:
    """Log ``what``, and again every few seconds of the block: for a library call without progress of its own."""
    say(what)
    return never_silent(f"{what}:", every)


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
    """Iterate over ``iterable`` and show progress; ``total`` is its length where it has no ``len()``."""
    count = total if total is not None else len(iterable)  # type: ignore[arg-type]  # without a total it has a length
    with ProgressLine(description, count) as line:
        for item in iterable:
            yield item
            line.advance()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; the first column is left-aligned, the others right-aligned.

    A frame has only what is shown on a terminal and is not long: rich's table takes a tenth of a second to import.
    """
    if not (_is_main() and _LOGGER.isEnabledFor(logging.INFO)):
        return
    title, heads = printable(title), list(map(printable, columns))
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if len(cells) > DRAWN or not sys.stdout.isatty():
        _LOGGER.info("%s", "\n".join([title, *_aligned([heads, *cells])]))
        return
    from rich.table import Table
    from rich.text import Text

    framed = Table(title=Text(title), title_justify="left")
    for index, column in enumerate(heads):
        framed.add_column(Text(column), justify="left" if index == 0 else "right", overflow="fold")
    for row in cells:
        framed.add_row(*map(Text, row))  # Text: names may hold brackets, rich's markup
    console = _console()
    with console.capture() as captured:
        console.print(framed)
    _LOGGER.info("%s", captured.get().rstrip("\n"))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        spaces = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        aligned = [row[0] + spaces[0], *(space + cell for space, cell in zip(spaces[1:], row[1:], strict=True))]
        yield "  ".join(aligned).rstrip()
