"""Labelled images by name: `build_dataset(name, root, split)` gives `(PIL RGB image, int label)` pairs.

Nothing is downloaded: a missing folder is an error that says what should lie where. `digits` needs no folder.

Images decoded once and kept in memory, where a training reads each of them many times and they fit.

The pixels are those that the files give, so views and results do not change in a bit; only reading and decoding, for
large images most of what a worker does, is left out from the second time on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torchvision
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, track
from momentum_transfer.core.machine import available_memory
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.images import subsets
from momentum_transfer.images.digits import DigitImages
from momentum_transfer.images.labelled_images import ArrayImages, FileImages, LabelledImages
from momentum_transfer.images.reading import SUFFIXES, image_files
from momentum_transfer.images.subsets import Selected
from momentum_transfer.images.taxonomies import inaturalist_images


def _folder(root: str | Path | None, name: str) -> Path:
    """The existing data folder of dataset `name`, or InputError."""
    if root is None:
        raise InputError(f"expected the folder of dataset {name!r}, found none; set DATA.ROOT")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise InputError(f"expected the folder of dataset {name!r} at {folder}, found no such folder; check DATA.ROOT")
    return folder


def _torchvision(name: str, make: Callable[[], Any], layout: str) -> Any:
    """A torchvision dataset; when its files are not there, an InputError that says where they should be."""
    try:
        return make()
    except (RuntimeError, OSError, ValueError, AssertionError, LookupError, EOFError) as error:  # its readers' kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"expected {layout} for dataset {name!r}; found: {reason}; put it there, or see `momentum-transfer data`"
        ) from error


def unlabelled_folder(root: str | Path, split: str, max_unreadable: int = 100) -> FileImages | None:
    """Images without labels: every image file below a folder (``root/split``, else ``root``), as one class.

    None where no image lies in the folder itself: what it holds is then folders of classes.

    Raises:
        InputError: there is no such folder.
    """
    folder = _folder(root, "imagefolder")
    folder = folder / split if (folder / split).is_dir() else folder
    # The folder's own files first: ImageNet's class folders are not to be walked through for this.
    if not any(entry.name.lower().endswith(SUFFIXES) for entry in os.scandir(folder)):
        return None
    files = image_files(folder)
    return FileImages(files, [0] * len(files), ["unlabelled"], max_unreadable)


def _image_folder(root: Path, split: str, max_unreadable: int) -> FileImages:
    folder = root / split
    if not folder.is_dir():
        raise InputError(
            f"expected one folder per class in {folder}, found no such folder; check DATA.ROOT and the split"
        )
    found = _torchvision(
        "imagefolder", lambda: torchvision.datasets.ImageFolder(str(folder)), f"one folder per class in {folder}"
    )
    paths, labels = zip(*found.samples, strict=True)
    return FileImages(paths, labels, found.classes, max_unreadable)


def _file_list(root: Path, file_list: str | Path | None, max_unreadable: int) -> FileImages:
    """An index file: one `path label` (or `path`, the class then being its folder) a line, `#` for comments.

    Paths are relative to `root`; ImageNet's bare names (`n01440764_10026.JPEG`) lie in their class's folder. Labels are
    all integers from 0, or all names.
    """
    if file_list is None or not Path(file_list).is_file():
        raise InputError(f"expected an index file of `path label` lines, found {file_list}; set DATA.FILE_LIST")
    lines = read_lines(Path(file_list), "an index of `path label` lines")
    entries = [
        _list_entry(line, f"{file_list}:{number}") for number, line in enumerate(lines, 1) if line and line[0] != "#"
    ]
    if not entries:
        raise InputError(f"expected `path label` lines in {file_list}, found an empty file")
    names = [label for _, label in entries]
    if all(name.isdecimal() for name in names):
        classes = [str(k) for k in range(max(int(name) for name in names) + 1)]
    else:
        classes = sorted(set(names))
    number_of = {name: k for k, name in enumerate(classes)}
    labels = [int(name) if name.isdecimal() and name not in number_of else number_of[name] for name in names]
    return FileImages([root / path for path, _ in entries], labels, classes, max_unreadable)


def _list_entry(line: str, where: str) -> tuple[str, str]:
    """(path, label) of one line; a path may hold spaces, a label may not."""
    suffixes = torchvision.datasets.folder.IMG_EXTENSIONS
    if line.lower().endswith(suffixes):
        if re.match(r"n\d{8}_[^/]*$", line):  # ImageNet, as in SimCLR's lists of 1 % and 10 %
            line = f"{line[:9]}/{line}"
        folder = Path(line).parent.name
        if not folder:
            raise InputError(f"expected `path label` or `class/file` at {where}, found {line!r}")
        return line, folder
    path, _, label = line.replace("\t", " ").rpartition(" ")
    if not path:
        raise InputError(f"expected `path label` at {where}, found {line!r}")
    return path.strip(), label


def _stl10(root: Path, split: str) -> ArrayImages:
    part = {"val": "test"}.get(split, split)
    if part not in torchvision.datasets.STL10.splits:
        raise InputError(f"expected an stl10 split among train, val, unlabeled, train+unlabeled, found {split!r}")
    found = _torchvision("stl10", lambda: torchvision.datasets.STL10(str(root), part), f"stl10_binary/ in {root}")
    labels = np.where(found.labels < 0, len(found.classes), found.labels)  # unlabelled images are a class of their own
    classes = [*found.classes, "unlabeled"] if (found.labels < 0).any() else found.classes
    return ArrayImages(found.data.transpose(0, 2, 3, 1), labels, classes)


def _cifar(name: str, root: Path, split: str) -> ArrayImages:
    if split not in ("train", "val", "test"):
        raise InputError(f"expected a {name} split among train, val, found {split!r}")
    kind = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}[name]
    layout = f"the python version's folder {kind.base_folder}/ in {root}"
    found = _torchvision(name, lambda: kind(str(root), train=split == "train"), layout)
    return ArrayImages(found.data, found.targets, found.classes)


def _mnist(name: str, root: Path, split: str) -> ArrayImages:
    """Grey digits or clothes as RGB images of 28 px, from ``root/MNIST/raw`` (``FashionMNIST``, ``KMNIST``)."""
    if split not in ("train", "val", "test"):
        raise InputError(f"expected a {name} split among train, val, found {split!r}")
    kind = MNIST_LIKE[name]
    layout = f"{kind.__name__}/raw with the four files of {name} in {root}"
    found = _torchvision(name, lambda: kind(str(root), train=split == "train"), layout)
    pixels = np.repeat(found.data.numpy()[..., np.newaxis], 3, axis=-1)
    return ArrayImages(pixels, found.targets.numpy(), [str(label) for label in kind.classes])


MNIST_LIKE = {
    "mnist": torchvision.datasets.MNIST,
    "fashion-mnist": torchvision.datasets.FashionMNIST,
    "kmnist": torchvision.datasets.KMNIST,
}
DATASETS = ("digits", "imagefolder", "filelist", "stl10", "cifar10", "cifar100", *MNIST_LIKE, "inaturalist")

#: Images of one small size, taken whole; those of signs, of which the mirror image is another sign.
SMALL_SQUARES = ("digits", "stl10", "cifar10", "cifar100", *MNIST_LIKE)
SIGNS = ("digits", "mnist", "kmnist")


def build_dataset(
    name: str,
    root: str | Path | None = None,
    split: str = "train",
    *,
    file_list: str | Path | None = None,
    image_size: int = 32,
    variant: str = "placed",
    class_fraction: float = 1.0,
    sample_fraction: float = 1.0,
    long_tail: float = 1.0,
    taxonomy: str | Path | None = None,
    seed: int = 0,
    drawings: int = 1,
    max_unreadable: int = 100,
) -> LabelledImages:
    """Build a labelled image dataset.

    Args:
        name: one of `DATASETS`.
        root: data folder; none for digits. imagefolder reads `root/split/class/…`.
        split: "train" or "val"; stl10 also has "unlabeled" and "train+unlabeled", inaturalist the years of
            `momentum_transfer.images.taxonomies`; filelist ignores it.
        file_list: index file of `path label` lines (filelist only).
        image_size: side of the drawn images (digits only).
        variant: drawing variant (digits only), see `momentum_transfer.images.digits.VARIANTS`.
        class_fraction, sample_fraction, long_tail, taxonomy: see `momentum_transfer.images.subsets.select`.
        seed: of the digits' fixed drawings and of the subsets.
        drawings: of each digit (digits only).
        max_unreadable: number of unreadable image files to replace before giving up.

    Raises:
        InputError: unknown name or split, missing folder, empty or malformed index file, impossible subset.
    """
    data = _build(name, root, split, file_list, image_size, variant, seed, drawings, max_unreadable)
    return subsets.select(
        data,
        class_fraction=class_fraction,
        sample_fraction=sample_fraction,
        long_tail=long_tail,
        taxonomy=taxonomy,
        seed=seed,
    )


def _build(
    name: str,
    root: str | Path | None,
    split: str,
    file_list: str | Path | None,
    image_size: int,
    variant: str,
    seed: int,
    drawings: int,
    max_unreadable: int,
) -> LabelledImages:
    if name not in DATASETS:
        raise InputError(f"expected a dataset among {', '.join(DATASETS)}, found {name!r}; set DATA.NAME")
    if name == "digits":
        return DigitImages(split, image_size, variant, seed, drawings)
    folder = _folder(root, name)
    if name == "imagefolder":
        return _image_folder(folder, split, max_unreadable)
    if name == "filelist":
        return _file_list(folder, file_list, max_unreadable)
    if name == "stl10":
        return _stl10(folder, split)
    if name == "inaturalist":
        return inaturalist_images(folder, split, max_unreadable)
    if name in MNIST_LIKE:
        return _mnist(name, folder, split)
    return _cifar(name, folder, split)


_SAMPLE = 64  # images whose sizes tell the need of all, roughly
_AHEAD = 32  # decoded images that wait to be stored


class DecodedImages:
    """The images of ``source`` in one array of bytes, which worker processes share as long as nobody writes to it.

    Args:
        source: every image is read once, here, with the replacements that it makes for unreadable ones.
    """

    def __init__(self, source: LabelledImages) -> None:
        self.labels, self.classes = source.labels, source.classes
        self.sizes = np.zeros((len(source), 2), dtype=np.int64)  # width, height
        parts = []
        for index, pixels in enumerate(track(_decoded(source), "decoding images", total=len(source))):
            self.sizes[index] = pixels.shape[1], pixels.shape[0]
            parts.append(pixels.reshape(-1))
        self.ends = np.cumsum([len(part) for part in parts])
        self.pixels: NDArray[np.uint8] = np.empty(int(self.ends[-1]) if parts else 0, dtype=np.uint8)
        for index, end in enumerate(self.ends.tolist()):
            self.pixels[end - len(parts[index]) : end] = parts[index]
            parts[index] = parts[index][:0]  # never twice in memory as a whole

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]:
        position = range(len(self))[index]
        width, height = self.sizes[position].tolist()
        end = int(self.ends[position])
        pixels = self.pixels[end - width * height * 3 : end].reshape(height, width, 3)
        return PIL.Image.fromarray(pixels), int(self.labels[position])


def kept_in_memory(images: LabelledImages, share: float, *, uses: float, processes: int = 1) -> LabelledImages:
    """``images`` with their pixels in memory where that pays, else as they are.

    Args:
        images: any labelled images; those that are in memory already stay as they are.
        share: of the memory that is free now, for the images of all processes on this machine; 0 keeps none.
        uses: how often a training reads each image; up to 1 nothing is gained.
        processes: that do the same on this machine.
    """
    if share <= 0 or uses <= 1 or not len(images) or not isinstance(_innermost(images), FileImages):
        return images
    free = available_memory()
    if free is None or _bytes_needed(images) * processes > share * free:
        return images
    kept = DecodedImages(images)
    say(f"keeping {len(kept)} decoded images in memory, {kept.pixels.nbytes / 2**20:.0f} MiB (DATA.MEMORY_SHARE)")
    return kept


def _innermost(images: LabelledImages) -> LabelledImages:
    while isinstance(images, Selected):
        images = images.dataset
    return images


def _bytes_needed(images: LabelledImages) -> float:
    """Twice the mean of a sample's pixels for every image: the sizes of the others may lie above."""
    sample = np.unique(np.linspace(0, len(images) - 1, min(len(images), _SAMPLE)).astype(int))
    sizes = [images[int(index)][0].size for index in sample]
    return 2 * 3 * len(images) * float(np.mean([width * height for width, height in sizes]))


def _decoded(source: LabelledImages) -> Iterator[NDArray[np.uint8]]:
    """[H, W, 3] of every image in order; Pillow decodes without Python's lock, so threads share the work."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        indices = iter(range(len(source)))
        waiting = [pool.submit(_pixels, source, index) for index in islice(indices, _AHEAD)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(_pixels, source, index) for index in islice(indices, 1)]


def _pixels(source: LabelledImages, index: int) -> NDArray[np.uint8]:
    return np.asarray(source[index][0], dtype=np.uint8)
