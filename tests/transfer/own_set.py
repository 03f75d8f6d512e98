"""A small labelled set from real photographs that packages ship, written in every form that is read.

    python -m tests.transfer.own_set OUT [--images 60] [--seed 0]

Things are cut along hand-drawn outlines from scikit-learn's sample images (and scikit-image's, where it is installed),
turned, scaled and pasted on other parts of these photographs. OUT gets one folder a form: ``coco`` (with masks),
``coco_boxes``, ``voc``, ``yolo``, ``yolo_segments``, ``labels`` (label PNGs), ``crops`` (a folder a class), ``flat``
(unlabelled). The images and boxes of coco_boxes, voc and yolo are the same.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

Corners = list[tuple[float, float]]

#: Outlines in scikit-learn's two photographs, in pixels.
_PAGODA = [(205, 30), (214, 62), (262, 98), (318, 122), (298, 158), (328, 180), (320, 235), (350, 256), (342, 310),
           (368, 335), (330, 372), (215, 385), (120, 345), (78, 330), (66, 270), (96, 240), (86, 180), (118, 160),
           (98, 118), (150, 95), (195, 62)]  # fmt: skip
_TREE = [(602, 136), (636, 150), (639, 300), (636, 415), (560, 415), (552, 330), (560, 260), (546, 215), (570, 160)]
_FLOWER = [(307 + 139 * np.cos(a), 221 + 138 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 40, endpoint=False)]


@dataclass(frozen=True)
class Thing:
    """A cut-out: RGBA with the outline's corners in its own pixels."""

    name: str
    image: Image.Image
    outline: Corners


@dataclass(frozen=True)
class Placed:
    """An object of a made image: class, box x y width height in whole pixels, polygon x, y, x, y, …"""

    name: str
    box: tuple[int, int, int, int]
    polygon: list[float]


@dataclass(frozen=True)
class Made:
    """One image of the set."""

    name: str
    split: str
    image: Image.Image
    objects: list[Placed]


def _cut(name: str, photograph: np.ndarray, outline: Sequence[tuple[float, float]]) -> Thing:
    xs, ys = [x for x, _ in outline], [y for _, y in outline]
    left, top, right, bottom = int(min(xs)), int(min(ys)), int(max(xs)) + 1, int(max(ys)) + 1
    corners = [(float(x - left), float(y - top)) for x, y in outline]
    return Thing(name, Image.fromarray(photograph[top:bottom, left:right]).convert("RGB"), corners)


def _ellipse(x: float, y: float, across: float, down: float) -> Corners:
    return [(x + across * np.cos(a), y + down * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 32, endpoint=False)]


@functools.cache
def photographs() -> tuple[list[Thing], list[Image.Image]]:
    """Things to paste, and grounds without things to paste them on."""
    from sklearn.datasets import load_sample_images

    china, flower = load_sample_images().images
    things = [_cut("pagoda", china, _PAGODA), _cut("tree", china, _TREE), _cut("flower", flower, _FLOWER)]
    grounds = [china[:215, 360:560], china[200:300, 380:540], flower[:, :160], flower[:78, 200:640], china[:120, 340:]]
    try:
        from skimage import data
    except ImportError:
        return things, [Image.fromarray(part) for part in grounds]
    things.append(_cut("cat", data.chelsea(), _ellipse(220, 150, 110, 125)))
    things.append(_cut("cup", data.coffee(), _ellipse(295, 190, 170, 150)))
    things.append(_cut("face", data.astronaut(), _ellipse(222, 118, 58, 76)))
    grounds += [data.coffee()[:60], data.rocket()[:200, :250]]
    return things, [Image.fromarray(part) for part in grounds]


def make(count: int, seed: int, size: tuple[int, int] = (320, 240), share: float = 0.7) -> list[Made]:
    """``count`` images with up to six things each, no thing over another by more than a tenth."""
    things, grounds = photographs()
    random = np.random.default_rng(seed)
    return [
        _scene(
            f"photo_{number:04d}", "train" if number < round(share * count) else "val", things, grounds, size, random
        )
        for number in range(count)
    ]


