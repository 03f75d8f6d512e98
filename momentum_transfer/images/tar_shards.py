"""Images in tar files of WebDataset's layout: ``cat/7.jpg`` next to ``cat/7.cls`` with its label.

``SPLIT-*.tar`` in a folder or at a URL that fsspec reads, or any ``*.tar`` in ``SPLIT/``, are one data set. Its index,
``SPLIT.index.npy`` and ``.json`` beside the archives (written by `pack`, else made once in the cache), says where each
image begins, so that any image is one read: order, replacements and resuming are those of a folder of images. The index
is mapped, not read. Archives are untrusted, and nothing is unpacked: whatever is no plain file is refused.
"""

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError, counted, one_line, shown
from momentum_transfer.core.files import atomic_path, cache_root, sha256_of_text, write_text
from momentum_transfer.core.log import track
from momentum_transfer.core.untrusted import read_text
from momentum_transfer.core.urls import is_url, local_copy
from momentum_transfer.images.labelled_images import FileImages
from momentum_transfer.images.parquet import Entry
from momentum_transfer.images.reading import SUFFIXES, UnreadableImage

_BLOCK = tarfile.BLOCKSIZE
_LONGEST = 4096  # bytes of a name or a label
SHARD_BYTES = 1 << 30


class _About(msgspec.Struct, forbid_unknown_fields=True):
    shards: list[tuple[str, int]]  # names and sizes, in order
    classes: list[str]


@dataclass(frozen=True)
class _Place:
    """A folder, or a URL."""

    root: str

    def _at(self, name: str) -> tuple[Any, str]:
        import fsspec  # torch brings it

        return fsspec.core.url_to_fs(f"{self.root.rstrip('/')}/{name}")  # kept by fsspec, one a process

    def tars(self, split: str) -> list[tuple[str, int]]:
        """Names and sizes of a split's archives, sorted."""
        for folder, prefix in ((split, ""), ("", f"{split}-")):
            found = [
                (f"{folder}/{name}" if folder else name, size)
                for name, size in self._files(folder)
                if name.startswith(prefix) and name.endswith(".tar")
            ]
            if found:
                return sorted(found)
        return []

    def _files(self, folder: str) -> Iterator[tuple[str, int]]:
        if is_url(self.root):
            system, path = self._at(folder)
            for each in system.ls(path.rstrip("/"), detail=True) if system.isdir(path) else ():
                yield os.path.basename(each["name"]), each["size"]
        elif (there := Path(self.root, folder)).is_dir():
            yield from ((each.name, each.stat().st_size) for each in os.scandir(there) if each.is_file())

    def read(self, name: str, start: int, length: int) -> bytes:
        """Bytes of an archive; fewer at its end."""
        if is_url(self.root):
            system, path = self._at(name)
            return bytes(system.cat_file(path, start=start, end=start + length))
        with open(Path(self.root, name), "rb", buffering=0) as stream:
            return os.pread(stream.fileno(), length, start)

    def version(self, name: str) -> str:
        """Changes when the archive does."""
        if is_url(self.root):
            system, path = self._at(name)
            return str(system.checksum(path))
        known = os.stat(Path(self.root, name))
        return f"{known.st_size} {known.st_mtime_ns}"

    def file(self, name: str) -> Path | None:
        """A file beside the archives, copied here if it is at a URL; None if it is missing."""
        if not is_url(self.root):
            return path if (path := Path(self.root, name)).is_file() else None
        system, path_there = self._at(name)
        return local_copy(f"{self.root.rstrip('/')}/{name}") if system.exists(path_there) else None


class ShardImages(FileImages):
    """The images of an index; ``paths`` are their names in the archives."""

    def __init__(self, place: _Place, about: _About, index: NDArray[Any], max_unreadable: int = 100) -> None:
        super().__init__((), index["label"], about.classes, max_unreadable)
        self.place, self.shards, self.index, self.paths = place, about.shards, index, index["name"]
        self._unreadable = torch.zeros(len(index), dtype=torch.bool).share_memory_()

    def keys(self, content: bool) -> Iterator[bytes]:
        """What changes when an archive does, or with ``content`` when an image's bytes do."""
        if content:
            return (hashlib.sha256(self._content(position)).hexdigest().encode() for position in range(len(self)))
        return (f"{name} {self.place.version(name)}\n".encode() for name, _ in self.shards)

    def archive(self, entry: Any) -> str:
        """Where the archive of an entry is."""
        return f"{self.place.root}/{self.shards[entry['shard']][0]}"

    def part(self, position: int, start: int, length: int) -> bytes:
        """Bytes ``start`` on of an image's file."""
        entry = self.index[position]
        length = min(length, int(entry["size"]) - start)
        return self.place.read(self.shards[entry["shard"]][0], int(entry["offset"]) + start, length)

    def _name(self, position: int) -> str:
        entry = self.index[position]
        return f"{self.archive(entry)}:{os.fsdecode(entry['name'])}"

    def _content(self, position: int) -> bytes:
        entry = self.index[position]
        size = int(entry["size"])
        try:
            found = self.part(position, -_BLOCK, size + _BLOCK)
        except Exception as error:  # of whichever store it is
            raise UnreadableImage(f"cannot read {self._name(position)}: {one_line(error)}") from error
        if len(found) != size + _BLOCK or _header(found[:_BLOCK], self._name(position)).size != size:
            raise InputError(f"expected {size} bytes at {self._name(position)}, found others; the index is of another "
                             "archive: delete it, or copy both again")  # fmt: skip
        return found[_BLOCK:]


