"""Readers of untrusted files: text, JSON, YAML and NumPy archives, read whole or refused in one line.

YAML gives plain values: no code is run, duplicate keys are refused, aliases unfold to a bounded size. The headers of
NumPy archives are checked before any memory that they ask for is allocated.
"""

import contextlib
import csv
import io
import json
import math
import re
import stat
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import yaml

from momentum_transfer.core.errors import InputError, one_line, shown
from momentum_transfer.core.machine import available_memory

#: Largest size in bytes of a list or label file; more is another kind of file.
MAX_FILE_BYTES = 256 << 20


def read_regular(path: Path, holds: str, most: int | None = MAX_FILE_BYTES) -> bytes:
    """The bytes of a regular file of at most ``most`` bytes; ``holds`` names its expected content in the error."""
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


def read_text(path: Path, holds: str, most: int | None = MAX_FILE_BYTES) -> str:
    """The text of a UTF-8 file, with or without byte order mark; errors as of `read_regular`, or if it is no UTF-8."""
    try:
        return read_regular(path, holds, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected {holds} in {path}, found bytes that are no UTF-8 text (at {error.start}); save it as UTF-8"
        ) from error


def read_json(path: Path, holds: str) -> Any:
    """The content of a JSON file of any size; errors as of `read_regular`, or if it is no JSON or nested too deeply."""
    try:
        return json.loads(read_regular(path, holds, most=None))
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, a number of 5000 digits
        raise InputError(
            f"expected {holds} as JSON in {path}, but it cannot be read: {one_line(error)}; is it whole?"
        ) from error


def read_lines(path: Path, holds: str) -> list[str]:
    """The stripped lines of a UTF-8 file, empty ones included, so that places are line numbers; as `read_text`."""
    return [line.strip() for line in read_text(path, holds).splitlines()]


def csv_rows(text: str, where: str) -> list[tuple[int, list[str]]]:
    """Line numbers and stripped cells of CSV ``text``, by commas, semicolons or tabs, of which its first line has most.

    Lines without content are left out. InputError (naming ``where``) for a cell without end, or uneven lines.
    """
    first = text.lstrip("\r\n").partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
    try:
        found = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise InputError(f"expected CSV in {where}, but line {reader.line_num} cannot be read: {error}") from error
    found = [(line, row) for line, row in found if any(row)]
    for line, row in found:
        if len(row) != (width := len(found[0][1])):
            raise InputError(
                f"expected as many cells in every line of {where} as in the first ({width}), found {len(row)} in line "
                f"{line}: {shown(row)}"
            )
    return found


def item_id(cell: str) -> str:
    """The id of an item in a table: ``1.0``, as pandas writes whole numbers beside one that is missing, is ``1``."""
    return re.sub(r"^(\d+)\.0+$", r"\1", cell)


#: Limits of a YAML file, more than any list of classes or tasks needs. Its size in bytes.
MOST_BYTES = 4 << 20
#: Number of its values; an alias counts as many as the value that it repeats.
MOST_ENTRIES = 200_000
#: Levels of nesting.
MOST_LEVELS = 20


def read_mapping(file: Path, holds: str = "settings") -> dict[str, Any]:
    """The mapping in a YAML file; ``holds`` says in messages what it is of. Errors as of `parse_mapping`."""
    return parse_mapping(read_text(file, f"a YAML mapping of {holds}", MOST_BYTES), str(file), holds)


def parse_mapping(text: str, where: str, holds: str = "settings") -> dict[str, Any]:
    """The mapping in YAML ``text``; InputError (naming ``where``) if it is none, too large, or has a key twice."""
    try:
        _check_text(text)
        loaded = yaml.load(text, _Bounded)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 5000 digits, a date that is none
        detail = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem:
            line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
            detail = f"{error.problem}{line}"
        raise InputError(
            f"expected a YAML mapping in {where}, but it cannot be read: {detail[:400]}; correct it"
        ) from error
    if not isinstance(loaded, dict):
        kind = "an empty file" if loaded is None else type(loaded).__name__
        raise InputError(f"expected a YAML mapping of {holds} in {where}, found {kind}; write KEY: value lines")
    return loaded


