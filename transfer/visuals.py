"""Detections and labels drawn on images; the images on which a detector does best and worst.

Images are ranked by the F1 at IoU 0.5 of the boxes that are drawn. The AP of a single image would count other boxes.
"""

import colorsys
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from pycocotools import mask as coco_mask

from momentum_transfer.core.files import atomic_path
from momentum_transfer.images.reading import read_rgb
from momentum_transfer.transfer.data.annotations import DetectionData, decode_mask
from momentum_transfer.transfer.data.semantic_datasets import IGNORE

#: Detections below this score are not drawn, unless a detector is less sure of all that it finds (`_drawn_from`).
MIN_SCORE = 0.5
#: Small images are enlarged: the shorter side to at least the first, the longer one to at most the second (pixels).
_MIN_SIDE, _MAX_SIDE = 256, 4096


def _image_f1(truth: Sequence[Mapping[str, Any]], detections: Sequence[Mapping[str, Any]]) -> float:
    """F1 in 0 … 1 of ``detections`` against ``truth``, both with ``bbox`` (XYWH) and ``category_id``.

    By falling score each detection takes the free object of its category with the highest IoU of at least 0.5. Crowds
    are no objects, and a detection inside one (its intersection over its own area) counts neither way. An image without
    objects and without detections has 1.
    """
    objects = [entry for entry in truth if not entry.get("iscrowd") and not entry.get("difficult")]
    crowds = [entry for entry in truth if entry.get("iscrowd") or entry.get("difficult")]
    free = set(range(len(objects)))
    matched = missed = 0
    for found in sorted(detections, key=lambda entry: -entry["score"]):
        same = [index for index in free if objects[index]["category_id"] == found["category_id"]]
        overlaps = _ious([objects[index] for index in same], found, crowd=False)
        if len(overlaps) and overlaps.max() >= 0.5:
            free.remove(same[int(overlaps.argmax())])
            matched += 1
        elif not (_ious(crowds, found, crowd=True) >= 0.5).any():
            missed += 1
    total = 2 * matched + missed + len(free)
    return 2 * matched / total if total else 1.0


def _ious(objects: Sequence[Mapping[str, Any]], found: Mapping[str, Any], crowd: bool) -> np.ndarray:
    """IoU [len(objects)] of one detection with every object."""
    if not objects:
        return np.zeros(0)
    boxes = np.asarray([entry["bbox"] for entry in objects], dtype=np.float64)
    one = np.asarray([found["bbox"]], dtype=np.float64)
    return np.asarray(coco_mask.iou(one, boxes, [int(crowd)] * len(objects))).reshape(-1)


def _best_and_worst(
    data: DetectionData, detections: Mapping[int, Sequence[Mapping[str, Any]]], count: int
) -> tuple[list[int], list[int]]:
    """Ids of the ``count`` images with the highest F1 (most objects first among equals) and with the lowest.

    Images without objects are left out. Of an LVIS image only the verified categories count.

    Args:
        detections: image id → its detections that are drawn.
    """
    content = data.load()
    truth: dict[int, list[Mapping[str, Any]]] = {image["id"]: [] for image in content["images"]}
    for entry in content["annotations"]:
        truth[entry["image_id"]].append(entry)
    ranked = []
    for image in content["images"]:
        objects, shown = truth[image["id"]], detections.get(image["id"], ())
        if data.kind == "lvis":
            known = {entry["category_id"] for entry in objects} | set(image.get("neg_category_ids", ()))
            shown = [entry for entry in shown if entry["category_id"] in known]
        if objects:
            ranked.append((_image_f1(objects, shown), len(objects), image["id"]))
    ranked.sort(key=lambda item: (-item[0], -item[1], item[2]))
    best = [identity for _, _, identity in ranked[:count]]
    worst = sorted(ranked, key=lambda item: (item[0], -item[1], item[2]))[:count]
    return best, [identity for _, _, identity in worst]


