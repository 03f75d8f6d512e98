"""Labelled images by name: `build_dataset(name, root, split)` gives `(PIL RGB image, int label)` pairs.

Nothing is downloaded: a missing folder is an error that says what should lie where. `digits` needs no folder.
`kept_in_memory` decodes images once where a training reads each of them many times and they fit: the pixels are those
of the files, so results do not change, and most of a worker's time is saved from the second epoch on.
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import PIL.Image
import torchvision
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, track
from momentum_transfer.core.machine import available_cores, available_memory
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.core.urls import is_url
from momentum_transfer.images import subsets
from momentum_transfer.images.digits import DigitImages
from momentum_transfer.images.labelled_images import ArrayImages, FileImages, LabelledImages
from momentum_transfer.images.parquet import table_entries, tables
from momentum_transfer.images.reading import SUFFIXES, image_files
from momentum_transfer.images.tar_shards import SHARD_BYTES, folder_entries, open_shards, pack, refuse_archives
from momentum_transfer.images.taxonomies import inaturalist_images


def _folder(root: str | Path | None, name: str) -> Path:
    if root is None:
        raise InputError(f"expected the folder of dataset {name!r}, found none; set DATA.ROOT")
    if is_url(root):
        raise InputError(
            f"expected a folder for dataset {name!r}, found {root}; of URLs tar files are read (imagefolder)"
        )
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise InputError(f"expected the folder of dataset {name!r} at {folder}, found no such folder; check DATA.ROOT")
    return folder


def _torchvision(name: str, make: Callable[[], Any], layout: str) -> Any:
    """A torchvision dataset, or an InputError that says where its files should be."""
    try:
        return make()
    except (RuntimeError, OSError, ValueError, AssertionError, LookupError, EOFError) as error:  # its readers' kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"expected {layout} for {name!r}; found: {reason}; see `momentum-transfer data`") from error


def unlabelled_folder(root: str | Path, split: str, max_unreadable: int = 100) -> FileImages | None:
    """Images without labels, as one class, below ``root/split`` or ``root``; None if it holds folders of classes or tar
    files, or is a URL."""
    if is_url(root):
        return None
    folder = _folder(root, "imagefolder")
    folder = folder / split if (folder / split).is_dir() else folder
    # The folder's own files first, so as not to walk through ImageNet's class folders.
    if not any(entry.name.lower().endswith(SUFFIXES) for entry in os.scandir(folder)):
        return None
    files = image_files(folder)
    return FileImages(files, [0] * len(files), ["unlabelled"], max_unreadable)


#: Folders of label images beside the images.
_LABELS = {"masks", "labels", "annotations", "segmentationclass", "segmentationobject"}


def every_image(root: str | Path, max_unreadable: int = 100) -> FileImages:
    """Every image below a folder, of whatever annotations, without labels; folders of label images are left out."""
    folder = _folder(root or None, "images")
    files = [file for file in image_files(folder)
             if not _LABELS.intersection(part.lower() for part in file.relative_to(folder).parts[:-1])]  # fmt: skip
    if not files:
        raise InputError(f"expected images below {folder}, found none; give the folder that holds them")
    return FileImages(files, [0] * len(files), ["unlabelled"], max_unreadable)


def _image_folder(place: str | Path | None, split: str, max_unreadable: int) -> FileImages:
    """Tar files in a folder or at a URL, else the folder's classes."""
    if place is None or not is_url(place):
        place = _folder(place, "imagefolder")
    if (shards := open_shards(place, split, max_unreadable)) is not None:
        return shards
    if not isinstance(place, Path):
        raise InputError(f"expected {split}-*.tar at {place}, found none; write them by `momentum-transfer data pack`")
    folder = place / split
    if not folder.is_dir() or any(folder.glob("*.arrow")):
        if place.is_dir() and tables(place):
            raise InputError(
                f"expected folders of images or tar files in {place}, found tables; "
                f"momentum-transfer data pack {place} --shards OUT makes tar files of them"
            )
        raise InputError(f"expected one folder per class in {folder}, found none; check DATA.ROOT and the split")
    layout = f"one folder per class in {folder}"
    found = _torchvision("imagefolder", lambda: torchvision.datasets.ImageFolder(str(folder)), layout)
    paths, labels = zip(*found.samples, strict=True)
    return FileImages(paths, labels, found.classes, max_unreadable)


def _file_list(root: Path, file_list: str | Path | None, max_unreadable: int) -> FileImages:
    """An index file of `path label` lines (or `path`, the class then being its folder), `#` for comments.

    Paths are relative to `root`; ImageNet's bare names (`n01440764_10026.JPEG`) lie in their class's folder. Labels are
    all integers from 0, or all names.
    """
    if file_list is None or not Path(file_list).is_file():
        raise InputError(f"expected an index file of `path label` lines, found {file_list}; set DATA.FILE_LIST")
    lines = read_lines(Path(file_list), "an index of `path label` lines")
    entries = [_list_entry(line, f"{file_list}:{number}") for number, line in enumerate(lines, 1)
               if line and line[0] != "#"]  # fmt: skip
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
    """(path, label) of one line; only the path may hold spaces."""
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


def _small_squares(name: str, root: Path, split: str) -> ArrayImages:
    """CIFAR's images, and those of MNIST's kind (``root/MNIST/raw``) as RGB."""
    if split not in ("train", "val", "test"):
        raise InputError(f"expected a {name} split among train, val, found {split!r}")
    kind = _SMALL_SQUARES[name]
    layout = f"{kind.__name__}/raw with the four files of {name} in {root}"
    if name.startswith("cifar"):
        layout = f"the python version's folder {kind.base_folder}/ in {root}"
    found = _torchvision(name, lambda: kind(str(root), train=split == "train"), layout)
    pixels = np.asarray(found.data)
    if pixels.ndim == 3:
        pixels = np.repeat(pixels[..., np.newaxis], 3, axis=-1)
    return ArrayImages(pixels, np.asarray(found.targets), [str(label) for label in found.classes])


