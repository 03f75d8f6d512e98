"""Your own segmentation sets: folders of images beside PNGs whose values are classes, 255 for pixels left out."""

from __future__ import annotations

from pathlib import Path

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import part_title
from momentum_transfer.images.reading import image_files
from momentum_transfer.transfer.data.own.labelled import read_names
from momentum_transfer.transfer.data.semantic_datasets import IGNORE, stored_labels

_IMAGES = ("images", "JPEGImages", "img")
_LABELS = ("masks", "labels", "annotations", "SegmentationClass", "labelsTr", "gt")
_SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}


def label_specs(train: Path, val: Path | None, title: str = "") -> tuple[str, str, int]:
    """Names for DATASETS.TRAIN and TEST, and the number of classes.

    Args:
        train, val: folders that hold ``images`` and ``masks`` (or other usual names of these); without ``val`` both
            have the parts ``train`` and ``val``.

    Raises:
        InputError: a folder is missing, or a label file is no 8-bit PNG of one channel.
    """
    if val is not None:
        pairs = [_folders(train), _folders(val)]
    else:
        images, labels = _folders(train)
        pairs = [(_part(images, split), _part(labels, split)) for split in ("train", "val")]
    named = [file for folder in (train, val or train) if (file := folder / "classes.txt").is_file()]
    classes = len(read_names(named[0])) if named else _counted(pairs)
    specs = []
    for word, (images, labels) in zip(("train", "val"), pairs, strict=True):
        name = f"{title}_{word}" if title else f"{part_title(train).removesuffix('_train')}_{word}"
        specs.append(f"{name}={images}:{labels}:{classes}")
    return specs[0], specs[1], classes


def has_label_pngs(folder: Path) -> bool:
    """Whether a folder holds images and label PNGs, by the names of its folders."""
    try:
        return all(image_files(part) for part in _folders(folder))
    except InputError:
        return False


def _folders(folder: Path) -> tuple[Path, Path]:
    images = next((folder / name for name in _IMAGES if (folder / name).is_dir()), None)
    labels = next((folder / name for name in _LABELS if (folder / name).is_dir()), None)
    if images is None or labels is None:
        raise InputError(
            f"expected folders of images ({', '.join(_IMAGES)}) and of label PNGs ({', '.join(_LABELS)}) in {folder}, "
            "found none or one of them; rename yours"
        )
    return images, labels


def _part(folder: Path, split: str) -> Path:
    found = next((folder / name for name in _SPLITS[split] if (folder / name).is_dir()), None)
    if found is None:
        raise InputError(f"expected --val FOLDER, or a part {split} in {folder}, found neither; --split is for boxes")
    return found


def _counted(pairs: list[tuple[Path, Path]]) -> int:
    """One more than the greatest label, `IGNORE` left out."""
    greatest = 0
    for _, labels in pairs:
        for file in image_files(labels):
            values = stored_labels(file)
            greatest = max(greatest, int(values[values != IGNORE].max(initial=0)))
    return greatest + 1
