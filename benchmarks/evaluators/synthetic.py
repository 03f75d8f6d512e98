"""Ground truth and results for ``benchmarks/scores.py``, written entry by entry, so that memory stays small.

~7 objects of a few classes an image, classes long-tailed; 60 % of the detections near an object.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HEIGHT, WIDTH = 480, 640


def write(folder: Path, images: int, classes: int, detections: int, segm: bool, federated: bool) -> None:
    """``ground_truth.json`` and ``results.json``."""
    random = np.random.default_rng(0)
    frequency = 1 / np.arange(1, classes + 1)
    frequency /= frequency.sum()
    truth: dict[str, list[dict[str, Any]]] = {
        "images": [{"id": i, "height": HEIGHT, "width": WIDTH} for i in range(images)],
        "categories": [{"id": k + 1, "name": str(k), "frequency": "fcr"[min(2, k // 400)]} for k in range(classes)],
        "annotations": [],
    }
    separator = "["
    with open(folder / "results.json", "w", encoding="utf-8") as file:
        for image in truth["images"]:
            boxes, labels = _objects(random, truth, image, frequency, segm, federated)
            for entry in _detections(random, image["id"], boxes, labels, frequency, detections, segm):
                file.write(separator + json.dumps(entry))
                separator = ", "
        file.write("]")
    (folder / "ground_truth.json").write_text(json.dumps(truth))


def _objects(
    random: np.random.Generator, truth: dict[str, list[dict[str, Any]]], image: dict[str, Any], frequency: np.ndarray,
    segm: bool, federated: bool,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    classes = len(frequency)
    present = random.choice(classes, size=3 + 5 * federated, p=frequency) + 1
    count = random.poisson(7.3)
    boxes, labels = _boxes(random, count), random.choice(present, count)
    for box, label in zip(boxes.tolist(), labels.tolist(), strict=True):
        annotation = _entry(image["id"], label, box, segm) | {"iscrowd": int(random.random() < 0.01)}
        annotation |= {"id": len(truth["annotations"]) + 1, "area": box[2] * box[3] * 0.6, "bbox": box}
        truth["annotations"].append(annotation)
    if federated:
        image["neg_category_ids"] = sorted(set((random.choice(classes, 20) + 1).tolist()) - set(labels.tolist()))
        image["not_exhaustive_category_ids"] = labels[:1].tolist()
    return boxes, labels


def _detections(
    random: np.random.Generator, image: int, boxes: np.ndarray, labels: np.ndarray, frequency: np.ndarray, count: int,
    segm: bool,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    found, guesses = _boxes(random, count), random.choice(len(frequency), count, p=frequency) + 1
    if len(boxes):
        source = random.integers(0, len(boxes), count)
        near = random.random(count) < 0.6
        moved = boxes[source] + random.normal(0, 0.12, (count, 4)) * boxes[source][:, [2, 3, 2, 3]]
        moved[:, 2:] = moved[:, 2:].clip(4)
        moved[:, :2] = moved[:, :2].clip(0)
        found, guesses = np.where(near[:, None], moved, found), np.where(near, labels[source], guesses)
    scores = random.beta(1, 4, count).round(4)
    for box, label, score in zip(found.round(2).tolist(), guesses.tolist(), scores.tolist(), strict=True):
        yield _entry(image, label, box, segm) | {"score": score}


def _boxes(random: np.random.Generator, count: int) -> np.ndarray:
    side = np.exp(random.normal(4, 1, (count, 2))).clip(4, 400)
    return np.concatenate((random.random((count, 2)) * ([WIDTH, HEIGHT] - side), side), axis=1).round(2)


def _entry(image: int, label: int, box: list[float], segm: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"image_id": image, "category_id": label}
    if not segm:
        return entry | {"bbox": box}
    from pycocotools import mask

    angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    outline = np.stack((box[0] + box[2] * (0.5 + 0.5 * np.cos(angles)), box[1] + box[3] * (0.5 + 0.5 * np.sin(angles))))
    code = mask.frPyObjects([outline.T.ravel().tolist()], HEIGHT, WIDTH)[0]
    return entry | {"segmentation": {"size": code["size"], "counts": code["counts"].decode()}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for option in ("images", "classes", "detections"):
        parser.add_argument(option, type=int)
    parser.add_argument("--segm", action="store_true")
    parser.add_argument("--federated", action="store_true")
    write(**vars(parser.parse_args()))