def _scene(
    name: str,
    split: str,
    things: Sequence[Thing],
    grounds: Sequence[Image.Image],
    size: tuple[int, int],
    random: np.random.Generator,
) -> Made:
    width, height = size
    ground = grounds[random.integers(len(grounds))].resize(size, Image.Resampling.BILINEAR)
    canvas = ground.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else ground.copy()
    objects: list[Placed] = []
    for _ in range(int(random.integers(2, 7))):
        thing = things[random.integers(len(things))]
        scale = random.uniform(0.18, 0.55) * height / thing.image.height
        across, down = max(int(thing.image.width * scale), 8), max(int(thing.image.height * scale), 8)
        if across >= width or down >= height:
            continue
        x, y = int(random.integers(0, width - across)), int(random.integers(0, height - down))
        if any(_overlap((x, y, across, down), other.box) > 0.1 for other in objects):
            continue
        mirrored = random.random() < 0.5
        objects.append(_paste(canvas, thing, (x, y, across, down), mirrored))
    return Made(name, split, canvas, objects)


def _overlap(one: Sequence[int], other: Sequence[int]) -> float:
    across = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    down = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    return max(across, 0) * max(down, 0) / min(one[2] * one[3], other[2] * other[3])


def _paste(canvas: Image.Image, thing: Thing, box: tuple[int, int, int, int], mirrored: bool) -> Placed:
    x, y, across, down = box
    cut, outline = thing.image, thing.outline
    if mirrored:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        outline = [(thing.image.width - u, v) for u, v in outline]
    scaled = [(u * across / thing.image.width, v * down / thing.image.height) for u, v in outline]
    mask = Image.new("L", (across, down))
    ImageDraw.Draw(mask).polygon(scaled, fill=255)
    canvas.paste(cut.resize((across, down), Image.Resampling.BILINEAR), (x, y), mask)
    return Placed(thing.name, box, [round(v + (x, y)[n % 2], 2) for n, v in enumerate(c for p in scaled for c in p)])


def classes_of(made: Sequence[Made]) -> list[str]:
    """Names in the order of their first object, which is no alphabet's."""
    return list(dict.fromkeys(thing.name for one in made for thing in one.objects))


def _images(made: Sequence[Made], folder: Callable[[Made], Path]) -> None:
    for one in made:
        folder(one).mkdir(parents=True, exist_ok=True)
        one.image.save(folder(one) / f"{one.name}.jpg", quality=92)


def write_coco(made: Sequence[Made], out: Path, masks: bool = True) -> None:
    """images/train, images/val, annotations/instances_train.json, …"""
    names = classes_of(made)
    _images(made, lambda one: out / "images" / one.split)
    for split in ("train", "val"):
        content: dict[str, list[dict[str, object]]] = {"images": [], "annotations": [], "categories": []}
        content["categories"] = [{"id": 3 * k + 2, "name": name} for k, name in enumerate(names)]
        for one in (one for one in made if one.split == split):
            image_id = len(content["images"]) + 100
            content["images"].append(
                {"id": image_id, "file_name": f"{one.name}.jpg", "width": one.image.width, "height": one.image.height}
            )
            for thing in one.objects:
                entry: dict[str, object] = {
                    "id": len(content["annotations"]) + 1, "image_id": image_id, "iscrowd": 0, "bbox": list(thing.box),
                    "category_id": 3 * names.index(thing.name) + 2, "area": thing.box[2] * thing.box[3],
                }  # fmt: skip
                content["annotations"].append(entry | ({"segmentation": [thing.polygon]} if masks else {}))
        (out / "annotations").mkdir(parents=True, exist_ok=True)
        (out / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))


