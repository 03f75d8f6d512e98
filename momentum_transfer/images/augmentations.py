"""The papers' recipes for two views, as data; `images.views` and `images.device_views` carry them out.

BYOL (arXiv:2006.07733, asymmetric), MoCo v2 (arXiv:2003.04297), EMAN's BYOL (arXiv:2101.08482) and the symmetric recipe
of "Revisiting the Critical Factors of Augmentation-Invariant Representation Learning" (RCF), with RCF's removals.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

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
