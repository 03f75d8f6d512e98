"""Atomic file writes, file hashes, and the names that results give to weights."""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Names that our tools give to every run's files, and so say nothing about which run it is.
_GENERIC = re.compile(r"(backbone|model|model_final|checkpoint|last|step_\d+)(\.[a-z]+)*|checkpoints")


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; put it in the place of ``path`` only if the block ends well.

    The data is flushed to disk before the rename, so that a crash, a full disk or a kill leaves either the previous
    file or the new one, never a part. The temporary file keeps the suffix of ``path``, because writers such as
    ``numpy.save`` and Pillow read the format from it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files; results are to be shared
        os.replace(temporary, path)
    except OSError as error:
        if error.errno and error.filename in (None, name):  # say the file that was meant
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(path: str | Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_of_text(text: str) -> str:
    """Hex SHA-256 of a string's UTF-8 bytes."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def weights_name(path: str | Path) -> str:
    """What results call the weights at ``path``: the run's folder, or the stem of a file that has a name of its own.

    ``outputs/momentum2/checkpoints/step_0000999.pt`` and ``outputs/momentum2/backbone.pkl`` are both ``momentum2``;
    ``downloads/moco_v2_800ep.pth.tar`` is ``moco_v2_800ep``; ``hf:org/moco@v2`` is ``moco@v2`` and
    ``hf:org/moco:v1.pth`` is ``v1``. So the evaluations of one backbone share a column.
    """
    if (text := str(path)).startswith("hf:"):  # a file of the Hub: its repository stands where a run's folder does
        name, _, file = text.removeprefix("hf:").partition(":")
        repository, _, revision = name.partition("@")
        path = "/".join(filter(None, (f"{repository}@{revision.replace('/', '-')}".rstrip("@"), file)))
    parts = list(Path(path).parts)
    while len(parts) > 1 and _GENERIC.fullmatch(parts[-1]):
        parts.pop()
    return re.sub(r"(\.(pt|pth|tar|pkl|safetensors|npz))+$", "", parts[-1]) if parts else str(path)


def cache_root() -> Path:
    """Where embedded data and features are kept: ``$MOMENTUM_TRANSFER_CACHE`` or ``~/.cache/momentum-transfer``."""
    chosen = os.environ.get("MOMENTUM_TRANSFER_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "momentum-transfer"