def write_voc(made: Sequence[Made], out: Path) -> None:
    """Annotations, JPEGImages, ImageSets/Main; pixels from 1, both ends included."""
    _images(made, lambda one: out / "JPEGImages")
    for folder in ("Annotations", "ImageSets/Main"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for one in made:
        objects = "".join(
            f"  <object>\n    <name>{thing.name}</name>\n    <difficult>0</difficult>\n    <bndbox>\n"
            f"      <xmin>{x + 1}</xmin>\n      <ymin>{y + 1}</ymin>\n      <xmax>{x + w}</xmax>\n"
            f"      <ymax>{y + h}</ymax>\n    </bndbox>\n  </object>\n"
            for thing in one.objects
            for x, y, w, h in [thing.box]
        )
        size = f"<width>{one.image.width}</width><height>{one.image.height}</height><depth>3</depth>"
        (out / "Annotations" / f"{one.name}.xml").write_text(
            f"<annotation>\n  <filename>{one.name}.jpg</filename>\n  <size>{size}</size>\n{objects}</annotation>\n"
        )
    for split in ("train", "val"):
        listed = "".join(f"{one.name}\n" for one in made if one.split == split)
        (out / "ImageSets" / "Main" / f"{split}.txt").write_text(listed)


def write_yolo(made: Sequence[Made], out: Path, segments: bool = False) -> None:
    """data.yaml, images/train, labels/train, …; six decimals."""
    names = classes_of(made)
    _images(made, lambda one: out / "images" / one.split)
    for one in made:
        width, height = one.image.size
        lines = []
        for thing in one.objects:
            x, y, w, h = thing.box
            values = [(x + w / 2) / width, (y + h / 2) / height, w / width, h / height]
            if segments:
                values = [min(max(v / (width, height)[n % 2], 0), 1) for n, v in enumerate(thing.polygon)]
            lines.append(" ".join([str(names.index(thing.name)), *(f"{value:.6f}" for value in values)]) + "\n")
        file = out / "labels" / one.split / f"{one.name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(lines))
    listed = "".join(f"  {k}: {name}\n" for k, name in enumerate(names))
    (out / "data.yaml").write_text(f"path: .\ntrain: images/train\nval: images/val\nnames:\n{listed}")


def write_labels(made: Sequence[Made], out: Path) -> None:
    """images/train, masks/train, …, classes.txt: 0 is the ground."""
    names = ["ground", *classes_of(made)]
    _images(made, lambda one: out / "images" / one.split)
    for one in made:
        mask = Image.new("L", one.image.size)
        for thing in one.objects:
            corners = list(zip(thing.polygon[::2], thing.polygon[1::2], strict=True))
            ImageDraw.Draw(mask).polygon(corners, fill=names.index(thing.name))
        file = out / "masks" / one.split / f"{one.name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        mask.save(file)
    (out / "classes.txt").write_text("".join(f"{name}\n" for name in names))


def write_crops(made: Sequence[Made], out: Path) -> None:
    """train/CLASS/*.jpg, val/CLASS/*.jpg."""
    for one in made:
        for number, thing in enumerate(one.objects):
            x, y, w, h = thing.box
            file = out / one.split / thing.name / f"{one.name}_{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            one.image.crop((x, y, x + w, y + h)).save(file, quality=92)


def write_all(out: Path, count: int = 60, seed: int = 0) -> list[Made]:
    """Every form below ``out``, which is made anew."""
    made = make(count, seed)
    shutil.rmtree(out, ignore_errors=True)
    write_coco(made, out / "coco")
    write_coco(made, out / "coco_boxes", masks=False)
    write_voc(made, out / "voc")
    write_yolo(made, out / "yolo")
    write_yolo(made, out / "yolo_segments", segments=True)
    write_labels(made, out / "labels")
    write_crops(made, out / "crops")
    _images(made, lambda one: out / "flat")
    return made


if __name__ == "__main__":
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("out", type=Path)
    command.add_argument("--images", type=int, default=60)
    command.add_argument("--seed", type=int, default=0)
    given = command.parse_args()
    written = write_all(given.out, given.images, given.seed)
    print(f"{len(written)} images, {sum(len(one.objects) for one in written)} objects of {classes_of(written)}")
