"""Strong views for semi-supervised detection: colours, blur and erased rectangles; boxes stay in place."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from momentum_transfer.images.augmentations import RECIPES
from momentum_transfer.images.views import PilGaussianBlur, sample_seed
from momentum_transfer.transfer.torchvision_engine.structures import Sample

#: Probability, fraction of the area and ratio of each erased rectangle (Unbiased Teacher, arXiv 2102.09480, appendix).
_ERASED = ((0.7, (0.05, 0.2), (0.3, 3.3)), (0.5, (0.02, 0.2), (0.1, 6.0)), (0.3, (0.02, 0.2), (0.05, 8.0)))


@cache
def _transform() -> v2.Compose:
    """Unbiased Teacher's colours and blur are MoCo v2's."""
    colours = RECIPES["mocov2"][0]
    return v2.Compose(
        [
            v2.RandomApply([v2.ColorJitter(*colours.jitter)], colours.jitter_p),
            v2.RandomGrayscale(colours.grayscale),
            v2.RandomApply([PilGaussianBlur(colours.blur_sigma)], colours.blur),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            *(v2.RandomErasing(p, scale, ratio, value="random") for p, scale, ratio in _ERASED),
        ]
    )


def with_strong_view(sample: Sample, bgr: bool, seed: int, position: int) -> Sample:
    """The sample with ``strong``, a function of the seed and of its position in the order."""
    rgb = sample.image.flip(0) if bgr else sample.image
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(sample_seed(seed, position, 0))
        strong: Tensor = _transform()(Image.fromarray(np.ascontiguousarray(rgb.permute(1, 2, 0).numpy())))
    pixels = (strong.clamp(0, 1) * 255).round().to(torch.uint8)
    return replace(sample, strong=pixels.flip(0) if bgr else pixels)
