"""YOLO's text labels: a line an object, ``class x y width height`` or ``class x1 y1 x2 y2 …``, as fractions.

A data.yaml names classes and folders (``names``, ``train``, ``val``), or a classes.txt beside the labels the classes.
An image without a text file, or with an empty one, has no objects.
"""

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.untrusted import read_lines, read_mapping
from momentum_transfer.images.reading import image_files, upright_size
from momentum_transfer.transfer.data.own.labelled import (
    SPLITS,
    Box,
    LabelledImage,
    LabelledSet,
    check_box,
    check_names,
    left_out,
    read_names,
    split_by_folders,
)

FORM = "YOLO text"
_NAMES = ("classes.txt", "obj.names", "labels.txt")


def is_data_yaml(path: Path) -> bool:
    """Whether a file is YOLO's data.yaml: a mapping with ``names``."""
    try:
        return "names" in read_mapping(path)
    except InputError:
        return False


def names_file(folder: Path) -> Path | None:
    """The file that names the classes of a folder of labels: in it, in ``labels`` below it, or above it."""
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


def labelled_files(folder: Path, images: Path | None = None) -> dict[Path, Path | None]:
    """Image files with their text files, of a folder of labels, of images, or of both.

    Args:
        images: where the images lie; those without a text file are then left out. Without it: below ``folder``, else
            beside a folder of labels.
    """
    if images is None and (own := image_files(folder)):
        return {file: _label_file(file) for file in own}
    all_count = images is None
    if images is None:
        parts = list(folder.parts)
        if "labels" not in parts:
            return {}
        parts[len(parts) - 1 - parts[::-1].index("labels")] = "images"
        images = Path(*parts) if Path(*parts).is_dir() else folder.parent
    texts: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*.txt")):
        texts.setdefault(file.stem, []).append(file)
    found: dict[Path, Path | None] = {}
    for file in image_files(images):
        same = folder / file.relative_to(images).with_suffix(".txt")
        named = [same] if same.is_file() else texts.get(file.stem, [])
        if len(named) > 1:
            raise InputError(f"expected one text file for {file}, found {named[0]} and {named[1]}; drop one")
        if named or all_count:
            found[file] = named[0] if named else None
    return found


def read_yolo(source: Path, images: Path | None = None) -> LabelledSet:
    """Read a data.yaml with the folders it names, or a folder of images and labels.

    Args:
        images: see `labelled_files`.

    Raises:
        InputError: no class names, a missing image folder, a wrong line; file and line are named.
    """
    if source.is_file():
        return _read_yaml(source)
    names = names_file(source)
    if names is None:
        raise InputError(
            f"expected a data.yaml or classes.txt with the classes' names in or above {source}, found none; "
            "write the names into classes.txt, a line each"
        )
    if names.suffix in (".yaml", ".yml"):
        classes = _classes(read_mapping(names, "names, train and val"), names)
    else:
        classes = read_names(names)
    files = labelled_files(source, images)
    if not files:
        raise InputError(f"expected images below {images or source}, found none; name their folder by --images")
    read = [_image(file, classes, "", text) for file, text in files.items()]
    root = images or (source if read[0].file.is_relative_to(source) else source.parent)
    kept = split_by_folders(read, root)
    return LabelledSet(FORM, source, kept, classes, left_out(len(read) - len(kept), source))


def _read_yaml(file: Path) -> LabelledSet:
    content = read_mapping(file, "names, train and val")
    if "kpt_shape" in content:
        raise InputError(f"expected boxes or polygons, found key points (kpt_shape in {file}); export boxes")
    classes = _classes(content, file)
    keys = [key for key in ("train", "val", "valid", "test") if content.get(key) is not None]
    spare = "test" in keys and "val" in keys  # of train, val and test, test is kept back
    images: dict[Path, LabelledImage] = {}
    for key in keys[:-1] if spare else keys:
        for path in _paths(content, key, file):
            images.setdefault(path, _image(path, classes, SPLITS[key], _label_file(path)))
    if not images:
        raise InputError(f"expected train and val in {file} to name folders of images, found none; add them")
    kept_back: set[Path] = set()
    if spare:
        with suppress(InputError):  # a test part that was not exported is not missed
            kept_back = {path for path in _paths(content, "test", file) if path not in images}
    labelled = tuple(images.values())
    if len({image.split for image in labelled}) < 2:
        labelled = tuple(replace(image, split="") for image in labelled)
    return LabelledSet(FORM, file.parent, labelled, classes, left_out(len(kept_back), file.parent))


