"""Compare images by their bytes: test images that train too, and whether a folder still holds the same images."""

import functools
import hashlib
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of
from momentum_transfer.core.log import warn
from momentum_transfer.core.neighbours import chunks
from momentum_transfer.images.digits import DigitImages
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.images.subsets import file_names, unselected
from momentum_transfer.images.tar_shards import ShardImages

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_SAMPLE = 64  # images whose bytes `fingerprint` reads
_BLOCK = 4096  # bytes compared in the middle of a file: its head often holds the encoder's tables, alike in all files
_THREADS = 16  # network file systems answer slowly, but many at once


@dataclass(frozen=True)
class Overlap:
    """How many test images are training images too."""

    count: int
    total: int  #: test images
    what: str  #: the two sides and what is equal, in words
    example: str = ""  #: the first such image


def report_overlap(found: Overlap, *, where: str = "", forbid: bool = False) -> int:
    """Warn of an overlap in the test set ``where``, or with ``forbid`` refuse it (InputError); returns its count."""
    if not found.count:
        return 0
    which = "; ".join(filter(None, (where, f"first: {found.example}" if found.example else "")))
    text = f"{found.count} of {found.total} {found.what}" + (f" ({which})" if which else "")
    if forbid:
        raise InputError(f"expected no test image among the training images, found {text}; remove them from one side")
    warn(f"{text}; they raise the scores: remove them from one side (--forbid-overlap refuses such data)")
    return found.count


def shared_images(train: LabelledImages, test: LabelledImages) -> Overlap:
    """The test images that are training images too: files by their bytes, images in memory by their pixels."""
    trained, tested = _files(train), _files(test)
    if trained is not None and tested is not None:
        return _shared(trained, tested)
    known = set(_keys(train))
    return Overlap(sum(key in known for key in _keys(test)), len(test), "test images are also training images")


def _keys(images: LabelledImages) -> Iterator[Hashable]:
    """Equal for equal images in memory."""
    inner, indices = unselected(images)
    for index in indices.tolist():
        # The rendering of a digit follows from seed, split and index.
        yield (*inner.entropy, index) if isinstance(inner, DigitImages) else _digest(inner[index][0].tobytes())


class _File(NamedTuple):
    path: str
    size: int = 0
    place: tuple[Hashable, int] = (0, 0)  # device and inode
    part: Callable[[int, int], bytes] | None = None  # (start, length) -> bytes of what is no file of its own


def _files(images: LabelledImages) -> list[_File] | None:
    """The files of a data set, in order; None for images in memory."""
    inner, indices = unselected(images)
    if not isinstance(inner, ShardImages):
        names = file_names(images)
        return None if names is None else _mapped(_file, names)
    return [
        _File(os.fsdecode(entry["name"]), int(entry["size"]), (inner.archive(entry), int(entry["offset"])),
              functools.partial(inner.part, index))
        for index, entry in zip(indices.tolist(), inner.index[indices], strict=True)
    ]  # fmt: skip


def shared_files(train: Sequence[str], test: Sequence[str]) -> Overlap:
    """The test files whose bytes a training file has too.

    Only files of a size that occurs on both sides are opened, and only those that also agree in the 4096 bytes in their
    middle are read whole: of ImageNet's 1.33 million files about half are opened and almost none is read. One file on
    both sides, by path or by link, counts unopened. Missing and empty files do not count.
    """
    return _shared(_mapped(_file, train), _mapped(_file, test))


def _shared(train: list[_File], test: list[_File]) -> Overlap:
    sides = _of_both(lambda file: file.size or None, [train, test])[1]
    linked = {file.place: file.path for file in sides[0]}
    same = {file.path: linked[file.place] for file in sides[1] if file.place in linked}
    sides = [sides[0], [file for file in sides[1] if file.path not in same]]
    for key in (_middle, _content):
        keys, sides = _of_both(key, sides)
    trained = {key: file.path for key, file in zip(keys[0], sides[0], strict=True)}
    same |= {file.path: trained[key] for key, file in zip(keys[1], sides[1], strict=True)}
    shared = [file.path for file in test if file.path in same]
    example = f"{shared[0]} is {same[shared[0]]}" if shared else ""
    return Overlap(len(shared), len(test), "test images are byte for byte training images", example)


