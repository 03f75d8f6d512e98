"""Published data sets: those that torchvision downloads, and those to get yourself.

torchvision fetches from the addresses of the data sets' authors and compares every archive with its published MD5.
COCO and LVIS come in parts of many gigabytes, ImageNet and Cityscapes need a login and accepted terms: of them a folder
is only checked for missing parts.
"""

import os
import shutil
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchvision import datasets

from momentum_transfer.core.errors import InputError, one_line
from momentum_transfer.core.machine import reachable
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.images.labelled_images import VocImages

_MB = 10**6
#: Larger downloads ask first.
BIG = 1000 * _MB


@dataclass(frozen=True)
class Published:
    """A data set to download."""

    title: str
    page: str  #: of its authors
    download: int  #: bytes of the archives
    unpacked: int  #: bytes of what is in them
    addresses: tuple[str, ...]  #: mirrors that torchvision tries; one must answer
    fetch: Callable[[Path], Any]  #: folder -> downloads, checks and unpacks what is missing there
    check: Callable[[Path], dict[str, int]]  #: folder -> number of images by split; InputError if it is not complete
    use: tuple[str, ...]  #: settings that read it, with {root} for the folder


def _of_images(name: str, kind: Any, **split: Any) -> dict[str, Any]:
    return {
        "addresses": tuple(kind.mirrors) if hasattr(kind, "mirrors") else (kind.url,),
        "fetch": lambda root: kind(str(root), download=True, **split),
        "check": lambda root: {part: len(build_dataset(name, root, part)) for part in ("train", "test")},
        "use": (f"DATA.NAME {name} DATA.ROOT {{root}}", f"DATASETS.NAME {name} DATASETS.ROOT {{root}}"),
    }


def _of_voc(year: str, *splits: str) -> dict[str, Any]:
    return {
        "addresses": (datasets.voc.DATASET_YEAR_DICT[year]["url"],),
        "fetch": lambda root: [datasets.VOCDetection(str(root), year=year, image_set=s, download=True) for s in splits],
        "check": lambda root: {split: len(VocImages(root / f"VOCdevkit/VOC{year}", split)) for split in splits},
    }


PUBLISHED = {
    "mnist": Published(
        "MNIST: 70,000 grey digits of 28 px, 10 classes", "yann.lecun.com/exdb/mnist", 12 * _MB, 55 * _MB,
        **_of_images("mnist", datasets.MNIST, train=False)),
    "fashion-mnist": Published(
        "Fashion-MNIST: 70,000 grey clothes of 28 px, 10 classes", "github.com/zalandoresearch/fashion-mnist",
        31 * _MB, 55 * _MB, **_of_images("fashion-mnist", datasets.FashionMNIST, train=False)),
    "kmnist": Published(
        "KMNIST: 70,000 grey Kuzushiji characters of 28 px, 10 classes", "codh.rois.ac.jp/kmnist", 21 * _MB, 55 * _MB,
        **_of_images("kmnist", datasets.KMNIST, train=False)),
    "cifar10": Published(
        "CIFAR-10: 60,000 images of 32 px, 10 classes", "www.cs.toronto.edu/~kriz/cifar.html", 171 * _MB, 187 * _MB,
        **_of_images("cifar10", datasets.CIFAR10, train=False)),
    "cifar100": Published(
        "CIFAR-100: 60,000 images of 32 px, 100 classes", "www.cs.toronto.edu/~kriz/cifar.html", 169 * _MB, 187 * _MB,
        **_of_images("cifar100", datasets.CIFAR100, train=False)),
    "stl10": Published(
        "STL-10: 13,000 labelled and 100,000 unlabelled images of 96 px, 10 classes", "cs.stanford.edu/~acoates/stl10",
        2640 * _MB, 3130 * _MB, **_of_images("stl10", datasets.STL10, split="test")),
    "voc2007": Published(
        "PASCAL VOC 2007: 9,963 images, 20 classes of boxes", "host.robots.ox.ac.uk/pascal/VOC/voc2007",
        911 * _MB, 920 * _MB, **_of_voc("2007", "trainval", "test"),
        use=("voc_2007_trainval, voc_2007_test: DATASETS.ROOT {root}/VOCdevkit",
             "DATASETS.NAME voc07 DATASETS.ROOT {root}/VOCdevkit/VOC2007"),
    ),
    "voc2012": Published(
        "PASCAL VOC 2012: 17,125 images, 20 classes of boxes", "host.robots.ox.ac.uk/pascal/VOC/voc2012",
        2000 * _MB, 2010 * _MB, **_of_voc("2012", "trainval"),
        use=("voc_2012_trainval: DATASETS.ROOT {root}/VOCdevkit",),
    ),
}  # fmt: skip


def there(name: str, root: Path) -> dict[str, int] | None:
    """Number of images by split where the data set is in ``root`` and complete; else None."""
    try:
        return PUBLISHED[name].check(root) if root.is_dir() else None
    except InputError:
        return None


def fetch(name: str, root: Path) -> dict[str, int]:
    """Download, check and unpack a data set of ``PUBLISHED``; returns the number of images by split.

    Raises InputError without a network, without enough space, for an archive that is not the published one, or a
    download that broke off; complete archives stay, and the same command goes on.
    """
    data = PUBLISHED[name]
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.is_dir())
    needed, free = data.download + data.unpacked, shutil.disk_usage(existing).free
    if free < needed:
        raise InputError(f"expected {size(needed)} of free space in {root}, found {size(free)}; choose another --root")
    if not any(reachable(address) for address in data.addresses):
        raise InputError(
            f"no network to {data.addresses[0]}; fetch {name} where there is one (the same command, or {data.page}) "
            f"and put it in {root}"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        data.fetch(root)
    except (urllib.error.URLError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise InputError(
            f"{name} could not be downloaded: {one_line(error, 200)}; give the command again, or see {data.page}"
        ) from error
    return data.check(root)


def size(count: int) -> str:
    """Bytes in words."""
    return f"{count / 10**9:.1f} GB" if count >= 10**9 else f"{max(1, round(count / _MB))} MB"


@dataclass(frozen=True)
class Part:
    """A file or a folder of a data set."""

    path: str  #: below the root
    archive: str  #: what it comes in, as the authors' page calls it
    count: int = 0  #: of a folder: files that end in ``suffix``, however deep; 0: ``path`` is a file
    suffix: str = ".jpg"
    classes: int = 0  #: of a folder of classes: how many; 0: not such a folder


@dataclass(frozen=True)
class Licensed:
    """A data set of parts; ``setting`` reads it, with {root} for the folder."""

    title: str
    page: str
    parts: tuple[Part, ...]
    setting: str


_COCO = (Part("coco/train2017", "train2017.zip, 18 GB", 118287), Part("coco/val2017", "val2017.zip, 1 GB", 5000))
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


def look(name: str, root: Path) -> list[tuple[Part, str]]:
    """Every part of a data set of ``LICENSED`` and its problem; InputError if ``root`` is no folder."""
    if not root.is_dir():
        raise InputError(f"expected the folder of {LICENSED[name].title} at {root}, found no such folder; give --root")
    return [(part, _problem(root, part)) for part in LICENSED[name].parts]


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
