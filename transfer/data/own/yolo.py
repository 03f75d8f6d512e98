"""YOLO's text labels: a line an object, ``class x y width height`` or ``class x1 y1 x2 y2 …``, in shares of the image.

Classes and folders are said by data.yaml (``names``, ``train``, ``val``), or by a classes.txt beside the labels. An
image without a text file, or with an empty one, shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from momentum_transfer.errors import InputError, shown
from momentum_transfer.images.reading import image_files, upright_size
from transfer.data.own.labelled import Box, LabelledImage, LabelledSet, check_box, check_names

FORM = "YOLO text"
_NAMES = ("classes.txt", "obj.names", "labels.txt")
_SPLITS = {"train": "train", "val": "val", "valid": "val", "test": "val"}


def is_data_yaml(path: Path) -> bool:
    """Whether a file is YOLO's data.yaml: a mapping with ``names``."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return False
    return isinstance(content, dict) and "names" in content


def names_file(folder: Path) -> Path | None:
    """What names the classes of a folder of labels: in it, in ``labels`` below it, or above it, nearest first."""
    for place in (folder, folder / "labels", *list(folder.parents)[:2]):
        if not place.is_dir():
            continue
        for file in sorted(place.glob("*.y*ml")):
            if is_data_yaml(file):
                return file
        for name in _NAMES:
            if (place / name).is_file():
                return place / name
    return None


def read_yolo(source: Path) -> LabelledSet:
    """Read a data.yaml with the folders it names, or a folder of images and labels.

    Raises:
        InputError: no class names, a missing image folder, a wrong line; file and line are named.
    """
    if source.is_file():
        content = _yaml(source)
        classes = _classes(content, source)
        images = [image for key, split in _SPLITS.items() for image in _listed(content, key, split, source, classes)]
        if not images:
            raise InputError(f"expected train and val in {source} to name folders of images, found none; add them")
        both = len({image.split for image in images}) == 2
        seen: dict[Path, LabelledImage] = {}
        for image in images:
            seen.setdefault(image.file, image if both else _without_split(image))
        return LabelledSet(FORM, source.parent, tuple(seen.values()), classes)
    names = names_file(source)
    if names is None:
        raise InputError(
            f"expected a data.yaml or classes.txt with the classes' names in or above {source}, found none; "
            "write the names into classes.txt, a line each"
        )
    classes = _classes(_yaml(names), names) if names.suffix in (".yaml", ".yml") else _text_classes(names)
    files = image_files(source)
    if not files:
        raise InputError(f"expected images below {source}, found none")
    return LabelledSet(FORM, source, tuple(_image(file, classes, "") for file in files), classes)


def _without_split(image: LabelledImage) -> LabelledImage:
    return LabelledImage(image.file, image.width, image.height, image.objects)


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"expected YOLO's data.yaml, found a file that cannot be read at {path}: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"expected names, train and val in {path}, found {shown(content)}; is it YOLO's data.yaml?")
    return content


def _classes(content: dict[str, Any], path: Path) -> tuple[str, ...]:
    names = content.get("names")
    if isinstance(names, dict) and sorted(names, key=str) == sorted(range(len(names)), key=str):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise InputError(f"expected names as a list, or numbered from 0, in {path}, found {shown(names)}; correct it")
    count = content.get("nc", len(names))
    if count != len(names):
        raise InputError(f"expected as many names as nc says in {path}, found {len(names)} and nc {shown(count)}")
    return check_names((str(name).strip() for name in names), str(path))


def _text_classes(path: Path) -> tuple[str, ...]:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return check_names((line for line in lines if line), str(path))


def _listed(
    content: dict[str, Any], key: str, split: str, file: Path, classes: Sequence[str]
) -> Iterable[LabelledImage]:
    """The images of a split: a folder, a text file that lists images, or a list of either."""
    named = content.get(key)
    if named is None or (key == "test" and content.get("val") is not None):
        return
    for entry in named if isinstance(named, list) else [named]:
        if not isinstance(entry, str):
            raise InputError(f"expected {key} in {file} to name a folder, found {shown(entry)}")
        place = _place(content, entry, file, key)
        paths = image_files(place) if place.is_dir() else _image_list(place)
        if not paths:
            raise InputError(f"expected images for {key} in {place} ({file}), found none")
        yield from (_image(path, classes, split) for path in paths)


