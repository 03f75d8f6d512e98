"""Views of labelled and unlabelled images for training classifiers; normalisation as in evaluation.

Photographs: a random crop of 8-100 % of the area, and a flip. Small squares (CIFAR, STL-10, Fashion-MNIST): a shift by
up to an eighth of the side, and a flip: the habit on CIFAR, and a choice, since Momentum² Teacher (STL-10) and RCF
(CIFAR) do not print the view of their linear classifiers. Digits (MNIST too): the shift alone, because a mirrored digit
is another sign.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torchvision.transforms import v2

from momentum_transfer.images.datasets import SIGNS, SMALL_SQUARES
from momentum_transfer.images.views import MEAN, STD, normalise
from momentum_transfer.lowshot.rand_augment import RandomLevelAugment


class ReflectedCrop:
    """PIL image -> a random crop of it, mirrored at its edges: v2.RandomCrop's draws and pixels in a fifth of the time.

    Args:
        size: side of the crop. padding: pixels that are added on every side, fewer than the image has.
    """

    def __init__(self, size: int, padding: int) -> None:
        self.size, self.padding = size, padding

    def __call__(self, image: PIL.Image.Image) -> PIL.Image.Image:
        pixels, padding = np.asarray(image), self.padding
        room = [side + 2 * padding - self.size for side in pixels.shape[:2]]
        top, left = (int(torch.randint(0, more + 1, ())) if more > 0 else 0 for more in room)
        rows, columns = (
            _mirrored(start, self.size, padding, side)
            for start, side in zip((top, left), pixels.shape[:2], strict=True)
        )
        return PIL.Image.fromarray(pixels[rows][:, columns])

    def __repr__(self) -> str:
        padding = [self.padding] * 4  # as v2.RandomCrop's, by which cached features of views are known
        return (
            f"RandomCrop(size=({self.size}, {self.size}), padding={padding}, pad_if_needed=False, fill=0, "
            "padding_mode=reflect)"
        )


def _mirrored(start: int, size: int, padding: int, side: int) -> np.ndarray:
    """Rows of an image that stand at start … start + size of the padded one."""
    places = np.abs(np.arange(start, start + size) - padding)
    return np.where(places < side, places, 2 * (side - 1) - places)


def _geometry(dataset: str, size: int) -> list[Callable[[Any], Any]]:
    if dataset not in SMALL_SQUARES:
        return [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    shift = [v2.Resize((size, size)), ReflectedCrop(size, size // 8)]
    return shift if dataset in SIGNS else [*shift, v2.RandomHorizontalFlip()]


def weak_view(
    dataset: str, size: int, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> Callable[[PIL.Image.Image], Tensor]:
    """PIL image -> float [3, size, size]: what supervised training and FixMatch's pseudo-labels see."""
    view: Callable[[PIL.Image.Image], Tensor] = v2.Compose([*_geometry(dataset, size), *normalise(mean, std)])
    return view


class SeededView:
    """PIL image -> one random view of it, the same every time: drawn by the seed and the image's own pixels."""

    def __init__(self, view: Callable[[PIL.Image.Image], Tensor], seed: int) -> None:
        self.view, self.seed = view, seed

    def __call__(self, image: PIL.Image.Image) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            # torch's generator reads 32 bits of a seed
            torch.default_generator.manual_seed(zlib.crc32(image.tobytes(), self.seed))
            return self.view(image)

    def __repr__(self) -> str:
        return f"SeededView({self.view}, seed={self.seed})"


def strong_view(
    dataset: str, size: int, levels: str = "eman", mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> Callable[[PIL.Image.Image], Tensor]:
    """The weak geometry, then two random operations; ``levels``: see :mod:`momentum_transfer.lowshot.rand_augment`."""
    parts = [*_geometry(dataset, size), RandomLevelAugment(levels), *normalise(mean, std)]
    view: Callable[[PIL.Image.Image], Tensor] = v2.Compose(parts)
    return view


class WeakAndStrong:
    """PIL image -> (weak view, strong view), each with its own geometry."""

    def __init__(
        self, dataset: str, size: int, levels: str = "eman", mean: Sequence[float] = MEAN, std: Sequence[float] = STD
    ) -> None:
        self.weak, self.strong = weak_view(dataset, size, mean, std), strong_view(dataset, size, levels, mean, std)

    def __call__(self, image: PIL.Image.Image) -> tuple[Tensor, Tensor]:
        return self.weak(image), self.strong(image)
