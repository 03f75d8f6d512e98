"""The random parameters of a batch of views, drawn on the CPU from one key per sample.

Every number is a function of its sample's key alone: not of the batch it is drawn in, the device or earlier draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from momentum_transfer.images.augmentations import Augmentation

CROP_TRIES = 10  # as torchvision's RandomResizedCrop
RATIO = (3 / 4, 4 / 3)
DRAWS = 2 * CROP_TRIES + 16  # uniform numbers that one view takes
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def uniforms(keys: NDArray[np.int64], columns: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), [N, columns]; row n continues SplitMix64 (Steele et al. 2014) from keys[n]."""
    step = np.arange(1, columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = keys.astype(np.uint64)[:, None] + step
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((bits ^ (bits >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class ViewParameters:
    """What is done to each image of a batch, in this order.

    Attributes:
        crop: top, left, height, width, int [N, 4].
        flip: bool [N].
        factors: brightness, contrast, saturation (1 leaves as it is) and hue (0 does), float [N, 4].
        order: the order of these four, int [N, 4].
        gray, solarize: bool [N].
        sigma: of the blur in pixels, 0 for none, float [N].
    """

    crop: NDArray[np.int64]
    flip: NDArray[np.bool_]
    factors: NDArray[np.float64]
    order: NDArray[np.int64]
    gray: NDArray[np.bool_]
    sigma: NDArray[np.float64]
    solarize: NDArray[np.bool_]


def draw_crops(sizes: NDArray[np.int64], scale: tuple[float, float], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """torchvision's RandomResizedCrop.get_params for a batch.

    Args:
        sizes: height and width, [N, 2].
        scale: range of the crop's share of the area.
        draws: uniform numbers [N, 2 · CROP_TRIES + 2].

    Returns:
        top, left, height, width, [N, 4]: of the first try that fits, else the central crop of the nearest good ratio.
    """
    height, width = sizes[:, :1], sizes[:, 1:]
    tries = draws[:, : 2 * CROP_TRIES].reshape(-1, CROP_TRIES, 2)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * tries[..., 0])
    low, high = np.log(RATIO)
    ratio = np.exp(low + (high - low) * tries[..., 1])
    wide, tall = np.rint(np.sqrt(area * ratio)).astype(np.int64), np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.argmax(1)[:, None]
    wide, tall = np.take_along_axis(wide, first, 1), np.take_along_axis(tall, first, 1)
    place = draws[:, 2 * CROP_TRIES :]
    top, left = np.floor(place[:, :1] * (height - tall + 1)), np.floor(place[:, 1:2] * (width - wide + 1))
    found = np.concatenate([top, left, tall, wide], 1)
    central_tall = np.where(width < RATIO[0] * height, np.rint(width / RATIO[0]), height)
    central_wide = np.where(width > RATIO[1] * height, np.rint(height * RATIO[1]), width)
    corner = [(height - central_tall) // 2, (width - central_wide) // 2]
    central = np.concatenate([*corner, central_tall, central_wide], 1)
    return np.where(fits.any(1, keepdims=True), found, central).astype(np.int64)


def draw_parameters(augmentation: Augmentation, sizes: NDArray[np.int64], draws: NDArray[np.float64]) -> ViewParameters:
    """Parameters of one view of every image from uniform numbers [N, DRAWS]."""
    crops, rest = draws[:, : 2 * CROP_TRIES + 2], draws[:, 2 * CROP_TRIES + 2 :]
    strength = np.asarray(augmentation.jitter)
    neutral = np.array([1.0, 1.0, 1.0, 0.0])
    low = np.where(neutral == 1, np.maximum(neutral - strength, 0), -strength)
    factors = low + (neutral + strength - low) * rest[:, 3:7]
    jittered = rest[:, 1:2] < augmentation.jitter_p
    sigma = augmentation.blur_sigma[0] + (augmentation.blur_sigma[1] - augmentation.blur_sigma[0]) * rest[:, 12]
    return ViewParameters(
        crop=draw_crops(sizes, augmentation.crop_scale, crops),
        flip=rest[:, 0] < augmentation.flip,
        factors=np.where(jittered, factors, neutral),
        order=rest[:, 7:11].argsort(1),
        gray=rest[:, 2] < augmentation.grayscale,
        sigma=np.where(rest[:, 11] < augmentation.blur, sigma, 0.0),
        solarize=rest[:, 13] < augmentation.solarize,
    )