#: libyaml's parser, with which PyYAML's wheels are built: a fifth of the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Bounded(_LOADER):
    """PyYAML's plain values; refuses what PyYAML accepts: a key twice, aliases without end."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _check_size(node)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key in (pair[0] for pair in node.value if isinstance(pair[0], yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value}", problem_mark=key.start_mark)
            seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def _check_text(text: str) -> None:
    """Check entries and levels event by event, before nodes take memory."""
    count = level = 0
    for event in yaml.parse(text, _LOADER):
        count += isinstance(event, yaml.NodeEvent)
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if count > MOST_ENTRIES:
            raise _too_large()
        if level > MOST_LEVELS:
            raise _too_deep(event.start_mark)


def _check_size(root: yaml.Node) -> None:
    """Check the size level by level before anything is built: aliases make small files large, or endless."""
    count, level = 0, [root]
    for _ in range(MOST_LEVELS):
        inner: list[yaml.Node] = []
        for node in level:
            count += 1
            if count + len(inner) > MOST_ENTRIES:  # before aliases of one long list fill the memory
                raise _too_large()
            if isinstance(node, yaml.MappingNode):
                inner += [part for pair in node.value for part in pair]
            elif isinstance(node, yaml.SequenceNode):
                inner += node.value
            elif re.search("[\0\ud800-\udfff]", node.value):
                raise yaml.MarkedYAMLError(
                    problem=f"expected text without NUL and half characters, found {shown(node.value)}",
                    problem_mark=node.start_mark,
                )
        if not (level := inner):
            return
    raise _too_deep(level[0].start_mark)


def _too_large() -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=f"expected at most {MOST_ENTRIES} entries, found more; split the file")


def _too_deep(mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(
        problem=f"expected at most {MOST_LEVELS} levels, found deeper nesting", problem_mark=mark
    )


#: Fraction of the free memory that the arrays of a file may take, with a working copy.
_MOST_OF_MEMORY = 0.8
#: Arrays larger than this many bytes that are compressed more than `_DENSEST`-fold are refused as zip bombs.
_LARGE = 1 << 28
#: Real features compress 1.1- to 4-fold.
_DENSEST = 100
#: What zipfile and NumPy raise for damaged or crafted archives.
_DAMAGE = (OSError, ValueError, TypeError, AttributeError, EOFError, KeyError, IndexError, SyntaxError, RecursionError,
           RuntimeError, NotImplementedError, OverflowError, MemoryError, struct.error, zipfile.BadZipFile,
           zlib.error, tokenize.TokenError)  # fmt: skip


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever is wrong with it in the block becomes an InputError that names it."""
    try:
        with warnings.catch_warnings(), zipfile.ZipFile(path) as archive:
            warnings.simplefilter("ignore")  # numpy's, of headers that Python 2 wrote
            yield archive
    except _DAMAGE as error:
        raise InputError(f"expected a NumPy .npz without pickled objects in {path}: {one_line(error)}") from error


def names_of(archive: zipfile.ZipFile) -> list[str]:
    """Names of the arrays of an archive."""
    return [name.removesuffix(".npy") for name in archive.namelist()]


def read_arrays(path: str | Path, names: Sequence[str] | None = None, copies: float = 2.0) -> dict[str, np.ndarray]:
    """The arrays of an .npz: those of ``names``, or all. ``copies``: how many times its size an array needs in memory.

    Raises InputError, before anything is allocated, if there is no such archive or array, it holds pickled objects,
    shapes do not fit the data, or the arrays need more than 80 % of the free memory.
    """
    with opened(path) as archive:
        chosen = names_of(archive) if names is None else list(names)
        headers = {name: _header_of(archive, name, path) for name in chosen}
        needed, free = copies * sum(size for size, _ in headers.values()), available_memory()
        if free is not None and needed > _MOST_OF_MEMORY * free:
            largest = max(headers, key=lambda name: headers[name][0])
            raise InputError(
                f"expected arrays that need at most {_MOST_OF_MEMORY:.0%} of the free memory "
                f"({_size(_MOST_OF_MEMORY * free)} of {_size(free)}), found {_size(needed)} in {path} (largest: "
                f"{largest} of shape {headers[largest][1]}); take fewer rows, or a machine with more memory"
            )
        return {name: _read(archive, name) for name in chosen}


def _header_of(archive: zipfile.ZipFile, name: str, path: str | Path) -> tuple[int, tuple[int, ...]]:
    """Size in bytes and shape of an array, which must fit the file; InputError also for objects and zip bombs."""
    record = archive.getinfo(_member(archive, name))
    with archive.open(record) as stream:
        shape, _, dtype = _header(stream)
        begins = stream.tell()
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise InputError(f"expected arrays without pickled objects in {path}, found some in {name}; save plain arrays")
    if min(shape, default=0) < 0 or begins + size != record.file_size:
        raise InputError(
            f"expected {name} of {path} to be as large as its header says ({_size(size)} for the shape "
            f"{shown(shape)}), found {_size(record.file_size - begins)}; the file is damaged or crafted"
        )
    if size > _LARGE and size > _DENSEST * record.compress_size:
        raise InputError(
            f"expected array data, found {name} of {path} compressed from {_size(size)} to "
            f"{_size(record.compress_size)}; the file is crafted (a zip bomb), or the array is constant"
        )
    return size, shape


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
