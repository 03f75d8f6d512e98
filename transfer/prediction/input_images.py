"""Images to predict on: files, folders of files, frames of a video, or images in memory."""

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
_NAMED = 3  # files that a message names
_FRAMES = "cut it into frames first, for example ffmpeg -i VIDEO frames/%06d.png"


@dataclass(frozen=True)
class InputImage:
    """An image file."""

    path: Path
    name: str  # in results: its path below the given folder, with forward slashes


def find_images(given: Sequence[str | Path]) -> list[InputImage]:
    """The images of files and folders, in the given order; those of a folder in natural order (frame 2 before 10).

    InputError for no image, a missing path, a folder without images, a video, and two images of one name.
    """
    images: dict[str, InputImage] = {}
    for path in map(Path, given):
        for image in _of_folder(path) if path.is_dir() else [_of_file(path)]:
            before = images.setdefault(image.name, image)
            if before != image:
                raise InputError(
                    f"expected images of different names, found {before.path} and {image.path}; give the folder above "
                    "both, below which they are named by their places"
                )
    if not images:
        raise InputError("expected images or a folder of images, found none; name at least one")
    return list(images.values())


def _of_folder(folder: Path) -> list[InputImage]:
    files = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    named = [InputImage(path, path.relative_to(folder).as_posix()) for path in files]
    kept = [image for image in named if not any(part.startswith(".") for part in Path(image.name).parts)]
    if not kept:
        videos = [path.name for path in folder.iterdir() if path.suffix.lower() in _VIDEOS]
        step = f"{videos[0]} is a video: {_FRAMES}" if videos else "check the path"
        raise InputError(f"expected images ({', '.join(SUFFIXES)}) in {folder}, found none; {step}")
    return sorted(kept, key=lambda image: _natural_order(image.name))


def _of_file(path: Path) -> InputImage:
    if not path.is_file():
        raise InputError(f"image not found: {path}; give image files, or a folder of them")
    if path.suffix.lower() in _VIDEOS:
        raise InputError(f"expected images, found the video {path}; {_FRAMES}")
    return InputImage(path, path.name)


def _natural_order(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts numbers within names by their value."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdecimal() else (1, part.lower()) for part in parts if part]


def unreadable(images: Iterable[InputImage]) -> dict[InputImage, str]:
    """Files without an image header, or whose names are not UTF-8 and so fit no file of results, with the reason.

    What is broken further inside shows when the image is read.
    """
    wrong = {}
    for image in images:
        try:
            image.name.encode()
            upright_size(image.path)
        except UnreadableImage as error:
            wrong[image] = str(error)
        except UnicodeEncodeError:
            wrong[image] = f"expected a file name in UTF-8, found {printable(str(image.path))}; rename it"
    return wrong


def refuse_unreadable(wrong: dict[InputImage, str]) -> None:
    """Raise InputError with the first of the files that cannot be read, if there are any."""
    if wrong:
        some = "; ".join(list(wrong.values())[:_NAMED])
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise InputError(
            f"expected images, found {len(wrong)} that cannot be read: {some}{more}; remove them, or leave them out by "
            "--skip-unreadable"
        )


def as_pixels(image: Any) -> np.ndarray:
    """An image as uint8 [H, W, 3] in RGB.

    Args:
        image: a path (it is turned upright); a Pillow image; an array [H, W, 3] or [H, W], or a tensor [3, H, W], of
            uint8, RGB or grey.

    Raises:
        InputError: it is none of these, or cannot be read.
    """
    if isinstance(image, (str, Path)):
        return np.asarray(read_rgb(image))
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
