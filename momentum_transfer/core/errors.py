"""InputError: the exception for mistakes in a user's input; any other exception is a bug.

What the system refused as one line for the user, and one line a job where torchrun runs several processes.

Packages that only some commands need: which extra brings which, said where one is missing.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import re
import reprlib
from datetime import timedelta
from types import ModuleType
from typing import Any

#: Control characters, line separators, marks that turn the direction of text, what has no width (two names that look
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
    """The text on one line, with what would steer a terminal or reorder the line as escapes (``\\x1b``, ``\\n``).

    Names, metadata and records of untrusted files pass here before they reach a terminal, a log or a table.
    """
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
    """A library's message cut to one line: its first sentences, without line breaks. ``--debug`` shows all of it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else f"{text[: most - 1]}…"


def first_line(error: Exception) -> str:
    """What an exception says, behind its kind: the first line of it, of readable length."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}{': ' if text else ''}{text[:160]}"


class InputError(Exception):
    """Something the user gave is wrong. The message says what was expected, what was found and what to do next.

    Tools print it as one line and exit with code 2; library callers may catch it. Line breaks (of a library's message
    within it) become spaces; what they were is in the ``__cause__``, which ``--debug`` shows.
    """

    def __init__(self, message: str) -> None:
        # A DataLoader raises a worker's exception again with the worker's traceback in front of the message.
        if message.startswith(f"Caught {type(self).__name__} in "):
            message = message.rstrip().rpartition(f"{type(self).__name__}: ")[2]
        super().__init__(printable(_LINE_BREAK.sub(" ", message).strip() if "\n" in message else message))


AGAIN = "what was written is whole; run the same command again (with --resume where the tool offers it)"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: A message of more characters is cut on the terminal; ``--debug`` shows all of it.
MOST = 1500


def refusal(error: Exception) -> tuple[str, int] | None:
    """(line, exit code) of what the system or Python's own path and number functions refused; None: a bug."""
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
    """Its file; every one of ours is named, so that without a name it is standard output."""
    name = error.filename or "the output"
    return os.fsdecode(name) if isinstance(name, (str, bytes)) else str(name)


def shortened(text: str) -> str:
    """The text on one line of bearable length: names from files may hold any line break."""
    text = " ".join(text.splitlines())
    return text if len(text) <= MOST else f"{text[:MOST]}… (all of it with --debug)"


def first_to_say(text: str) -> bool:
    """Whether no other process of this torchrun job has said the same: the store of the job counts. True outside."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or not os.environ.get("MASTER_PORT"):
        return True
    try:
        import torch.distributed as dist

        place, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(place, port, is_master=False, timeout=timedelta(seconds=5), wait_for_workers=False)
        return bool(store.add(f"said/{hashlib.sha256(text.encode()).hexdigest()}", 1) == 1)
    except Exception:  # no store to ask, as where the first process has ended: better twice than never
        return True


#: module -> extra of pyproject.toml
EXTRAS = {"lvis": "lvis", "submitit": "slurm", "tensorboard": "tensorboard", "wandb": "wandb", "huggingface_hub": "hub",
          "timm": "timm", "lightly": "upstream",
          "onnx": "export", "onnxscript": "export", "onnxruntime": "export"}  # fmt: skip

#: modules that come with the project itself
REQUIRED = ("torch", "torchvision", "fvcore", "pycocotools", "sklearn", "scipy", "numpy", "safetensors", "rich",
            "matplotlib", "jinja2", "PIL", "yaml")  # fmt: skip


def extra(module: str, purpose: str) -> ModuleType:
    """The module, imported.

    Args:
        purpose: what needs it, for the message: "Slurm jobs".

    Raises:
        InputError: it is not installed; the message names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"{purpose}: {missing_package(module)}") from error


def missing_package(module: str) -> str | None:
    """What to install where importing ``module`` failed; None for a module that is none of ours to install."""
    name = module.split(".")[0]
    if name in EXTRAS:
        return f'expected the package {name}, found none; pip install "momentum-transfer[{EXTRAS[name]}]"'
    if name in REQUIRED:
        return f"expected the package {name}, found none; install it with all others: pip install momentum-transfer"
    return None
