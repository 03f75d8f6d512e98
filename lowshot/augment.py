"""Views of labelled and unlabelled images for training classifiers; normalisation as in evaluation.

Large images: a random crop of 8-100 % of the area, and a flip. Small squares (CIFAR, STL-10, Fashion-MNIST): a shift by
up to an eighth of the side, and a flip: the habit on CIFAR, and a choice, since Momentum² Teacher (STL-10) and RCF
(CIFAR) do not print the view of their linear classifiers. Digits (MNIST too): the shift alone, because a mirrored digit
is another sign.

FixMatch's strong view adds two random operations of RandAugment (arXiv 1909.13719). RandAugment has one level for all
images; FixMatch (arXiv 2001.07685, section 2.3) samples one for every operation, and EMAN (arXiv 2101.08482) takes
integers from 1 to 9 of 10. Ranges, from level 0 to level 10:

    AutoAugment (arXiv 1805.09501), table 6: Rotate, ShearX, ShearY, Posterize, Solarize, Color, Contrast, Brightness,
        Sharpness; AutoContrast, Equalize and Invert have no level
    FixMatch, list of transformations in the appendix: TranslateX and TranslateY as a fraction of the side (AutoAugment
        counts pixels), Identity
    RandAugment as released: SolarizeAdd, which adds to the values below 128

What an image is moved away from is filled with 0, and pixels are the nearest ones: torchvision's defaults.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from momentum_transfer.images.augmentations import Augmentation
from momentum_transfer.images.datasets import SIGNS, SMALL_SQUARES
from momentum_transfer.images.opencv_views import OpenCvView, PixelArrays
from momentum_transfer.images.views import MEAN, STD, Normalise

Image = PIL.Image.Image


@dataclass(frozen=True)
class _Operation:
    """A change of an image whose strength goes linearly from ``first`` (level 0) to ``last`` (level 1)."""

    apply: Callable[[Image, float], Image]  # (image, strength) -> image
    first: float = 0.0
    last: float = 0.0
    signed: bool = False  # the strength is negated half of the time

    def __call__(self, image: Image, level: float, negated: bool = False) -> Image:
        strength = self.first + level * (self.last - self.first)
        return self.apply(image, -strength if negated and self.signed else strength)


def _shear(image: Image, x: float, y: float) -> Image:
    """By the fractions x and y of the distance from the upper left corner."""
    degrees = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return F.affine(image, angle=0.0, translate=[0, 0], scale=1.0, shear=degrees, center=[0, 0])


def _translate(image: Image, x: float, y: float) -> Image:
    """By the fractions x of the width and y of the height."""
    pixels = [round(x * image.width), round(y * image.height)]
    return F.affine(image, angle=0.0, translate=pixels, scale=1.0, shear=[0.0, 0.0])


def _solarize_add(image: Image, amount: float) -> Image:
    return image.point([level + round(amount) * (level < 128) for level in range(256)] * len(image.getbands()))


_OPERATIONS: dict[str, _Operation] = {
    "AutoContrast": _Operation(lambda image, _: F.autocontrast(image)),
    "Equalize": _Operation(lambda image, _: F.equalize(image)),
    "Invert": _Operation(lambda image, _: F.invert(image)),
    "Rotate": _Operation(lambda image, degrees: F.rotate(image, degrees), 0.0, 30.0, signed=True),
    "Posterize": _Operation(lambda image, bits: F.posterize(image, round(bits)), 8.0, 4.0),
    "Solarize": _Operation(lambda image, threshold: F.solarize(image, threshold), 256.0, 0.0),
    "Color": _Operation(lambda image, factor: F.adjust_saturation(image, factor), 0.1, 1.9),
    "Contrast": _Operation(lambda image, factor: F.adjust_contrast(image, factor), 0.1, 1.9),
    "Brightness": _Operation(lambda image, factor: F.adjust_brightness(image, factor), 0.1, 1.9),
    "Sharpness": _Operation(lambda image, factor: F.adjust_sharpness(image, factor), 0.1, 1.9),
    "ShearX": _Operation(lambda image, part: _shear(image, part, 0.0), 0.0, 0.3, signed=True),
    "ShearY": _Operation(lambda image, part: _shear(image, 0.0, part), 0.0, 0.3, signed=True),
    "TranslateX": _Operation(lambda image, part: _translate(image, part, 0.0), 0.0, 0.3, signed=True),
    "TranslateY": _Operation(lambda image, part: _translate(image, 0.0, part), 0.0, 0.3, signed=True),
    "SolarizeAdd": _Operation(_solarize_add, 0.0, 110.0),
    "Identity": _Operation(lambda image, _: image),
}

#: How the level of an operation is sampled, by name: a number in [0, 1].
LEVELS: dict[str, Callable[[], float]] = {
    "eman": lambda: int(torch.randint(1, 10, ())) / 10,
    "uniform": lambda: float(torch.rand(())),
}


class _RandomLevelAugment:
    """PIL image -> PIL image after ``count`` random operations, by torch's global generator.

    Args:
        levels: of :data:`LEVELS`.
    """

    def __init__(self, levels: str = "eman", count: int = 2) -> None:
        self.level, self.count = LEVELS[levels], count

    def __call__(self, image: Image) -> Image:
        operations = list(_OPERATIONS.values())
        for index in torch.randint(len(operations), (self.count,)).tolist():
            image = operations[index](image, self.level(), negated=bool(torch.randint(2, ())))
        return image


class _ReflectedCrop:
    """PIL image -> a random crop of it, mirrored at its edges: v2.RandomCrop's positions and pixels, five times faster.

    Args:
        size: side of the crop. padding: pixels that are added on every side, fewer than the image has.
    """

    def __init__(self, size: int, padding: int) -> None:
        self.size, self.padding = size, padding

    def __call__(self, image: Image) -> Image:
        pixels = np.asarray(image)
        for axis, side in enumerate(pixels.shape[:2]):
            room = side + 2 * self.padding - self.size
            start = (int(torch.randint(0, room + 1, ())) if room > 0 else 0) - self.padding
            places = np.abs(np.arange(start, start + self.size))
            pixels = pixels.take(np.minimum(places, 2 * (side - 1) - places), axis)
        return PIL.Image.fromarray(pixels)

    def __repr__(self) -> str:  # as v2.RandomCrop's, for the cache's key
        size, padding = (self.size, self.size), [self.padding] * 4
        return f"RandomCrop(size={size}, padding={padding}, pad_if_needed=False, fill=0, padding_mode=reflect)"


_CROP = Augmentation(jitter_p=0, grayscale=0)  # a crop and a flip alone


def _geometry(dataset: str, size: int, backend: str) -> list[Callable[[Any], Any]]:
    if dataset not in SMALL_SQUARES:
        if backend == "opencv":
            return [OpenCvView(_CROP, size)]
        return [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    shift = [v2.Resize((size, size)), _ReflectedCrop(size, size // 8)]
    return shift if dataset in SIGNS else [*shift, v2.RandomHorizontalFlip()]


class _OfArrays(v2.Compose):
    """Steps that take an image of Pillow or its array, as the source made of a data set gives it."""

    source = PixelArrays


def weak_view(
    dataset: str, size: int, mean: Sequence[float] = MEAN, std: Sequence[float] = STD, *, backend: str = "pillow"
) -> Callable[[Image], Tensor]:
    """PIL image -> float [3, size, size]: what supervised training and FixMatch's pseudo-labels see.

    ``backend`` opencv crops large images faster, by the same random numbers; its view also takes arrays, and its
    ``source(images)`` reads them.
    """
    steps = [*_geometry(dataset, size, backend), Normalise(mean, std)]
    view: Callable[[Image], Tensor] = _OfArrays(steps) if isinstance(steps[0], OpenCvView) else v2.Compose(steps)
    return view


class SeededView:
    """PIL image -> one random view of it, the same every time: it depends on the seed and the image's pixels."""

    def __init__(self, view: Callable[[Image], Tensor], seed: int) -> None:
        self.view, self.seed = view, seed

    def __call__(self, image: Image) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            # torch's generator reads 32 bits of a seed
            torch.default_generator.manual_seed(zlib.crc32(image.tobytes(), self.seed))
            return self.view(image)

    def __repr__(self) -> str:
        return f"SeededView({self.view}, seed={self.seed})"


class WeakAndStrong:
    """PIL image -> (weak view, strong view), each with its own geometry; the strong one has two random operations."""

    def __init__(
        self, dataset: str, size: int, levels: str = "eman", mean: Sequence[float] = MEAN, std: Sequence[float] = STD,
        *, backend: str = "pillow",
    ) -> None:  # fmt: skip
        self.weak = weak_view(dataset, size, mean, std, backend=backend)
        geometry = _geometry(dataset, size, backend)
        if isinstance(geometry[0], OpenCvView):
            geometry.append(PIL.Image.fromarray)
            self.source = PixelArrays
        self.strong = v2.Compose([*geometry, _RandomLevelAugment(levels), Normalise(mean, std)])

    def __call__(self, image: Image) -> tuple[Tensor, Tensor]:
        return self.weak(image), self.strong(image)