def _of_both(key: Callable[[_File], Hashable], sides: list[list[_File]]) -> tuple[list[list[Any]], list[list[_File]]]:
    """The keys and files of each side whose key occurs on the other side too and is not None."""
    keys = [_mapped(key, side) for side in sides]
    common = set(keys[0]) & set(keys[1]) - {None}
    kept = [[(k, file) for k, file in zip(*both, strict=True) if k in common] for both in zip(keys, sides, strict=True)]
    return [[k for k, _ in side] for side in kept], [[file for _, file in side] for side in kept]


def _mapped(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Map in threads that take a thousand items at a time, keeping the order."""

    def several(part: slice) -> list[_Result]:
        return [function(item) for item in items[part]]

    with ThreadPoolExecutor(_THREADS) as pool:
        return [result for part in pool.map(several, chunks(len(items), 1000)) for result in part]


def _file(path: str) -> _File:
    try:
        about = os.stat(path)
    except OSError:
        return _File(path)
    return _File(path, about.st_size, (about.st_dev, about.st_ino))


def _middle(file: _File) -> tuple[int, bytes] | None:
    start = max(file.size - _BLOCK, 0) // 2
    try:
        if file.part is not None:
            return file.size, _digest(file.part(start, _BLOCK))
        with open(file.path, "rb", buffering=0) as stream:
            stream.seek(start)
            return file.size, _digest(stream.read(_BLOCK))
    except OSError:
        return None


def _content(file: _File) -> str | None:
    try:
        if file.part is not None:
            return hashlib.sha256(file.part(0, file.size)).hexdigest()
        return sha256_of(file.path) if file.size else None  # a pipe has no size, and reading it may never end
    except OSError:
        return None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def shared_rows(train: np.ndarray, test: np.ndarray) -> Overlap:
    """The rows of test features [M, D] that are, bit for bit, rows of the training features [N, D] too."""
    sums = [np.concatenate([_sums(side[part]) for part in chunks(len(side))]) for side in (train, test)]
    # Only rows of equal sums, of which few are unequal, are compared as a whole.
    rows = [np.flatnonzero(np.isin(one, other)).tolist() for one, other in (sums, sums[::-1])]
    known = {_digest(train[row].tobytes()) for row in rows[0]}
    count = sum(_digest(test[row].tobytes()) in known for row in rows[1])
    what = "rows of the test features are also rows of the training features (the same images, or features that do not"
    return Overlap(count, len(test), f"{what} distinguish them)")


def _sums(rows: np.ndarray) -> NDArray[np.uint64]:
    return np.ascontiguousarray(rows, dtype=np.float32).view(np.uint32).sum(axis=1, dtype=np.uint64)


def fingerprint(images: LabelledImages) -> dict[str, str]:
    """Identify training images, in parts that messages can name, among others that the same settings could mean.

    Covers names (file and folder) and sizes of all files, and the bytes of 64 random images: a copy of the folder
    elsewhere is the same. An overwritten file of the same size outside the sample is not noticed.
    """
    files, labels = _files(images), np.ascontiguousarray(images.labels, dtype="<i8")
    sample = np.random.default_rng(0).choice(len(images), min(_SAMPLE, len(images)), replace=False).tolist()
    parts = {"number": str(len(images)), "labels": _short(labels.tobytes())}
    if files is None:
        return {**parts, "pixels": _short(b"".join(_digest(images[index][0].tobytes()) for index in sample))}
    listed = [f"{'/'.join(file.path.split('/')[-2:])} {file.size}" for file in files]
    parts["names and sizes"] = _short("\n".join(listed).encode("utf-8", "surrogateescape"))
    return {**parts, "bytes": _short(" ".join(map(str, _mapped(_content, [files[i] for i in sample]))).encode())}


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