def _classes(content: dict[str, Any], path: Path) -> tuple[str, ...]:
    names = content.get("names")
    if isinstance(names, dict) and {str(key) for key in names} == {str(k) for k in range(len(names))}:
        of_number = {str(key): name for key, name in names.items()}
        names = [of_number[str(k)] for k in range(len(names))]
    if not isinstance(names, list) or not names:
        raise InputError(f"expected names as a list, or numbered from 0, in {path}, found {shown(names)}; correct it")
    count = content.get("nc", len(names))
    if count != len(names):
        raise InputError(f"expected as many names as nc says in {path}, found {len(names)} and nc {shown(count)}")
    return check_names((str(name).strip() for name in names), str(path))


def _paths(content: dict[str, Any], key: str, file: Path) -> Iterable[Path]:
    """Image files of a split: of a folder, a text file that lists images, or a list of either."""
    named = content[key]
    for entry in named if isinstance(named, list) else [named]:
        if not isinstance(entry, str):
            raise InputError(f"expected {key} in {file} to name a folder, found {shown(entry)}")
        place = _place(content, entry, file, key)
        paths = image_files(place) if place.is_dir() else _image_list(place)
        if not paths:
            raise InputError(f"expected images for {key} in {place} ({file}), found none")
        yield from paths


def _place(content: dict[str, Any], entry: str, file: Path, key: str) -> Path:
    """A path of data.yaml: relative to ``path``, else to the yaml's folder, else by the end of it that exists there.

    Exports write ``..`` for the yaml's folder and name folders of another machine: what lies inside the export comes
    before what is beside it.
    """
    base, entry = Path(str(content.get("path") or "").replace("\\", "/")), entry.replace("\\", "/")
    parts = [part for part in Path(entry).parts if part not in ("..", "/")]
    ends = [Path(*parts[k:]) for k in range(len(parts)) if k in (0, len(parts) - 2) or parts[k].lower() in SPLITS]
    inside = [file.parent / start / end for end in ends for start in (base, "")]
    places = [*inside[:1], file.parent / base / entry] if entry.startswith("..") else [file.parent / base / entry]
    for place in (*places, *inside):
        if os.path.exists(place):  # False for a path that is too long
            return place
    raise InputError(
        f"expected the images of {key} at {shown(str(file.parent / entry))} ({file}), found nothing; correct the path"
    )


def _image_list(file: Path) -> list[Path]:
    """The images that a text file lists: relative to it, else by the longest end of their path that exists there."""
    found = []
    for line in filter(None, read_lines(file, "a list of images")):
        path = Path(line.replace("\\", "/"))
        parts = [part for part in path.parts if part not in ("..", "/")]
        places = [file.parent / path, *(file.parent / Path(*parts[k:]) for k in range(len(parts)))]
        found.append(next((place for place in places if os.path.isfile(place)), places[0]))
    return found


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


def _image(path: Path, classes: Sequence[str], split: str, file: Path | None) -> LabelledImage:
    width, height = upright_size(path)
    objects = []
    for number, line in enumerate(read_lines(file, "YOLO labels") if file else (), 1):
        if line:
            objects.append(_object(line, f"{file}:{number}", classes, width, height))
    return LabelledImage(path, width, height, tuple(objects), split)


def _object(line: str, where: str, classes: Sequence[str], width: int, height: int) -> Box:
    first, *words = line.split()
    if not first.isdecimal() or len(first) > 9 or int(first) >= len(classes):
        raise InputError(f"expected a class from 0 to {len(classes) - 1} in {where}, found {first[:40]}; correct it")
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
                f"expected fractions of the image from 0 to 1 in {where}, found {value:g}; divide by its size"
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
    """Half a unit of a written decimal's last place: its rounding error."""
    mantissa, _, exponent = word.lower().partition("e")
    scale = 10.0 ** -len(mantissa.partition(".")[2])
    return max(0.5 * scale * min(float(f"1e{exponent or 0}"), 1.0), 1e-15)


def _shortest(value: float, off: float) -> float:
    """The number with the fewest decimals within ``off`` of ``value``.

    Six decimals of a fraction turn pixel 13 into 12.9997; this restores it, as in the set's other forms.
    """
    for places in range(12):
        if abs(round(value, places) - value) <= 1.001 * off:
            return round(value, places) + 0.0  # no −0
    return value if math.isfinite(value) else 0.0
