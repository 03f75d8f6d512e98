"""Labelled images as every reader of this folder returns them, the common checks, and labels turned as EXIF says.

Some tools label an image as its pixels are stored, while every reader here turns it upright. Only a label whose width
and height are swapped shows this: for square images, and for those upside down, it cannot be detected.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError, counted, shown
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.images.reading import image_files, stored_orientation, upright_size
from momentum_transfer.transfer.data.annotations import TOLERANCE, decode_mask, encode_mask

#: Folder names → what the images below them are for.
SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "val"}

#: No corner lies further out, in pixels; a greater number of JSON may not even be a float.
_FAR = 1e9


@dataclass(frozen=True)
class Box:
    """One object."""

    name: str  # of its class
    box: tuple[float, float, float, float]  # x, y, width, height in pixels of the upright image, from its corner
    where: str  # file and line, for messages
    segmentation: Any = None  # COCO's polygons or run lengths
    area: float | None = None  # in square pixels, if the file has it
    crowd: bool = False
    difficult: bool = False


@dataclass(frozen=True)
class LabelledImage:
    """An image file with its objects."""

    file: Path
    width: int
    height: int
    objects: tuple[Box, ...]
    split: str = ""  # train or val, if the set has a split of its own
    orientation: int = 1  # EXIF's, if size and boxes are those of the image as stored, to be turned by `all_upright`


@dataclass(frozen=True)
class LabelledSet:
    """The images of one folder or file."""

    form: str  # for people
    root: Path
    images: tuple[LabelledImage, ...]
    declared: tuple[str, ...] = ()  # classes in the file's order
    notes: tuple[str, ...] = ()  # for the user, before the run


class ImageIndex:
    """Image files of a folder by name, because the paths in labels seldom fit the exported folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = image_files(root)
        self._by_name: dict[str, list[Path]] = {}
        self._by_stem: dict[str, list[Path]] = {}
        for file in self.files:
            self._by_name.setdefault(_composed(file.name), []).append(file)
            self._by_stem.setdefault(_composed(file.stem), []).append(file)

    def has(self, stem: str) -> bool:
        """Whether an image has that name, with any ending."""
        return _composed(stem) in self._by_stem

    def find(self, name: str, near: Path, where: str) -> Path:
        """The file that a label means by ``name``; of several, the closest by folders to it and to ``near``.

        InputError if there is none, or two fit equally.
        """
        target = Path(_composed(name.replace("\\", "/")))
        found = self._by_name.get(target.name) or self._by_stem.get(target.name) or self._by_stem.get(target.stem, [])
        if not found:
            raise InputError(
                f"expected the image {name} of {where} below {self.root}, found none; add it or drop the label"
            )
        ranked = sorted(found, key=lambda file: _closeness(file, target, near), reverse=True)
        if len(ranked) > 1 and _closeness(ranked[0], target, near) == _closeness(ranked[1], target, near):
            raise InputError(
                f"expected one image {name} for {where}, found {ranked[0]} and {ranked[1]}; give each its own name"
            )
        return ranked[0]


def _composed(name: str) -> str:
    """Accents as one character each, as in labels; macOS writes file names with two."""
    return unicodedata.normalize("NFC", name)


def _closeness(file: Path, target: Path, near: Path) -> tuple[int, int]:
    """How many last parts two paths have in common, then how many first parts the file has with the label's folder."""
    tail = zip(reversed(file.parts), reversed(target.parts), strict=False)
    head = zip(file.parts, near.parts, strict=False)
    return (
        sum(1 for _ in takewhile(lambda pair: _composed(pair[0]) == pair[1], tail)),
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], head)),
    )


def split_by_folders(images: Sequence[LabelledImage], root: Path) -> tuple[LabelledImage, ...]:
    """The images with the split of their folder below ``root``, if all lie in train and val folders.

    Of train, valid and test, test is kept back.
    """
    folders = [_folder_split(image.file, root) for image in images]
    if not all(folders) or {SPLITS[name] for name in folders} != {"train", "val"}:
        return tuple(images)
    if len({name for name in folders if SPLITS[name] == "val"}) > 1:
        folders = ["" if name == "test" else name for name in folders]
    return tuple(replace(image, split=SPLITS[name]) for image, name in zip(images, folders, strict=True) if name)


def _folder_split(file: Path, root: Path) -> str:
    parts = file.relative_to(root).parts[:-1] if file.is_relative_to(root) else ()
    return next((part.lower() for part in parts if part.lower() in SPLITS), "")


def left_out(count: int, where: Path) -> tuple[str, ...]:
    """The note on images that a set's own split uses neither for training nor for testing; none without them."""
    if not count:
        return ()
    return (f"left out: {counted(count, 'image')} of {where}, which its split gives neither to train nor to val",)


