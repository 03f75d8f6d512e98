"""Segmentation data sets: a folder of images and a folder of label PNGs; Cityscapes, the embedded set, and your own.

The values of label PNGs are classes from 0, and 255 for pixels that do not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path, part_title, sha256_of_text, write_text
from momentum_transfer.images.reading import image_files, stored_values
from momentum_transfer.transfer.data.detection_datasets import datasets_root
from momentum_transfer.transfer.data.digit_scenes import CLASSES as DIGIT_CLASSES
from momentum_transfer.transfer.data.digit_scenes import RECIPES, ensure_scenes
from momentum_transfer.transfer.data.own.labelled import read_names

IGNORE = 255
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
# Cityscapes' 19 evaluated classes in the order of their training ids, with the ids that the published label files hold.
# fmt: off
_CITYSCAPES = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26, "truck": 27,
    "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}
# fmt: on


@dataclass(frozen=True)
class SemanticData:
    """Images with one class per pixel."""

    name: str  # as in configs and results
    pairs: tuple[tuple[Path, Path], ...]  # image file, label file
    classes: tuple[str, ...]  # names; label k is the k-th
    class_of: NDArray[np.uint8]  # [256] class of each value of a label file; `IGNORE` for pixels that do not count

    def labels(self, index: int) -> NDArray[np.uint8]:
        """The label map of an image, uint8 [H, W]: classes and `IGNORE`; InputError for other values."""
        path = self.pairs[index][1]
        values = stored_labels(path)
        labels = self.class_of[values]
        unknown = np.unique(values[(labels >= len(self.classes)) & (labels != IGNORE)]).tolist()
        if unknown:
            raise InputError(f"expected labels 0..{len(self.classes) - 1} or {IGNORE} in {path}, found {unknown}")
        return labels


def stored_labels(path: Path) -> NDArray[np.uint8]:
    """The values of a label PNG, uint8 [H, W]; InputError if it cannot be read or has not 8 bits a pixel."""
    values = stored_values(path)
    if values.ndim != 2 or values.dtype != np.uint8:
        raise InputError(
            f"expected one 8-bit class per pixel in {path}, found shape {values.shape} of {values.dtype}; "
            "save labels as grey or palette PNG"
        )
    return values


def _pairs(name: str, images: Path, labels: Path, label_name: dict[str, str]) -> tuple[tuple[Path, Path], ...]:
    """Every image below `images` with the file of the same path and (renamed) stem below `labels`."""
    for folder, content in ((images, "images"), (labels, "label PNGs")):
        if not folder.is_dir():
            raise InputError(f"expected the {content} of dataset {name!r} in {folder}, found no such folder")
    files = sorted(file for file in images.rglob("*") if file.suffix.lower() in _IMAGE_SUFFIXES)
    pairs = []
    for file in files:
        stem = file.stem
        for ending, other in label_name.items():
            stem = stem.removesuffix(ending) + other if stem.endswith(ending) else stem
        pairs.append((file, labels / file.relative_to(images).parent / f"{stem}.png"))
    missing = [str(label) for _, label in pairs if not label.is_file()]
    if missing or not pairs:
        raise InputError(
            f"expected a label PNG for every image of {images}, found {len(files)} images and {len(missing)} without: "
            + ", ".join(missing[:10])
        )
    return tuple(pairs)


def _label_folder(name: str, images: str | Path, labels: str | Path, classes: tuple[str, ...]) -> SemanticData:
    """A folder of images and one of PNGs of the same names, with the values 0 … K − 1, or 255 for "ignore"."""
    pairs = _pairs(name, Path(images), Path(labels), {})
    return SemanticData(name, pairs, classes, class_of=np.arange(256, dtype=np.uint8))


def _cityscapes(name: str, root: Path, split: str) -> SemanticData:
    class_of = np.full(256, IGNORE, dtype=np.uint8)
    class_of[list(_CITYSCAPES.values())] = np.arange(len(_CITYSCAPES))
    folder = root / "cityscapes"
    # The label files as published: no preparation script needs to have run.
    renamed = {"_leftImg8bit": "_gtFine_labelIds"}
    pairs = _pairs(name, folder / "leftImg8bit" / split, folder / "gtFine" / split, renamed)
    return SemanticData(name, pairs, tuple(_CITYSCAPES), class_of)


def get_semantic_dataset(name: str, root: str | Path | None = None) -> SemanticData:
    """Find a semantic segmentation dataset.

    Args:
        name: `cityscapes_fine_sem_seg_train` or `_val` (below root/cityscapes), or `digit_scenes_sem_seg_train` or
            `_val` (embedded: background and ten digits), or `IMAGES_DIR:LABELS_DIR:CLASSES` for any folder of label
            PNGs with that many classes; `NAME=…` before it names the set.
        root: see `detection_datasets.datasets_root`.

    Raises:
        InputError: an unknown name, a missing folder, an image without labels.
    """
    known = [f"{what}_sem_seg_{split}" for what in ("cityscapes_fine", "digit_scenes") for split in ("train", "val")]
    images, *rest = name.split(":")
    if len(rest) == 2 and rest[1].isdecimal():
        called, equals, place = images.partition("=")
        if not equals or "/" in called:
            called, place = name, images
        classes = tuple(str(number) for number in range(int(rest[1])))
        return _label_folder(called, Path(place).expanduser(), Path(rest[0]).expanduser(), classes)
    if name not in known:
        raise InputError(
            f"expected a semantic segmentation dataset among {', '.join(known)}, or IMAGES_DIR:LABELS_DIR:CLASSES, "
            f"found {name!r}"
        )
    split = name.rpartition("_")[2]
    if name.startswith("cityscapes"):
        return _cityscapes(name, datasets_root(root), split)
    folder = ensure_scenes(RECIPES["digit_scenes"])
    return _label_folder(name, folder / split, folder / "labels" / split, ("background", *DIGIT_CLASSES))


def label_file(folder: Path, number: int) -> Path:
    """The label file of the ``number``-th image, predicted or true."""
    return folder / f"{number:06d}.png"


def write_truth(data: SemanticData, folder: Path) -> None:
    """Write the true labels as classes, whatever values the data set's own files have, to score against.

    Those of other files, or of files as they were before, are removed.
    """
    stats = [(str(path), path.stat()) for pair in data.pairs for path in pair]
    source = sha256_of_text(str([(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]))
    note = folder / "source.txt"
    if not note.is_file() or note.read_text(encoding="utf-8", errors="replace") != source:
        for file in folder.glob("*.png"):
            file.unlink()
        write_text(note, source)
    for number in range(len(data.pairs)):
        if not label_file(folder, number).is_file():
            with atomic_path(label_file(folder, number)) as temporary:
                PIL.Image.fromarray(data.labels(number)).save(temporary)


# Your own folders, as labelling tools export them.
_IMAGE_FOLDERS = ("images", "JPEGImages", "img")
_LABEL_FOLDERS = ("masks", "labels", "annotations", "SegmentationClass", "labelsTr", "gt")
_SPLIT_FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}


def label_specs(train: Path, val: Path | None, title: str = "") -> tuple[str, str, int]:
    """Names for DATASETS.TRAIN and TEST, and the number of classes.

    Args:
        train, val: folders that hold ``images`` and ``masks`` (or other usual names of these); without ``val`` both
            have the parts ``train`` and ``val``.

    Raises:
        InputError: a folder is missing, a label file is no 8-bit PNG of one channel, or the files have one class alone.
    """
    if val is not None:
        pairs = [_image_and_label_folders(train), _image_and_label_folders(val)]
    else:
        images, labels = _image_and_label_folders(train)
        pairs = [(_split_part(images, split), _split_part(labels, split)) for split in ("train", "val")]
    named = [file for folder in (train, val or train) if (file := folder / "classes.txt").is_file()]
    classes = len(read_names(named[0])) if named else _count_labels(pairs)
    specs = []
    for word, (images, labels) in zip(("train", "val"), pairs, strict=True):
        name = f"{title}_{word}" if title else f"{part_title(train).removesuffix('_train')}_{word}"
        specs.append(f"{name}={images}:{labels}:{classes}")
    return specs[0], specs[1], classes


def has_label_pngs(folder: Path) -> bool:
    """Whether a folder holds images and label PNGs, by the names of its folders."""
    try:
        return all(image_files(part) for part in _image_and_label_folders(folder))
    except InputError:
        return False


def _image_and_label_folders(folder: Path) -> tuple[Path, Path]:
    images, labels = _subfolder(folder, _IMAGE_FOLDERS), _subfolder(folder, _LABEL_FOLDERS)
    if images is None or labels is None:
        expected = f"images ({', '.join(_IMAGE_FOLDERS)}) and of label PNGs ({', '.join(_LABEL_FOLDERS)})"
        raise InputError(f"expected folders of {expected} in {folder}, found not both; rename yours")
    return images, labels


def _subfolder(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def _split_part(folder: Path, split: str) -> Path:
    found = _subfolder(folder, _SPLIT_FOLDERS[split])
    if found is None:
        raise InputError(f"expected --val FOLDER, or a part {split} in {folder}, found neither; --split is for boxes")
    return found


def _count_labels(pairs: list[tuple[Path, Path]]) -> int:
    """One more than the greatest label, `IGNORE` left out; InputError for one class alone, as in masks of 0 and 255."""
    files = [file for _, labels in pairs for file in image_files(labels)]
    found = {value for file in files for value in np.flatnonzero(np.bincount(stored_labels(file).ravel())).tolist()}
    classes = max(found - {IGNORE}, default=0) + 1
    if found and classes < 2:
        raise InputError(
            f"expected labels 0, 1, … ({IGNORE}: ignored) in {pairs[0][1]}, found only "
            f"{' and '.join(map(str, sorted(found)))}; save the foreground as 1"
        )
    return classes
