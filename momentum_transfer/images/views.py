"""Two random views of an image, by recipe, one image at a time on the CPU.

`images.augmentations` defines the recipes. The backend pillow (torchvision v2 on PIL images) is what the papers used;
`images.opencv_views` draws the same numbers and is faster; `images.device_views` does the same to a whole batch on an
accelerator. The recipe `digits` renders the digit anew for each view.
"""

import hashlib
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageFilter
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.augmentations import RECIPES, Augmentation, Pair, recipe_augmentations
from momentum_transfer.images.datasets import SMALL_SQUARES
from momentum_transfer.images.digits import DigitImages, digit_variant, render_digits
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.images.opencv_views import OpenCvView, PixelArrays
from momentum_transfer.images.subsets import unselected

# ImageNet's statistics, for every dataset: detectors normalise with them, so a backbone transfers as it is.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

#: Digits rendered together: their arrays stay in a core's cache.
_AT_ONCE = 16


class PilGaussianBlur:
    """Gaussian blur of a PIL image with random sigma from a range, by Pillow, as in MoCo v2.

    Unlike torchvision's, Pillow's (three box blurs of fractional width) does not truncate the kernel, and it is several
    times faster on 224 px.
    """

    def __init__(self, sigma: tuple[float, float]) -> None:
        self.sigma = sigma

    def __call__(self, image: PIL.Image.Image) -> PIL.Image.Image:
        sigma = torch.empty(()).uniform_(*self.sigma).item()
        return image.filter(PIL.ImageFilter.GaussianBlur(sigma))


