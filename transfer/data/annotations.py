"""A detection dataset as files: a folder of images and one JSON in COCO's or LVIS's form.

This is the one reader of such files for training, checking, converting and drawing. Scoring reads the same form into
columns of arrays (``transfer/scores/inputs.py``), because it is to be fast and to know nothing of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.text_files import read_json

KINDS = ("coco", "lvis", "voc")


@dataclass(frozen=True)
class DetectionData:
    """Where a dataset lies and what it is.

    Attributes:
        name: as in configs and results.
        images_dir: what `image_path` starts from.
        annotation_file: JSON with `images`, `annotations`, `categories`.
        classes: names in ascending order of category id: class k of a model is the k-th category.
        category_ids: the ids, in the same order.
        kind: "coco", "lvis" (federated: scored only on verified classes) or "voc" (COCO's form with `difficult`).
        content: the parsed JSON; not to be changed.
    """

    name: str
    images_dir: Path
    annotation_file: Path
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    kind: str
    content: dict[str, Any] = field(repr=False, compare=False)

    def image_path(self, image: Mapping[str, Any]) -> Path:
        """The file of an entry of `images`.

        LVIS v1 names images by `coco_url`, whose last two parts are folder and file; v0.5 has names of COCO 2014
        (`COCO_val2014_000000000001.jpg`), of which COCO 2017 kept the number.
        """
        if "file_name" in image:
            file_name = str(image["file_name"])
            return self.images_dir / (file_name[-16:] if file_name.startswith("COCO_") else file_name)
        return self.images_dir.joinpath(*str(image["coco_url"]).split("/")[-2:])

    def load(self) -> dict[str, Any]:
        """The parsed JSON, not to be changed."""
        return self.content


def file_stem(dataset: str) -> str:
    """A data set's name as part of a file's. Of a name made of paths only letters, digits, - . _ are kept."""
    return re.sub(r"[^\w.-]+", "_", dataset.removesuffix(".json")).strip("_")[-80:]


def read_annotations(path: str | Path) -> dict[str, Any]:
    """Parse a COCO-form JSON file.

    Raises:
        InputError: no such file, not JSON, or without the three lists.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected an annotation file (COCO JSON) at {path}, found none; check DATASETS.ROOT")
    data = read_json(path, "annotations")
    for part in ("images", "annotations", "categories"):
        if not isinstance(data, dict) or not isinstance(data.get(part), list):
            raise InputError(f"expected a list {part!r} in {path}, found none; is it a COCO JSON for detection?")
        for entry in data[part]:
            if not isinstance(entry, dict) or type(entry.get("id")) is not int:
                raise InputError(f"expected entries with an integer id in {part!r} of {path}, found {shown(entry)}")
    return data


#: By how much fractions may leave 0 … 1: rounding, and boxes beyond the image's edge.
_BEYOND = 0.1


def in_fractions(boxes: Iterable[Sequence[float]]) -> int:
    """The number of boxes [x, y, width, height] if all are fractions of their image; 0 if any is in pixels.

    They are fractions if all lie within 0 … 1, about, and not all at whole pixels.
    """
    count, between = 0, False
    for box in boxes:
        if not all(-_BEYOND <= value <= 1 + _BEYOND for value in box):
            return 0
        count += 1
        between = between or any(0 < round(value, 6) < 1 for value in box)
    return count if between else 0


def refuse_fractions(boxes: Iterable[Sequence[float]], where: str | Path) -> None:
    """Raise InputError if the boxes are `in_fractions` of their images."""
    if count := in_fractions(boxes):
        raise InputError(
            f"expected boxes [x, y, width, height] in pixels in {where}, found all {count} within 0 … 1, as fractions "
            "of the image; multiply them by its width and height"
        )


def _is_name(name: Any) -> bool:
    return type(name) in (str, int, float) and str(name) != ""


def open_dataset(name: str, images_dir: Path, annotation_file: Path, kind: str = "coco") -> DetectionData:
    """Read the categories and make a `DetectionData`; InputError for a missing folder, file or category list."""
    if not images_dir.is_dir():
        raise InputError(f"expected the images of dataset {name!r} in {images_dir}, found no such folder; "
                         "correct the path or DATASETS.ROOT")  # fmt: skip
    content = read_annotations(annotation_file)
    categories = sorted(content["categories"], key=lambda category: category["id"])
    nameless = [category for category in categories if not _is_name(category.get("name"))]
    if not categories or nameless:
        raise InputError(f"expected named categories in {annotation_file}, found {shown(nameless)[:120]}")
    classes = tuple(str(category["name"]) for category in categories)
    ids = tuple(category["id"] for category in categories)
    return DetectionData(name, images_dir, annotation_file, classes, ids, kind, content)
