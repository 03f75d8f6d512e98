"""Checks a detection data set before training: a wrong box or id would otherwise only show as a low score.

Fatal are entries that cannot be trained on, or that show that the files do not belong together. Boxes without area and
masks that do not fit, of which the published COCO and LVIS files hold a few, are reported.
"""

import itertools
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycocotools import mask as coco_mask

from momentum_transfer.core.errors import InputError, one_line, shown
from momentum_transfer.transfer.data.annotations import TOLERANCE, DetectionData, checked_runs, refuse_fractions

_LONGEST = 10**6  # pixels a side; no image format in use has more
NAMED = 10  # examples given per kind of problem
_MASK_TOLERANCE = 2.0  # pixels, or a twentieth of the box, by which a mask's box may differ from the box


@dataclass(frozen=True)
class Problem:
    """One kind of problem with its first examples; training is refused if it is fatal."""

    kind: str
    count: int
    examples: tuple[str, ...]
    fatal: bool

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.examples) else ""
        return f"{self.count} × {self.kind}: {', '.join(self.examples)}{more}"


_FATAL = {
    "missing image file": True,
    "image without a positive size": True,
    "duplicate image id": True,
    "duplicate annotation id": True,
    "duplicate category id": True,
    "unknown image id": True,
    "unknown category id": True,
    "malformed box": True,
    "box outside its image": True,
    "malformed mask": True,
    "crowd flag other than 0 or 1": True,
    "object without a mask": True,
    "object without an area": True,
    "empty box": False,
    "mask does not fit its box": False,
}


def check(data: DetectionData, *, masks: bool = False, scored: bool = False) -> list[Problem]:
    """Check images, ids, boxes and masks; return the problems that are not fatal.

    Args:
        masks: objects without a mask are fatal: a mask head is to be trained or scored.
        scored: objects without an area are fatal: scores by size need it.

    Raises:
        InputError: there are fatal problems; each kind with its count and first ten entries.
    """
    for part in ("images", "annotations"):
        if not data.load()[part]:
            raise InputError(f"expected {part} in {data.annotation_file}, found none; is it the right file?")
    problems = _find_problems(data, masks=masks, scored=scored)
    fatal = [str(problem) for problem in problems if problem.fatal]
    if fatal:
        raise InputError(
            f"expected images and annotations that fit together in {data.annotation_file}, found {'; '.join(fatal)}; "
            f"images are looked for in {data.images_dir}; repair the file or the paths"
        )
    refuse_fractions((annotation["bbox"] for annotation in data.load()["annotations"]), data.annotation_file)
    return problems


def _find_problems(data: DetectionData, *, masks: bool = False, scored: bool = False) -> list[Problem]:
    """Every kind of problem, fatal or not, in the order of `FATAL`; see `check`."""
    content = data.load()
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = defaultdict(list)
    for kind, entry in itertools.chain(_problems(data, content), _lacking(content["annotations"], masks, scored)):
        counts[kind] += 1
        if counts[kind] <= NAMED:
            examples[kind].append(entry)
    return [Problem(kind, counts[kind], tuple(examples[kind]), fatal) for kind, fatal in _FATAL.items() if counts[kind]]


