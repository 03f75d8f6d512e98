"""How every tool runs: its environment, its command line, its errors as one line, its exit codes."""

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from momentum_transfer.core import slurm_ranks
from momentum_transfer.core.errors import InputError, printable
from momentum_transfer.core.exit_lines import AGAIN, first_to_say, refusal, shortened
from momentum_transfer.core.extras import missing_package
from momentum_transfer.core.log import say, speaking
from momentum_transfer.core.shipped import as_typed
from momentum_transfer.core.stopping import Stopped
from momentum_transfer.core.versions import check_torch


def run_tool(
    parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], None], argv: Sequence[str] | None = None
) -> int:
    """Parse the command line, run ``main`` and turn what goes wrong into one line and an exit code.

    Codes: 0 done, 2 wrong input, 130 / 143 stopped by SIGINT / SIGTERM, 1 anything else (with a traceback, because
    that is a bug). ``--debug`` shows the traceback of wrong input too; ``--quiet`` prints warnings and errors only.
    """
    _open_closed_streams()
    tool_environment()
    parser.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    parser.description, parser.epilog = as_typed(parser.description), as_typed(parser.epilog)
    refuse = parser.error
    # A pattern of the shell may have put a file's name there that begins with a dash.
    setattr(parser, "error", lambda message: refuse(printable(message)))  # noqa: B010, mypy forbids the assignment
    # Intermixed: KEY VALUE pairs may stand before, between and after the options.
    args = parser.parse_intermixed_args(argv) if parser._subparsers is None else parser.parse_args(argv)
    with speaking(quiet=args.quiet):
        return _exit_code(main, args)


def _open_closed_streams() -> None:
    """Standard streams that the caller closed (``>&-``) lead nowhere: Python has None in their place."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def tool_environment() -> None:
    """What a tool sets for its process before torch is imported; the library leaves the environment alone.

    Threads that wait spin briefly, then sleep. Spinning without end makes a step many times slower as soon as another
    process wants a core; sleeping at once makes it up to twice as slow on an idle machine.
    """
    slurm_ranks.adopt(os.environ)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    threading.excepthook = _background_error
    if isinstance(sys.stdout, io.TextIOWrapper):  # é under PYTHONIOENCODING=ascii, bytes of a name that are no UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _warning
    # fvcore.nn decorates functions with torch.jit.script at import; nothing here uses them and no user can act on it.
    warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated", category=FutureWarning)


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A library's warning on one line, which may name what is in an untrusted file, as Matplotlib's do."""
    return f"{filename}:{lineno}: {category.__name__}: {printable(str(message))}\n"


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
        sys.unraisablehook = lambda _left: None  # what half-made objects say at their end is no news
        _say_error(line)
        return code
    return 0


def _say_error(text: str) -> None:
    """One line on standard error; under torchrun of the first process that has it to say."""
    if first_to_say(text):
        with contextlib.suppress(OSError):  # a full or closed standard error: the exit code says it too
            print(f"error: {as_typed(printable(text))}", file=sys.stderr, flush=True)


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