def draw_detections(data: DetectionData, results: Path, folder: Path, count: int) -> list[Path]:
    """Write images with their objects, and beside them with the detections, as PNG files in ``folder``; those of an
    earlier run go.

    ``count`` random images, the same for every detector, as ``<image file's stem>.png``; and the ``count // 2`` on
    which this detector does best and worst, with that word before.
    """
    images = sorted(data.load()["images"], key=lambda image: image["id"])
    entries = json.loads(Path(results).read_text(encoding="utf-8"))
    least = _drawn_from([entry["score"] for entry in entries], len(data.load()["annotations"]))
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        if entry["score"] >= least:
            found[entry["image_id"]].append(entry)
    sample = sorted(random.Random(0).sample(range(len(images)), min(count, len(images))))
    chosen = [("", images[index]) for index in sample]
    by_id = {image["id"]: image for image in images}
    best, worst = _best_and_worst(data, found, count // 2)
    chosen += [("best_", by_id[identity]) for identity in best] + [("worst_", by_id[identity]) for identity in worst]
    names = dict(zip(data.category_ids, data.classes, strict=True))
    truth: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for entry in data.load()["annotations"]:
        truth[entry["image_id"]].append(entry)
    for old in folder.glob("*.png"):
        if not old.name.startswith("teacher_"):  # of this run's training
            old.unlink()
    written = []
    for prefix, image in chosen:
        opened = read_rgb(data.image_path(image))
        drawn = beside(
            ("annotated", draw(opened, truth[image["id"]], names)),
            (f"detected, scores from {least:.2g}", draw(opened, found[image["id"]], names)),
        )
        written.append(folder / f"{prefix}{data.image_path(image).stem}.png")
        with atomic_path(written[-1]) as temporary:
            drawn.save(temporary)
    return written


def _drawn_from(scores: Sequence[float], objects: int) -> float:
    """The lowest score that is drawn: 0.5; if fewer detections than half the objects reach it, the score at which as
    many are drawn as there are objects."""
    if 2 * sum(score >= MIN_SCORE for score in scores) >= objects or not scores:
        return MIN_SCORE
    return min(sorted(scores, reverse=True)[:objects][-1], MIN_SCORE)


def _enlarged(image: Image.Image, resampling: Image.Resampling) -> Image.Image:
    """A small image times a whole number."""
    factor = max(1, min(-(-_MIN_SIDE // min(image.size)), _MAX_SIDE // max(image.size)))
    return image.resize((image.width * factor, image.height * factor), resampling)


def draw(image: Image.Image, entries: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> Image.Image:
    """The image, enlarged if it is small, with masks tinted, boxes and "class score" labels; the best score on top.

    Entries without a score are objects of the ground truth.
    """
    canvas = _enlarged(image, Image.Resampling.LANCZOS)
    scale = canvas.width // image.width
    ordered = sorted(entries, key=lambda entry: entry.get("score", 0.0))
    for entry in ordered:
        if entry.get("segmentation"):
            mask = decode_mask(entry["segmentation"], image.height, image.width)
            canvas = _tint(canvas, mask, colour_of(entry["category_id"]))
    pen = ImageDraw.Draw(canvas)
    line = max(2, min(canvas.size) // 250)
    side = min(canvas.size)
    font = ImageFont.load_default(size=max(13, min(side // 18, 24 + side // 200)))
    for entry in ordered:
        x, y, width, height = (value * scale for value in entry["bbox"])
        colour = colour_of(entry["category_id"])
        pen.rectangle((x, y, x + width, y + height), outline=colour, width=line)
        label = names[entry["category_id"]] + (f" {entry['score']:.2f}" if "score" in entry else "")
        pen.font = font
        _, _, right, bottom = pen.textbbox((0, 0), label)
        corner = (max(0.0, min(x, canvas.width - right)), max(0.0, y - bottom - 1))
        pen.rectangle(pen.textbbox(corner, label), fill=colour, outline=colour, width=2)
        pen.text(corner, label, fill=_readable_on(colour))
    return canvas


def tinted(image: Image.Image, labels: np.ndarray) -> Image.Image:
    """The image in the colours of its classes: class 0 (background) as it is, ignored pixels grey.

    Args:
        labels: uint8 [H, W].
    """
    palette = np.array([(0, 0, 0), *(colour_of(k) for k in range(1, 256))], dtype=np.float32)
    palette[IGNORE] = 128
    pixels = np.asarray(image, dtype=np.float32)
    tint = np.where(labels == 0, 0.0, 0.6).astype(np.float32)[..., None]
    return Image.fromarray((pixels * (1 - tint) + palette[labels] * tint).astype(np.uint8))


def beside(*named: tuple[str, Image.Image]) -> Image.Image:
    """Images of one size in a row, each under its heading; small ones are enlarged."""
    images = [(heading, _enlarged(image, Image.Resampling.NEAREST)) for heading, image in named]
    width, height = images[0][1].size
    points = max(13, min(width, height) // 20)
    font = ImageFont.load_default(size=points)
    strip, gap = round(1.5 * points), max(4, width // 100)
    row = Image.new("RGB", (len(images) * (width + gap) - gap, height + strip), (255, 255, 255))
    pen = ImageDraw.Draw(row)
    for place, (heading, image) in enumerate(images):
        row.paste(image, (place * (width + gap), strip))
        pen.text((place * (width + gap), strip // 2), heading, fill=(60, 60, 60), font=font, anchor="lm")
    return row


def _readable_on(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Black or white, whichever has more contrast (by luma, ITU-R BT.601)."""
    red, green, blue = colour
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else (255, 255, 255)


def colour_of(category: int) -> tuple[int, int, int]:
    """A bright colour; neighbouring ids lie far apart on the colour circle (golden angle)."""
    red, green, blue = colorsys.hsv_to_rgb((category * 0.381966) % 1.0, 0.75, 1.0)
    return int(255 * red), int(255 * green), int(255 * blue)


def _tint(canvas: Image.Image, mask: np.ndarray, colour: tuple[int, int, int]) -> Image.Image:
    veil = Image.fromarray((mask * 110).astype(np.uint8)).resize(canvas.size, Image.Resampling.NEAREST)
    return Image.composite(Image.new("RGB", canvas.size, colour), canvas, veil)
