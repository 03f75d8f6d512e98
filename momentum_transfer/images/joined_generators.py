"""Many random generators drawn as one: arithmetic on a batch at once, random numbers of each image its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = type[np.float32] | type[np.float64]


class JoinedGenerators:
    """Draws arrays of images whose parts come from one generator each, so that no image depends on its neighbours.

    Args:
        generators: G of them; each draws the numbers of as many images as every other.
    """

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self.generators = generators

    def random(self, size: tuple[int, ...], dtype: Float = np.float64, axis: int = 0) -> NDArray[Any]:
        """Uniform on [0, 1); images lie along ``axis``, G times as many as one generator draws."""
        part = self._part(size, axis)
        return np.concatenate([one.random(part, dtype=dtype) for one in self.generators], axis=axis)

    def standard_normal(self, size: tuple[int, ...], dtype: Float = np.float64) -> NDArray[Any]:
        """Standard normal; images lie along the first axis."""
        part = self._part(size, 0)
        return np.concatenate([one.standard_normal(part, dtype=dtype) for one in self.generators])

    def _part(self, size: tuple[int, ...], axis: int) -> tuple[int, ...]:
        if size[axis] % len(self.generators):
            raise ValueError(f"expected a multiple of {len(self.generators)} images, found {size[axis]}")
        return (*size[:axis], size[axis] // len(self.generators), *size[axis + 1 :])
