"""The recipes of `images.augmentations` by OpenCV instead of Pillow, several times faster (the extra ``fast``).

The same random numbers of torch's generator as torchvision's v2 draws for Pillow, in the same order, and so the same
crops, factors and orders; pixels differ by rounding. Resizing is torch's antialiased kernel for bytes, which is
Pillow's; brightness, contrast and solarisation are tables of 256 values, saturation is one matrix, hue a turn of
OpenCV's HSV; blur is a Gaussian cut at 3 sigma, where Pillow's is three boxes.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torchvision.transforms import ColorJitter

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.augmentations import CROP_TRIES, RATIO, Augmentation
from momentum_transfer.images.labelled_images import FileImages, LabelledImages
from momentum_transfer.images.subsets import unselected

Pixels = NDArray[np.uint8]  #: [H, W, 3], or [H, W] where the three channels are equal
_LUMA = np.array([0.299, 0.587, 0.114])
_VALUES = np.arange(256, dtype=np.float32)
_LOG_RATIO = torch.log(torch.tensor(RATIO))


@functools.cache
def opencv() -> Any:
    """The module cv2, on one thread, for worker processes divide the cores; InputError where it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise InputError(
            f"expected OpenCV for views made by opencv, found none ({error}); pip install 'momentum-transfer[fast]', "
            "or set the backend pillow"
        ) from error
    cv2.setNumThreads(1)
    return cv2


def _chance(probability: float) -> bool:
    return bool(torch.rand(1) < probability)


def _draw_crop(height: int, width: int, scale: tuple[float, float]) -> tuple[int, int, int, int]:
    """Top, left, height, width as torchvision's RandomResizedCrop, whose own function takes 0.1 ms longer."""
    for _ in range(CROP_TRIES):
        area = height * width * torch.empty(1).uniform_(*scale).item()
        ratio = torch.exp(torch.empty(1).uniform_(*_LOG_RATIO.tolist())).item()
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(torch.randint(0, height - tall + 1, (1,)))
            return top, int(torch.randint(0, width - wide + 1, (1,))), tall, wide
    tall = min(height, round(width / RATIO[0]))
    wide = min(width, round(height * RATIO[1]))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def random_crop(pixels: Pixels, size: int, scale: tuple[float, float], flip: float) -> Pixels:
    """RandomResizedCrop and RandomHorizontalFlip: [H, W, 3] -> [size, size, 3]."""
    top, left, tall, wide = _draw_crop(pixels.shape[0], pixels.shape[1], scale)
    # [1, 3, H, W] in the order of channels_last, for which torch's kernel is the fastest
    part = torch.from_numpy(pixels[top : top + tall, left : left + wide])[None].permute(0, 3, 1, 2)
    if (tall, wide) != (size, size):
        part = torch.nn.functional.interpolate(part, (size, size), mode="bilinear", antialias=True)
    resized = part[0].permute(1, 2, 0).numpy()
    return opencv().flip(resized, 1) if _chance(flip) else resized


def grey(pixels: Pixels) -> Pixels:
    """Pillow's luminance, [H, W]."""
    return opencv().cvtColor(pixels, opencv().COLOR_RGB2GRAY)


def blended(pixels: Pixels, level: float, factor: float) -> Pixels:
    """``level + factor · (pixels − level)``, cut off and rounded down to bytes as Pillow does."""
    table = np.float32(level) + np.float32(factor) * (_VALUES - np.float32(level))
    return opencv().LUT(pixels, np.clip(table, 0, 255).astype(np.uint8))


def contrasted(pixels: Pixels, factor: float) -> Pixels:
    """Moved from the mean grey of the image."""
    return blended(pixels, int(opencv().mean(grey(pixels))[0] + 0.5), factor)


def saturated(pixels: Pixels, factor: float) -> Pixels:
    """Each pixel moved from its own grey; the half level is Pillow's rounding down."""
    matrix = np.column_stack([np.eye(3) * factor + (1 - factor) * _LUMA, np.full(3, -0.5)])
    return opencv().transform(pixels, matrix)


def turned_hue(pixels: Pixels, shift: float) -> Pixels:
    """The hue moved by ``shift`` of the circle, in Pillow's steps of 1/255."""
    cv2 = opencv()
    colours = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV_FULL)
    colours[..., 0] += np.uint8(int(shift * 255) % 256)
    return cv2.cvtColor(colours, cv2.COLOR_HSV2RGB_FULL)


def blurred(pixels: Pixels, sigma: float) -> Pixels:
    """A Gaussian of ``sigma`` pixels; the edge is repeated."""
    cv2 = opencv()
    return cv2.GaussianBlur(pixels, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)


def solarized(pixels: Pixels, threshold: int) -> Pixels:
    """Values from ``threshold`` on inverted."""
    table = np.concatenate([_VALUES[:threshold], 255 - _VALUES[threshold:]]).astype(np.uint8)
    return opencv().LUT(pixels, table)


_JITTER = (lambda pixels, factor: blended(pixels, 0, factor), contrasted, saturated, turned_hue)


def _jittered(pixels: Pixels, strengths: tuple[float, float, float, float]) -> Pixels:
    """torchvision's ColorJitter: brightness, contrast, saturation and hue in random order."""
    *near, hue = strengths
    order, *factors = ColorJitter.get_params(*([max(0.0, 1 - each), 1 + each] for each in near), [-hue, hue])
    for operation in order.tolist():
        pixels = _JITTER[operation](pixels, factors[operation])
    return pixels


class PixelArrays:
    """`self[i] -> (array [H, W, 3], label)` of a data set; image files are decoded without Pillow's copy."""

    def __init__(self, dataset: LabelledImages) -> None:
        self.dataset, self.positions = unselected(dataset)
        self.labels = dataset.labels

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        data, position = self.dataset, int(self.positions[index])
        pixels = data.pixels(position)[0] if isinstance(data, FileImages) else np.array(data[position][0])
        return pixels, int(self.labels[index])


@dataclass(frozen=True)
class OpenCvView:
    """Pillow's RGB image or array [H, W, 3] -> a random view, uint8 [size, size, 3], or [size, size, 1] where grey."""

    augmentation: Augmentation
    size: int

    def __post_init__(self) -> None:
        opencv()

    def __call__(self, image: PIL.Image.Image | Pixels) -> Pixels:
        aug = self.augmentation
        pixels = random_crop(np.require(image, np.uint8, "W"), self.size, aug.crop_scale, aug.flip)
        if aug.jitter_p > 0 and _chance(aug.jitter_p):
            pixels = _jittered(pixels, aug.jitter)
        if aug.grayscale > 0 and _chance(aug.grayscale):
            pixels = grey(pixels)
        if aug.blur > 0 and _chance(aug.blur):
            pixels = blurred(pixels, torch.empty(1).uniform_(*aug.blur_sigma).item())
        if aug.solarize > 0 and _chance(aug.solarize):
            pixels = solarized(pixels, aug.solarize_threshold)
        return pixels.reshape(self.size, self.size, -1)
