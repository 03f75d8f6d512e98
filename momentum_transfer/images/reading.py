"""The one reader of image files, for pretraining, evaluations, detectors and predictions.

Files are untrusted: `opened` alone calls Pillow, with a fixed list of formats, so that PostScript named .jpg does not
start Ghostscript, and refuses images of more than ``$MOMENTUM_TRANSFER_MAX_PIXELS`` pixels. Every file becomes 8-bit
RGB, turned as its EXIF says. Grey becomes three equal channels, 16 bits become 8 by their high byte, transparent pixels
are laid on white, CMYK is converted as Pillow does (without a colour profile).
"""

import functools
import io
import os
import re
import stat
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps

from momentum_transfer.core.errors import InputError, one_line, shown

#: Endings of image files in folders, and Pillow's names of the formats.
FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".webp": "WEBP", ".tif": "TIFF",
           ".tiff": "TIFF", ".ppm": "PPM", ".pgm": "PPM", ".gif": "GIF"}  # fmt: skip
SUFFIXES = tuple(FORMATS)

#: Environment variable (every process of every tool reads images) with the most pixels of an image. The default is
#: Pillow's warning threshold, 89,478,485: 256 MiB as RGB, about 1.8 GB while a transparent image is read.
LIMIT = "MOMENTUM_TRANSFER_MAX_PIXELS"

#: EXIF's tag of how an image is to be turned, and its values that swap width and height.
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)


def image_files(folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> list[Path]:
    """Every image file below a folder, sorted; links are followed, what is hidden is left out."""
    found: list[Path] = []
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in seen:  # a link to a folder above it, or to one twice
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place, name) for name in names if not name.startswith(".") and name.lower().endswith(suffixes)]
    return sorted(found)


class UnreadableImage(InputError):
    """An image file that cannot be read; the message names it and says why."""


def max_pixels() -> int:
    """How many pixels an image may have: ``$MOMENTUM_TRANSFER_MAX_PIXELS``, else ``PIL.Image.MAX_IMAGE_PIXELS``."""
    chosen = os.environ.get(LIMIT)
    if not chosen:
        return PIL.Image.MAX_IMAGE_PIXELS or sys.maxsize
    if not re.fullmatch("[1-9][0-9]{0,17}", chosen):
        raise InputError(f"expected a number of pixels in {LIMIT}, found {shown(chosen)}; correct it, or unset it")
    return int(chosen)


@contextmanager
def opened(
    path: str | Path, formats: tuple[str, ...] = tuple(FORMATS.values()), content: bytes | None = None
) -> Iterator[PIL.Image.Image]:
    """Open an image file of one of Pillow's ``formats``, whatever its ending; or its ``content``, read elsewhere.

    Raises UnreadableImage if it is missing, damaged, of another format or has too many pixels; also for what Pillow
    raises in the block.
    """
    most = max_pixels()
    try:
        with warnings.catch_warnings():
            if PIL.Image.MAX_IMAGE_PIXELS is not None and most > PIL.Image.MAX_IMAGE_PIXELS:
                PIL.Image.MAX_IMAGE_PIXELS = most  # Pillow refuses twice this number whatever is set here
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)  # the limit is checked below
            warnings.simplefilter("ignore", UserWarning)  # damaged EXIF data need not mean damaged pixels
            if content is None and not stat.S_ISREG(os.stat(path).st_mode):  # a pipe or a device may never end
                raise ValueError("it is no regular file")
            with PIL.Image.open(path if content is None else io.BytesIO(content), formats=formats) as image:
                if image.width * image.height > most:
                    raise _too_large(path, most, f"{image.width} × {image.height}")
                yield image
    except PIL.Image.DecompressionBombError as error:
        found = re.search(r"\d+", str(error))
        raise _too_large(path, most, f"{int(found[0]):,}" if found else "more") from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error) as error:
        unknown = isinstance(error, PIL.UnidentifiedImageError)
        detail = f"it is not recognised as {', '.join(dict.fromkeys(formats))}" if unknown else one_line(error)
        raise UnreadableImage(f"cannot read the image {path}: {detail}; restore it or leave it out") from error


def _too_large(path: str | Path, most: int, found: str) -> UnreadableImage:
    return UnreadableImage(
        f"expected an image of at most {most:,} pixels in {path}, found {found}; scale it down, or set {LIMIT}, the "
        "most pixels of an image"
    )


