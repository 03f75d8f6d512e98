"""InputError, the exception for mistakes in a user's input (any other is a bug), and how errors are put into words.

Also: refusals of the system as one line, one line a job under torchrun, and which extra brings a missing package.
"""

import errno
import hashlib
import importlib
import os
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any

#: Control characters, line separators, marks of text direction, zero-width characters (which make two names look
#: alike; the joiners of emoji and of Persian stay), and what no encoding can write.
_UNPRINTABLE = re.compile(
    "[\0-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
_LINE_BREAK = re.compile(r"\s*\n\s*")
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 80, 80, 40
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8
_SHORT.maxlevel = 3


def printable(text: str) -> str:
    """Untrusted text on one line, with escapes for what would steer a terminal or reorder the line (``\\x1b``)."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def shown(value: Any) -> str:
    """A value as messages show it: its ``repr`` on one line, shortened where it is long or deeply nested."""
    text = _SHORT.repr(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def counted(count: int, noun: str) -> str:
    """``1 class``, ``2 classes``: a number with its noun, given in the singular."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun[:-1]}ies" if noun[-2:] == "ry" else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def one_line(error: BaseException | str, most: int = 240) -> str:
    """A library's message as one line without line breaks; ``--debug`` shows all of it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else f"{text[: most - 1]}…"


def first_line(error: Exception) -> str:
    """An exception's kind and the first line of its message, of readable length."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}{': ' if text else ''}{text[:160]}"


class InputError(Exception):
    """Something the user gave is wrong: the message says what was expected, what was found and what to do next.

    Tools print it as one line and exit with code 2; library callers may catch it.
    """

    def __init__(self, message: str) -> None:
        # A DataLoader raises a worker's exception again with the worker's traceback in front of the message.
        if message.startswith(f"Caught {type(self).__name__} in "):
            message = message.rstrip().rpartition(f"{type(self).__name__}: ")[2]
        super().__init__(printable(_LINE_BREAK.sub(" ", message).strip() if "\n" in message else message))


class ConfigNotFound(InputError):
    """There is no config of that name."""


#: What to do after an interruption.
AGAIN = "finished work is kept; run the same command again (with --resume where the tool offers it)"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Longer messages are cut on the terminal; ``--debug`` shows all.
MAX_MESSAGE = 1500


def refusal(error: Exception) -> tuple[str, int] | None:
    """(line, exit code) for what the system, or Python's path and number functions, refused; None: a bug."""
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return f"no space left on the disk while writing {_file_of(error)}; free some space; {AGAIN}", 1
    if isinstance(error, (OSError, RuntimeError)) and "Too many open files" in str(error):  # torch's words too
        return f"too many open files; raise `ulimit -n`, or take fewer workers; {AGAIN}", 1
    if isinstance(error, OSError) and error.errno and error.filename:
        return f"cannot use {_file_of(error)}: {error.strerror}; choose another path", 2
    if isinstance(error, MemoryError):
        return f"not enough memory ({str(error) or 'no more could be allocated'}); {AGAIN}", 1
    text = str(error)
    if isinstance(error, ValueError) and ("null byte" in text or "null character" in text):
        return "expected the name of a file, found one with a NUL character in it; choose another path", 2
    if isinstance(error, UnicodeEncodeError) and "surrogates" in text:
        found = ascii(error.object[max(0, error.start - 60) : error.end + 20])
        return f"expected text that can be written as UTF-8, found {found}; use other characters", 2
    if isinstance(error, RuntimeError) and "home directory" in text:
        return "expected a path, found one that begins with ~ and no such user; write the path out", 2
    return None


def _file_of(error: OSError) -> str:
    """The error's file; all of ours are named, so one without a name is standard output."""
    name = error.filename or "the output"
    return os.fsdecode(name) if isinstance(name, (str, bytes)) else str(name)


def shortened(text: str) -> str:
    """The text on one line of readable length."""
    text = " ".join(text.splitlines())
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}… (all of it with --debug)"


def first_to_say(text: str) -> bool:
    """Whether no other process of this torchrun job has reported the same text yet; True outside torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or not os.environ.get("MASTER_PORT"):
        return True
    try:
        import torch.distributed as dist

        place, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(place, port, is_master=False, timeout=timedelta(seconds=5), wait_for_workers=False)
        return bool(store.add(f"said/{hashlib.sha256(text.encode()).hexdigest()}", 1) == 1)
    except Exception:  # no store, as after the end of rank 0: better twice than never
        return True


#: module -> extra of pyproject.toml
EXTRAS = {"lvis": "lvis", "submitit": "slurm", "ray": "ray", "tensorboard": "tensorboard", "wandb": "wandb",
          "mlflow": "mlflow", "timm": "timm", "huggingface_hub": "hub", "lightly": "upstream", "onnx": "export",
          "onnxscript": "export", "onnxruntime": "export", "pyarrow": "parquet"}  # fmt: skip

#: modules that come with the project itself
REQUIRED = ("torch", "torchvision", "fvcore", "pycocotools", "sklearn", "scipy", "numpy", "safetensors", "rich",
            "matplotlib", "jinja2", "PIL", "yaml")  # fmt: skip


def extra(module: str, purpose: str) -> ModuleType:
    """Import an optional module that ``purpose`` ("Slurm jobs") needs; InputError with the extra if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"{purpose}: {missing_package(module)}") from error


def refusals(checks: Mapping[str, Callable[[], object]]) -> Iterator[tuple[str, str]]:
    """(name, reason) of every check that raises InputError or lacks a package that an extra brings."""
    for name, check in checks.items():
        try:
            check()
        except InputError as error:
            yield name, str(error)
        except ModuleNotFoundError as error:
            if (reason := missing_package(error.name or "")) is None:
                raise
            yield name, reason


def missing_package(module: str) -> str | None:
    """What to install where ``module`` is missing; None if it is no dependency of this project."""
    name = module.split(".")[0]
    if name in EXTRAS:
        return f'expected the package {name}, found none; pip install "momentum-transfer[{EXTRAS[name]}]"'
    if name in REQUIRED:
        return f"expected the package {name}, found none; install it with all others: pip install momentum-transfer"
    return None
