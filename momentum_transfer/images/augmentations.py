"""The papers' recipes for two random views of an image, as data, and the random parameters of a batch of views.

BYOL (arXiv:2006.07733, asymmetric), MoCo v2 (arXiv:2003.04297), EMAN's BYOL (arXiv:2101.08482) and the symmetric recipe
of "Revisiting the Critical Factors of Augmentation-Invariant Representation Learning" (RCF), with RCF's removals.
`images.views` and `images.device_views` carry the recipes out. Every random number is a function of its sample's key
alone: not of the batch, the device or earlier numbers.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.ranges import Choice, Many


@dataclass(frozen=True)
class Augmentation:
    """What is done to one view, in this order; strengths are torchvision's, probabilities are per image."""

    crop_scale: tuple[float, float] = (0.08, 1.0)  #: range of the crop's fraction of the area; its ratio is 3/4..4/3
    flip: float = 0.5  #: probability of a horizontal flip
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)  #: brightness, contrast, saturation, hue
    jitter_p: float = 0.8
    grayscale: float = 0.2
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)  #: range of the Gaussian's sigma, in pixels of the crop
    solarize: float = 0.0
    solarize_threshold: int = 128  #: values from here on are inverted (of 255)


_BYOL = (Augmentation(blur=1.0), Augmentation(blur=0.1, solarize=0.2))
_MOCO = Augmentation(crop_scale=(0.2, 1.0), jitter=(0.4, 0.4, 0.4, 0.1), blur=0.5)
Pair = tuple[Augmentation, Augmentation]  #: of the two views
RECIPES: dict[str, Pair] = {
    "byol": _BYOL,
    "rcf": (Augmentation(blur=0.5, solarize=0.2),) * 2,
    "mocov2": (_MOCO, _MOCO),
    "eman_byol": (replace(_BYOL[0], crop_scale=(0.2, 1.0)), replace(_BYOL[1], crop_scale=(0.2, 1.0))),
}
# RCF's removals: field that is set to zero by each name.
REMOVALS = {"solarize": "solarize", "blur": "blur", "grayscale": "grayscale", "color_jitter": "jitter_p"}


