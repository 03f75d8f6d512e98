"""Feature cache on disk: the format of an entry, appending to it, and resuming a killed extraction.

An entry is a folder ``<key>/`` with ``features.npy`` [N, D] float32, ``labels.npy`` and ``about.json``: what determines
the numbers, whose hash is the key, and the SHA-256 of both files. The rows are written into
``features.partial.npy`` as they come, with a progress file per process beside it: their number and the CRC-32 of their
bytes. The final name appears only when every row is there.
"""

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path, lock, sha256_of, sha256_of_text, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.neighbours import chunks
from momentum_transfer.core.untrusted import read_json


@dataclass(frozen=True)
class About:
    """All that determines an entry's numbers; its hash is the entry's name."""

    weights: str
    data: str
    transform: str
    layer: str
    precision: str
    format: int = 2

    @property
    def key(self) -> str:
        return sha256_of_text(json.dumps(asdict(self), sort_keys=True))[:24]


@dataclass(frozen=True)
class Entry:
    """One entry of the cache."""

    folder: Path

    @property
    def complete(self) -> bool:
        """Whether every row is there."""
        return (self.folder / "features.npy").is_file()

    def check(self, about: About) -> None:
        """Raise :class:`InputError` if the entry describes itself as another: files were moved or mixed."""
        described = self.folder / "about.json"
        if not described.is_file():
            return
        try:
            found = read_json(described, "what determines features")
        except InputError:
            found = None
        if not isinstance(found, dict):
            raise self._damaged(described)
        different = [key for key, value in asdict(about).items() if found.get(key) != value]
        if different:
            raise InputError(
                f"the features in {self.folder} were made with other settings ({', '.join(different)}); "
                "delete the folder, or choose another FEATURES.CACHE"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other jobs from this entry; a second one that wants the same features waits here and then finds them.

        Rank 0 holds the lock, for all of its job. The file lies beside the folder; the lock ends with the process.
        """
        with contextlib.ExitStack() as held:
            if distributed.is_main():
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                stream = held.enter_context(open(self.folder.with_suffix(".lock"), "w"))
                if lock(stream.fileno()) is False:
                    say(f"waiting for another process that computes the features in {self.folder}")
                    fcntl.flock(stream, fcntl.LOCK_EX)
            distributed.barrier()
            yield

    def open_rows(self, about: About, count: int, width: Callable[[], int]) -> np.memmap:
        """The unfinished array [count, D], made by rank 0 if it is not there, opened by all; ``width`` gives D."""
        unfinished = self.folder / "features.partial.npy"
        if distributed.is_main() and not (unfinished.is_file() and (self.folder / "about.json").is_file()):
            self.folder.mkdir(parents=True, exist_ok=True)
            for stale in self.folder.glob("progress.*"):
                stale.unlink()
            shape = (count, width())
            np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.float32, shape=shape).flush()
            _reserve(unfinished)
            self._describe(asdict(about))
        distributed.barrier()
        self._array(unfinished, (count, None), mmap_mode="r")  # a file that is too short would be lengthened by r+
        rows: np.memmap = self._array(unfinished, (count, None), mmap_mode="r+")
        return rows

    def own_rows(self, rows: np.ndarray) -> tuple[range, int, int]:
        """Rows of this process, how many of them an earlier run has written, and the CRC-32 of their bytes."""
        rank, world_size = distributed.rank(), distributed.world_size()
        own = range(len(rows) * rank // world_size, len(rows) * (rank + 1) // world_size)
        file = self._progress_file(own)
        if not file.is_file():
            return own, 0, 0
        done, _, checksum = file.read_text(encoding="utf-8", errors="replace").partition(" ")
        if not (done.isdecimal() and len(done) < 12 and int(done) <= len(own)):
            raise self._damaged(file)
        found = crc_of(rows[own.start : own.start + int(done)])
        if checksum != f"{found:08x}":
            raise self._damaged(self.folder / "features.partial.npy")
        return own, int(done), found

    def write_progress(self, own: range, done: int, checksum: int) -> None:
        """Note that ``done`` of these rows are on disk, and the CRC-32 of their bytes."""
        write_text(self._progress_file(own), f"{done} {checksum:08x}")

    def _progress_file(self, own: range) -> Path:
        return self.folder / f"progress.{own.start}-{own.stop}"

    def finish(self, labels: np.ndarray) -> None:
        """Give the array its final name when every process has come to its end."""
        distributed.barrier()
        if distributed.is_main():
            with atomic_path(self.folder / "labels.npy") as temporary:
                np.save(temporary, labels)
            unfinished = self.folder / "features.partial.npy"
            sums = {"features.npy": sha256_of(unfinished), "labels.npy": sha256_of(self.folder / "labels.npy")}
            self._describe(json.loads((self.folder / "about.json").read_text(encoding="utf-8")) | {"sha256": sums})
            unfinished.replace(self.folder / "features.npy")
            for progress in self.folder.glob("progress.*"):
                progress.unlink()
        distributed.barrier()

    def read(self, labels: np.ndarray) -> np.memmap:
        """The features [N, D] as a memory map, compared with their checksum (half a second a gigabyte).

        Raises:
            InputError: features or labels are not what was written, or the labels not the data set's ``labels``.
        """
        if distributed.is_main():
            described = self.folder / "about.json"
            try:
                content = read_json(described, "the checksums of features")["sha256"]
                checksums = {self.folder / name: content[name] for name in ("features.npy", "labels.npy")}
            except (InputError, KeyError, TypeError) as error:
                raise self._damaged(described) from error
            for file, checksum in checksums.items():
                if not file.is_file() or sha256_of(file) != checksum:
                    raise self._damaged(file)
        file = self.folder / "labels.npy"
        if not np.array_equal(self._array(file, labels.shape), labels):
            raise self._damaged(file)
        features: np.memmap = self._array(self.folder / "features.npy", (len(labels), None), mmap_mode="r")
        return features

    def _describe(self, content: dict[str, Any]) -> None:
        write_text(self.folder / "about.json", json.dumps(content, indent=1, sort_keys=True))

    def _array(self, file: Path, shape: tuple[int | None, ...], **options: Any) -> Any:
        """The array in ``file``, of that shape (None is any size)."""
        try:
            array = np.load(file, allow_pickle=False, **options)
        except (OSError, ValueError, EOFError, MemoryError, TypeError, SyntaxError, TokenError) as error:
            raise self._damaged(file) from error
        fits = [want in (None, size) for want, size in zip(shape, array.shape, strict=False)]
        if array.ndim != len(shape) or not all(fits):
            raise self._damaged(file)
        return array

    def _damaged(self, file: Path) -> InputError:
        return InputError(
            f"expected {file} as an extraction writes it, found it damaged; delete {self.folder} and run again"
        )


def crc_of(rows: np.ndarray, so_far: int = 0) -> int:
    """CRC-32 of the rows' bytes, continuing that of the rows before them."""
    for part in chunks(len(rows)):
        so_far = zlib.crc32(np.ascontiguousarray(rows[part]).tobytes(), so_far)
    return so_far


def _reserve(file: Path) -> None:
    """Reserve the space now, where the system can: a disk that fills up later would kill the process that writes."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        with open(file, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
    except OSError as error:
        file.unlink()
        raise OSError(error.errno, error.strerror, str(file)) from error