def _place(content: dict[str, Any], entry: str, file: Path, key: str) -> Path:
    """A path of data.yaml: from ``path``, from the yaml's folder; exports that begin with ``..`` mean the latter."""
    inside = entry
    while inside.startswith("../"):
        inside = inside[3:]
    base = Path(str(content.get("path") or ""))
    for place in (file.parent / base / entry, file.parent / entry, file.parent / base / inside, file.parent / inside):
        if place.exists():
            return place
    raise InputError(f"expected the images of {key} at {file.parent / entry} ({file}), found nothing; correct the path")


def _image_list(file: Path) -> list[Path]:
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [file.parent / line for line in lines if line]


def _label_file(image: Path) -> Path | None:
    """images/…/x.jpg has its labels in labels/…/x.txt; or they lie beside it."""
    places = [image.with_suffix(".txt")]
    for position in range(len(image.parts) - 2, -1, -1):
        if image.parts[position] == "images":
            parts = [*image.parts[:position], "labels", *image.parts[position + 1 :]]
            places.insert(0, Path(*parts).with_suffix(".txt"))
            break
    places.append(image.parent / "labels" / f"{image.stem}.txt")
    return next((place for place in places if place.is_file()), None)


def _image(path: Path, classes: Sequence[str], split: str) -> LabelledImage:
    width, height = upright_size(path)
    file = _label_file(path)
    objects = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines() if file else (), 1):
        if line.strip():
            objects.append(_object(line, f"{file}:{number}", classes, width, height))
    return LabelledImage(path, width, height, tuple(objects), split)


def _object(line: str, where: str, classes: Sequence[str], width: int, height: int) -> Box:
    first, *words = line.split()
    if not first.isdecimal() or int(first) >= len(classes):
        raise InputError(f"expected a class from 0 to {len(classes) - 1} in {where}, found {first}; correct it")
    try:
        values = [float(word) for word in words]
    except ValueError as error:
        raise InputError(f"expected numbers after the class in {where}, found {shown(line)}; correct it") from error
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise InputError(
            f"expected x y width height, or three points or more, in {where}, found {len(values)} numbers; correct it"
        )
    precise = [_half_unit(word) for word in words]
    for value, half in zip(values, precise, strict=True):
        if not -half <= value <= 1 + half:  # False for NaN
            raise InputError(
                f"expected shares of the image from 0 to 1 in {where}, found {value:g}; divide by its size"
            )
    if len(values) == 4:
        box = _box(values, precise, width, height)
        check_box(box, width, height, where)
        return Box(classes[int(first)], box, where)
    sides = (width, height)
    polygon = [
        _shortest(v * sides[n % 2], p * sides[n % 2]) for n, (v, p) in enumerate(zip(values, precise, strict=True))
    ]
    left, top, right, bottom = min(polygon[::2]), min(polygon[1::2]), max(polygon[::2]), max(polygon[1::2])
    return Box(classes[int(first)], (left, top, right - left, bottom - top), where, segmentation=[polygon])


def _box(
    values: Sequence[float], precise: Sequence[float], width: int, height: int
) -> tuple[float, float, float, float]:
    """Corner and sides in pixels, each the shortest number that the text can stand for."""
    (x, y, across, down), (dx, dy, da, dd) = values, precise
    return (
        _shortest((x - across / 2) * width, (dx + da / 2) * width),
        _shortest((y - down / 2) * height, (dy + dd / 2) * height),
        _shortest(across * width, da * width),
        _shortest(down * height, dd * height),
    )


def _half_unit(word: str) -> float:
    """By how much a written decimal may be off: half a unit of its last place, and float64's own rounding."""
    mantissa, _, exponent = word.lower().partition("e")
    places = len(mantissa.partition(".")[2]) - int(exponent or 0)
    return max(0.5 * 10.0**-places, 1e-15)


def _shortest(value: float, off: float) -> float:
    """The number with the fewest decimals within ``off`` of ``value``.

    Six decimals of a share leave a whole pixel at 12.9997; it is one, and reads as in the set's other forms.
    """
    for places in range(12):
        if abs(round(value, places) - value) <= 1.001 * off:
            return round(value, places) + 0.0  # no −0
    return value if math.isfinite(value) else 0.0
