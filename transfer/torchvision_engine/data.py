"""Training and test samples from COCO-form files as Detectron2 makes them: resizing, flips, crowds, empty images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.samplers import Place
from momentum_transfer.images.augmentations import RECIPES
from momentum_transfer.images.reading import read_rgb
from momentum_transfer.images.views import PilGaussianBlur, sample_seed
from momentum_transfer.transfer.data.annotations import DetectionData, decode_mask
from momentum_transfer.transfer.torchvision_engine.boxes import nonempty
from momentum_transfer.transfer.torchvision_engine.structures import (
    BitMasks,
    PolygonMasks,
    Sample,
    Target,
    polygons_to_bitmap,
)


@dataclass(frozen=True)
class Annotation:
    """One object. box: x1 y1 x2 y2. category: from 0. segmentation: polygons, an RLE, or None."""

    box: tuple[float, float, float, float]
    category: int
    segmentation: Any
    crowd: bool


@dataclass(frozen=True)
class AnnotatedImage:
    """One image of a data set with its objects."""

    file: Path
    image_id: int
    height: int
    width: int
    annotations: tuple[Annotation, ...] = ()


def annotated_images(data: DetectionData) -> list[AnnotatedImage]:
    """The images and objects of a data set. Classes are numbered in the order of the file's ids, as Detectron2 does."""
    content = data.load()
    number = {category: index for index, category in enumerate(data.category_ids)}
    objects: dict[int, list[Annotation]] = {}
    for entry in content["annotations"]:
        segmentation = entry.get("segmentation")
        if isinstance(segmentation, list) and segmentation:
            segmentation = [p for p in segmentation if len(p) % 2 == 0 and len(p) >= 6]
            if not segmentation:
                continue  # no polygon with three corners: Detectron2 leaves such objects out
        x, y, width, height = (np.float32(value) for value in entry["bbox"])  # Detectron2 adds in float32
        box = (float(x), float(y), float(x + width), float(y + height))
        category = number[entry["category_id"]]
        found = Annotation(box, category, segmentation or None, bool(entry.get("iscrowd", 0)))
        objects.setdefault(entry["image_id"], []).append(found)
    return [
        AnnotatedImage(data.image_path(i), i["id"], i["height"], i["width"], tuple(objects.get(i["id"], ())))
        for i in sorted(content["images"], key=lambda image: image["id"])
    ]


def with_objects(images: Sequence[AnnotatedImage]) -> list[AnnotatedImage]:
    """Only the images with at least one object that is no crowd (FILTER_EMPTY_ANNOTATIONS)."""
    return [image for image in images if any(not a.crowd for a in image.annotations)]


def output_size(height: int, width: int, short_edge: int, long_edge: int) -> tuple[int, int]:
    """(height, width) with the shorter side ``short_edge``, unless the longer one would pass ``long_edge``."""
    scale = short_edge * 1.0 / min(height, width)
    new_height, new_width = (short_edge * 1.0, scale * width) if height < width else (scale * height, short_edge * 1.0)
    if max(new_height, new_width) > long_edge:
        scale = long_edge * 1.0 / max(new_height, new_width)
        new_height, new_width = new_height * scale, new_width * scale
    return max(1, int(new_height + 0.5)), max(1, int(new_width + 0.5))  # a strip keeps a pixel


