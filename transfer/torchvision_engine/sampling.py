"""How often an image comes in a pass over a long-tailed data set."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch


def repeat_factors(classes_of_images: Sequence[set[int]], threshold: float, sqrt: bool = True) -> torch.Tensor:
    """How often each image comes in a pass, float32 [N]; LVIS (arXiv 1908.03195), appendix B.2.

    A class that fewer than ``threshold`` of the images hold is repeated by max(1, sqrt(threshold / its frequency)); an
    image by its rarest class.
    """
    count = Counter(c for classes in classes_of_images for c in classes)
    total = len(classes_of_images)
    repeats = {}
    for name, images in count.items():
        ratio = threshold / (images / total)
        repeats[name] = max(1.0, math.sqrt(ratio) if sqrt else ratio)
    factors = [max((repeats[c] for c in classes), default=1.0) for classes in classes_of_images]
    return torch.tensor(factors, dtype=torch.float32)
