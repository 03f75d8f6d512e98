"""The files of a prediction: COCO results, the images and classes they refer to, counts by class and by image."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer.core.files import atomic_path, write_text
from momentum_transfer.transfer.data.run_lengths import encode_mask
from momentum_transfer.transfer.detector_run import DetectorRun, Found
from momentum_transfer.transfer.prediction.store import Done

Rows = list[Sequence[object]]


def line_of(found: Found, height: int, width: int) -> dict[str, Any]:
    """What is kept of one image: its size and its detections in COCO's form, without the image's id."""
    entries = []
    for index, (box, score) in enumerate(zip(found.boxes.tolist(), found.scores.tolist(), strict=True)):
        x1, y1, x2, y2 = box
        entry: dict[str, Any] = {"category_id": found.category_ids[index], "bbox": [x1, y1, x2 - x1, y2 - y1]}
        entry["score"] = score
        if found.masks is not None:
            entry["segmentation"] = encode_mask(found.masks[index])
        entries.append(entry)
    return {"height": height, "width": width, "detections": entries}


def label_line(labels: np.ndarray, classes: int) -> dict[str, Any]:
    """What is kept of one image with a class for every pixel: its size and the pixels of each class."""
    pixels = np.bincount(labels.ravel(), minlength=classes)[:classes].tolist()
    return {"height": labels.shape[0], "width": labels.shape[1], "pixels": pixels}


def write_results(folder: Path, run: DetectorRun, done: Mapping[str, Done]) -> list[Path]:
    """``predictions.json`` (COCO results, with each image's file name) and ``images.json`` (COCO's lists of images and
    categories, whose ids the results use); label images have the second only."""
    order = sorted(done.items(), key=lambda item: item[1].image_id)
    images = [
        {"id": one.image_id, "file_name": name, "height": one.result["height"], "width": one.result["width"]}
        for name, one in order
    ]
    pairs = zip(run.classes.ids, run.classes.names, strict=True)
    categories = [{"id": identity, "name": name} for identity, name in pairs]
    written = [folder / "images.json"]
    write_text(
        written[0], json.dumps({"images": images, "categories": categories}, ensure_ascii=False, indent=1) + "\n"
    )
    if run.task == "detection":
        entries = [
            {"image_id": one.image_id, "file_name": name, **entry}
            for name, one in order
            for entry in one.result["detections"]
        ]
        written.insert(0, folder / "predictions.json")
        write_text(written[0], json.dumps(entries, ensure_ascii=False))
    return written


def counts(run: DetectorRun, done: Mapping[str, Done], threshold: float) -> tuple[Rows, Rows]:
    """Rows by class (name, images, detections or pixels) and by image (name, one number a class, their sum).

    Args:
        threshold: detections of a lower score are not counted.
    """
    order = sorted(done.items(), key=lambda item: item[1].image_id)
    table = np.array([_numbers(run, one.result, threshold) for _, one in order], dtype=np.int64)
    table = table.reshape(len(order), len(run.classes.names))
    by_class = zip(run.classes.names, (table > 0).sum(axis=0).tolist(), table.sum(axis=0).tolist(), strict=True)
    by_image = [(name, *row.tolist(), int(row.sum())) for (name, _), row in zip(order, table, strict=True)]
    return [tuple(row) for row in by_class], [tuple(row) for row in by_image]


def _numbers(run: DetectorRun, result: Mapping[str, Any], threshold: float) -> list[int]:
    if "pixels" in result:
        return list(result["pixels"])
    place = {identity: index for index, identity in enumerate(run.classes.ids)}
    numbers = [0] * len(place)
    for entry in result["detections"]:
        numbers[place[entry["category_id"]]] += entry["score"] >= threshold
    return numbers


def write_counts(folder: Path, run: DetectorRun, by_class: Rows, by_image: Rows) -> list[Path]:
    """``counts.csv`` (a row a class) and ``counts_by_image.csv`` (a row an image)."""
    what = what_is_counted(run)
    first, second = folder / "counts.csv", folder / "counts_by_image.csv"
    _write_csv(first, [("class", "images", what), *by_class])
    _write_csv(second, [("file_name", *run.classes.names, "all"), *by_image])
    return [first, second]


def what_is_counted(run: DetectorRun) -> str:
    """Detections, or pixels where every pixel has a class."""
    return "pixels" if run.task == "segmentation" else "detections"


def _write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    with atomic_path(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
