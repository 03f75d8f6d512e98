"""Overview of a data set, written into a run's folder: a class histogram and annotated example images."""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from momentum_transfer.core.errors import counted
from momentum_transfer.core.files import atomic_path
from momentum_transfer.images.reading import read_rgb, stored_values
from momentum_transfer.transfer.data.annotations import DetectionData, file_stem
from momentum_transfer.transfer.data.semantic_datasets import SemanticData, label_file
from momentum_transfer.transfer.visuals import beside, draw, tinted

_Rows = list[tuple[str, int, int]]


def _class_histogram(data: DetectionData) -> _Rows:
    """(class, number of images that show it, number of instances) of every class, crowds left out."""
    kept = [a for a in data.load()["annotations"] if not a.get("iscrowd", 0)]
    instances = Counter(annotation["category_id"] for annotation in kept)
    shown = Counter(category for _, category in {(a["image_id"], a["category_id"]) for a in kept})
    return [(name, shown[k], instances[k]) for name, k in zip(data.classes, data.category_ids, strict=True)]


def write_overview(data: DetectionData, folder: str | Path, examples: int = 6) -> list[Path]:
    """Write `NAME_classes.csv`, `NAME_classes.png` and `NAME_example_K.png`; return the files.

    The examples are spread evenly over the images that have annotations.
    """
    annotations: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in data.load()["annotations"]:
        annotations[entry["image_id"]].append(entry)
    images = [image for image in data.load()["images"] if image["id"] in annotations]
    chosen = {round(place) for place in np.linspace(0, len(images) - 1, min(examples, len(images)))}
    names = dict(zip(data.category_ids, data.classes, strict=True))
    shown = [images[index] for index in sorted(chosen)]
    drawn = (draw(read_rgb(data.image_path(image)), annotations[image["id"]], names) for image in shown)
    return _write(data.name, Path(folder), _class_histogram(data), "instances", drawn)


def write_label_overview(data: SemanticData, counts: NDArray[np.int64], folder: Path, examples: int) -> list[Path]:
    """The same of a segmentation set; examples are images beside their labels.

    Args:
        counts: pixels of each class in each image, [images, classes].
    """
    rows = [(name, int((counts[:, k] > 0).sum()), int(counts[:, k].sum())) for k, name in enumerate(data.classes)]
    drawn = (
        beside(("image", image), ("annotated", tinted(image, data.labels(index))))
        for index in _spread(len(data.pairs), examples)
        for image in (read_rgb(data.pairs[index][0]),)
    )
    return _write(data.name, folder, rows, "pixels", drawn)


def _write(name: str, folder: Path, rows: _Rows, unit: str, examples: Iterable[Image.Image]) -> list[Path]:
    stem = file_stem(name)
    written = [folder / f"{stem}_classes.csv", folder / f"{stem}_classes.png"]
    with atomic_path(written[0]) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("class", "images", unit), *rows])
    with atomic_path(written[1]) as temporary:
        _histogram(name, rows, unit).savefig(temporary, dpi=120)
    for number, example in enumerate(examples, 1):
        written.append(folder / f"{stem}_example_{number}.png")
        with atomic_path(written[-1]) as temporary:
            example.save(temporary)
    return written


def _histogram(name: str, rows: _Rows, unit: str) -> matplotlib.figure.Figure:
    """Images and instances (or pixels) of each class, most frequent first; names only if they fit."""
    rows = sorted(rows, key=lambda row: -row[2])
    figure = matplotlib.figure.Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    place = np.arange(len(rows))
    axes.bar(place, [row[2] for row in rows], width=0.9, label=unit)
    axes.bar(place, [row[1] for row in rows], width=0.5, label="images")
    axes.set_yscale("log")
    if len(rows) <= 100:
        axes.set_xticks(place, [row[0] for row in rows], rotation=90 if len(rows) > 20 else 0)
    title = f"{name}: {counted(len(rows), 'class')}, {sum(row[2] for row in rows)} {unit}"
    axes.set(title=title, ylabel="count", ylim=(0.5, None))
    axes.legend()
    return figure


def draw_label_predictions(data: SemanticData, results: Path, folder: Path, count: int) -> list[Path]:
    """Write ``count`` images spread over the set as ``<image file's stem>.png``, with their labels and predictions."""
    written = []
    for index in _spread(len(data.pairs), count):
        image = read_rgb(data.pairs[index][0])
        annotated = tinted(image, data.labels(index))
        predicted = tinted(image, stored_values(label_file(results, index)))
        written.append(folder / f"{data.pairs[index][0].stem}.png")
        with atomic_path(written[-1]) as temporary:
            beside(("image", image), ("annotated", annotated), ("predicted", predicted)).save(temporary)
    return written


def _spread(total: int, count: int) -> list[int]:
    """Places of ``count`` items spread evenly over ``total``."""
    return [place * total // count for place in range(min(count, total))] if count else []
