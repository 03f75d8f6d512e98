"""Feature cache on disk: the format of an entry, appending to it, and resuming a killed extraction.

An entry is a folder ``<key>/`` with ``features.npy`` [N, D] float32, ``labels.npy`` and ``about.json``; the key is the
hash of all that determines the numbers. The rows are written into ``features.partial.npy`` as they come, with a
progress file per process beside it; the final name appears only when every row is there.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer import distributed
from momentum_transfer.console import say
from momentum_transfer.errors import InputError
from momentum_transfer.files import sha256_of_text, write_text


@dataclass(frozen=True)
class About:
    """All that determines an entry's numbers; its hash is the entry's name."""

    weights: str
    data: str
    transform: str
    layer: str
    precision: str
    format: int = 1

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
        """Raise :class:`InputError` if the entry describes itself as another: somebody moved or mixed files."""
        described = self.folder / "about.json"
        if not described.is_file():
            return
        try:
            found = json.loads(described.read_text(encoding="utf-8"))
        except ValueError:
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

        The first process holds the lock, for all of its job. It lies beside the folder and ends with the process.
        """
        with contextlib.ExitStack() as held:
            if distributed.is_main():
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                stream = held.enter_context(open(self.folder.with_suffix(".lock"), "w"))
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    say(f"waiting for another process that computes the features in {self.folder}")
                    fcntl.flock(stream, fcntl.LOCK_EX)
            distributed.barrier()
            yield

    def open_rows(self, about: About, count: int, width: Callable[[], int]) -> np.memmap:
        """The unfinished array [count, D], made by the first process if it is not there, opened by all.

        Args:
            width: gives D.
        """
        unfinished = self.folder / "features.partial.npy"
        if distributed.is_main() and not (unfinished.is_file() and (self.folder / "about.json").is_file()):
            self.folder.mkdir(parents=True, exist_ok=True)
            for stale in self.folder.glob("progress.*"):
                stale.unlink()
            shape = (count, width())
            np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.float32, shape=shape).flush()
            _reserve(unfinished)
            write_text(self.folder / "about.json", json.dumps(asdict(about), indent=1, sort_keys=True))
        distributed.barrier()
        self._array(unfinished, (count, None), mmap_mode="r")  # a file that is too short would be lengthened by r+
        rows: np.memmap = self._array(unfinished, (count, None), mmap_mode="r+")
        return rows

    def progress(self, begin: int, end: int) -> int:
        """How many of the rows ``begin`` to ``end`` an earlier run has written."""
        file = self._progress_file(begin, end)
        if not file.is_file():
            return 0
        text = file.read_text(encoding="utf-8")
        if not text.isdecimal() or int(text) > end - begin:
            raise self._damaged(file)
        return int(text)

    def write_progress(self, begin: int, end: int, done: int) -> None:
        """Note that ``done`` of these rows are on disk."""
        write_text(self._progress_file(begin, end), str(done))

    def finish(self, labels: np.ndarray) -> None:
        """Give the array its final name when every process has come to its end."""
        distributed.barrier()
        if distributed.is_main():
            np.save(self.folder / "labels.npy", labels)
            (self.folder / "features.partial.npy").replace(self.folder / "features.npy")
            for progress in self.folder.glob("progress.*"):
                progress.unlink()
        distributed.barrier()

    def read(self, labels: np.ndarray) -> np.memmap:
        """The features [N, D] as a memory map; the entry's labels must be the data set's ``labels``."""
        file = self.folder / "labels.npy"
        if not np.array_equal(self._array(file, labels.shape), labels):
            raise self._damaged(file)
        features: np.memmap = self._array(self.folder / "features.npy", (len(labels), None), mmap_mode="r")
        return features

    def _progress_file(self, begin: int, end: int) -> Path:
        return self.folder / f"progress.{begin}-{end}"

    def _array(self, file: Path, shape: tuple[int | None, ...], **options: Any) -> Any:
        """The array in ``file``, of that shape (None is any size)."""
        try:
            array = np.load(file, allow_pickle=False, **options)
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(file) from error
        fits = [want in (None, size) for want, size in zip(shape, array.shape, strict=False)]
        if array.ndim != len(shape) or not all(fits):
            raise self._damaged(file)
        return array

    def _damaged(self, file: Path) -> InputError:
        return InputError(
            f"expected {file} as an extraction writes it, found it damaged; delete {self.folder} and run again"
        )


def _reserve(file: Path) -> None:
    """Take the space now, where the system can: a disk that fills up later would kill the process that writes a map."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        with open(file, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
    except OSError as error:
        file.unlink()
        raise OSError(error.errno, error.strerror, str(file)) from error
