"""iNaturalist as it is published: split lists in COCO's form beside the images (2017-2019), or one folder a species.

"The iNaturalist Species Classification and Detection Dataset" (CVPR 2018) and the yearly competitions after it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torchvision

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.labelled_images import FileImages

_FOLDERS = {"train": "2021_train", "val": "2021_valid"}


def inaturalist_images(root: Path, split: str, max_unreadable: int) -> FileImages:
    """The labelled images of one split.

    Args:
        root: folder of the data set.
        split: "train2018" and "val2018" (2017 and 2019 too) read the published lists, ``root/train2018.json``, whose
            image names such as ``train_val2018/Aves/2761/….jpg`` are relative to root. "train" and "val" are 2021's
            extracted folders 2021_train and 2021_valid; "2021_train_mini", and "2017" to "2019" for all images of a
            year, are torchvision's other folders.
        max_unreadable: see ``FileImages``.

    Raises:
        InputError: an unknown split, no such files, or a list that contradicts itself.
    """
    if re.fullmatch(r"(train|val)201[789]", split):
        return _listed(root, root / f"{split}.json", max_unreadable)
    return _folders(root, split, max_unreadable)


def _listed(root: Path, file: Path, max_unreadable: int) -> FileImages:
    listing = _read(file)
    # The categories' order is that of their ids, in every list of a year, whether or not a class has images there.
    categories = sorted(listing["categories"], key=lambda category: category["id"])
    number_of = {category["id"]: number for number, category in enumerate(categories)}
    class_of = {entry["image_id"]: entry["category_id"] for entry in listing["annotations"]}
    paths, labels = [], []
    for image in listing["images"]:
        category = class_of.get(image["id"])
        if category not in number_of:
            raise InputError(
                f"expected a category of the list for every image of {file}, found {category} for "
                f"{image['file_name']!r}; the test lists carry no labels"
            )
        paths.append(root / image["file_name"])
        labels.append(number_of[category])
    if not paths[0].is_file():
        raise InputError(
            f"expected the images that {file} names beside it, found no {paths[0]}; extract the year's archive there"
        )
    return FileImages(paths, labels, [str(category["name"]) for category in categories], max_unreadable)


#: What is read of every entry of the published lists.
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "images": {"id": int, "file_name": str},
    "annotations": {"image_id": int, "category_id": int},
    "categories": {"id": int, "name": (str, int)},
}


def _read(file: Path) -> dict[str, Any]:
    """The list in ``file``, with every section and field that is used."""
    try:
        listing = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise InputError(
            f"expected iNaturalist's published list {file.name} in {file.parent}, found none; nothing is downloaded, "
            "put it there beside the year's images, or choose another DATA.SPLIT"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected iNaturalist's published list in {file}, found no JSON: {error}") from error
    for section, fields in _FIELDS.items():
        entries = listing.get(section) if isinstance(listing, dict) else None
        if not isinstance(entries, list) or not entries:
            raise InputError(f"expected a list {section!r} with entries in {file}, as iNaturalist publishes it")
        for number, entry in enumerate(entries):
            wanted = isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in fields.items())
            if not wanted:
                raise InputError(f"expected {', '.join(fields)} in entry {number} of {section!r} in {file}")
    return listing


def _folders(root: Path, split: str, max_unreadable: int) -> FileImages:
    version = _FOLDERS.get(split, split)
    try:
        found = torchvision.datasets.INaturalist(str(root), version=version)
    except ValueError as error:
        raise InputError(
            f"expected an inaturalist split (train2018, val2018, train, val, 2021_train_mini, …), found {split!r}"
        ) from error
    except (RuntimeError, FileNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"expected the extracted folder {version}/ in {root} for dataset 'inaturalist'; found: {reason}; nothing "
            "is downloaded, put it there"
        ) from error
    folder = Path(found.root)  # torchvision appends the version
    paths = [folder / found.all_categories[category] / file for category, file in found.index]
    return FileImages(paths, [category for category, _ in found.index], found.all_categories, max_unreadable)
