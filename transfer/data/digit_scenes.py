"""The embedded detection data: scenes of handwritten digits with exact boxes and masks, in COCO's and LVIS's JSON form.

Training scenes hold digits of the training split of `images.digits`, validation scenes held-out digits. A scene has an
uneven dark background with fragments of strokes, and digits of random class, scale, place and contrast on it. A later
digit may hide a little of an earlier one; masks and boxes are of what is visible. The long-tailed recipe samples the
training classes from an exponential profile and annotates as LVIS does (arXiv:1908.03195): per image the present
classes, a few verified absent ones, and those of which not every instance is annotated.
"""

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from momentum_transfer.core.files import cache_root, sha256_of_text
from momentum_transfer.core.log import say
from momentum_transfer.images.digits import SPLITS, draw_strokes, load_glyphs, place_glyphs, uneven_backgrounds
from momentum_transfer.transfer.data.annotations import coco_content, encode_mask

VERSION = 1  # raise it when scenes change: the cache is keyed by it
_PLACEMENT_TRIES = 50
MASK_COVERAGE = 0.25  # a digit's mask is where it covers at least this much of a pixel; half would break thin strokes
CLASSES = [str(digit) for digit in range(10)]
_RARE_IMAGES, _COMMON_IMAGES = 10, 100  # LVIS: rare up to 10 training images, common up to 100, else frequent


@dataclass(frozen=True)
class SceneRecipe:
    """How scenes are composed. Luminance runs from 0 to 1, lengths are in pixels."""

    name: str
    images: tuple[int, int] = (400, 100)  # training and validation scenes
    size: int = 128
    digits: tuple[int, int] = (3, 8)  # of a scene: least, greatest
    side: tuple[float, float] = (24.0, 52.0)  # of the square around a digit, whose strokes fill about a quarter
    background: tuple[float, float] = (0.05, 0.35)  # mean luminance
    contrast: float = 0.45  # least distance of a digit from the background
    unevenness: float = 0.06
    noise: float = 0.04
    strokes: int = 12  # fragments, lighter than the background by `stroke_contrast`
    stroke_contrast: tuple[float, float] = (0.08, 0.25)
    hidden: float = 0.05  # largest fraction of a digit's pixels that later digits may hide
    box_overlap: float = 0.1  # largest intersection over union of two digits' boxes when the later one is placed
    long_tail: float = 1.0  # f of the training classes' profile p_k ∝ f^(k/9); 1: uniform, as in validation
    lvis: bool = False
    seed: int = 0


RECIPES = {
    "digit_scenes": SceneRecipe("digit_scenes"),
    "digit_scenes_lt": SceneRecipe("digit_scenes_lt", long_tail=0.003, lvis=True),
}


@dataclass
class _Scene:
    """A scene with n digits."""

    image: NDArray[np.uint8]  # grey [size, size]
    masks: NDArray[np.bool_]  # [n, size, size] visible pixels of each digit; no pixel belongs to two
    digits: NDArray[np.int64]  # [n] classes


