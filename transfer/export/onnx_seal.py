"""The SHA-256 that an exported .onnx carries in its metadata: of the whole file, its own digits read as zeros.

ONNX has no checksums, so that a flipped bit in a weight would be other boxes without a word.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from momentum_transfer.core.errors import InputError

#: Key of the metadata, and its value while the digest is computed.
KEY, BLANK = "momentum-transfer-sha256", "0" * 64

#: How an entry of the metadata ends: the key, and a field of 64 bytes.
_MARK = KEY.encode() + b"\x12\x40"


def seal(path: Path) -> None:
    """Put the digest into a file whose metadata has ``BLANK`` at ``KEY``."""
    content = path.read_bytes()
    place = content.index(_MARK + BLANK.encode()) + len(_MARK)
    with open(path, "r+b") as stream:
        stream.seek(place)
        stream.write(hashlib.sha256(content).hexdigest().encode())


def check_seal(content: bytes, path: Path) -> None:
    """Compare a file's content with its digest.

    Raises:
        InputError: it has none, or another content.
    """
    before, mark, after = content.partition(_MARK)
    if not mark:
        raise InputError(f"cannot read {path} as ONNX that `export` wrote: it has no SHA-256; export it again")
    digest = hashlib.sha256(before + mark + BLANK.encode())
    digest.update(memoryview(after)[64:])
    if digest.hexdigest().encode() != after[:64]:
        raise InputError(f"cannot read {path} as ONNX: its SHA-256 is another; it is damaged, take another copy")
