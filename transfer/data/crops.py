"""The labelled boxes of a detection set as images of one class each, for evaluators that classify."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path
from momentum_transfer.core.log import track
from momentum_transfer.images.reading import read_rgb
from momentum_transfer.transfer.data.annotations import DetectionData

_MARGIN = 1.2  # a crop's side by the longer side of its box
_MOST_SIDE = 512  # of a crop, in pixels
_LEAST_BOX = 4  # pixels of a box's shorter side; smaller ones show too little to be classified


def write_crops(
    data: DetectionData, folder: Path, most: int, seed: int = 0, write: bool = True
) -> list[tuple[Path, int]]:
    """Write the boxes of a set as ``IMAGEID_BOXID.png``, unless they are there already.

    Args:
        most: crops in all; of more boxes a random choice by ``seed``.
        write: else the files are named and not made.

    Returns:
        (file, class number) of every crop, by image and box.

    Raises:
        InputError: no box is large enough, or an image cannot be read.
    """
    content = data.load()
    class_of = {category: number for number, category in enumerate(data.category_ids)}
    boxes = [e for e in content["annotations"] if not e.get("iscrowd") and min(e["bbox"][2:]) >= _LEAST_BOX]
    if not boxes:
        raise InputError(f"expected boxes of at least {_LEAST_BOX} px in {data.name}, found none")
    if len(boxes) > most:
        chosen = np.sort(np.random.default_rng(seed).permutation(len(boxes))[:most])
        boxes = [boxes[index] for index in chosen]
    of_image: dict[Any, list[Mapping[str, Any]]] = {}
    for entry in boxes:
        of_image.setdefault(entry["image_id"], []).append(entry)
    images = [image for image in content["images"] if image["id"] in of_image]
    crops: list[tuple[Path, int]] = []
    for image in track(images, f"crops of {data.name}") if write else images:
        files = [folder / f"{image['id']}_{entry['id']}.png" for entry in of_image[image["id"]]]
        if write and not all(file.is_file() for file in files):
            whole = read_rgb(data.image_path(image))
            for file, entry in zip(files, of_image[image["id"]], strict=True):
                with atomic_path(file) as temporary:
                    _crop(whole, entry["bbox"]).save(temporary)
        labels = [class_of[entry["category_id"]] for entry in of_image[image["id"]]]
        crops += zip(files, labels, strict=True)
    return crops


def _crop(image: PIL.Image.Image, box: list[float]) -> PIL.Image.Image:
    """The square around a box (x, y, width, height), moved into the image, and cut where it is larger."""
    x, y, width, height = box
    side = max(width, height) * _MARGIN
    corners = []
    for start, length, whole in ((x, width, image.width), (y, height, image.height)):
        size = min(side, whole)
        first = min(max(start + (length - size) / 2, 0), whole - size)
        corners.append((round(first), max(round(first + size), round(first) + 1)))
    cut = image.crop((corners[0][0], corners[1][0], corners[0][1], corners[1][1]))
    cut.thumbnail((_MOST_SIDE, _MOST_SIDE))
    return cut
