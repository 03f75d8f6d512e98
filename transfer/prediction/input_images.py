"""Photographs to predict on: files, folders of files, frames of a video, or images in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from momentum_transfer.core.errors import InputError, printable
from momentum_transfer.images.reading import SUFFIXES, UnreadableImage, as_rgb, read_rgb, upright_size

_VIDEOS = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
#: Files that a message names.
_NAMED = 3


@dataclass(frozen=True)
class InputImage:
    """An image file. name: what results call it, its path below the folder that was given, with forward slashes."""

    path: Path
    name: str


def find_images(given: Sequence[str | Path]) -> list[InputImage]:
    """The images of files and folders, in the given order; those of a folder in natural order (frame 2 before 10).

    Raises:
        InputError: nothing was given, a path is missing, a folder holds no image, a file is a video, or two images have
            one name.
    """
    found: list[InputImage] = []
    for path in map(Path, given):
        found += _of_folder(path) if path.is_dir() else [_of_file(path)]
    if not found:
        raise InputError("expected images or a folder of images, found none; name at least one")
    first: dict[str, Path] = {}
    for photo in dict.fromkeys(found):
        before = first.setdefault(photo.name, photo.path)
        if before != photo.path:
            raise InputError(
                f"expected images of different names, found {before} and {photo.path}; give the folder above both, "
                "below which they are named by their places"
            )
    return list(dict.fromkeys(found))


def _of_folder(folder: Path) -> list[InputImage]:
    files = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    named = [InputImage(path, path.relative_to(folder).as_posix()) for path in files]
    kept = [photo for photo in named if not any(part.startswith(".") for part in Path(photo.name).parts)]
    if not kept:
        raise InputError(f"expected images ({', '.join(SUFFIXES)}) in {folder}, found none; {_video_hint(folder)}")
    return sorted(kept, key=lambda photo: natural_order(photo.name))


def _video_hint(folder: Path) -> str:
    videos = [path.name for path in folder.iterdir() if path.suffix.lower() in _VIDEOS]
    return f"{videos[0]} is a video: {_FRAMES}" if videos else "check the path"


_FRAMES = "cut it into frames first, for example ffmpeg -i VIDEO frames/%06d.png"


def _of_file(path: Path) -> InputImage:
    if not path.is_file():
        raise InputError(f"image not found: {path}; give image files, or a folder of them")
    if path.suffix.lower() in _VIDEOS:
        raise InputError(f"expected images, found the video {path}; {_FRAMES}")
    return InputImage(path, path.name)


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts numbers within names by their value."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdecimal() else (1, part.lower()) for part in parts if part]


def unreadable(photos: Iterable[InputImage]) -> dict[InputImage, str]:
    """Files whose header is that of no image, with the reason; what is broken further inside shows when it is read.

    So are names whose bytes are no UTF-8: no file of results can hold them.
    """
    wrong = {}
    for photo in photos:
        try:
            photo.name.encode()
            upright_size(photo.path)
        except UnreadableImage as error:
            wrong[photo] = str(error)
        except UnicodeEncodeError:
            wrong[photo] = f"expected a file name in UTF-8, found {printable(str(photo.path))}; rename it"
    return wrong


def refuse_unreadable(wrong: dict[InputImage, str]) -> None:
    """Raise InputError with the first of the files that cannot be read, where there is one."""
    if wrong:
        some = "; ".join(list(wrong.values())[:_NAMED])
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise InputError(
            f"expected images, found {len(wrong)} that cannot be read: {some}{more}; remove them, or leave them out by "
            "--skip-unreadable"
        )


def read_pixels(path: str | Path) -> np.ndarray:
    """An image file as uint8 [H, W, 3] in RGB, upright; InputError names one that cannot be read."""
    return np.asarray(read_rgb(path))


def as_pixels(image: Any) -> np.ndarray:
    """What ``DetectorRun.predict`` takes, as uint8 [H, W, 3] in RGB.

    Args:
        image: a path; a Pillow image; an array [H, W, 3] or [H, W], or a tensor [3, H, W], of uint8, RGB or grey.

    Raises:
        InputError: it is none of these.
    """
    if isinstance(image, (str, Path)):
        return read_pixels(image)
    if isinstance(image, Image.Image):
        return np.asarray(as_rgb(image))
    array = np.asarray(image)
    if array.dtype != np.uint8:
        raise InputError(f"expected an image of uint8 (0 … 255), found {array.dtype}; multiply by 255 and convert")
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:  # a tensor's order
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise InputError(f"expected an image [H, W, 3], [3, H, W] or [H, W], found the shape {list(array.shape)}")
    return array