_SMALL_SQUARES = {
    "cifar10": torchvision.datasets.CIFAR10,
    "cifar100": torchvision.datasets.CIFAR100,
    "mnist": torchvision.datasets.MNIST,
    "fashion-mnist": torchvision.datasets.FashionMNIST,
    "kmnist": torchvision.datasets.KMNIST,
}
DATASETS = ("digits", "imagefolder", "filelist", "stl10", *_SMALL_SQUARES, "inaturalist")

#: Images of one small size, which are not cropped; and signs, whose mirror image is another sign.
SMALL_SQUARES = ("digits", "stl10", *_SMALL_SQUARES)
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
    renderings: int = 1,
    max_unreadable: int = 100,
) -> LabelledImages:
    """Build a labelled image dataset, one of `DATASETS`.

    Args:
        root: data folder; none for digits. imagefolder reads `root/split/class/…`.
        split: "train" or "val"; stl10 also has "unlabeled" and "train+unlabeled", inaturalist the years of
            `momentum_transfer.images.taxonomies`; filelist ignores it and reads `path label` lines of ``file_list``.
        image_size, variant, renderings: side, looks (`digits.VARIANTS`) and images of each digit (digits only).
        class_fraction, sample_fraction, long_tail, taxonomy: see `momentum_transfer.images.subsets.select`.
        seed: of the digits' fixed renderings and of the subsets.
        max_unreadable: number of unreadable image files to replace before giving up.

    Raises InputError for an unknown name or split, a missing folder, a malformed index file, an impossible subset.
    """
    if name not in DATASETS:
        raise InputError(f"expected a dataset among {', '.join(DATASETS)}, found {name!r}; set DATA.NAME")
    data: LabelledImages
    if name == "digits":
        data = DigitImages(split, image_size, variant, seed, renderings)
    elif name == "filelist":
        data = _file_list(_folder(root, name), file_list, max_unreadable)
    elif name == "imagefolder":
        data = _image_folder(root, split, max_unreadable)
    elif name == "stl10":
        data = _stl10(_folder(root, name), split)
    elif name == "inaturalist":
        data = inaturalist_images(_folder(root, name), split, max_unreadable)
    else:
        data = _small_squares(name, _folder(root, name), split)
    return subsets.select(
        data, class_fraction=class_fraction, sample_fraction=sample_fraction, long_tail=long_tail, taxonomy=taxonomy,
        seed=seed,
    )  # fmt: skip


def packed_folders(folder: Path, target: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Pack ``folder``'s splits (train, val, test), or ``folder`` as train, into tar files: image files, or tables.

    All splits, or none if one cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"expected a folder of images, found no folder {folder}; check the path")
    folder = folder.resolve()
    of_split = tables(folder)
    splits = [name for name in ("train", "val", "test") if (folder / name).is_dir()]
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".packing-", dir=target) as made:
        for split in of_split or splits or ["train"]:
            refuse_archives(target, split)
            if of_split:
                entries = table_entries(of_split[split])
            else:
                part = folder / split if splits else folder
                images = unlabelled_folder(part, ".") or _image_folder(part, ".", 0)
                # names as fingerprints know them: file and folder
                base = part if images.classes != ["unlabelled"] else part.resolve().parent
                entries = folder_entries(images, base)
            say(f"{pack(entries, Path(made), split, shard_bytes)}: {target}/{split}-*.tar")
        for file in sorted(Path(made).iterdir()):  # an index after its archives
            file.replace(target / file.name)


_SAMPLE = 64  # images whose sizes stand for all, roughly
_AHEAD = 32  # decoded images that wait to be stored


class DecodedImages:
    """The images of ``source``, read once, in one array of bytes that all worker processes use."""

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


def kept_in_memory(images: LabelledImages, fraction: float, *, uses: float, processes: int = 1) -> LabelledImages:
    """``images`` of files with their pixels in memory where that pays, else as they are.

    They may take ``fraction`` of the memory that is free now, for all ``processes`` on this machine that do the same.
    A training reads each image ``uses`` times; up to 1 nothing is gained.
    """
    if fraction <= 0 or uses <= 1 or not len(images) or not isinstance(subsets.unselected(images)[0], FileImages):
        return images
    sample = np.unique(np.linspace(0, len(images) - 1, min(len(images), _SAMPLE)).astype(int))
    sizes = [images[int(index)][0].size for index in sample]
    # Twice the mean of a sample's bytes for every image: others may be larger.
    needed = 2 * 3 * len(images) * float(np.mean([width * height for width, height in sizes]))
    free = available_memory()
    if free is None or needed * processes > fraction * free:
        return images
    kept = DecodedImages(images)
    say(f"keeping {len(kept)} decoded images in memory, {kept.pixels.nbytes / 2**20:.0f} MiB (DATA.MEMORY_FRACTION)")
    return kept


def _decoded(source: LabelledImages) -> Iterator[NDArray[np.uint8]]:
    """[H, W, 3] of every image in order; Pillow decodes without Python's lock, so threads divide the work."""

    def pixels(index: int) -> NDArray[np.uint8]:
        return np.asarray(source[index][0], dtype=np.uint8)

    with ThreadPoolExecutor(available_cores()) as pool:
        indices = iter(range(len(source)))
        waiting = [pool.submit(pixels, index) for index in islice(indices, _AHEAD)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(pixels, index) for index in islice(indices, 1)]
