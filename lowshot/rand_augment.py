"""FixMatch's strong augmentation: two random operations of RandAugment, the level of each drawn anew for every image.

RandAugment (arXiv 1909.13719) has one level for all images; FixMatch (arXiv 2001.07685, section 2.3) draws it, and EMAN
(arXiv 2101.08482) takes integers from 1 to 9 of 10. Ranges, from level 0 to level 10:

    AutoAugment (arXiv 1805.09501), table 6: Rotate, ShearX, ShearY, Posterize, Solarize, Color, Contrast, Brightness,
        Sharpness; AutoContrast, Equalize and Invert have no level
    FixMatch, list of transformations in the appendix: TranslateX and TranslateY as a share of the side (AutoAugment
        counts pixels), Identity
    RandAugment as released: SolarizeAdd, which adds to the values below 128

What an image is moved away from is filled with 0, and pixels are the nearest ones: torchvision's defaults.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import PIL.Image
import torch
from torchvision.transforms.v2 import functional as F

Image = PIL.Image.Image


@dataclass(frozen=True)
class Operation:
    """A change of an image whose strength goes linearly from ``first`` (level 0) to ``last`` (level 1).

    Attributes:
        apply: (image, strength) -> image.
        signed: the strength is negated half of the time.
    """

    apply: Callable[[Image, float], Image]
    first: float = 0.0
    last: float = 0.0
    signed: bool = False

    def __call__(self, image: Image, level: float, negated: bool = False) -> Image:
        strength = self.first + level * (self.last - self.first)
        return self.apply(image, -strength if negated and self.signed else strength)


def _shear(image: Image, x: float, y: float) -> Image:
    """By the shares x and y of the distance from the upper left corner."""
    degrees = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return F.affine(image, angle=0.0, translate=[0, 0], scale=1.0, shear=degrees, center=[0, 0])


def _translate(image: Image, x: float, y: float) -> Image:
    """By the shares x of the width and y of the height."""
    pixels = [round(x * image.width), round(y * image.height)]
    return F.affine(image, angle=0.0, translate=pixels, scale=1.0, shear=[0.0, 0.0])


def _solarize_add(image: Image, amount: float) -> Image:
    pixels = F.pil_to_tensor(image)
    return F.to_pil_image(torch.where(pixels < 128, pixels + round(amount), pixels))


OPERATIONS: dict[str, Operation] = {
    "AutoContrast": Operation(lambda image, _: F.autocontrast(image)),
    "Equalize": Operation(lambda image, _: F.equalize(image)),
    "Invert": Operation(lambda image, _: F.invert(image)),
    "Rotate": Operation(lambda image, degrees: F.rotate(image, degrees), 0.0, 30.0, signed=True),
    "Posterize": Operation(lambda image, bits: F.posterize(image, round(bits)), 8.0, 4.0),
    "Solarize": Operation(lambda image, threshold: F.solarize(image, threshold), 256.0, 0.0),
    "Color": Operation(lambda image, factor: F.adjust_saturation(image, factor), 0.1, 1.9),
    "Contrast": Operation(lambda image, factor: F.adjust_contrast(image, factor), 0.1, 1.9),
    "Brightness": Operation(lambda image, factor: F.adjust_brightness(image, factor), 0.1, 1.9),
    "Sharpness": Operation(lambda image, factor: F.adjust_sharpness(image, factor), 0.1, 1.9),
    "ShearX": Operation(lambda image, share: _shear(image, share, 0.0), 0.0, 0.3, signed=True),
    "ShearY": Operation(lambda image, share: _shear(image, 0.0, share), 0.0, 0.3, signed=True),
    "TranslateX": Operation(lambda image, share: _translate(image, share, 0.0), 0.0, 0.3, signed=True),
    "TranslateY": Operation(lambda image, share: _translate(image, 0.0, share), 0.0, 0.3, signed=True),
    "SolarizeAdd": Operation(_solarize_add, 0.0, 110.0),
    "Identity": Operation(lambda image, _: image),
}

#: How the level of an operation is drawn, by name: a number in [0, 1].
LEVELS: dict[str, Callable[[], float]] = {
    "eman": lambda: int(torch.randint(1, 10, ())) / 10,
    "uniform": lambda: float(torch.rand(())),
}


class RandomLevelAugment:
    """PIL image -> PIL image after ``count`` operations, drawn with replacement by torch's global generator.

    Args:
        levels: of :data:`LEVELS`.
    """

    def __init__(self, levels: str = "eman", count: int = 2) -> None:
        self.draw_level, self.count = LEVELS[levels], count

    def __call__(self, image: Image) -> Image:
        operations = list(OPERATIONS.values())
        for index in torch.randint(len(operations), (self.count,)).tolist():
            image = operations[index](image, self.draw_level(), negated=bool(torch.randint(2, ())))
        return image