def labelled_orientation(file: Path, width: int, height: int, where: str) -> int:
    """EXIF's orientation if a label's size is that of the image as stored, 1 if it is that of the upright image.

    InputError if it is neither.
    """
    found = upright_size(file)
    if found == (width, height):
        return 1
    orientation, stored = stored_orientation(file)
    if stored == (width, height):
        return orientation
    raise InputError(
        f"expected {width}x{height} pixels in {file} as {where} says, found {found[0]}x{found[1]}; "
        "correct the label or the image"
    )


def check_box(box: Sequence[float], width: int, height: int, where: str) -> None:
    """Raise InputError for a box that is not finite, has no size, or leaves its image by more than a pixel."""
    if not all(-_FAR < value < _FAR for value in box):  # False for NaN
        raise InputError(f"expected finite numbers for the box of {where}, found {shown(list(box))}; correct the label")
    x, y, across, down = box
    rounded = [round(value, 2) for value in box]
    if across < 0 or down < 0:
        raise InputError(f"expected a box with its ends in order in {where}, found x, y, w, h {rounded}")
    if x < -TOLERANCE or y < -TOLERANCE or x + across > width + TOLERANCE or y + down > height + TOLERANCE:
        raise InputError(
            f"expected a box inside its image of {width}x{height} pixels in {where}, found x, y, w, h {rounded}"
        )


def check_names(names: Iterable[str], where: str) -> tuple[str, ...]:
    """The names of classes; InputError if one is empty or there twice."""
    listed = tuple(names)
    twice = [name for name, count in Counter(listed).items() if count > 1]
    if twice:
        raise InputError(f"expected every class once in {where}, found {twice[0]!r} twice; rename one of them")
    if any(not name for name in listed):
        raise InputError(f"expected a name for every class in {where}, found an empty one; name it")
    return listed


def read_names(file: Path) -> tuple[str, ...]:
    """Class names from a text file, a line each."""
    return check_names((line for line in read_lines(file, "class names, a line each,") if line), str(file))


_Point = tuple[float, float]
#: EXIF's orientation -> where the point (x, y) of a stored image of w x h comes to lie.
_POINTS: dict[int, Callable[[float, float, int, int], _Point]] = {
    5: lambda x, y, w, h: (y, x),
    6: lambda x, y, w, h: (h - y, x),
    7: lambda x, y, w, h: (h - y, w - x),
    8: lambda x, y, w, h: (y, w - x),
}
#: The same of an array [h, w].
_MASKS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    5: lambda mask: mask.T,
    6: lambda mask: mask.T[:, ::-1],
    7: lambda mask: mask.T[::-1, ::-1],
    8: lambda mask: mask.T[::-1],
}


def all_upright(one: LabelledSet) -> LabelledSet:
    """A set with the labels of every image as stored turned, and a note on how many there were."""
    stored = [image for image in one.images if image.orientation != 1]
    if not stored:
        return one
    images, first = counted(len(stored), "image"), stored[0].file.name
    note = f"{images} labelled as stored, first {first}: boxes are turned as EXIF says"
    return replace(one, images=tuple(map(_upright, one.images)), notes=(*one.notes, note))


def _upright(image: LabelledImage) -> LabelledImage:
    if image.orientation == 1:
        return image
    objects = tuple(_turned(box, image) for box in image.objects)
    return replace(image, width=image.height, height=image.width, objects=objects, orientation=1)


def _turned(box: Box, image: LabelledImage) -> Box:
    def point(x: float, y: float) -> _Point:
        return _POINTS[image.orientation](x, y, image.width, image.height)

    x, y, across, down = box.box
    (x1, y1), (x2, y2) = point(x, y), point(x + across, y + down)
    corners = (min(x1, x2), min(y1, y2), down, across)
    return replace(box, box=corners, segmentation=_turned_mask(box, image, point))


def _turned_mask(box: Box, image: LabelledImage, point: Callable[[float, float], _Point]) -> Any:
    mask = box.segmentation
    if mask is None:
        return None
    with checked_mask(box):
        if isinstance(mask, dict):
            return encode_mask(_MASKS[image.orientation](decode_mask(mask, image.height, image.width)))
        return [[value for x, y in zip(part[::2], part[1::2], strict=True) for value in point(x, y)] for part in mask]


@contextmanager
def checked_mask(box: Box) -> Iterator[None]:
    """Raise InputError instead of the errors of a malformed segmentation."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise InputError(
            f"expected COCO's polygons or run lengths in {box.where}, found: {error}; correct it"
        ) from error
