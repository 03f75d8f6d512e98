"""PASCAL VOC's XML annotations in COCO's JSON form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import cache_root, sha256_of_text, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.text_files import read_lines
from momentum_transfer.transfer.data.own.xml_lines import Node, read_xml

VERSION = 1  # raise it when the conversion changes: the cache is keyed by it
# fmt: off
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)
# fmt: on


def voc_as_coco(folder: Path, split: str) -> Path:
    """Convert one image set of a VOC folder (`VOC2007`) to a JSON file in the cache, unless it is there already.

    Boxes keep Detectron2's convention: VOC counts pixels from 1 and includes both ends, so (xmin, ymin, xmax, ymax)
    becomes the continuous box (xmin − 1, ymin − 1, xmax, ymax). `difficult` objects are kept and marked: training uses
    them, scoring ignores them.

    Raises:
        InputError: a missing folder or file, a malformed XML, an unknown class.
    """
    list_file = folder / "ImageSets" / "Main" / f"{split}.txt"
    if not list_file.is_file():
        raise InputError(f"expected PASCAL VOC's image list at {list_file}, found none; check DATASETS.ROOT")
    names = [name for line in read_lines(list_file, "a list of images") for name in line.split()]
    files = [folder / "Annotations" / f"{name}.xml" for name in names]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise InputError(
            f"expected an annotation file for all {len(names)} images of {list_file}, found {len(missing)} missing: "
            + ", ".join(str(file) for file in missing[:10])
        )
    stamps = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    key = sha256_of_text(json.dumps([VERSION, str(folder.resolve()), stamps]))[:12]
    target = cache_root() / "voc" / f"{folder.name}-{split}-{key}.json"
    if not target.is_file():
        say(f"converting {len(files)} VOC annotations to {target}")
        write_text(target, json.dumps(_convert(names, files)))
    return target


def _convert(names: list[str], files: list[Path]) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (name, file) in enumerate(zip(names, files, strict=True), 1):
        try:
            image, objects = _read(file, name)
        except (InputError, ValueError) as error:
            raise InputError(f"expected a PASCAL VOC annotation in {file}, found: {error}") from error
        images.append({"id": number, **image})
        for entry in objects:
            annotations.append({"id": len(annotations) + 1, "image_id": number, **entry})
    categories = [{"id": k + 1, "name": name} for k, name in enumerate(CLASSES)]
    return {"images": images, "annotations": annotations, "categories": categories}


def _text(element: Node, path: str) -> str:
    inner: Node | None = element
    for tag in path.split("/"):
        inner = inner and inner.child(tag)
    if inner is None:
        raise ValueError(f"no <{path}> in <{element.tag}>")
    return inner.text.strip()


def _read(file: Path, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    root = read_xml(file)
    image = {
        "file_name": f"{name}.jpg",
        "height": int(_text(root, "size/height")),
        "width": int(_text(root, "size/width")),
    }
    objects = []
    for element in root.all("object"):
        left, top, right, bottom = (
            float(_text(element, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")
        )
        width, height = right - left + 1, bottom - top + 1
        category = CLASSES.index(_text(element, "name")) + 1
        objects.append(
            {
                "category_id": category,
                "bbox": [left - 1, top - 1, width, height],
                "area": width * height,
                "iscrowd": 0,
                "difficult": int(_text(element, "difficult")) if element.child("difficult") else 0,
            }
        )
    return image, objects
