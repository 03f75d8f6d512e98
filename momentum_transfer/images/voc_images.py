"""PASCAL VOC 2007 as images with several labels, for the low-shot SVM protocol (Goyal et al., arXiv 1905.01235).

Read from ``VOCdevkit/VOC2007``: ``ImageSets/Main/<class>_<split>.txt`` holds a line ``<image> <flag>`` for every image,
with 1 for present, 0 for present but difficult, -1 for absent. "Difficult" counts as absent here.
"""

from pathlib import Path

import numpy as np
import PIL.Image

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.text_files import read_lines
from momentum_transfer.images.reading import read_rgb

CLASSES = [
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
]
SPLITS = ("train", "val", "trainval", "test")


class VocImages:
    """``self[i] -> (PIL RGB image, 0)``; the labels [N, 20] of 0 and 1 are in ``labels``.

    Args:
        root: the folder that holds JPEGImages and ImageSets.
        split: trainval for training, test for testing.

    Raises:
        InputError: a folder, a list or an image is missing, or the lists of two classes differ in their images.
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
            raise InputError(f"expected VOC 2007's image list {file}; set DATASETS.ROOT to VOCdevkit/VOC2007")
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