def _header(block: bytes, where: str) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise InputError(f"expected a tar file at {where}, found: {one_line(error)}; copy it again") from error


def _members(place: _Place, name: str, length: int) -> Iterator[tuple[str, int, int]]:
    """Name, place and size of every file of an archive; InputError for whatever else it holds."""
    where, position, long_name = f"{place.root}/{name}", 0, ""
    while True:
        block = place.read(name, position, _BLOCK)
        if len(block) < _BLOCK:
            raise InputError(f"expected the end of the archive in {where}, found none after {length} bytes; it is cut: "
                             "copy it again")  # fmt: skip
        if not block.strip(b"\0"):
            return
        info = _header(block, where)
        data = position + _BLOCK
        title = long_name or info.name
        if not 0 <= info.size <= length - data:
            raise InputError(f"expected {info.size} bytes for {shown(title)} in {where}, found {length - data}; it is "
                             "cut: copy it again")  # fmt: skip
        position, long_name = data + -(-info.size // _BLOCK) * _BLOCK, ""
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
            if info.size > _LONGEST:
                raise InputError(
                    f"expected names of at most {_LONGEST} bytes in {where}, found {info.size}; leave it out"
                )
            long_name = _long_name(place.read(name, data, info.size), info.type)
        elif info.type not in (tarfile.DIRTYPE, tarfile.XGLTYPE):
            parts = PurePosixPath(title).parts
            if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or title.startswith("/") or ".." in parts:
                kind = "a name outside it" if info.isreg() else "a link or a device"
                raise InputError(f"expected plain files in {where}, found {kind}: {shown(title)}; pack it anew")
            yield title.removeprefix("./"), data, info.size


def _long_name(content: bytes, kind: bytes) -> str:
    if kind == tarfile.GNUTYPE_LONGNAME:
        return os.fsdecode(content.split(b"\0")[0])
    records = (line.partition(b" ")[2] for line in content.split(b"\n"))
    return os.fsdecode(next((record[5:] for record in records if record.startswith(b"path=")), b""))


def _scan(place: _Place, tars: Sequence[tuple[str, int]]) -> tuple[_About, NDArray[Any]]:
    """The index of archives: every image, with the text of its ``.cls``, if they have them."""
    rows: list[tuple[int, int, int, bytes]] = []  # archive, offset, size, name
    texts: list[str | None] = []
    for number, (name, length) in enumerate(track(tars, "reading tar files", total=len(tars))):
        seen: dict[str, int] = {}  # sample -> its row
        labels: dict[str, str] = {}
        for title, offset, size in _members(place, name, length):
            folder, _, file = title.rpartition("/")
            stem, _, suffix = file.partition(".")
            key = f"{folder}/{stem}"
            if suffix == "cls":
                if key in labels or size > _LONGEST:
                    raise InputError(f"expected one short label for {shown(key)} in {place.root}/{name}, found others")
                labels[key] = place.read(name, offset, size).decode("utf-8", "replace").strip()
            elif f".{suffix.lower()}" in SUFFIXES:
                if key in seen:
                    raise InputError(f"expected one image {shown(key)} in {place.root}/{name}, found two; pack it anew")
                seen[key] = len(rows)
                rows.append((number, offset, size, os.fsencode(title)))
        texts += [labels.get(key) for key in seen]
    if not rows:
        raise InputError(f"expected images in the tar files of {place.root}, found none")
    if None in texts and any(text is not None for text in texts):
        missing = os.fsdecode(rows[texts.index(None)][3])
        raise InputError(
            f"expected a label (.cls) for every image or for none in {place.root}, found none of {missing}"
        )
    numbers, classes = _classes(texts, [os.fsdecode(row[3]).partition("/")[0] for row in rows])
    width = max(len(row[3]) for row in rows)
    index = np.array([(*row[:3], label, row[3]) for row, label in zip(rows, numbers, strict=True)], _entry(width))
    return _About(list(tars), classes), index


def _classes(texts: Sequence[str | None], folders: Sequence[str]) -> tuple[list[int], list[str]]:
    """Numbers and names of the images' classes: a number is called by its folder, where each has one of its own."""
    if texts[0] is None:
        return [0] * len(texts), ["unlabelled"]
    names = [text or "" for text in texts]
    if not all(name.isdecimal() and len(name) < 8 for name in names):
        ordered = sorted(set(names))
        number_of = {name: number for number, name in enumerate(ordered)}
        return [number_of[name] for name in names], ordered
    numbers = [int(name) for name in names]
    pairs = dict(sorted(set(zip(numbers, folders, strict=True))))
    own = len(set(zip(numbers, folders, strict=True))) == len(pairs) == len(set(pairs.values())) == max(numbers) + 1
    return numbers, list(pairs.values()) if own else [str(number) for number in range(max(numbers) + 1)]


def _entry(width: int) -> np.dtype[Any]:
    return np.dtype([("shard", "<i8"), ("offset", "<i8"), ("size", "<i8"), ("label", "<i8"), ("name", f"S{width}")])


def _save(base: Path, about: _About, index: NDArray[Any]) -> None:
    base.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(f"{base}.index.npy") as temporary, open(temporary, "wb") as stream:
        np.save(stream, index)
    write_text(f"{base}.index.json", msgspec.json.encode(about).decode())


def _load(array: Path, text: Path) -> tuple[_About, NDArray[Any]]:
    try:
        about = msgspec.json.decode(read_text(text, "an index of tar files", None), type=_About)
        index = np.load(array, mmap_mode="r", allow_pickle=False)
        if index.ndim != 1 or index.dtype != _entry(index.dtype["name"].itemsize) or not len(index):
            raise ValueError(f"an array {index.shape} of {index.dtype}")
        sizes = np.array([size for _, size in about.shards])
        bad = (index["shard"] < 0) | (index["shard"] >= len(sizes)) | (index["label"] < 0)
        bad |= (index["label"] >= len(about.classes)) | (index["offset"] < _BLOCK) | (index["size"] < 0)
        bad |= index["size"] > sizes[np.where(bad, 0, index["shard"])] - index["offset"]
        if bad.any():
            raise ValueError(f"a place outside the archives in row {int(bad.argmax())}")
    except (ValueError, TypeError, KeyError, EOFError, OSError, msgspec.MsgspecError) as error:
        raise InputError(f"expected an index of tar files in {array}, found: {one_line(error)}; delete it") from error
    return about, index


def open_shards(root: str | Path, split: str, max_unreadable: int = 100) -> ShardImages | None:
    """The images of a split in tar files; None if there are none. InputError for damaged archives or another index."""
    place = _Place(str(root))
    try:
        tars = place.tars(split)
        if not tars:
            return None
        beside = [place.file(f"{split}.index{suffix}") for suffix in (".npy", ".json")]
        if beside[0] and beside[1]:
            about, index = _load(beside[0], beside[1])
            if about.shards != tars:
                other = next((name for name, size in about.shards if (name, size) not in tars), "more of them")
                raise InputError(f"expected the tar files of the index {place.root}/{split}.index.json, found another "
                                 f"size of {other}; copy it again, or delete the index")  # fmt: skip
            return ShardImages(place, about, index, max_unreadable)
        known = sha256_of_text("\n".join([place.root, *(f"{name} {place.version(name)}" for name, _ in tars)]))
        base = cache_root() / "shards" / known[:16]
        if not base.with_name(f"{base.name}.index.json").is_file():
            _save(base, *_scan(place, tars))
        about, index = _load(Path(f"{base}.index.npy"), Path(f"{base}.index.json"))
    except InputError:
        raise
    except Exception as error:  # of whichever store it is
        raise InputError(f"expected tar files at {place.root}, found: {one_line(error)}; check the place") from error
    return ShardImages(place, about, index, max_unreadable)


def folder_entries(images: FileImages, folder: Path) -> Iterator[Entry]:
    """Image files below ``folder``, in the order of ``images``, for `pack`."""
    labelled = images.classes != ["unlabelled"]
    for raw, label in zip(images.paths, images.labels, strict=True):
        path = Path(os.fsdecode(raw))
        key = path.relative_to(folder).with_name(path.stem).as_posix()
        yield key, path.suffix, path.read_bytes(), int(label) if labelled else None


def refuse_archives(target: Path, split: str) -> None:
    """InputError if there are tar files of a split already."""
    if _Place(str(target)).tars(split):
        raise InputError(f"expected no tar files of {split} in {target}, found some; remove them, or choose another")


def pack(entries: Iterable[Entry], target: Path, split: str, shard_bytes: int) -> str:
    """Write images as ``SPLIT-*.tar`` with their index into the empty ``target``, in their order; returns how many.

    A dot or an equal name in the way of WebDataset's keys becomes ``_``.
    """
    seen: set[str] = set()
    waiting, number = iter(entries), 0
    entry = next(waiting, None)
    while entry is not None:
        with tarfile.open(target / f"{split}-{number:06d}.tar", "w", format=tarfile.GNU_FORMAT) as archive:
            while entry is not None and (archive.offset < shard_bytes or archive.offset == 0):
                name, suffix, content, label = entry
                folder, slash, stem = name.rpartition("/")
                key = folder + slash + stem.replace(".", "_")
                while key in seen:
                    key += "_"
                seen.add(key)
                for ending, data in ((suffix, content), *([] if label is None else [(".cls", b"%d" % label)])):
                    info = tarfile.TarInfo(key + ending)
                    info.size = len(data)
                    archive.addfile(info, BytesIO(data))
                entry = next(waiting, None)
        number += 1
    if not number:
        raise InputError(f"expected images of {split} to pack, found none")
    place = _Place(str(target))
    _save(target / split, *_scan(place, place.tars(split)))
    return f"{counted(len(seen), 'image')} in {counted(number, 'tar file')}"
