"""Images decoded once and kept in memory, where a training reads each of them many times and they fit.

The pixels are those that the files give, so views and results do not change in a bit; only reading and decoding, for
photographs most of what a worker does, is left out from the second time on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from momentum_transfer.core.cpu_memory import available_memory
from momentum_transfer.core.log import say, track
from momentum_transfer.images.labelled_images import FileImages, LabelledImages
from momentum_transfer.images.subsets import Selected

_SAMPLE = 64  # images whose sizes tell the need of all, roughly
_AHEAD = 32  # decoded images that wait to be stored


class DecodedImages:
    """The images of ``source`` in one array of bytes, which worker processes share as long as nobody writes to it.

    Args:
        source: every image is read once, here, with the replacements that it makes for unreadable ones.
    """

    def __init__(self, source: LabelledImages) -> None:
        self.labels, self.classes = source.labels, source.classes
        self.sizes = np.zeros((len(source), 2), dtype=np.int64)  # width, height
        parts = []
        for index, pixels in enumerate(track(_decoded(source), "decoding images", total=len(source))):
            self.sizes[index] = pixels.shape[1], pixels.shape[0]
            parts.append(pixels.reshape(-1))
        self.ends = np.cumsum([len(part) for part in parts])
        self.pixels: NDArray[np.uint8] = np.empty(int(self.ends[-1]) if parts else 0, dtype=np.uint8)
        for index, end in enumerate(self.ends.tolist()):
            self.pixels[end - len(parts[index]) : end] = parts[index]
            parts[index] = parts[index][:0]  # never twice in memory as a whole

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]:
        position = range(len(self))[index]
        width, height = self.sizes[position].tolist()
        end = int(self.ends[position])
        pixels = self.pixels[end - width * height * 3 : end].reshape(height, width, 3)
        return PIL.Image.fromarray(pixels), int(self.labels[position])


def kept_in_memory(images: LabelledImages, share: float, *, uses: float, processes: int = 1) -> LabelledImages:
    """``images`` with their pixels in memory where that pays, else as they are.

    Args:
        images: any labelled images; those that are in memory already stay as they are.
        share: of the memory that is free now, for the images of all processes on this machine; 0 keeps none.
        uses: how often a training reads each image; up to 1 nothing is gained.
        processes: that do the same on this machine.
    """
    if share <= 0 or uses <= 1 or not len(images) or not isinstance(_innermost(images), FileImages):
        return images
    free = available_memory()
    if free is None or _bytes_needed(images) * processes > share * free:
        return images
    kept = DecodedImages(images)
    say(f"keeping {len(kept)} decoded images in memory, {kept.pixels.nbytes / 2**20:.0f} MiB (DATA.MEMORY_SHARE)")
    return kept


def _innermost(images: LabelledImages) -> LabelledImages:
    while isinstance(images, Selected):
        images = images.dataset
    return images


def _bytes_needed(images: LabelledImages) -> float:
    """Twice the mean of a sample's pixels for every image: the sizes of the others may lie above."""
    sample = np.unique(np.linspace(0, len(images) - 1, min(len(images), _SAMPLE)).astype(int))
    sizes = [images[int(index)][0].size for index in sample]
    return 2 * 3 * len(images) * float(np.mean([width * height for width, height in sizes]))


def _decoded(source: LabelledImages) -> Iterator[NDArray[np.uint8]]:
    """[H, W, 3] of every image in order; Pillow decodes without Python's lock, so threads share the work."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        indices = iter(range(len(source)))
        waiting = [pool.submit(_pixels, source, index) for index in islice(indices, _AHEAD)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(_pixels, source, index) for index in islice(indices, 1)]


def _pixels(source: LabelledImages, index: int) -> NDArray[np.uint8]:
    return np.asarray(source[index][0], dtype=np.uint8)
