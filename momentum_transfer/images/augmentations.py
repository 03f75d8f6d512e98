"""The papers' recipes for two views, as data; `images.views` and `images.device_views` carry them out.

BYOL (arXiv:2006.07733, asymmetric), MoCo v2 (arXiv:2003.04297), EMAN's BYOL (arXiv:2101.08482) and the symmetric recipe
of "Revisiting the Critical Factors of Augmentation-Invariant Representation Learning" (RCF), with RCF's removals.

The random parameters of a batch of views, drawn on the CPU from one key per sample.

Every number is a function of its sample's key alone: not of the batch it is drawn in, the device or earlier draws.

Many random generators drawn as one: arithmetic on a batch at once, random numbers of each image its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.ranges import Choice, Many


@dataclass(frozen=True)
class Augmentation:
    """What is done to one view, in this order. Strengths are torchvision's, probabilities are per image.

    Attributes:
        crop_scale: range of the crop's share of the image's area; the aspect ratio is in 3/4..4/3.
        flip: probability of a horizontal flip.
        jitter: brightness, contrast, saturation, hue.
        jitter_p, grayscale, blur, solarize: probabilities.
        blur_sigma: range of the Gaussian's standard deviation, in pixels of the crop.
        solarize_threshold: values from here on are inverted (of 255).
    """

    crop_scale: tuple[float, float] = (0.08, 1.0)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_p: float = 0.8
    grayscale: float = 0.2
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0
    solarize_threshold: int = 128


_BYOL = (Augmentation(blur=1.0), Augmentation(blur=0.1, solarize=0.2))
_MOCO = Augmentation(crop_scale=(0.2, 1.0), jitter=(0.4, 0.4, 0.4, 0.1), blur=0.5)
RECIPES: dict[str, tuple[Augmentation, Augmentation]] = {
    "byol": _BYOL,
    "rcf": (Augmentation(blur=0.5, solarize=0.2),) * 2,
    "mocov2": (_MOCO, _MOCO),
    "eman_byol": (replace(_BYOL[0], crop_scale=(0.2, 1.0)), replace(_BYOL[1], crop_scale=(0.2, 1.0))),
}
# RCF's removals: field that is set to zero by each name.
REMOVALS = {"solarize": "solarize", "blur": "blur", "grayscale": "grayscale", "color_jitter": "jitter_p"}


def recipe_augmentations(
    recipe: str, remove: Collection[str] = (), crop_scale: tuple[float, float] | None = None
) -> tuple[Augmentation, Augmentation]:
    """The augmentations of both views of a recipe.

    Args:
        recipe: a name in `RECIPES`.
        remove: names in `REMOVALS` (RCF takes solarize, blur, grayscale, color_jitter away in turn).
        crop_scale: in the place of the recipe's own.

    Raises:
        InputError: an unknown name, or a crop scale outside 0..1.
    """
    Choice(RECIPES).require("the recipe of views", recipe)
    Many(Choice(REMOVALS)).require("what is removed from it", list(remove))
    changes: dict[str, Any] = {REMOVALS[name]: 0.0 for name in remove}
    if crop_scale is not None:
        if not 0 < crop_scale[0] <= crop_scale[1] <= 1:
            raise InputError(f"expected a crop scale 0 < low <= high <= 1, found {tuple(crop_scale)}")
        changes["crop_scale"] = tuple(crop_scale)
    first, second = RECIPES[recipe]
    return replace(first, **changes), replace(second, **changes)


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


Float = type[np.float32] | type[np.float64]


class JoinedGenerators:
    """Draws arrays of images whose parts come from one generator each, so that no image depends on its neighbours.

    Args:
        generators: G of them; each draws the numbers of as many images as every other.
    """

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self.generators = generators

    def random(self, size: tuple[int, ...], dtype: Float = np.float64, axis: int = 0) -> NDArray[Any]:
        """Uniform on [0, 1); images lie along ``axis``, G times as many as one generator draws."""
        part = self._part(size, axis)
        return np.concatenate([one.random(part, dtype=dtype) for one in self.generators], axis=axis)

    def standard_normal(self, size: tuple[int, ...], dtype: Float = np.float64) -> NDArray[Any]:
        """Standard normal; images lie along the first axis."""
        part = self._part(size, 0)
        return np.concatenate([one.standard_normal(part, dtype=dtype) for one in self.generators])

    def _part(self, size: tuple[int, ...], axis: int) -> tuple[int, ...]:
        if size[axis] % len(self.generators):
            raise ValueError(f"expected a multiple of {len(self.generators)} images, found {size[axis]}")
        return (*size[:axis], size[axis] // len(self.generators), *size[axis + 1 :])