def _problems(data: DetectionData, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part, noun in (("images", "image"), ("annotations", "annotation"), ("categories", "category")):
        repeated = Counter(entry["id"] for entry in content[part])
        yield from ((f"duplicate {noun} id", str(k)) for k, count in repeated.items() if count > 1)
    yield from _image_problems(data, content["images"])
    images = {image["id"]: image for image in content["images"]}
    categories = set(data.category_ids)
    for annotation in content["annotations"]:
        entry = f"annotation {annotation['id']}"
        image_id, category_id = annotation.get("image_id"), annotation.get("category_id")
        image = images.get(image_id) if type(image_id) is int else None
        if image is None:
            yield "unknown image id", f"{entry} (image_id {shown(image_id)})"
        if type(category_id) is not int or category_id not in categories:
            yield "unknown category id", f"{entry} (category_id {shown(category_id)})"
        if image is not None and _has_size(image):
            for kind, detail in _shape_problems(annotation, image):
                yield kind, f"{entry} of image {image['id']}: {detail}"


def _lacking(annotations: list[dict[str, Any]], masks: bool, scored: bool) -> Iterator[tuple[str, str]]:
    for annotation in annotations:
        entry = f"annotation {annotation['id']}"
        if annotation.get("iscrowd", 0) not in (0, 1) or isinstance(annotation.get("iscrowd"), float):
            yield "crowd flag other than 0 or 1", f"{entry} ({shown(annotation['iscrowd'])})"
        if masks and not annotation.get("segmentation"):
            yield "object without a mask", entry
        area = annotation.get("area")
        if isinstance(area, (int, float)) and not (_is_number(area) and area >= 0):
            yield "object without an area", f"{entry} ({shown(area)}, expected a finite number of at least 0)"
        elif scored and not _is_number(area):
            yield "object without an area", f"{entry} ({shown(area)})"


def _has_size(image: Mapping[str, Any]) -> bool:
    return all(type(image.get(side)) is int and 0 < image[side] <= _LONGEST for side in ("height", "width"))


def _image_problems(data: DetectionData, images: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    listed: dict[Path, set[str]] = {}  # one listing per folder instead of one look-up per file
    for image in images:
        if "file_name" not in image and "coco_url" not in image:
            yield "missing image file", f"image {image['id']} (no file_name)"
            continue
        path = data.image_path(image)
        if (reason := _outside(path, data.images_dir)) is not None:
            name = shown(image.get("file_name", image.get("coco_url")))[:120]
            yield "missing image file", f"{name} (image {image['id']}: outside the images' folder: {reason})"
            continue
        if path.parent not in listed:
            try:
                listed[path.parent] = set(os.listdir(path.parent))
            except (OSError, ValueError):
                listed[path.parent] = set()
        if path.name not in listed[path.parent] or path == data.images_dir:
            yield "missing image file", f"{path} (image {image['id']})"
        if not _has_size(image):
            yield "image without a positive size", f"image {image['id']}"


def _outside(path: Path, folder: Path) -> str | None:
    """Why a name cannot be that of a file in the folder, or None."""
    if not path.is_relative_to(folder):
        return "it is an absolute path"
    parts = path.relative_to(folder).parts
    if ".." in parts:
        return "it has .. in it"
    if "\0" in str(path) or any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        return "no file can have that name"
    return None


def _shape_problems(annotation: Mapping[str, Any], image: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(value) for value in box):
        yield "malformed box", f"{shown(box)}, expected [x, y, width, height]"
        return
    left, top, width, height = box
    if width < 0 or height < 0:
        yield "malformed box", f"{box}, expected a width and a height of at least 0"
        return
    right, bottom = image["width"] + TOLERANCE, image["height"] + TOLERANCE
    if min(left, top) < -TOLERANCE or left + width > right or top + height > bottom:
        yield "box outside its image", f"{box} in {image['width']}x{image['height']}"
    if width <= 0 or height <= 0:
        yield "empty box", f"{box}"
        return
    if not annotation.get("segmentation"):
        return
    try:
        mask_box = _mask_box(annotation["segmentation"], image)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        yield "malformed mask", one_line(error)
        return
    ends = (left, top, left + width, top + height)
    allowed = [max(_MASK_TOLERANCE, side / 20) for side in (width, height, width, height)]
    if any(abs(a - b) > most for a, b, most in zip(ends, mask_box, allowed, strict=True)):
        box_ends, mask_ends = ([round(value, 1) for value in box] for box in (ends, mask_box))
        yield "mask does not fit its box", f"box ends {box_ends}, mask ends {mask_ends}"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf and abs(value) <= 1e300


def _mask_box(segmentation: Any, image: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of a mask: polygons, or (un)compressed run lengths."""
    if isinstance(segmentation, list):
        for polygon in segmentation:
            if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
                raise ValueError("a polygon needs three points or more, as x, y, x, y, …")
            if not math.isfinite(sum(polygon)):  # one sum finds what is infinite, not a number, or (TypeError) a string
                raise ValueError("a polygon's corners need to be finite numbers")
        xs = [x for polygon in segmentation for x in polygon[0::2]]
        ys = [y for polygon in segmentation for y in polygon[1::2]]
        return min(xs), min(ys), max(xs), max(ys)
    size = [image["height"], image["width"]]
    if list(segmentation["size"]) != size:
        raise ValueError(f"run lengths of size {shown(list(segmentation['size']))}, expected {size}")
    checked_runs(segmentation["counts"], *size)  # toBbox trusts what it is given
    if isinstance(segmentation["counts"], list):
        segmentation = coco_mask.frPyObjects(segmentation, *size)
    left, top, width, height = (float(value) for value in coco_mask.toBbox(segmentation))
    if left + width > size[1]:
        raise ValueError(f"run lengths that end in column {left + width:.0f} of {size[1]}")
    return left, top, left + width, top + height