def recipe_augmentations(
    recipe: str, remove: Collection[str] = (), crop_scale: tuple[float, float] | None = None
) -> Pair:
    """Both views' augmentations of a recipe, without those of ``remove``, and with another ``crop_scale`` if given."""
    Choice(RECIPES).require("the recipe of views", recipe)
    Many(Choice(REMOVALS)).require("what is removed from it", list(remove))
    changes: dict[str, Any] = {REMOVALS[name]: 0.0 for name in remove}
    if crop_scale is not None:
        if not 0 < crop_scale[0] <= crop_scale[1] <= 1:
            raise InputError(f"expected a crop scale 0 < low <= high <= 1, found {tuple(crop_scale)}")
        changes["crop_scale"] = tuple(crop_scale)
    first, second = RECIPES[recipe]
    return replace(first, **changes), replace(second, **changes)


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
CROP_TRIES = 10  # as torchvision's RandomResizedCrop
RATIO = (3 / 4, 4 / 3)
NUMBERS = 2 * CROP_TRIES + 16  # uniform numbers that one view takes
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def uniforms(keys: Integers, columns: int) -> Floats:
    """Uniform numbers in [0, 1), [N, columns]; row n continues SplitMix64 (Steele et al. 2014) from keys[n]."""
    step = np.arange(1, columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = keys.astype(np.uint64)[:, None] + step
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((bits ^ (bits >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class ViewParameters:
    """What is done to each image of a batch, in this order."""

    crop: Integers  #: top, left, height, width, [N, 4]
    flip: Flags  #: [N]
    factors: Floats  #: brightness, contrast, saturation (neutral: 1) and hue (neutral: 0), [N, 4]
    order: Integers  #: the order of these four, [N, 4]
    gray: Flags  #: [N]
    sigma: Floats  #: of the blur in pixels, 0 for none, [N]
    solarize: Flags  #: [N]


def _draw_crops(sizes: Integers, scale: tuple[float, float], numbers: Floats) -> Integers:
    """torchvision's RandomResizedCrop.get_params for images of height and width ``sizes`` [N, 2].

    From uniform ``numbers`` [N, 2 · CROP_TRIES + 2]: top, left, height, width [N, 4] of the first try that fits, else
    of the central crop with the nearest allowed ratio.
    """
    height, width = sizes[:, :1], sizes[:, 1:]
    tries = numbers[:, : 2 * CROP_TRIES].reshape(-1, CROP_TRIES, 2)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * tries[..., 0])
    low, high = np.log(RATIO)
    ratio = np.exp(low + (high - low) * tries[..., 1])
    wide, tall = np.rint(np.sqrt(area * ratio)).astype(np.int64), np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.argmax(1)[:, None]
    wide, tall = np.take_along_axis(wide, first, 1), np.take_along_axis(tall, first, 1)
    place = numbers[:, 2 * CROP_TRIES :]
    top, left = np.floor(place[:, :1] * (height - tall + 1)), np.floor(place[:, 1:2] * (width - wide + 1))
    fitting = np.concatenate([top, left, tall, wide], 1)
    central_tall = np.where(width < RATIO[0] * height, np.rint(width / RATIO[0]), height)
    central_wide = np.where(width > RATIO[1] * height, np.rint(height * RATIO[1]), width)
    corner = [(height - central_tall) // 2, (width - central_wide) // 2]
    central = np.concatenate([*corner, central_tall, central_wide], 1)
    return np.where(fits.any(1, keepdims=True), fitting, central).astype(np.int64)


def draw_parameters(augmentation: Augmentation, sizes: Integers, numbers: Floats) -> ViewParameters:
    """Parameters of one view of every image from uniform ``numbers`` [N, NUMBERS]."""
    crops, rest = numbers[:, : 2 * CROP_TRIES + 2], numbers[:, 2 * CROP_TRIES + 2 :]
    strength = np.asarray(augmentation.jitter)
    neutral = np.array([1.0, 1.0, 1.0, 0.0])
    low = np.where(neutral == 1, np.maximum(neutral - strength, 0), -strength)
    factors = low + (neutral + strength - low) * rest[:, 3:7]
    jittered = rest[:, 1:2] < augmentation.jitter_p
    sigma = augmentation.blur_sigma[0] + (augmentation.blur_sigma[1] - augmentation.blur_sigma[0]) * rest[:, 12]
    return ViewParameters(
        crop=_draw_crops(sizes, augmentation.crop_scale, crops),
        flip=rest[:, 0] < augmentation.flip,
        factors=np.where(jittered, factors, neutral),
        order=rest[:, 7:11].argsort(1),
        gray=rest[:, 2] < augmentation.grayscale,
        sigma=np.where(rest[:, 11] < augmentation.blur, sigma, 0.0),
        solarize=rest[:, 13] < augmentation.solarize,
    )


_Float = type[np.float32] | type[np.float64]


class JoinedGenerators:
    """G generators as one: one array of images, each image with random numbers of its own generator."""

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self.generators = generators

    def random(self, size: tuple[int, ...], dtype: _Float = np.float64, axis: int = 0) -> NDArray[Any]:
        """Uniform on [0, 1); images lie along ``axis``, a G-th of them from each generator."""
        part = self._part(size, axis)
        return np.concatenate([one.random(part, dtype=dtype) for one in self.generators], axis=axis)

    def standard_normal(self, size: tuple[int, ...], dtype: _Float = np.float64) -> NDArray[Any]:
        """Standard normal; images lie along the first axis."""
        part = self._part(size, 0)
        return np.concatenate([one.standard_normal(part, dtype=dtype) for one in self.generators])

    def _part(self, size: tuple[int, ...], axis: int) -> tuple[int, ...]:
        if size[axis] % len(self.generators):
            raise ValueError(f"expected a multiple of {len(self.generators)} images, found {size[axis]}")
        return (*size[:axis], size[axis] // len(self.generators), *size[axis + 1 :])
