"""What a network wants its images to be: size, mean, standard deviation, interpolation and the part that is kept."""

from __future__ import annotations

import math
from typing import NamedTuple

#: ImageNet's statistics of values in 0..1, which ResNets and detectors normalise with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
#: Name of a map -> its stride.
STRIDES = {"res2": 4, "res3": 8, "res4": 16, "res5": 32}


class NetworkInput(NamedTuple):
    """Images as a network was, or is to be, trained on them.

    Attributes:
        size: side in pixels.
        mean, std: a channel, of values in 0..1.
        interpolation: "bilinear" or "bicubic".
        crop: the part of the resized image's side that the central crop keeps; .875 is 224 of 256.
    """

    size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = "bilinear"
    crop: float = 0.875

    @property
    def resized(self) -> int:
        """The shorter side before the central crop, as timm computes it."""
        return math.floor(self.size / self.crop)

    @property
    def pixels(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of values in 0..255, as detectors' PIXEL_MEAN and PIXEL_STD have them."""
        mean, std = ([round(255 * value, 6) for value in values] for values in (self.mean, self.std))
        return mean, std

    def __str__(self) -> str:
        """As protocols and the console say it."""
        mean, std = (" ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        return f"{self.size} px, {self.interpolation}, crop {self.crop:g}, mean {mean}, std {std}"
