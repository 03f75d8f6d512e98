"""The sizes of published test sets: one is recognised by its counts of images and classes, not by its title."""

import re

#: Images and classes of each, as published.
_COUNTS = {
    "ImageNet val": (50_000, 1000),
    "COCO val2017": (5000, 80),
    "LVIS v0.5 val": (5000, 1230),
    "LVIS v1 val": (19_809, 1203),
    "VOC07 test": (4952, 20),
    "Cityscapes val": (500, 19),
    "STL-10 test": (8000, 10),
    "iNaturalist": (24_426, 8142),
    "CIFAR-10": (10_000, 10),
    "CIFAR-100": (10_000, 100),
}

#: Words of dataset names that do not distinguish data sets.
_NOISE = {"test", "val", "validation", "train", "trainval", "minival", "fine", "sem", "seg"}


def same_dataset(one: str, other: str) -> bool:
    """Whether two names mean one set: ``VOC07 test`` and ``voc_2007_test`` do."""
    return bool(_words(one)) and _words(one) == _words(other)


def published_counts(name: str) -> tuple[int, int] | None:
    """Images and classes of the published set that a name means; None if unknown."""
    return next((counts for known, counts in _COUNTS.items() if same_dataset(known, name)), None)


def _words(name: str) -> list[str]:
    words = re.findall(r"[a-z]+|[0-9]+", name.lower())
    words = [f"20{word}" if re.fullmatch("0[0-9]|1[0-9]", word) and "voc" in words else word for word in words]
    return sorted(word for word in words if word not in _NOISE)
