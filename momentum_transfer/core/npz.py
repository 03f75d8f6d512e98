"""NumPy archives from strangers: what their headers ask for is looked at before any of it is allocated."""

from __future__ import annotations

import contextlib
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from momentum_transfer.core.cpu_memory import available_memory
from momentum_transfer.core.errors import InputError, one_line, shown

#: Share of the free memory that the arrays of a file may take, with a copy in the type that is worked with.
SHARE = 0.8
#: An array of so many bytes that is packed to less than a hundredth holds next to nothing: features pack by 1.1 to 4.
_LARGE, _DENSEST = 1 << 28, 100
_DAMAGE = (OSError, ValueError, TypeError, AttributeError, EOFError, KeyError, IndexError, SyntaxError, RecursionError,
           RuntimeError, NotImplementedError, OverflowError, MemoryError, struct.error, zipfile.BadZipFile,
           zlib.error, tokenize.TokenError)  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What an array of an archive says of itself. packed: bytes in the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    packed: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever is wrong with it in the block is an InputError that names it."""
    try:
        with warnings.catch_warnings(), zipfile.ZipFile(path) as archive:
            warnings.simplefilter("ignore")  # numpy's, of headers that Python 2 wrote
            yield archive
    except _DAMAGE as error:
        raise InputError(
            f"expected a NumPy .npz archive without pickled objects in {path}: {one_line(error)}"
        ) from error


def names_of(archive: zipfile.ZipFile) -> list[str]:
    """Names of its arrays."""
    return [name.removesuffix(".npy") for name in archive.namelist()]


def read_arrays(path: str | Path, names: Sequence[str] | None = None, copies: float = 2.0) -> dict[str, np.ndarray]:
    """The arrays of an .npz.

    Args:
        names: which; None is all.
        copies: how many times its size an array will be needed in memory.

    Raises:
        InputError: no such archive or array, pickled objects, shapes that are not those of the data, or arrays that
            would need more than ``SHARE`` of the free memory; nothing was allocated for them.
    """
    with opened(path) as archive:
        wanted = names_of(archive) if names is None else list(names)
        headers = {name: header_of(archive, name, path) for name in wanted}
        needed, free = copies * sum(header.nbytes for header in headers.values()), available_memory()
        if free is not None and needed > SHARE * free:
            largest = max(headers, key=lambda name: headers[name].nbytes)
            raise InputError(
                f"expected arrays that need at most {SHARE:.0%} of the free memory ({_size(SHARE * free)} of "
                f"{_size(free)}), found {_size(needed)} in {path} (largest: {largest} of shape "
                f"{headers[largest].shape}); take fewer rows, or a machine with more memory"
            )
        return {name: _read(archive, name) for name in wanted}


def header_of(archive: zipfile.ZipFile, name: str, path: str | Path) -> Header:
    """Shape and type of an array, which must be those of the bytes that the archive has for it.

    Raises:
        InputError: they are not, it holds objects, or it is a bomb: large, and packed to almost nothing.
    """
    record = archive.getinfo(_member(archive, name))
    with archive.open(record) as stream:
        shape, _, dtype = _header(stream)
        begins = stream.tell()
    header = Header(shape, dtype, record.compress_size)
    if dtype.hasobject:
        raise InputError(
            f"expected an archive without pickled objects in {path}, found some in {name}; save plain arrays"
        )
    if min(shape, default=0) < 0 or begins + header.nbytes != record.file_size:
        raise InputError(
            f"expected {name} of {path} to be as large as its header says ({_size(header.nbytes)} for the shape "
            f"{shown(shape)}), found {_size(record.file_size - begins)}; the file is damaged or crafted"
        )
    if header.nbytes > _LARGE and header.nbytes > _DENSEST * record.compress_size:
        raise InputError(
            f"expected an array that holds something, found {name} of {path} packed from {_size(header.nbytes)} into "
            f"{_size(record.compress_size)}; the file is crafted (a zip bomb), or all of it is one number"
        )
    return header


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version in ((2, 0), (3, 0)):  # 3.0 differs by the encoding of field names, which numbers have not
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"an array in format {version[0]}.{version[1]}, which this NumPy does not know")


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(_member(archive, name)) as stream:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        if stream.read(1):
            raise ValueError(f"more in {name} than its header says")
        return array


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
