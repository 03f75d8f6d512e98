"""Your own classification set: a folder of images for each class, with its own split or divided here."""

import re
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np

from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import say
from momentum_transfer.images.groups import image_groups, say_groups
from momentum_transfer.images.reading import image_files
from momentum_transfer.images.subsets import stratified_split

#: Names of the folders that train, and of those that test.
_TRAIN, _VAL = ("train", "training"), ("val", "valid", "validation", "test")


@dataclass(frozen=True)
class LabelledFiles:
    """Image files with one class each. labels: numbers into ``classes``."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def counts(self) -> list[int]:
        """Images of every class."""
        return np.bincount(self.labels, minlength=len(self.classes)).tolist() if self.labels else []


def is_class_folders(folder: Path) -> bool:
    """Whether a folder holds nothing but class folders with images, or such folders under train/ and val/."""
    return folder.is_dir() and (_own_split(folder) is not None or _only_classes(folder))


def training_part(folder: Path) -> str:
    """DATA.SPLIT of what trains: train/ where val/ is beside it, train-*.tar, or "." for the folder itself."""
    train, tests = named_parts(folder)
    if tests:
        return train
    return "train" if any(folder.glob("train-*.tar")) else "."


def named_parts(folder: Path) -> tuple[str, list[str]]:
    """Names of the folder that trains and of those that test, as they are spelt; "" and [] unless both are there."""
    names = {path.name.lower(): path.name for path in _folders(folder)} if folder.is_dir() else {}
    train = next((names[name] for name in _TRAIN if name in names), "")
    tests = [names[name] for name in _VAL if name in names]
    return (train, tests) if train and tests else ("", [])


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def title_of(train: Path) -> str:
    """A set's name: its folder's, or that of the folder above ``train``."""
    train = train.resolve()
    root = train.parent if train.name.lower() in _TRAIN else train
    return re.sub(r"[^\w.-]+", "_", root.name) or "own"


def _images(folder: Path) -> list[Path]:
    from torchvision.datasets.folder import IMG_EXTENSIONS  # takes seconds, and is asked for class folders alone

    return [path for path in image_files(folder, IMG_EXTENSIONS) if path.is_file()]


def _only_classes(folder: Path) -> bool:
    """At least two folders, each with images, and no labels beside or in them."""
    found = _folders(folder)
    labels = any(path.suffix.lower() in (".json", ".xml", ".txt") and (path.parent != folder or path.suffix == ".json")
                 for path in folder.rglob("*"))  # fmt: skip
    return len(found) > 1 and not labels and all(_images(path) for path in found)


def _own_split(folder: Path) -> tuple[Path, Path] | None:
    name, tests = named_parts(folder)
    if not tests:
        return None
    train, val = folder / name, folder / tests[0]
    return (train, val) if _only_classes(train) and _only_classes(val) else None


def _read_class_folders(folder: Path) -> LabelledFiles:
    """Every image below its class's folder; classes in the order of their names."""
    classes = _folders(folder)
    files = [(path, label) for label, each in enumerate(classes) for path in _images(each)]
    paths, labels = zip(*files, strict=True) if files else ((), ())
    return LabelledFiles(paths, labels, tuple(path.name for path in classes))


def open_class_folders(
    train: Path, val: Path | None, split: float | None, seed: int
) -> tuple[LabelledFiles, LabelledFiles]:
    """The part that trains and the part that tests.

    ``val`` is the part that tests; or ``split`` the fraction of ``train`` that trains, stratified and seeded; without
    both the folder's own train/ and val/.
    Raises InputError for no split, both kinds of split, or classes that one part lacks.
    """
    if val is not None and split is not None:
        raise InputError("expected --val or --split, found both; leave one out")
    own = _own_split(train)
    if val is None and split is None and own is None:
        raise InputError(f"expected --val FOLDER or --split 0.8 with {train}, which has no train/ and val/; add one")
    if own is not None and split is not None:
        raise InputError(f"expected no --split with {train}, which has its own train/ and val/; leave it out")
    if split is not None:
        return _divided(_read_class_folders(train), split, seed)
    if val is not None and not _only_classes(val):
        raise InputError(f"expected a folder for each class in {val}, found another form; give --val as --train is")
    parts = (own[0] if own else train, val) if val is not None else own
    assert parts is not None
    ignored = [path for path in _folders(train) if path.name.lower() in _VAL and path not in parts] if own else []
    for other in ignored:
        say(f"left out: {counted(len(_images(other)), 'image')} of {other}, which neither trains nor tests")
    first, second = _read_class_folders(parts[0]), _read_class_folders(parts[1])
    if first.classes != second.classes:
        odd = sorted(set(first.classes) ^ set(second.classes))
        raise InputError(f"expected the same classes in {parts[0]} and {parts[1]}, found {odd[0]!r} in only one")
    return first, second


def _divided(whole: LabelledFiles, fraction: float, seed: int) -> tuple[LabelledFiles, LabelledFiles]:
    groups = image_groups([str(path) for path in whole.paths])
    if groups is not None:
        say_groups(groups)
    trains = stratified_split([[label] for label in whole.labels], fraction, seed, groups)
    first, second = (
        LabelledFiles(tuple(compress(whole.paths, side)), tuple(compress(whole.labels, side)), whole.classes)
        for side in (trains, ~trains)
    )
    return first, second


def write_list(file: Path, data: LabelledFiles) -> None:
    """Write an index file of ``path label`` lines with numeric labels, for the data set ``filelist``."""
    lines = [f"{path.resolve()} {label}" for path, label in zip(data.paths, data.labels, strict=True)]
    write_text(file, "\n".join(lines) + "\n")