def read_rgb(path: str | Path, content: bytes | None = None) -> PIL.Image.Image:
    """An image file, or its ``content``, as Pillow's 8-bit RGB, upright; `UnreadableImage`."""
    with opened(path, content=content) as image:
        image.load()
        return as_rgb(image, path)


def read_pixels(path: str | Path, content: bytes | None = None) -> np.ndarray:
    """The same as an array [H, W, 3]; simplejpeg, where it is installed, decodes upright JPEGs to the same bits."""
    with opened(path, content=content) as image:
        decode = _jpeg_decoder()
        if decode and image.format == "JPEG" and image.mode == "RGB" and _orientation(image) == 1:
            with suppress(ValueError):  # damaged: Pillow repairs it or says how
                return decode(Path(path).read_bytes() if content is None else content)
        image.load()
        return np.array(as_rgb(image, path))


@functools.cache
def _jpeg_decoder() -> Callable[[bytes], np.ndarray] | None:
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return None
    return decode_jpeg


def stored_values(path: str | Path) -> np.ndarray:
    """The pixels of a PNG as stored, which in label PNGs are classes; `UnreadableImage`."""
    with opened(path, ("PNG",)) as image:
        return stored_pixels(image, path)


def stored_pixels(image: PIL.Image.Image, path: str | Path) -> np.ndarray:
    """The pixels of an opened image as stored; Pillow spreads grey PNGs of 1, 2 and 4 bits over 0 to 255."""
    values = np.asarray(image)
    bits = _grey_bits(path) if image.format == "PNG" else 8
    if bits == 1:
        return values.astype(np.uint8)  # Pillow's truth values
    return values // (255 // (2**bits - 1)) if bits < 8 else values


def _grey_bits(path: str | Path) -> int:
    """Bits a pixel of a grey PNG below 8, by its header (PNG specification, IHDR); 8 for every other PNG."""
    with Path(path).open("rb") as file:
        header = file.read(26)
    depth, colour = header[24:]
    return depth if header[12:16] == b"IHDR" and colour == 0 and depth < 8 else 8


def upright_size(path: str | Path) -> tuple[int, int]:
    """(width, height) of an image file as `read_rgb` gives it, from the header alone; `UnreadableImage`."""
    with opened(path) as image:
        width, height = image.size
        return (height, width) if _orientation(image) in _SIDEWAYS else (width, height)


def verified_size(path: str | Path) -> tuple[int, int]:
    """(width, height) as stored, after checking the file's checksums if it has any; `UnreadableImage`."""
    with opened(path) as image:
        image.verify()
        return image.size


def stored_orientation(path: str | Path) -> tuple[int, tuple[int, int]]:
    """EXIF's orientation (1 by default) and the (width, height) before turning; `UnreadableImage`."""
    with opened(path) as image:
        return _orientation(image), image.size


def _orientation(image: PIL.Image.Image) -> int:
    """1 to 8; 1 (upright) without valid EXIF."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except (OSError, SyntaxError, ValueError, KeyError, TypeError, struct.error):
        return 1
    return found if found in range(1, 9) else 1


def as_rgb(image: PIL.Image.Image, path: str | Path = "memory") -> PIL.Image.Image:
    """An image of Pillow's as `read_rgb` gives it; ``path`` is for messages."""
    if _orientation(image) != 1:
        image = PIL.ImageOps.exif_transpose(image)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith(("I", "F")):
        return _eight_bit(image, path).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        coloured = image.convert("RGBA")
        ground = PIL.Image.new("RGBA", coloured.size, "white")
        return PIL.Image.alpha_composite(ground, coloured).convert("RGB")
    return image.convert("RGB")


def _eight_bit(image: PIL.Image.Image, path: str | Path) -> PIL.Image.Image:
    """The high byte of 16-bit grey, which Pillow also gives as 32-bit integers, as PNG readers do."""
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise UnreadableImage(
            f"expected brightness of 8 or 16 bits in {path}, found values from {values.min()} to {values.max()} "
            f"(Pillow's mode {image.mode}); save it as an 8-bit image"
        )
    return PIL.Image.fromarray((values.astype(np.uint16) >> 8).astype(np.uint8))
