"""A detector that was exported to .onnx or .pt2, on images: the reference for whoever embeds it.

An exported program takes one image, resized, padded and RGB, and knows nothing of files; what it wants is written in it
(``Wants``), and this is the whole of it: resize, pad, run, scale back.

The SHA-256 that an exported .onnx carries in its metadata: of the whole file, its own digits read as zeros.

ONNX has no checksums, so that a flipped bit in a weight would be other boxes without a word.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from momentum_transfer.core.errors import InputError, extra, first_line, one_line
from momentum_transfer.transfer.export.pt2_archive import KEY, read_archive
from momentum_transfer.transfer.prediction.input_images import as_pixels
from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.data import output_size, resize

#: Key of the metadata, and its value while the digest is computed.
SEAL_KEY, BLANK = "momentum-transfer-sha256", "0" * 64

#: How an entry of the metadata ends: the key, and a field of 64 bytes.
_MARK = SEAL_KEY.encode() + b"\x12\x40"


def seal(path: Path) -> None:
    """Put the digest into a file whose metadata has ``BLANK`` at ``KEY``."""
    content = path.read_bytes()
    place = content.index(_MARK + BLANK.encode()) + len(_MARK)
    with open(path, "r+b") as stream:
        stream.seek(place)
        stream.write(hashlib.sha256(content).hexdigest().encode())


def check_seal(content: bytes, path: Path) -> None:
    """Compare a file's content with its digest.

    Raises:
        InputError: it has none, or another content.
    """
    before, mark, after = content.partition(_MARK)
    if not mark:
        raise InputError(f"cannot read {path} as ONNX that `export` wrote: it has no SHA-256; export it again")
    digest = hashlib.sha256(before + mark + BLANK.encode())
    digest.update(memoryview(after)[64:])
    if digest.hexdigest().encode() != after[:64]:
        raise InputError(f"cannot read {path} as ONNX: its SHA-256 is another; it is damaged, take another copy")


#: Pixels of a side, at most.
MOST = 1 << 20


@dataclass(frozen=True)
class Wants:
    """How an exported detector is fed and read.

    Attributes:
        classes: names; class k of the output is the k-th. category_ids: their ids in result files.
        short_edge, long_edge: an image's shorter side is resized to the first, unless the longer one passes the second.
        multiple: of the sides; the image is padded at the right and bottom with ``pad``.
        pad: RGB, 0 … 255: the pixel that the network's normalisation maps to 0.
        size: (height, width) where only one size is taken, else None.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    short_edge: int
    long_edge: int
    multiple: int
    pad: tuple[float, float, float]
    size: tuple[int, int] | None = None

    def as_json(self) -> str:
        """The text that is kept in an exported file."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, where: object) -> Wants:
        """What ``as_json`` gave; InputError where it is something else."""
        try:
            found = json.loads(text)
            size = None if found["size"] is None else (int(found["size"][0]), int(found["size"][1]))
            pad = (float(found["pad"][0]), float(found["pad"][1]), float(found["pad"][2]))
            names, ids = tuple(map(str, found["classes"])), tuple(map(int, found["category_ids"]))
            short, long, multiple = int(found["short_edge"]), int(found["long_edge"]), int(found["multiple"])
            made = cls(names, ids, short, long, multiple, pad, size)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
            what = one_line(error)[:120]
            raise InputError(f"expected what `export` wrote in {where}, found another file ({what})") from error
        sides = (made.short_edge, made.long_edge, made.multiple, *(size or (1,)))
        if not all(0 < side < MOST for side in sides) or not all(0 <= value <= 255 for value in pad):
            raise InputError(f"expected what `export` wrote in {where}, found sides {sides} and padding {pad}")
        return made

    def prepare(self, pixels: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
        """An image uint8 [H, W, 3] to float32 [3, h, w] of the program, and the (height, width) without padding."""
        height, width = output_size(pixels.shape[0], pixels.shape[1], self.short_edge, self.long_edge)
        target = self.size or (-(-height // self.multiple) * self.multiple, -(-width // self.multiple) * self.multiple)
        if height > target[0] or width > target[1]:
            scale = min(target[0] / height, target[1] / width)
            height, width = max(1, int(height * scale)), max(1, int(width * scale))
        padded = np.empty((3, *target), dtype=np.float32)
        padded[:] = np.array(self.pad, dtype=np.float32)[:, None, None]
        padded[:, :height, :width] = resize(pixels, (height, width), flip=False).transpose(2, 0, 1)
        return padded, (height, width)


Program = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class ExportedDetector:
    """An exported program with what it wants."""

    program: Program
    wants: Wants

    def predict(self, image: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes float32 [D, 4] (x1 y1 x2 y2 in the image's pixels), scores [D] and classes [D], best first.

        Args:
            image: a path, a Pillow image or uint8 [H, W, 3] in RGB.
        """
        pixels = as_pixels(image)
        prepared, (height, width) = self.wants.prepare(pixels)
        boxes, scores, classes = self.program(prepared)
        moved = torch.from_numpy(np.array(boxes, dtype=np.float32))
        moved[:, 0::2] *= pixels.shape[1] / width
        moved[:, 1::2] *= pixels.shape[0] / height
        moved = box_ops.clip(moved, (pixels.shape[0], pixels.shape[1]))
        kept = box_ops.nonempty(moved).numpy()
        return moved.numpy()[kept], scores[kept], classes[kept]


