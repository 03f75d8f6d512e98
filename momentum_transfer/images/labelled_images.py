"""Labelled data sets: the protocol, and its two kinds, image files (possibly damaged) and arrays in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import PIL.Image
import torch
from numpy.typing import ArrayLike, NDArray

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import warn
from momentum_transfer.images.reading import UnreadableImage, read_rgb


class LabelledImages(Protocol):
    """A map from 0..len-1 to `(PIL RGB image, int label)`."""

    labels: NDArray[np.int64]  # [N]
    classes: list[str]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]: ...


class FileImages:
    """Images read from files. An unreadable one is named, counted and replaced, up to a limit.

    In the place of an unreadable image stands the next readable one of the same class (cyclically). The replacement
    depends on the files alone: not on the order of reading, the process or the epoch, so that a resumed run sees the
    same images, as long as a file can be read in both parts or in neither: a disk that fails for a moment shows as a
    warning that names the image, and the two parts then differ. The count is shared with worker processes that are
    started later.

    Args:
        paths: image files, N of them.
        labels: class of each image, [N].
        classes: names of the classes.
        max_unreadable: number of different unreadable images that a process and its workers put up with; one more
            raises InputError.
    """

    def __init__(
        self, paths: Sequence[Path | str], labels: Sequence[int], classes: Sequence[str], max_unreadable: int = 100
    ) -> None:
        # One array of bytes: 1.3 million paths in 100 MB that workers share, where str objects would be copied to each.
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
        position = range(len(self))[index]
        label = int(self.labels[position])
        image = self._read(position)
        if image is None:
            image = self._replacement(position)
        return image, label

    def _read(self, position: int) -> PIL.Image.Image | None:
        path = os.fsdecode(self.paths[position])
        try:
            return read_rgb(path)
        except UnreadableImage as error:
            self._count(position, str(error))
            return None

    def _count(self, position: int, problem: str) -> None:
        if not self._unreadable[position]:
            self._unreadable[position] = True
            warn(f"unreadable image, replaced by another of its class: {problem}")
        if len(found := self.unreadable) > self.max_unreadable:
            raise InputError(
                f"expected at most {self.max_unreadable} unreadable images, found {len(found)}: "
                f"{', '.join(found[:10])}; repair or remove them, or raise DATA.MAX_UNREADABLE"
            )

    def _replacement(self, position: int) -> PIL.Image.Image:
        peers = np.flatnonzero(self.labels == self.labels[position])
        after = np.searchsorted(peers, position, side="right")
        for peer in np.roll(peers, -after)[:-1]:
            if (image := self._read(int(peer))) is not None:
                return image
        name = self.classes[self.labels[position]]
        raise InputError(
            f"expected a readable image of class {name!r}, found none, for {os.fsdecode(self.paths[position])}"
        )


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
