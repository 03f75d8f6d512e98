"""The images that a network takes: size, mean, standard deviation, interpolation and the part that is kept."""

import math
from typing import NamedTuple

#: ImageNet's statistics of values in 0..1, which ResNets and detectors normalise with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
#: Name of a map -> its stride.
STRIDES = {"res2": 4, "res3": 8, "res4": 16, "res5": 32}


class NetworkInput(NamedTuple):
    """Images of ``size`` px, normalised by ``mean`` and ``std`` a channel (of values in 0..1).

    ``interpolation`` is "bilinear" or "bicubic"; ``crop`` the fraction of the resized image's side that the central
    crop keeps: .875 is 224 of 256.
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
        """For protocols and the console."""
        mean, std = (" ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        return f"{self.size} px, {self.interpolation}, crop {self.crop:g}, mean {mean}, std {std}"