class Mapper:
    """An annotated image to a sample.

    Args:
        short_edges: to choose from; with ``size_range`` the two ends of a range. long_edge: limit of the longer side.
        bgr: channel order blue, green, red. mask_format: ``polygon``, ``bitmask`` or None for no masks.
        flip: horizontally with probability one half.
    """

    def __init__(
        self, short_edges: Sequence[int], long_edge: int, *, bgr: bool, mask_format: str | None, flip: bool,
        size_range: bool = False
    ) -> None:  # fmt: skip
        self.short_edges, self.long_edge, self.bgr = list(short_edges), long_edge, bgr
        self.mask_format, self.flip, self.size_range = mask_format, flip, size_range

    def train(self, entry: AnnotatedImage, random: np.random.Generator) -> Sample:
        """Resized and flipped at random, with its target."""
        short, flip = self.draw_edge(random), self.draw_flip(random)
        image = read_image(entry)
        size = output_size(entry.height, entry.width, short, self.long_edge)
        return self.sample(entry, resize(image, size, flip), self._target(entry, size, flip))

    def draw_edge(self, random: np.random.Generator) -> int:
        """A length of the shorter side."""
        if self.size_range:
            return int(random.integers(self.short_edges[0], self.short_edges[-1] + 1))
        return int(random.choice(self.short_edges))

    def draw_flip(self, random: np.random.Generator) -> bool:
        """Whether to mirror."""
        return self.flip and bool(random.random() < 0.5)

    def test(self, entry: AnnotatedImage) -> Sample:
        """Resized to the first short edge; no target."""
        size = output_size(entry.height, entry.width, self.short_edges[0], self.long_edge)
        return self.sample(entry, resize(read_image(entry), size, flip=False), None)

    def sample(self, entry: AnnotatedImage, image: np.ndarray, target: Target | None) -> Sample:
        """A resized image uint8 [H, W, 3] in RGB as a sample."""
        pixels = image[:, :, ::-1] if self.bgr else image
        tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        return Sample(tensor, entry.image_id, entry.height, entry.width, str(entry.file), target)

    def _target(self, entry: AnnotatedImage, size: tuple[int, int], flip: bool) -> Target:
        objects = [a for a in entry.annotations if not a.crowd]
        boxes = [_move_box(a.box, _scale(entry, size), size, flip) for a in objects]
        tensor = torch.as_tensor(np.array(boxes, dtype=np.float64).reshape(-1, 4), dtype=torch.float32)
        target = Target(tensor, torch.tensor([a.category for a in objects], dtype=torch.int64))
        keep = nonempty(tensor, 1e-5)
        if self.mask_format is not None:
            masks = self._masks(objects, entry, size, flip)
            keep &= masks.nonempty()
            target.masks = masks.select(torch.nonzero(keep).squeeze(1))
        return Target(target.boxes[keep], target.classes[keep], target.masks)

    def _masks(
        self, objects: Sequence[Annotation], entry: AnnotatedImage, size: tuple[int, int], flip: bool
    ) -> BitMasks | PolygonMasks:
        moved = [_move_segmentation(a.segmentation, entry, size, flip) for a in objects]
        if self.mask_format == "polygon":
            if any(isinstance(m, np.ndarray) for m in moved):
                raise InputError(
                    f"expected polygons as masks of {entry.file}, found a run-length encoding; "
                    "set INPUT.MASK_FORMAT bitmask"
                )
            return PolygonMasks(moved)
        bitmaps = [m if isinstance(m, np.ndarray) else polygons_to_bitmap(m, *size) for m in moved]
        stacked = np.stack(bitmaps) if bitmaps else np.zeros((0, *size), dtype=bool)
        return BitMasks(torch.from_numpy(stacked))


def read_image(entry: AnnotatedImage) -> np.ndarray:
    """uint8 [H, W, 3] in RGB, turned as its EXIF says; InputError if unreadable or of another size than expected."""
    image = np.asarray(read_rgb(entry.file))
    if image.shape[:2] != (entry.height, entry.width):
        raise InputError(
            f"expected {entry.width}×{entry.height} pixels in {entry.file} as its data set says, found "
            f"{image.shape[1]}×{image.shape[0]}; correct the data set's file"
        )
    return image


def resize(image: np.ndarray, size: tuple[int, int], flip: bool) -> np.ndarray:
    """Bilinear by Pillow, whose filter widens when shrinking; to (height, width)."""
    resized = np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BILINEAR))
    return resized[:, ::-1] if flip else resized


def _scale(entry: AnnotatedImage, size: tuple[int, int]) -> np.ndarray:
    return np.array([size[1] * 1.0 / entry.width, size[0] * 1.0 / entry.height])


