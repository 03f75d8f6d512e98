"""Overview of a segmentation data set and of predictions on it: class counts and tinted images."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from momentum_transfer.core.files import atomic_path
from momentum_transfer.images.reading import read_rgb, stored_values
from momentum_transfer.transfer.data.annotations import file_stem
from momentum_transfer.transfer.data.overview import histogram
from momentum_transfer.transfer.data.semantic_datasets import IGNORE, SemanticData, label_file
from momentum_transfer.transfer.visuals import MIN_SIDE, colour_of, enlargement

#: Share of a class's colour in a tinted pixel. Class 0, mostly the background, stays as it is.
TINT = 0.6


def write_label_overview(data: SemanticData, counts: NDArray[np.int64], folder: Path, examples: int) -> list[Path]:
    """Write `NAME_classes.csv`, `NAME_classes.png` and `NAME_example_K.png` (picture beside labels); return the files.

    Args:
        counts: pixels of each class in each picture, [pictures, classes].
    """
    stem = file_stem(data.name)
    rows = [(name, int((counts[:, k] > 0).sum()), int(counts[:, k].sum())) for k, name in enumerate(data.classes)]
    written = [folder / f"{stem}_classes.csv", folder / f"{stem}_classes.png"]
    with atomic_path(written[0]) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("class", "images", "pixels"), *rows])
    with atomic_path(written[1]) as temporary:
        histogram(data.name, rows, what="pixels").savefig(temporary, dpi=120)
    for number, index in enumerate(_spread(len(data.pairs), examples), 1):
        written.append(folder / f"{stem}_example_{number}.png")
        with atomic_path(written[-1]) as temporary:
            picture = read_rgb(data.pairs[index][0])
            beside(picture, tinted(picture, data.labels(index))).save(temporary)
    return written


def draw_label_predictions(data: SemanticData, results: Path, folder: Path, count: int) -> list[Path]:
    """Draw ``count`` pictures spread over the set as ``<image file's stem>.png``: picture, truth, prediction."""
    written = []
    for index in _spread(len(data.pairs), count):
        picture = read_rgb(data.pairs[index][0])
        predicted = stored_values(label_file(results, index))
        written.append(folder / f"{data.pairs[index][0].stem}.png")
        with atomic_path(written[-1]) as temporary:
            beside(picture, tinted(picture, data.labels(index)), tinted(picture, predicted)).save(temporary)
    return written


def tinted(picture: Image.Image, labels: NDArray[np.uint8]) -> Image.Image:
    """The picture in the colours of its classes; ignored pixels are grey."""
    palette = np.array([(0, 0, 0), *(colour_of(k) for k in range(1, 256))], dtype=np.float32)
    palette[IGNORE] = 128
    pixels = np.asarray(picture, dtype=np.float32)
    share = np.where(labels == 0, 0.0, TINT).astype(np.float32)[..., None]
    return Image.fromarray((pixels * (1 - share) + palette[labels] * share).astype(np.uint8))


def beside(*pictures: Image.Image) -> Image.Image:
    """Pictures of one size in a row, enlarged where they are small."""
    scale = enlargement(pictures[0].size, MIN_SIDE)
    width, height = pictures[0].width * scale, pictures[0].height * scale
    row = Image.new("RGB", (len(pictures) * width + (len(pictures) - 1) * scale, height), (255, 255, 255))
    for place, picture in enumerate(pictures):
        row.paste(picture.resize((width, height), Image.Resampling.NEAREST), (place * (width + scale), 0))
    return row


def _spread(total: int, count: int) -> list[int]:
    """Places of ``count`` items spread evenly over ``total``."""
    return [place * total // count for place in range(min(count, total))] if count else []
