"""A detector that was exported to .onnx or .pt2, on images: the reference for whoever embeds it.

The file holds the program, which takes one RGB image, resized and padded, and its input specification: resize, pad,
run, scale back is all there is to do. ONNX has no checksums, so an exported .onnx carries the SHA-256 of itself, with
these digits read as zeros: a flipped bit in a weight would silently give other boxes.
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

import msgspec
import numpy as np
import torch

from momentum_transfer.core.errors import InputError, extra, first_line, one_line
from momentum_transfer.core.untrusted import read_regular
from momentum_transfer.transfer.export.pt2_archive import KEY, read_archive
from momentum_transfer.transfer.prediction.input_images import as_pixels
from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.data import output_size, resize

SEAL_KEY, BLANK = "momentum-transfer-sha256", "0" * 64  # in the metadata: key, and value while the digest is computed
_MARK = SEAL_KEY.encode() + b"\x12\x40"  # the key, and a field of 64 bytes
_MOST = 1 << 20  # pixels of a side


def seal(path: Path) -> None:
    """Put the digest into a file whose metadata has ``BLANK`` at ``SEAL_KEY``."""
    content = path.read_bytes()
    place = content.index(_MARK + BLANK.encode()) + len(_MARK)
    with open(path, "r+b") as stream:
        stream.seek(place)
        stream.write(hashlib.sha256(content).hexdigest().encode())


def check_seal(content: bytes, path: Path) -> None:
    """Raise InputError unless a file's content has its digest."""
    before, mark, after = content.partition(_MARK)
    if not mark:
        raise InputError(f"cannot read {path} as ONNX that `export` wrote: it has no SHA-256; export it again")
    digest = hashlib.sha256(before + mark + BLANK.encode())
    digest.update(memoryview(after)[64:])
    if digest.hexdigest().encode() != after[:64]:
        raise InputError(f"cannot read {path} as ONNX: its SHA-256 is another; it is damaged, take another copy")


@dataclass(frozen=True)
class InputSpec:
    """The input specification of an exported detector, and the classes of its output."""

    classes: tuple[str, ...]  # class k of the output is the k-th
    category_ids: tuple[int, ...]  # in result files
    short_edge: int  # an image's shorter side is resized to it, unless the longer side passes the next
    long_edge: int
    multiple: int  # of the sides, to which the image is padded at the right and bottom
    pad: tuple[float, float, float]  # RGB, 0 … 255: the pixel that the network's normalisation maps to 0
    size: tuple[int, int] | None = None  # (height, width) if the program takes one size only

    def as_json(self) -> str:
        """The text in an exported file."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, where: object) -> InputSpec:
        """Read the text of ``as_json``; InputError if it is something else."""
        try:
            spec = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            what = one_line(error)[:120]
            raise InputError(f"expected what `export` wrote in {where}, found another file ({what})") from error
        sides = (spec.short_edge, spec.long_edge, spec.multiple, *(spec.size or (1,)))
        if not all(0 < side < _MOST for side in sides) or not all(0 <= value <= 255 for value in spec.pad):
            raise InputError(f"expected what `export` wrote in {where}, found sides {sides} and padding {spec.pad}")
        return spec

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
    """An exported model and its input specification."""

    program: Program
    spec: InputSpec

    def predict(self, image: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes float32 [D, 4] (x1 y1 x2 y2 in the image's pixels), scores [D] and classes [D], best first.

        Args:
            image: see ``as_pixels``.
        """
        pixels = as_pixels(image)
        prepared, (height, width) = self.spec.prepare(pixels)
        boxes, scores, classes = self.program(prepared)
        moved = torch.from_numpy(np.array(boxes, dtype=np.float32))
        moved[:, 0::2] *= pixels.shape[1] / width
        moved[:, 1::2] *= pixels.shape[0] / height
        moved = box_ops.clip(moved, (pixels.shape[0], pixels.shape[1]))
        kept = box_ops.nonempty(moved).numpy()
        return moved.numpy()[kept], scores[kept], classes[kept]


def load_exported(path: str | Path) -> ExportedDetector:
    """Read a .onnx (run by onnxruntime on the CPU) or a .pt2 that ``export`` wrote.

    A .onnx must have the SHA-256 that ``export`` wrote into it, the records of a .pt2 their CRC-32. A .pt2 may be
    untrusted: its pickles are read as weights only, its JSON is checked before torch evaluates it (``pt2_archive``).

    Raises:
        InputError: the file is missing, damaged or of another kind, or onnxruntime is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"exported detector not found: {path}")
    if path.suffix not in (".onnx", ".pt2"):
        raise InputError(f"expected a .onnx or .pt2 file, found {path}")
    return _onnx(path) if path.suffix == ".onnx" else _pt2(path)


def _onnx(path: Path) -> ExportedDetector:
    runtime = extra("onnxruntime", "an ONNX file")
    content = read_regular(path, "an exported detector", most=None)
    check_seal(content, path)
    try:
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has classes of its own, without a common base
        raise InputError(f"cannot read {path} as ONNX: {str(error).splitlines()[0]}") from error
    spec = InputSpec.from_json(session.get_modelmeta().custom_metadata_map.get(KEY, ""), path)

    return ExportedDetector(lambda image: session.run(["boxes", "scores", "classes"], {"image": image}), spec)


#: torch reads every pickle as weights only if the first is set, whatever its caller says, and stops if both are.
_SAFE, _UNSAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """Without torch's fallback to unpickling anything, and without its log of the attempts."""
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
    spec = InputSpec.from_json(extras[KEY], path)

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

    return ExportedDetector(program, spec)
