"""Files of a prediction: a line an image, from which a stopped command resumes; COCO results; tables of counts."""

import csv
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path, write_text
from momentum_transfer.transfer.data.annotations import encode_mask
from momentum_transfer.transfer.detector_run import DetectorRun, Found
from momentum_transfer.transfer.prediction.input_images import InputImage

_LINES = "predictions.jsonl"  # one line an image
_ORIGIN = "predict.json"  # what made them


@dataclass(frozen=True)
class Done:
    """An image that is done."""

    image_id: int
    result: Mapping[str, Any]  # of `detection_result` or `label_result`
    stamp: tuple[int, int]  # of its file


class Store:
    """The lines of an output folder.

    Args:
        origin: what determines the results (the weights' hash, the threshold …); a folder belongs to one.

    Raises:
        InputError: the folder holds the predictions of another origin.
    """

    def __init__(self, folder: Path, origin: Mapping[str, Any]) -> None:
        self.folder, self.file = folder, folder / _LINES
        self._claim(origin)
        self.done: dict[str, Done] = {}
        whole = 0
        for line in self.file.read_bytes().splitlines(keepends=True) if self.file.is_file() else []:
            if not self._take(line):
                break  # cut off by a kill or a full disk, or damaged: from here on images are done again
            whole += len(line)
        if self.file.is_file() and whole < self.file.stat().st_size:
            os.truncate(self.file, whole)

    def _claim(self, origin: Mapping[str, Any]) -> None:
        note = self.folder / _ORIGIN
        if not note.is_file():
            if self.file.is_file():
                raise InputError(f"expected {_ORIGIN} beside {self.file}, found none; choose another --out")
            write_text(note, json.dumps(dict(origin), indent=1, ensure_ascii=False) + "\n")
            return
        try:
            before = json.loads(note.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            before = None
        if not isinstance(before, dict):
            raise InputError(f"expected the origin of predictions in {note}, found other content; choose another --out")
        for key, value in origin.items():
            if before.get(key) != value:
                raise InputError(
                    f"{self.folder} holds predictions with {key} {before.get(key)!s:.40}, this command has "
                    f"{value!s:.40}; choose another --out"
                )

    def _take(self, line: bytes) -> bool:
        try:
            row = json.loads(line)
            if row.pop("crc32") != zlib.crc32(_as_text(row)):
                return False
            done = Done(int(row["image_id"]), row["result"], (int(row["bytes"]), int(row["changed"])))
            name = str(row["file_name"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return False
        if whole := line.endswith(b"\n"):
            self.done[name] = done
        return whole

    def has(self, image: InputImage) -> bool:
        """Whether the image is done and its file has not changed since."""
        done = self.done.get(image.name)
        return done is not None and done.stamp == _stamp(image.path)

    def next_id(self) -> int:
        """The next free id."""
        return max((done.image_id for done in self.done.values()), default=0) + 1

    def add(self, image: InputImage, image_id: int, result: Mapping[str, Any]) -> None:
        """Append an image's line, which replaces an earlier one of the file."""
        size, changed = stamp = _stamp(image.path)
        row = {"image_id": image_id, "file_name": image.name, "bytes": size, "changed": changed, "result": result}
        with open(self.file, "ab") as stream:
            stream.write(_as_text({**row, "crc32": zlib.crc32(_as_text(row))}) + b"\n")
        self.done[image.name] = Done(image_id, result, stamp)


def _as_text(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode()


def _stamp(path: Path) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


Rows = list[Sequence[object]]


def detection_result(found: Found, height: int, width: int) -> dict[str, Any]:
    """An image's size and its detections in COCO's form, without the image's id."""
    columns = zip(found.category_ids, found.boxes.tolist(), found.scores.tolist(), strict=True)
    entries: list[dict[str, Any]] = [
        {"category_id": k, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score} for k, (x1, y1, x2, y2), score in columns
    ]
    if found.masks is not None:
        for entry, mask in zip(entries, found.masks, strict=True):
            entry["segmentation"] = encode_mask(mask)
    return {"height": height, "width": width, "detections": entries}


def label_result(labels: np.ndarray, classes: int) -> dict[str, Any]:
    """Of a segmented image: its size and the number of pixels of each class."""
    pixels = np.bincount(labels.ravel(), minlength=classes)[:classes].tolist()
    return {"height": labels.shape[0], "width": labels.shape[1], "pixels": pixels}


def write_results(folder: Path, run: DetectorRun, done: Mapping[str, Done]) -> list[Path]:
    """``predictions.json`` (COCO results, with each image's file name; of detectors only) and ``images.json`` (COCO's
    lists of images and categories, whose ids the results use)."""
    order = sorted(done.items(), key=lambda item: item[1].image_id)
    images = [
        {"id": one.image_id, "file_name": name, **{side: one.result[side] for side in ("height", "width")}}
        for name, one in order
    ]
    pairs = zip(run.classes.ids, run.classes.names, strict=True)
    content = {"images": images, "categories": [{"id": identity, "name": name} for identity, name in pairs]}
    written = [folder / "images.json"]
    write_text(written[0], json.dumps(content, ensure_ascii=False, indent=1) + "\n")
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
    tables = {
        folder / "counts.csv": [("class", "images", counted_unit(run)), *by_class],
        folder / "counts_by_image.csv": [("file_name", *run.classes.names, "all"), *by_image],
    }
    for path, rows in tables.items():
        with atomic_path(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(rows)
    return list(tables)


def counted_unit(run: DetectorRun) -> str:
    """What is counted: pixels of segmenters."""
    return "pixels" if run.task == "segmentation" else "detections"
