"""Views of labelled and unlabelled images for training classifiers; normalisation as in evaluation.

Photographs: a random crop of 8-100 % of the area, and a flip. Small squares (CIFAR, STL-10, Fashion-MNIST): a shift by
up to an eighth of the side, and a flip: the habit on CIFAR, and a choice, since Momentum² Teacher (STL-10) and RCF
(CIFAR) do not print the view of their linear classifiers. Digits (MNIST too): the shift alone, because a mirrored digit
is another sign.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from torchvision.transforms import v2

from lowshot.rand_augment import RandomLevelAugment
from momentum_transfer.images.datasets import SIGNS, SMALL_SQUARES
from momentum_transfer.images.views import MEAN, STD, normalise


def _geometry(dataset: str, size: int) -> list[Callable[[Any], Any]]:
    if dataset not in SMALL_SQUARES:
        return [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    shift = [v2.Resize((size, size)), v2.RandomCrop(size, padding=size // 8, padding_mode="reflect")]
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
    """The weak geometry, then two random operations; ``levels``: see :mod:`lowshot.rand_augment`."""
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
