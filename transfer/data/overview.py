"""Overview of a detection data set: a class histogram and example images, written into a run's folder.

Overview of a segmentation data set and of predictions on it: class counts and tinted images.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import PIL.Image
import PIL.ImageDraw
from numpy.typing import NDArray
from PIL import Image

from momentum_transfer.core.errors import counted
from momentum_transfer.core.files import atomic_path
from momentum_transfer.images.reading import read_rgb, stored_values
from momentum_transfer.transfer.data.annotations import DetectionData, decode_mask, file_stem
from momentum_transfer.transfer.data.semantic_datasets import IGNORE, SemanticData, label_file
from momentum_transfer.transfer.visuals import MIN_SIDE, colour_of, enlargement

#: The longer side of an enlarged example has at most so many pixels.
MOST_SIDE = 4096
# Distinct hues by golden-ratio steps, so that neighbours in a picture differ.
_COLOURS = [tuple(int(255 * c) for c in matplotlib.colormaps["hsv"](k * 0.618 % 1)[:3]) for k in range(32)]


def class_histogram(data: DetectionData) -> list[tuple[str, int, int]]:
    """(class, number of images that show it, number of instances) of every class, crowds left out."""
    kept = [a for a in data.load()["annotations"] if not a.get("iscrowd", 0)]
    instances = Counter(annotation["category_id"] for annotation in kept)
    shown = Counter(category for _, category in {(a["image_id"], a["category_id"]) for a in kept})
    return [(name, shown[k], instances[k]) for name, k in zip(data.classes, data.category_ids, strict=True)]


def draw_example(data: DetectionData, image: Mapping[str, Any], least_side: int = 384) -> PIL.Image.Image:
    """A picture with its masks, boxes and class names; small ones are enlarged by a whole factor."""
    picture = np.asarray(read_rgb(data.image_path(image))).astype(np.float32)
    found = [a for a in data.load()["annotations"] if a["image_id"] == image["id"]]
    for number, annotation in enumerate(found):
        if annotation.get("segmentation"):
            mask = decode_mask(annotation["segmentation"], *picture.shape[:2])
            picture[mask] = 0.5 * picture[mask] + 0.5 * np.asarray(_COLOURS[number % len(_COLOURS)])
    height, width = picture.shape[:2]
    factor = max(1, min(round(least_side / min(height, width)), MOST_SIDE // max(height, width)))
    drawn = PIL.Image.fromarray(picture.astype(np.uint8))
    drawn = drawn.resize((drawn.width * factor, drawn.height * factor), PIL.Image.Resampling.NEAREST)
    pen = PIL.ImageDraw.Draw(drawn)
    names = dict(zip(data.category_ids, data.classes, strict=True))
    for number, annotation in enumerate(found):
        left, top, width, height = (value * factor for value in annotation["bbox"])
        colour = _COLOURS[number % len(_COLOURS)]
        pen.rectangle((left, top, left + max(width, 1) - 1, top + max(height, 1) - 1), outline=colour)
        pen.text((left + 2, max(top - 12, 0)), names[annotation["category_id"]], fill=colour)
    return drawn


def write_overview(data: DetectionData, folder: str | Path, examples: int = 6) -> list[Path]:
    """Write `NAME_classes.csv`, `NAME_classes.png` and `NAME_example_K.png`; return the files.

    The examples are spread evenly over the images that have annotations.
    """
    folder = Path(folder)
    stem = file_stem(data.name)
    rows = class_histogram(data)
    written = [folder / f"{stem}_classes.csv", folder / f"{stem}_classes.png"]
    with atomic_path(written[0]) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("class", "images", "instances"), *rows])
    with atomic_path(written[1]) as temporary:
        histogram(data.name, rows).savefig(temporary, dpi=120)
    annotated = {annotation["image_id"] for annotation in data.load()["annotations"]}
    images = [image for image in data.load()["images"] if image["id"] in annotated]
    chosen = {round(place) for place in np.linspace(0, len(images) - 1, min(examples, len(images)))}
    for number, index in enumerate(sorted(chosen), 1):
        written.append(folder / f"{stem}_example_{number}.png")
        with atomic_path(written[-1]) as temporary:
            draw_example(data, images[index]).save(temporary)
    return written


def histogram(name: str, rows: list[tuple[str, int, int]], what: str = "instances") -> matplotlib.figure.Figure:
    """``what`` and images per class, most frequent first; names only where they can be read."""
    rows = sorted(rows, key=lambda row: -row[2])
    figure = matplotlib.figure.Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    place = np.arange(len(rows))
    axes.bar(place, [row[2] for row in rows], width=0.9, label=what)
    axes.bar(place, [row[1] for row in rows], width=0.5, label="images")
    axes.set_yscale("log")
    if len(rows) <= 100:
        axes.set_xticks(place, [row[0] for row in rows], rotation=90 if len(rows) > 20 else 0)
    axes.set(
        title=f"{name}: {counted(len(rows), 'class')}, {sum(row[2] for row in rows)} {what}",
        ylabel="count",
        ylim=(0.5, None),
    )
    axes.legend()
    return figure


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