@dataclass(frozen=True)
class Normalise:
    """Bytes -> float32, `(x/255 − mean)/std`, in a multiplication and an addition: four times as fast as v2's."""

    mean: Sequence[float]
    std: Sequence[float]

    def __call__(self, image: PIL.Image.Image | NDArray[np.uint8]) -> Tensor:
        """PIL RGB image or array [H, W, 3 or 1] -> [3, H, W]."""
        return torch.from_numpy(self.planes(np.asarray(image).transpose(2, 0, 1)))

    def planes(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Arrays [..., 3 or 1, H, W] -> [..., 3, H, W], contiguous."""
        std = np.asarray(self.std, dtype=np.float32).reshape(3, 1, 1)
        scale, shift = np.float32(1 / 255) / std, -np.asarray(self.mean, dtype=np.float32).reshape(3, 1, 1) / std
        out = np.empty((*pixels.shape[:-3], 3, *pixels.shape[-2:]), dtype=np.float32)
        np.multiply(pixels, scale, out=out)
        out += shift
        return out


def _pil_transform(aug: Augmentation, image_size: int, mean: Sequence[float], std: Sequence[float]) -> v2.Compose:
    steps: list[Callable[[Any], Any]] = [
        v2.RandomResizedCrop(image_size, scale=aug.crop_scale),
        v2.RandomHorizontalFlip(aug.flip),
    ]
    if aug.jitter_p > 0:
        steps.append(v2.RandomApply([v2.ColorJitter(*aug.jitter)], p=aug.jitter_p))
    if aug.grayscale > 0:
        steps.append(v2.RandomGrayscale(aug.grayscale))
    if aug.blur > 0:
        steps.append(v2.RandomApply([PilGaussianBlur(aug.blur_sigma)], p=aug.blur))
    if aug.solarize > 0:
        steps.append(v2.RandomSolarize(aug.solarize_threshold, p=aug.solarize))
    return v2.Compose([*steps, Normalise(mean, std)])


class ImageViews:
    """Two augmented crops of a PIL image."""

    def __init__(self, augmentations: Pair, image_size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self.first, self.second = (_pil_transform(each, image_size, mean, std) for each in augmentations)

    def source(self, dataset: LabelledImages) -> LabelledImages:
        return dataset

    def __call__(self, sample: PIL.Image.Image) -> tuple[Tensor, Tensor]:
        return self.first(sample), self.second(sample)

    def many(self, samples: Sequence[PIL.Image.Image], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        views = []
        for sample, seed in zip(samples, seeds, strict=True):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the accelerators as well
            views.append(self(sample))
        return views


class OpenCvImageViews(ImageViews):
    """The same by OpenCV."""

    def __init__(self, augmentations: Pair, image_size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self.views = [OpenCvView(each, image_size) for each in augmentations]
        self.normalise = Normalise(mean, std)

    def source(self, dataset: LabelledImages) -> Any:
        return PixelArrays(dataset)

    def __call__(self, sample: Any) -> tuple[Tensor, Tensor]:
        first, second = (self.normalise(view(sample)) for view in self.views)
        return first, second


class DigitViews:
    """Two renderings of a digit: new placement, scale, contrast, background and noise for each view; no flips."""

    def __init__(self, variant: str, image_size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self.variant = digit_variant(variant)
        self.image_size = image_size
        self.normalise = Normalise(mean, std)

    def source(self, dataset: LabelledImages) -> Any:
        return list(zip(_digit_glyphs(dataset), dataset.labels.tolist(), strict=True))

    def __call__(self, sample: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        return self._rendered([sample], [self._generator()])[0]

    def many(self, samples: Sequence[NDArray[np.float32]], seeds: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        generators = []
        for seed in seeds:
            torch.default_generator.manual_seed(seed)
            generators.append(self._generator())
        views: list[tuple[Tensor, Tensor]] = []
        for first in range(0, len(samples), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            views += self._rendered(samples[part], generators[part])
        return views

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(int(torch.randint(2**63 - 1, ())))

    def _rendered(self, samples: Sequence[Any], generators: Sequence[np.random.Generator]) -> list[Any]:
        digits = render_digits(np.repeat(samples, 2, axis=0), self.image_size, self.variant, *generators)
        planes = torch.from_numpy(self.normalise.planes(digits[:, None]))
        return list(zip(planes[0::2], planes[1::2], strict=True))


def _digit_glyphs(dataset: LabelledImages) -> NDArray[np.float32]:
    """The digits behind a dataset, [N, 8, 8]; InputError when it is not made of digits."""
    whole, positions = unselected(dataset)
    if not isinstance(whole, DigitImages):
        raise InputError(
            f"expected dataset 'digits' for view recipe 'digits', found another; choose a recipe for images: "
            f"DATA.VIEWS {', '.join(name for name in RECIPES if name != 'digits')}"
        )
    return whole.glyphs[positions]


TwoViews = ImageViews | DigitViews
"""A recipe: ``source(dataset)`` maps indices to (sample, label), a call with a sample gives its two views, and
``many(samples, seeds)`` those of each sample after seeding torch's global generator, which stays so."""


def build_views(
    recipe: str,
    image_size: int,
    *,
    variant: str = "placed",
    remove: Collection[str] = (),
    crop_scale: tuple[float, float] | None = None,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    backend: str = "pillow",
) -> TwoViews:
    """Build a recipe: a callable from a sample to two views, float [3, image_size, image_size].

    It is "byol" (asymmetric), "rcf" (symmetric), "mocov2", "eman_byol" or "digits", whose looks are ``variant`` (see
    `momentum_transfer.images.digits.VARIANTS`). ``remove`` and ``crop_scale``: see `recipe_augmentations` (not for
    digits). ``mean`` and ``std`` normalise values in 0..1. ``backend``: "pillow" or "opencv" (not for digits).
    """
    if recipe == "digits":
        if remove or crop_scale is not None:
            raise InputError("expected no removals and no crop scale for view recipe 'digits', which renders anew")
        return DigitViews(variant, image_size, mean, std)
    views = OpenCvImageViews if backend == "opencv" else ImageViews
    return views(recipe_augmentations(recipe, remove, crop_scale), image_size, mean, std)


def eval_transform(
    dataset_name: str,
    image_size: int,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    *,
    interpolation: str = "bilinear",
    resized: int = 0,
) -> Callable[[PIL.Image.Image], Tensor]:
    """The fixed transform for evaluation: PIL RGB -> float [3, image_size, image_size].

    Images of any size: shorter side to ``resized`` (0: 256/224 of the size), then the central crop. Datasets of
    small squares (digits, CIFAR, STL-10, MNIST): the whole image, resized only if its size differs.
    """
    mode = v2.InterpolationMode(interpolation)
    if dataset_name in SMALL_SQUARES:
        steps: list[Callable[[Any], Any]] = [v2.Resize((image_size, image_size), mode)]
    else:
        steps = [v2.Resize(resized or round(image_size * 256 / 224), mode), v2.CenterCrop(image_size)]
    return v2.Compose([*steps, Normalise(mean, std)])


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """63 well-mixed bits of (seed, epoch, index)."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, epoch, index), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class TwoViewDataset(Dataset[tuple[Tensor, Tensor, int, int]]):
    """`self[i] -> (view1, view2, label, i)`, a pure function of (seed, epoch, i).

    Each sample seeds its own generator, so neither the number of workers, nor the order, nor an interruption changes
    a view; the caller's generator is left as it was. The epoch lies in shared memory: `set_epoch`, called before the
    epoch's iterator is made, reaches persistent workers too.
    """

    def __init__(self, dataset: LabelledImages, views: TwoViews, seed: int) -> None:
        self.views = views
        self.seed = seed
        self.dataset = dataset
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def dataset(self) -> LabelledImages:
        """The images; another set of the same ones may replace it."""
        return self._dataset

    @dataset.setter
    def dataset(self, dataset: LabelledImages) -> None:
        self._dataset, self._source = dataset, self.views.source(dataset)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int, int]:
        return self.at(int(self._epoch), index)

    def at(self, epoch: int, index: int) -> tuple[Tensor, Tensor, int, int]:
        """The item of a given epoch, for workers that already read ahead into the next."""
        return self.items([(epoch, index)])[0]

    def items(self, places: Sequence[tuple[int, int]]) -> list[tuple[Tensor, Tensor, int, int]]:
        """The items of many (epoch, index), each the same as alone; digits are rendered together."""
        samples, labels = zip(*(self._source[index] for _, index in places), strict=True)
        with torch.random.fork_rng(devices=[]):
            views = self.views.many(samples, [sample_seed(self.seed, epoch, index) for epoch, index in places])
        return [(*pair, label, index) for pair, label, (_, index) in zip(views, labels, places, strict=True)]
