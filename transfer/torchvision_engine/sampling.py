"""The order in which images are trained on, a pure function of the seed: resuming needs nothing but a step number.

TrainingSampler and RepeatFactorTrainingSampler of Detectron2: endless shuffled passes; in the second, images of rare
classes come several times a pass.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

#: Place in the endless stream, and index of the image.
Draw = tuple[int, int]


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


def endless(factors: torch.Tensor, seed: int) -> Iterator[int]:
    """Indices of shuffled passes without end. A fractional repeat is rounded at random, anew in each pass."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.trunc(factors)
    fraction = factors - whole
    while True:
        if bool((fraction > 0).any()):
            extra = (torch.rand(len(factors), generator=generator) < fraction).float()
        else:
            extra = torch.zeros_like(factors)
        indices = torch.repeat_interleave(torch.arange(len(factors)), (whole + extra).long())
        yield from indices[torch.randperm(len(indices), generator=generator)].tolist()


class TrainingBatches:
    """Batches of draws for one process, without end.

    Args:
        factors: repeat factor of each image, ones for a plain pass.
        wide: for each image, whether it is wider than high; images of one batch are alike, which saves padding. None
            for batches in the plain order.
        batch_size: images a batch of this process.
        start: batches to leave out, those of a training that is resumed.
    """

    def __init__(
        self,
        factors: torch.Tensor,
        wide: Sequence[bool] | None,
        batch_size: int,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
    ) -> None:
        self.factors, self.wide, self.batch_size, self.seed = factors, wide, batch_size, seed
        self.rank, self.world_size, self.start = rank, world_size, start

    def __iter__(self) -> Iterator[list[Draw]]:
        yield from itertools.islice(self._all(), self.start, None)

    def _all(self) -> Iterator[list[Draw]]:
        stream = itertools.islice(enumerate(endless(self.factors, self.seed)), self.rank, None, self.world_size)
        waiting: dict[bool, list[Draw]] = {False: [], True: []}
        for place, index in stream:
            bucket = waiting[self.wide[index] if self.wide is not None else False]
            bucket.append((place, index))
            if len(bucket) == self.batch_size:
                yield list(bucket)
                bucket.clear()
