"""Digests of content: a file is read bit for bit as it was written, or refused.

This project's files carry a SHA-256 over every tensor, name and number in them; torch's own archives carry a CRC-32 of
each record, which is what can be verified of files from elsewhere.
"""

import hashlib
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from momentum_transfer.core.errors import InputError, shown

#: Under this key stands the digest of all the rest of the file.
KEY = "content_sha256"
#: No state of a training is nested deeper.
_DEEPEST = 64


def _content_digest(tree: Any) -> str:
    """Hex SHA-256 of nested mappings, lists, tensors, arrays, texts and numbers.

    The order of a mapping's keys, list or tuple, and a tensor's layout in memory do not count: they change on the way
    through a file. Raises TypeError for a value of another type, InputError for more than 64 nested levels.
    """
    digest = hashlib.sha256()
    _add(digest, tree, 0)
    return digest.hexdigest()


def _add(digest: Any, node: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise InputError(f"expected at most {_DEEPEST} nested levels, found more; the file is damaged or crafted")
    if isinstance(node, Mapping):
        digest.update(b"{%d " % len(node))
        for key in sorted(node, key=lambda key: (type(key).__name__, str(key))):
            _add(digest, key, depth + 1)
            _add(digest, node[key], depth + 1)
    elif isinstance(node, (list, tuple)):
        digest.update(b"[%d " % len(node))
        for value in node:
            _add(digest, value, depth + 1)
    elif isinstance(node, (Tensor, np.ndarray)):
        tensor = torch.as_tensor(node).detach().cpu().contiguous()
        _add_bytes(digest, b"t", f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(node, str):
        _add_bytes(digest, b"s", node.encode("utf-8", "surrogatepass"))
    elif isinstance(node, (bytes, bytearray)):
        _add_bytes(digest, b"b", bytes(node))
    elif node is None or type(node) in (bool, int, float):
        _add_bytes(digest, type(node).__name__.encode(), repr(node).encode())
    else:
        raise TypeError(f"expected tensors, texts and numbers, found a {type(node).__name__}")


def _add_bytes(digest: Any, kind: bytes, content: bytes) -> None:
    digest.update(b"%s%d " % (kind, len(content)))
    digest.update(content)


def sealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The same mapping with the digest of its content under ``KEY``."""
    content = {key: value for key, value in tree.items() if key != KEY}
    return {**content, KEY: _content_digest(content)}


def verify(tree: Any, path: Path) -> bool:
    """Whether ``tree``, read from ``path``, holds a digest; InputError if it is not that of the content."""
    if not isinstance(tree, Mapping) or KEY not in tree:
        return False
    try:
        found = _content_digest({key: value for key, value in tree.items() if key != KEY})
    except TypeError as error:
        raise _damaged(path, str(error)) from error
    if found != tree[KEY]:
        raise _damaged(path, "its content differs from the digest in it")
    return True


def sealed_metadata(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a safetensors file with the digest of itself and of the tensors."""
    text = {key: value for key, value in metadata.items() if key != KEY}
    return {**text, KEY: _content_digest({"tensors": tensors, "metadata": text})}


def verify_safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: Path) -> bool:
    """``verify`` of a safetensors file, whose digest stands in its metadata."""
    if KEY in metadata and sealed_metadata(tensors, metadata)[KEY] != metadata[KEY]:
        raise _damaged(path, "its content differs from the digest in it")
    return KEY in metadata


def verify_records(path: Path) -> None:
    """Compare every record of a zip archive with its CRC-32; other files pass.

    torch can leave the CRCs out (it then writes zeros): such an archive passes too. Raises InputError if a record is
    damaged, or two have one name: readers differ in which one they take.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            # torch's reader ignores case and the archive's own name in front.
            paths = [record.orig_filename.lower() for record in archive.infolist()]
            names = Counter(path.partition("/")[2] or path for path in paths)
            if twice := [name for name, count in names.items() if count > 1]:
                raise _damaged(path, f"its record {shown(twice[0])} is there twice")
            if any(record.CRC for record in archive.infolist()) and (bad := archive.testzip()) is not None:
                raise _damaged(path, f"the checksum of its record {bad} is wrong")
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
        raise _damaged(path, " ".join(str(error).split())) from error


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"expected {path} as it was written, found it damaged ({what}); take another or earlier copy")
