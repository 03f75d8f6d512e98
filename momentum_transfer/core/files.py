"""Atomic file writes, file hashes, and the names that results give to weights and data sets."""

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError

#: Prefix of a checkpoint: a network of its architecture at random instead.
RANDOM_OF = "random-of:"
#: Prefix of weights on the Hub, ``hf:org/name[@revision][:file]``.
HUB = "hf:"
#: File names common to all runs, which do not identify one.
_GENERIC = re.compile(r"(backbone|model|model_final|checkpoint|last|step_\d+)(\.[a-z]+)*|checkpoints")
#: Temporary files of ``atomic_path``.
_LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp(\.\w+)?")


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, which replaces it only if the block ends well.

    The data is flushed to disk before the rename: a crash, a full disk or a kill leaves the previous file or the new
    one, never a part. The temporary file keeps the suffix, from which ``numpy.save`` and Pillow read the format, and is
    locked, so that ``remove_leftovers`` spares it. Raises OSError for what the system refused (libraries hide it behind
    their own errors), naming ``path``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:80]}.", suffix=f".tmp{path.suffix}")
    except OSError as error:
        error.filename = str(path)
        raise
    temporary = Path(name)
    try:
        lock(handle)
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files; results are to be shared
        os.replace(temporary, path)
    except Exception as error:
        refused = refused_by_system(error, temporary.parent)
        if refused is None or (isinstance(error, OSError) and error.filename not in (None, name)):
            raise
        raise OSError(refused, os.strerror(refused), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def refused_by_system(error: BaseException, folder: Path) -> int | None:
    """The system's error number behind ``error``: numpy, Pillow, torch and safetensors each report it differently."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno:
            return cause.errno
        if found := re.search(r"(?:os error|Os \{ code:) (\d+)", str(cause)):  # Rust's words, in safetensors
            return int(found[1])
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError) and re.search(r"\d+ requested and \d+ written", str(error)):  # numpy's
        return errno.ENOSPC
    full = shutil.disk_usage(folder).free < 1 << 20
    return errno.ENOSPC if full and isinstance(error, (OSError, RuntimeError)) else None


def lock(descriptor: int) -> bool | None:
    """True: locked; False: another process holds the lock; None: this file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
            return None
        raise
    return True


def remove_leftovers(folder: str | Path, *, below: bool = True) -> int:
    """Remove the unlocked temporary files of killed writers in ``folder`` and ``below`` it; return how many."""
    removed = 0
    for place, folders, names in os.walk(folder):
        if not below:
            folders.clear()
        for name in filter(_LEFTOVER.fullmatch, names):
            with contextlib.suppress(OSError):
                removed += _remove_unlocked(os.path.join(place, name))
    return removed


def _remove_unlocked(file: str) -> bool:
    handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if not lock(handle):
            return False
        os.unlink(file)
    finally:
        os.close(handle)
    return True


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name ``path`` in an OSError of the block that names no file."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


def append_whole(stream: Any, content: bytes, path: Path) -> None:
    """Append all of ``content`` to an unbuffered file of this writer alone, or nothing (OSError: a full disk)."""
    before = os.fstat(stream.fileno()).st_size
    try:
        with naming(path):
            rest = memoryview(content)
            while rest:
                rest = rest[stream.write(rest) :]
    except OSError:
        os.ftruncate(stream.fileno(), before)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_once(path: str | Path, text: str) -> None:
    """Write ``text`` unless ``path`` exists; if several processes write at once, the first one's text stays."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}.") as folder:
        whole = Path(folder) / path.name
        whole.write_text(text, encoding="utf-8")
        try:
            os.link(whole, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(whole, path)


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


def is_hub_name(weights: str | Path) -> bool:
    """Whether the text names a file on the Hub or at a URL (``core.urls``), and no path."""
    return str(weights).startswith(HUB) or "://" in str(weights)


def is_made(weights: str | Path) -> bool:
    """Whether the text names weights that are no file: timm's, or those of a custom module."""
    return str(weights).startswith(("timm:", "module:"))


@functools.lru_cache(maxsize=1 << 16)  # a report asks for the name of every record
def weights_name(path: str | Path) -> str:
    """What results call the weights at ``path``: the run's folder, or a file's stem if it is no generic name.

    ``outputs/momentum2/checkpoints/step_0000999.pt`` and ``outputs/momentum2/backbone.pkl`` are both ``momentum2``;
    ``downloads/moco_v2_800ep.pth.tar`` is ``moco_v2_800ep``; ``hf:org/moco@v2`` is ``moco@v2`` and
    ``hf:org/moco:v1.pth`` is ``v1``; ``timm:resnet50.a1_in1k`` is ``resnet50.a1_in1k``, and
    ``random-of:outputs/momentum2`` is ``random-of-momentum2``.
    """
    if str(path).startswith(RANDOM_OF):
        return f"random-of-{weights_name(str(path).removeprefix(RANDOM_OF))}"
    if is_made(text := str(path)):
        return text.partition(":")[2].replace("/", "-")
    if is_hub_name(text):  # the repository stands for the run's folder
        name, _, file = text.removeprefix(HUB).partition(":")
        repository, _, revision = name.partition("@")
        path = "/".join(filter(None, (f"{repository}@{revision.replace('/', '-')}".rstrip("@"), file)))
    parts = list(Path(path).parts)
    while len(parts) > 1 and _GENERIC.fullmatch(parts[-1]):
        parts.pop()
    return re.sub(r"(\.(pt|pth|tar|pkl|safetensors|npz))+$", "", parts[-1]) if parts else str(path)


def given_name(weights: str | Path, folder: str | Path = "") -> str:
    """``weights_name`` of weights as given, seen from ``folder``: ``last.pth`` is called as by its whole path."""
    if (text := str(weights)).startswith(RANDOM_OF):
        return f"random-of-{given_name(text.removeprefix(RANDOM_OF), folder)}"
    path = os.path.abspath(os.path.join(folder, text))
    return weights_name(path if os.path.exists(path) else text)


#: Names of folders and files that say which part of a set they hold, but not which set.
_PART = re.compile(r"[\W_]*((train|training|val|valid|validation|test|images?|img|labels?|masks?|annotations?|data|"
                   r"datasets?|coco|voc|yolo|jpegimages|exports?|instances|results?|default|classes|crops|obj)[\W_]*)+",
                   re.IGNORECASE)  # fmt: skip
_SPLIT = re.compile(r"(?<![a-z])(train|val|test)[a-z]*", re.IGNORECASE)


def set_title(path: str | Path) -> str:
    """The nearest folder or file name that identifies a set of images: ``blood`` of ``/home/me/blood/valid/images``."""
    for name in _names_upward(path):
        if name and not _PART.fullmatch(name):
            return re.sub(r"[^\w.-]+", "_", name)
    return "own"


def part_title(path: str | Path) -> str:
    """`set_title` and which part of the set it is: ``blood_val``."""
    title = set_title(path)
    for name in _names_upward(path):
        if name == title:
            break
        if found := _SPLIT.search(name):
            return f"{title}_{found[1].lower()}"
    return title


def _names_upward(path: str | Path) -> list[str]:
    whole = Path(path).expanduser().resolve()
    return [whole.stem if whole.suffix else whole.name, *(parent.name for parent in whole.parents)]


def cache_root() -> Path:
    """``$MOMENTUM_TRANSFER_CACHE`` or ``~/.cache/momentum-transfer``, for embedded data and features."""
    chosen = os.environ.get("MOMENTUM_TRANSFER_CACHE") or "~/.cache/momentum-transfer"
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:
        raise InputError(f"expected a cache, found no home folder ({chosen}); set MOMENTUM_TRANSFER_CACHE") from error
