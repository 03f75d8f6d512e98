"""Data sets that nobody may fetch for you, or that are too large for it: which parts a folder holds and lacks.

COCO and LVIS are free to download in parts of many gigabytes; ImageNet and Cityscapes want a login and terms accepted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from momentum_transfer.core.errors import InputError


@dataclass(frozen=True)
class Part:
    """A file or a folder of a data set.

    Attributes:
        path: below the root.
        archive: what it comes in, as the authors' page calls it.
        count: of a folder: files that end in ``suffix``, however deep. 0: ``path`` is a file.
        classes: of a folder of classes: how many. 0: not such a folder.
    """

    path: str
    archive: str
    count: int = 0
    suffix: str = ".jpg"
    classes: int = 0


@dataclass(frozen=True)
class Licensed:
    """A data set of parts; ``setting`` reads it, with {root} for the folder."""

    title: str
    page: str
    parts: tuple[Part, ...]
    setting: str


@dataclass(frozen=True)
class Found:
    """What became of a part: ``problem`` is empty where it is whole."""

    part: Part
    problem: str = ""


_COCO = (
    Part("coco/train2017", "train2017.zip, 18 GB", 118287),
    Part("coco/val2017", "val2017.zip, 1 GB", 5000),
)
LICENSED = {
    "coco": Licensed(
        "COCO 2017", "cocodataset.org, Download",
        (*_COCO,
         Part("coco/annotations/instances_train2017.json", "annotations_trainval2017.zip, 241 MB"),
         Part("coco/annotations/instances_val2017.json", "annotations_trainval2017.zip, 241 MB")),
        "coco_2017_train, coco_2017_val: DATASETS.ROOT {root}",
    ),
    "lvis": Licensed(
        "LVIS v1", "www.lvisdataset.org, Dataset; the images are COCO's: cocodataset.org, Download",
        (*_COCO,
         Part("lvis/lvis_v1_train.json", "lvis_v1_train.json.zip"),
         Part("lvis/lvis_v1_val.json", "lvis_v1_val.json.zip")),
        "lvis_v1_train, lvis_v1_val: DATASETS.ROOT {root}",
    ),
    "imagenet": Licensed(
        "ImageNet, ILSVRC 2012", "image-net.org, Download (with an account)",
        (Part("train", "ILSVRC2012_img_train.tar, 138 GB", 1281167, ".jpeg", 1000),
         Part("val", "ILSVRC2012_img_val.tar, 6.3 GB", 50000, ".jpeg", 1000)),
        "DATA.NAME imagefolder DATA.ROOT {root}",
    ),
    "cityscapes": Licensed(
        "Cityscapes", "www.cityscapes-dataset.com, Downloads (with an account)",
        (Part("cityscapes/leftImg8bit/train", "leftImg8bit_trainvaltest.zip, 11 GB", 2975, "_leftimg8bit.png"),
         Part("cityscapes/leftImg8bit/val", "leftImg8bit_trainvaltest.zip, 11 GB", 500, "_leftimg8bit.png"),
         Part("cityscapes/gtFine/train", "gtFine_trainvaltest.zip, 241 MB", 2975, "_gtfine_labelids.png"),
         Part("cityscapes/gtFine/val", "gtFine_trainvaltest.zip, 241 MB", 500, "_gtfine_labelids.png")),
        "cityscapes_train, cityscapes_val: DATASETS.ROOT {root}",
    ),
}  # fmt: skip


def look(name: str, root: Path) -> list[Found]:
    """Every part of a data set of ``LICENSED``, and what is wrong with it.

    Raises:
        InputError: ``root`` is no folder.
    """
    if not root.is_dir():
        raise InputError(f"expected the folder of {LICENSED[name].title} at {root}, found no such folder; give --root")
    return [Found(part, _problem(root, part)) for part in LICENSED[name].parts]


def _problem(root: Path, part: Part) -> str:
    path, below = root / part.path, part.path.partition("/")[2]
    if below and not path.exists() and (root / below).exists():
        return f"missing; {below} is there: give the folder above it"
    if not part.count:
        if not path.is_file():
            return "missing"
        return "" if path.stat().st_size else "empty"
    if not path.is_dir():
        return "missing"
    files = sum(name.lower().endswith(part.suffix) for _, _, names in os.walk(path) for name in names)
    if part.classes:
        folders = sum(entry.is_dir() for entry in os.scandir(path))
        if folders != part.classes:
            flat = " (its files are not in class folders: move each into its class's)" if files and not folders else ""
            return f"{folders} class folders of {part.classes}{flat}"
    return "" if files == part.count else f"{files:,} files of {part.count:,}"