def _box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Left, top, right, bottom (exclusive) of a mask that is not empty."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> float:
    """Intersection over union of two boxes."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    inside = max(width, 0) * max(height, 0)
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return inside / (area - inside)


class _Placed:
    """Digits placed so far: masks as drawn, and what later ones have left of them."""

    def __init__(self, recipe: SceneRecipe) -> None:
        self.recipe = recipe
        self.whole: list[NDArray[np.bool_]] = []
        self.visible: list[NDArray[np.bool_]] = []

    def add(self, mask: NDArray[np.bool_]) -> bool:
        """Put a digit on top, unless it would hide too much of another or overlap its box too much."""
        box, kept = _box(mask), [visible & ~mask for visible in self.visible]
        for whole, visible in zip(self.whole, kept, strict=True):
            if visible.sum() < (1 - self.recipe.hidden) * whole.sum():
                return False
            if _overlap(_box(whole), box) > self.recipe.box_overlap:
                return False
        self.whole.append(mask)
        self.visible = [*kept, mask]
        return True


def _draw_scene(
    recipe: SceneRecipe,
    glyphs: NDArray[np.float32],
    labels: NDArray[np.int64],
    profile: NDArray[np.float64],
    rng: np.random.Generator,
) -> _Scene:
    """Compose one scene from glyphs [N, 8, 8] with labels [N], classes sampled from ``profile`` [10]."""
    size = recipe.size
    level = np.float32(rng.uniform(*recipe.background))
    canvas = uneven_backgrounds(level[None], recipe.unevenness, size, rng)
    lift = rng.uniform(*recipe.stroke_contrast, size=(1, recipe.strokes)).astype(np.float32)
    draw_strokes(canvas, level + lift, size / 50, (size / 20, size / 6), rng)
    placed, digits = _Placed(recipe), []
    for digit in rng.choice(len(CLASSES), size=rng.integers(recipe.digits[0], recipe.digits[1] + 1), p=profile):
        glyph = glyphs[rng.choice(np.flatnonzero(labels == digit))][None]
        for _ in range(_PLACEMENT_TRIES):
            side = rng.uniform(*recipe.side, size=1).astype(np.float32)
            corner = (rng.random((2, 1), dtype=np.float32) * (size - side)).astype(np.float32)
            coverage = place_glyphs(glyph, (corner[0], corner[1], side, side), size)[0]
            if placed.add(coverage >= MASK_COVERAGE):
                luminance = np.float32(rng.uniform(level + recipe.contrast, 1))
                canvas[0] += coverage * (luminance - canvas[0])
                digits.append(int(digit))
                break
    canvas += rng.standard_normal(canvas.shape, dtype=np.float32) * np.float32(recipe.noise)
    image = np.rint(np.clip(canvas[0], 0, 1) * 255).astype(np.uint8)
    return _Scene(image, np.stack(placed.visible), np.asarray(digits, dtype=np.int64))


def _annotations(scene: _Scene) -> Iterator[dict[str, Any]]:
    """COCO annotations of a scene: compressed RLE of the visible pixels, and their tight box."""
    for mask, digit in zip(scene.masks, scene.digits, strict=True):
        code = encode_mask(mask)
        yield {
            "category_id": int(digit) + 1,
            "bbox": [float(value) for value in coco_mask.toBbox(code)],
            "area": float(coco_mask.area(code)),
            "segmentation": code,
            "iscrowd": 0,
        }


def _profile(recipe: SceneRecipe, split: str) -> NDArray[np.float64]:
    factor = recipe.long_tail if split == "train" else 1.0
    weights = factor ** (np.arange(len(CLASSES)) / (len(CLASSES) - 1))
    return weights / weights.sum()


def _write_split(recipe: SceneRecipe, split: str, folder: Path) -> dict[str, Any]:
    """Write the images and label maps of a split, and return its COCO JSON."""
    glyphs, labels = load_glyphs(split)
    number = SPLITS.index(split)
    profile = _profile(recipe, split)
    (folder / split).mkdir()
    (folder / "labels" / split).mkdir(parents=True)
    images = []
    for index in range(recipe.images[number]):
        scene = _draw_scene(recipe, glyphs, labels, profile, np.random.default_rng((recipe.seed, number, index)))
        file_name = f"{index + 1:06d}.png"
        PIL.Image.fromarray(scene.image).convert("RGB").save(folder / split / file_name)
        label_map = ((scene.digits + 1).astype(np.uint8)[:, None, None] * scene.masks).sum(0)  # 0: background
        PIL.Image.fromarray(label_map.astype(np.uint8)).save(folder / "labels" / split / file_name)
        image = {"file_name": file_name, "height": recipe.size, "width": recipe.size}
        images.append((image, list(_annotations(scene))))
    info = {"description": f"{recipe.name}: scenes of scikit-learn's handwritten digits", "version": str(VERSION)}
    categories = [{"name": name, "supercategory": "digit"} for name in CLASSES]
    return {"info": info, "licenses": [], **coco_content(images, categories)}


def _federate(data: dict[str, Any], rng: np.random.Generator) -> None:
    """Turn exhaustive COCO annotations into LVIS's federated ones, in place.

    Each image gets up to three verified absent classes. In one of ten images that hold a class twice or more, one such
    instance is left unannotated and the class is listed as not exhaustively annotated.
    """
    of_image: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in data["images"]}
    for annotation in data["annotations"]:
        of_image[annotation["image_id"]].append(annotation)
    dropped = set()
    for image in data["images"]:
        counts = Counter(annotation["category_id"] for annotation in of_image[image["id"]])
        absent = [category["id"] for category in data["categories"] if category["id"] not in counts]
        image["neg_category_ids"] = sorted(int(k) for k in rng.choice(absent, min(3, len(absent)), replace=False))
        image["not_exhaustive_category_ids"] = []
        repeated = sorted(category for category, count in counts.items() if count > 1)
        if repeated and rng.random() < 0.1:
            category = int(rng.choice(repeated))
            last = [a["id"] for a in of_image[image["id"]] if a["category_id"] == category][-1]
            dropped.add(last)
            image["not_exhaustive_category_ids"] = [category]
    data["annotations"] = [annotation for annotation in data["annotations"] if annotation["id"] not in dropped]


def _count_categories(data: dict[str, Any], frequency: dict[int, str] | None) -> dict[int, str]:
    """Add LVIS's category fields in place; the frequency is that of the training split, which is also returned."""
    instances = Counter(annotation["category_id"] for annotation in data["annotations"])
    pairs = {(annotation["image_id"], annotation["category_id"]) for annotation in data["annotations"]}
    shown = Counter(category for _, category in pairs)
    frequencies = {}
    for category in data["categories"]:
        number = shown[category["id"]]
        letter = "r" if number <= _RARE_IMAGES else "c" if number <= _COMMON_IMAGES else "f"
        frequencies[category["id"]] = letter if frequency is None else frequency[category["id"]]
        category.update(
            image_count=number,
            instance_count=instances[category["id"]],
            frequency=frequencies[category["id"]],
            synset=f"digit_{category['name']}.n.01",
            synonyms=[category["name"]],
            **{"def": f"the handwritten digit {category['name']}"},
        )
    return frequencies


def _write_scenes(recipe: SceneRecipe, folder: Path) -> None:
    """Fill an empty folder: train/ and val/ (RGB PNG), labels/ (label maps), annotations/ (JSON)."""
    frequency = None
    (folder / "annotations").mkdir()
    for number, split in enumerate(SPLITS):
        data = _write_split(recipe, split, folder)
        if recipe.lvis:
            _federate(data, np.random.default_rng((recipe.seed, number, recipe.images[number])))
            frequency = _count_categories(data, frequency)
        (folder / "annotations" / f"{split}.json").write_text(json.dumps(data), encoding="utf-8")


def ensure_scenes(recipe: SceneRecipe) -> Path:
    """The folder of a recipe's scenes in the cache, written on first use; it is whole or absent."""
    key = sha256_of_text(json.dumps(asdict(recipe), sort_keys=True))[:12]
    folder = cache_root() / "scenes" / f"{recipe.name}-v{VERSION}-{key}"
    if folder.is_dir():
        return folder
    say(f"writing {sum(recipe.images)} scenes into {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _write_scenes(recipe, temporary)
        temporary.chmod(0o755)  # mkdtemp makes private folders
        os.rename(temporary, folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was faster, with the same content
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
