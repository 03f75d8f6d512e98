"""What the system refused as one line for the user, and one line a job where torchrun runs several processes."""

from __future__ import annotations

import errno
import hashlib
import os
from datetime import timedelta

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