def _move_box(box: Sequence[float], scale: np.ndarray, size: tuple[int, int], flip: bool) -> np.ndarray:
    corners = np.array(box, dtype=np.float64).reshape(2, 2) * scale
    if flip:
        corners[:, 0] = size[1] - corners[::-1, 0]
    return np.minimum(corners.reshape(4).clip(min=0), [size[1], size[0], size[1], size[0]])


def _move_segmentation(segmentation: Any, entry: AnnotatedImage, size: tuple[int, int], flip: bool) -> Any:
    """Polygons stay polygons; a run-length encoding becomes a bitmap [H, W] of the new size."""
    if isinstance(segmentation, list):
        scale = _scale(entry, size)
        polygons = [np.asarray(p, dtype=np.float64).reshape(-1, 2) * scale for p in segmentation]
        if flip:
            for polygon in polygons:
                polygon[:, 0] = size[1] - polygon[:, 0]
        return [p.reshape(-1) for p in polygons]
    if not isinstance(segmentation, dict):
        raise InputError(
            f"expected a mask for every object of {entry.file}, found one without; "
            "set MODEL.MASK_ON False to train boxes only"
        )
    bitmap = decode_mask(segmentation, *segmentation["size"]).astype(np.uint8)
    bitmap = np.asarray(Image.fromarray(bitmap).resize((size[1], size[0]), Image.Resampling.NEAREST)).astype(bool)
    return bitmap[:, ::-1].copy() if flip else bitmap


class TrainingSamples(Dataset[Sample]):
    """Samples at places. Each is a pure function of the seed and its position in the order, whoever makes it.

    ``strong``: with a strong view of each image.
    """

    def __init__(self, images: Sequence[AnnotatedImage], mapper: Mapper, seed: int, strong: bool = False) -> None:
        self.images, self.mapper, self.seed, self.strong = images, mapper, seed, strong

    def __getitem__(self, place: Place) -> Sample:
        position, index = place
        sample = self.mapper.train(self.images[index], np.random.default_rng((self.seed, position)))
        return with_strong_view(sample, self.mapper.bgr, self.seed, position) if self.strong else sample

    def __len__(self) -> int:
        return len(self.images)


class TestSamples(Dataset[Sample]):
    """Every image once, in order."""

    def __init__(self, images: Sequence[AnnotatedImage], mapper: Mapper) -> None:
        self.images, self.mapper = images, mapper

    def __getitem__(self, index: int) -> Sample:
        return self.mapper.test(self.images[index])

    def __len__(self) -> int:
        return len(self.images)


#: Probability, fraction of the area and ratio of each erased rectangle (Unbiased Teacher, arXiv 2102.09480, appendix).
_ERASED = ((0.7, (0.05, 0.2), (0.3, 3.3)), (0.5, (0.02, 0.2), (0.1, 6.0)), (0.3, (0.02, 0.2), (0.05, 8.0)))


@cache
def _transform() -> v2.Compose:
    """Unbiased Teacher's colours and blur are MoCo v2's."""
    colours = RECIPES["mocov2"][0]
    return v2.Compose(
        [
            v2.RandomApply([v2.ColorJitter(*colours.jitter)], colours.jitter_p),
            v2.RandomGrayscale(colours.grayscale),
            v2.RandomApply([PilGaussianBlur(colours.blur_sigma)], colours.blur),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            *(v2.RandomErasing(p, scale, ratio, value="random") for p, scale, ratio in _ERASED),
        ]
    )


def with_strong_view(sample: Sample, bgr: bool, seed: int, position: int) -> Sample:
    """The sample with ``strong``, a function of the seed and of its position in the order."""
    rgb = sample.image.flip(0) if bgr else sample.image
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(sample_seed(seed, position, 0))
        strong: Tensor = _transform()(Image.fromarray(np.ascontiguousarray(rgb.permute(1, 2, 0).numpy())))
    pixels = (strong.clamp(0, 1) * 255).round().to(torch.uint8)
    return replace(sample, strong=pixels.flip(0) if bgr else pixels)