def load_exported(path: str | Path) -> ExportedDetector:
    """Read a .onnx (run by onnxruntime on the CPU) or a .pt2 that ``export`` wrote.

    A .onnx must have the SHA-256 that ``export`` left in it, the records of a .pt2 their CRC-32. A .pt2 may be
    untrusted: its pickles are read as weights only, its JSON is checked before torch evaluates it (``pt2_archive``).

    Raises:
        InputError: the file is missing, damaged or of another kind, or onnxruntime is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"exported detector not found: {path}")
    try:
        return {".onnx": _onnx, ".pt2": _pt2}[path.suffix](path)
    except KeyError:
        raise InputError(f"expected a .onnx or .pt2 file, found {path}") from None


def _onnx(path: Path) -> ExportedDetector:
    runtime = extra("onnxruntime", "an ONNX file")
    content = path.read_bytes()
    check_seal(content, path)
    try:
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has classes of its own, without a common base
        raise InputError(f"cannot read {path} as ONNX: {str(error).splitlines()[0]}") from error
    wants = Wants.from_json(session.get_modelmeta().custom_metadata_map.get(KEY, ""), path)

    def program(image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        boxes, scores, classes = session.run(["boxes", "scores", "classes"], {"image": image})
        return boxes, scores, classes

    return ExportedDetector(program, wants)


#: torch reads every pickle as weights only where the first is set, whatever its caller says, and stops where both are.
_SAFE, _UNSAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """Without torch's fall back to unpickling anything, nor its log of the attempts."""
    before = {name: os.environ.pop(name, None) for name in (_SAFE, _UNSAFE)}
    level = logging.root.manager.disable
    os.environ[_SAFE] = "1"
    logging.disable(max(level, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(level)
        del os.environ[_SAFE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _pt2(path: Path) -> ExportedDetector:
    content = read_archive(path)
    extras = {KEY: ""}
    try:
        with _weights_only():
            module = torch.export.load(content, extra_files=extras).module()
    except Exception as error:  # torch raises many kinds for damaged files
        raise InputError(f"cannot read {path} as a torch.export program ({type(error).__name__})") from error
    wants = Wants.from_json(extras[KEY], path)

    def program(image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        try:
            with torch.no_grad():
                boxes, scores, classes = module(torch.from_numpy(image))
            return boxes.numpy(), scores.numpy(), classes.numpy()
        except (AssertionError, RuntimeError) as error:  # the program's guards
            raise InputError(
                f"expected a size that the program of {path.name} was traced for, found {image.shape[1]}×"
                f"{image.shape[2]} after resizing and padding ({one_line(error)[:120]}); export with --size "
                f"{image.shape[1]}x{image.shape[2]} for such images"
            ) from error
        except Exception as error:  # a crafted program may call any operator with anything
            raise InputError(
                f"expected a program that gives boxes, scores and classes in {path}, found one that fails "
                f"({first_line(error)}); export it again"
            ) from error

    return ExportedDetector(program, wants)
