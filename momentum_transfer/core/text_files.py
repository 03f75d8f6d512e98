"""Text files that people and tools wrote: read whole, or refused in one line that names the file."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, one_line

#: Bytes of the longest list or label file that is read; more is another kind of file.
MOST = 256 << 20


def read_regular(path: Path, holds: str, most: int | None = MOST) -> bytes:
    """The bytes of a file.

    Args:
        holds: what is expected in it, for messages.
        most: bytes that it may have; None for any number.

    Raises:
        InputError: it is missing, a folder, a device or a pipe (whose reading may never end), or too large.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
            raise InputError(f"expected {holds} in {path}, found {kind}; check the path")
        if most is not None and found.st_size > most:
            raise InputError(f"expected {holds} in {path}, found {found.st_size:,} bytes; check the path")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"expected {holds} in {path}, found: {error.strerror}; check the path") from error
    except ValueError as error:  # NUL in the name
        raise InputError(f"expected {holds} in {str(path)!r}, found: {error}; check the path") from error


def read_text(path: Path, holds: str, most: int | None = MOST) -> str:
    """The text of a UTF-8 file, which may begin with a byte order mark.

    Raises:
        InputError: as `read_regular`; or it is no UTF-8.
    """
    try:
        return read_regular(path, holds, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected {holds} in {path}, which cannot be read: bytes that are no UTF-8 text (at {error.start}); "
            "save it as UTF-8"
        ) from error


def read_json(path: Path, holds: str) -> Any:
    """What a JSON file holds.

    Raises:
        InputError: as `read_regular`, of any size; or it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(read_regular(path, holds, most=None))
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, a number of 5000 digits
        raise InputError(
            f"expected {holds} as JSON in {path}, but it cannot be read: {one_line(error)}; is it whole?"
        ) from error


def read_lines(path: Path, holds: str) -> list[str]:
    """The lines of a UTF-8 file without the space around them; empty ones stay, so that places are line numbers.

    Raises:
        InputError: as `read_text`.
    """
    return [line.strip() for line in read_text(path, holds).splitlines()]
