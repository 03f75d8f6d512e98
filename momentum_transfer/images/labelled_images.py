"""Labelled data sets: the protocol, image files (possibly damaged), arrays in memory, and PASCAL VOC 2007.

VOC 2007 gives images with several labels, for the low-shot SVM protocol (Goyal et al., arXiv 1905.01235). It is read
from ``VOC2007``: ``ImageSets/Main/<class>_<split>.txt`` holds a line ``<image> <flag>`` for every image, with
1 for present, 0 for present but difficult, which counts as absent here, and -1 for absent.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import PIL.Image
import torch
from numpy.typing import ArrayLike, NDArray

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.log import warn
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.images.reading import UnreadableImage, read_pixels, read_rgb

_Image = TypeVar("_Image", PIL.Image.Image, NDArray[np.uint8])


class LabelledImages(Protocol):
    """A map from 0..len-1 to `(PIL RGB image, int label)`."""

    labels: NDArray[np.int64]  # [N]
    classes: list[str]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]: ...


class FileImages:
    """Images read from files; an unreadable one is named, counted and replaced, up to a limit.

    Its replacement is the next readable image of its class (cyclically). It depends on the files alone, not on the
    order of reading, the process or the epoch, so that a resumed run sees the same images. (A disk that fails for a
    moment shows as a warning that names the image.) This process and workers started later accept ``max_unreadable``
    different unreadable images together; one more raises InputError.
    """

    def __init__(
        self, paths: Sequence[Path | str], labels: ArrayLike, classes: Sequence[str], max_unreadable: int = 100
    ) -> None:
        # One array of bytes: 1.3 million paths in 100 MB for all workers; each would copy str objects.
        self.paths = np.asarray([os.fsencode(path) for path in paths])
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes = list(classes)
        self.max_unreadable = max_unreadable
        self._unreadable = torch.zeros(len(self.paths), dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def unreadable(self) -> list[str]:
        """Paths of the images found unreadable so far, by this process and its workers."""
        return [os.fsdecode(path) for path in self.paths[self._unreadable.numpy()]]

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]:
        return self._item(range(len(self))[index], read_rgb)

    def pixels(self, index: int) -> tuple[NDArray[np.uint8], int]:
        """The image as an array [H, W, 3], and its label."""
        return self._item(range(len(self))[index], read_pixels)

    def _item(self, position: int, reader: Callable[[str, bytes | None], _Image]) -> tuple[_Image, int]:
        image = self._read(position, reader)
        return self._replacement(position, reader) if image is None else image, int(self.labels[position])

    def _name(self, position: int) -> str:
        return os.fsdecode(self.paths[position])

    def _content(self, position: int) -> bytes | None:
        """The bytes of an image that is not a file of its own."""
        return None

    def _read(self, position: int, reader: Callable[[str, bytes | None], _Image]) -> _Image | None:
        try:
            return reader(self._name(position), self._content(position))
        except UnreadableImage as error:
            if not self._unreadable[position]:
                self._unreadable[position] = True
                warn(f"unreadable image, replaced by another of its class: {error}")
            if len(paths := self.unreadable) > self.max_unreadable:
                raise InputError(
                    f"expected at most {self.max_unreadable} unreadable images, found {len(paths)}: "
                    f"{', '.join(paths[:10])}; repair or remove them, or raise DATA.MAX_UNREADABLE"
                ) from error
            return None

    def _replacement(self, position: int, reader: Callable[[str, bytes | None], _Image]) -> _Image:
        peers = np.flatnonzero(self.labels == self.labels[position])
        after = np.searchsorted(peers, position, side="right")
        for peer in np.roll(peers, -after)[:-1]:
            if (image := self._read(int(peer), reader)) is not None:
                return image
        name = self.classes[self.labels[position]]
        raise InputError(f"expected a readable image of class {name!r}, found none: {self._name(position)}")


class ArrayImages:
    """Images held in memory as one uint8 array [N, H, W, 3]."""

    def __init__(self, images: NDArray[np.uint8], labels: ArrayLike, classes: Sequence[str]) -> None:
        self.images = images
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes = list(classes)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]:
        return PIL.Image.fromarray(self.images[index]), int(self.labels[index])


CLASSES = [
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
]
SPLITS = ("train", "val", "trainval", "test")


class VocImages:
    """``self[i] -> (PIL RGB image, 0)``; the labels [N, 20] of 0 and 1 are in ``labels``.

    ``root`` is the folder that holds JPEGImages and ImageSets; the split trainval trains, test tests. Raises InputError
    if a folder, a list or an image is missing, or the lists of two classes differ in their images.
    """

    def __init__(self, root: str | Path, split: str) -> None:
        if split not in SPLITS:
            raise InputError(f"expected a VOC 2007 split of {', '.join(SPLITS)}, found {split!r}")
        folder = Path(root).expanduser()
        flags = [self._flags(folder / "ImageSets" / "Main" / f"{name}_{split}.txt") for name in CLASSES]
        names = list(flags[0])
        for name, column in zip(CLASSES, flags, strict=True):
            if list(column) != names:
                raise InputError(f"the lists of {CLASSES[0]} and {name} in {folder} name different images")
        self.paths = np.asarray([str(folder / "JPEGImages" / f"{name}.jpg") for name in names])
        missing = [path for path in self.paths if not Path(path).is_file()]
        if missing:
            raise InputError(f"{len(missing)} images of VOC 2007 {split} are missing, first {missing[0]}")
        self.labels = np.array([[column[name] == 1 for column in flags] for name in names], dtype=np.int64)
        self.classes = CLASSES

    @staticmethod
    def _flags(file: Path) -> dict[str, int]:
        if not file.is_file():
            raise InputError(f"expected VOC 2007's image list {file}; set DATASETS.ROOT to the folder VOC2007")
        flags = {}
        for number, line in enumerate(read_lines(file, "a list of images"), start=1):
            words = line.split()
            if len(words) != 2 or words[1] not in ("1", "0", "-1"):
                raise InputError(f"expected an image and 1, 0 or -1 in {file}:{number}, found {shown(line)}")
            flags[words[0]] = int(words[1])
        return flags

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]:
        return read_rgb(self.paths[index]), 0
