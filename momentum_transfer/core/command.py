"""How every tool runs: its environment, command line, signals, errors of one line and exit codes.

Processes that srun starts (``srun --ntasks=2 python tools/pretrain.py …``) take their ranks and meeting place from
Slurm's variables, as torchrun would set them (https://slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT VARIABLES).
"""

import argparse
import contextlib
import io
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from types import FrameType

from momentum_transfer.core.errors import (
    AGAIN,
    InputError,
    first_to_say,
    missing_package,
    printable,
    refusal,
    shortened,
)
from momentum_transfer.core.log import never_silent, say, speaking, warn
from momentum_transfer.core.machine import visible_gpus
from momentum_transfer.core.shipped import as_typed
from momentum_transfer.core.versions import check_torch

#: First port for the rendezvous of Slurm steps, and how many: above reserved ports, below ephemeral ones.
_PORTS = (20000, 12000)


def _adopt_slurm_ranks(environment: MutableMapping[str, str]) -> None:
    """Set torchrun's variables in a Slurm step of several tasks, unless torchrun or the user has set them."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    if "WORLD_SIZE" in environment or not tasks.isdigit() or int(tasks) < 2 or "SLURM_PROCID" not in environment:
        return
    local = int(environment.get("SLURM_LOCALID", "0"))
    devices = visible_gpus(environment)
    environment["RANK"], environment["WORLD_SIZE"] = environment["SLURM_PROCID"], tasks
    environment["LOCAL_RANK"] = str(local % len(devices) if devices else local)  # of the GPUs that this task is shown
    environment["LOCAL_WORLD_SIZE"] = str(_tasks_here(environment))
    job, step = (int(environment.get(name, "0") or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    environment.setdefault("MASTER_PORT", str(_PORTS[0] + (job * 16 + step) % _PORTS[1]))
    one_node = environment.get("SLURM_STEP_NUM_NODES", "1") == "1"
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or socket.gethostname()
    environment.setdefault("MASTER_ADDR", "127.0.0.1" if one_node else _first_host(nodes))


def _first_host(nodes: str) -> str:
    """The first name of Slurm's list: ``gpu[007-009,12]-ib,login1`` is ``gpu007-ib``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first.group()) if first else nodes


def _tasks_here(environment: MutableMapping[str, str]) -> int:
    """Tasks of the step on this node, from ``2(x3),1``: two on each of three nodes, one on the fourth."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "") or "1"
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    node = int(environment.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else 1


#: Seconds after a first SIGTERM in which another is the same request: torchrun, srun and Slurm each pass one on.
_SAME_SIGNAL = 10.0


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
    """Catch SIGINT and SIGTERM: the first sets the flag, a second stops at once; ``then`` completes the message."""
    stop, at = StopSignal(), 0.0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal at
        if stop.received is not None:
            if number == signal.SIGTERM and time.monotonic() - at < _SAME_SIGNAL:
                return
            raise KeyboardInterrupt
        stop.received, at = signal.Signals(number), time.monotonic()
        warn(f"{stop.received.name} received: {then} (once more: stop at once)")

    with handled(handle, signal.SIGINT, signal.SIGTERM):
        yield stop


@contextlib.contextmanager
def handled(handle: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals by ``handle`` within the block."""
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_tool(
    parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], None], argv: Sequence[str] | None = None
) -> int:
    """Parse the command line, run ``main`` and turn errors into one line and an exit code.

    Codes: 0 done, 2 wrong input, 130 / 143 stopped by SIGINT / SIGTERM, 1 anything else (a bug: with a traceback).
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (``>&-``)
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    tool_environment()
    parser.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    parser.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    parser.description, parser.epilog = as_typed(parser.description or ""), as_typed(parser.epilog or "")
    refuse = parser.error
    # A shell pattern may expand to a file name that begins with a dash.
    setattr(parser, "error", lambda message: refuse(printable(message)))  # noqa: B010, mypy forbids the assignment
    # Intermixed: KEY VALUE pairs may stand before, between and after the options.
    args = parser.parse_intermixed_args(argv) if parser._subparsers is None else parser.parse_args(argv)
    with speaking(quiet=args.quiet), never_silent():
        return _exit_code(main, args)


def tool_environment() -> None:
    """Set a tool's environment before torch is imported; the library leaves the environment alone.

    Waiting threads spin briefly, then sleep: endless spinning makes a step many times slower as soon as another
    process wants a core, sleeping at once up to twice as slow on an idle machine.
    """
    _adopt_slurm_ranks(os.environ)
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
    """A library's warning on one line; it may quote an untrusted file, as Matplotlib's do."""
    return f"{filename}:{lineno}: {category.__name__}: {printable(str(message))}\n"


def _background_error(args: threading.ExceptHookArgs) -> None:
    """Stay silent about a full disk in TensorBoard's thread: the training loop raises the same error next."""
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
        sys.unraisablehook = lambda _left: None  # half-made objects complain at their end
        _say_error(line)
        return code
    return 0


def _say_error(text: str) -> None:
    """Print one line on standard error; under torchrun only the first process that has it."""
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

    main = threading.current_thread() is threading.main_thread()
    with handled(handle, signal.SIGTERM) if main else contextlib.nullcontext():
        yield


def own_file(text: str) -> Path:
    """Argument type of a file or folder that a run writes, which is none at a URL."""
    if "://" in text:
        reason = "a URL has no locks, renaming and appending, so that no stopped run could resume"
        raise argparse.ArgumentTypeError(f"expected a path, found {text}: {reason}; see evaluate --copy-to")
    return Path(text)


def at_least(least: int, of: str = "a whole number") -> Callable[[str], int]:
    """Argument type of a count of ``least`` or more; ``of`` says in the error what is counted."""

    def count(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected {of} of at least {least}, found {text}")
        return int(text)

    return count


def number_in(low: float, high: float, of: str) -> Callable[[str], float]:
    """Argument type of a number from ``low`` to ``high``; ``of`` describes it in the error."""

    def number(text: str) -> float:
        with contextlib.suppress(ValueError):
            if low <= float(text) <= high:
                return float(text)
        raise argparse.ArgumentTypeError(f"expected {of}, found {text!r}")

    return number


#: Argument type of points, trials' spread and the like.
above_0 = number_in(1e-300, 1e300, "a number above 0")


def resamples(text: str) -> int:
    """Argument type of how often test images are resampled: 0, or often enough for an interval."""
    if not (text.isascii() and text.isdecimal()) or 0 < int(text) < 100:
        raise argparse.ArgumentTypeError(f"expected 0 or at least 100 resamples, found {text}")
    return int(text)
