"""Where each id stands among the sorted ids, for one id at a time or for a column of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

#: From here on not every whole number is a float of its own.
_EXACT = 1 << 53


class Positions(dict[Hashable, int]):
    """Id → its position in ``ordered``.

    Args:
        ordered: ids in ascending order, each once: numbers or strings.
    """

    def __init__(self, ordered: Sequence[Any]) -> None:
        super().__init__(zip(ordered, range(len(ordered)), strict=True))

    @cached_property
    def _numbers(self) -> np.ndarray:
        """The ids as float64, ascending; none of them where one is no number that a float holds exactly."""
        exact = all(isinstance(one, (int, float)) and abs(one) < _EXACT for one in self)
        return np.array(list(self) if exact else [], dtype=np.float64)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """[N] int32 positions of the ids [N] float64.

        Raises:
            KeyError: one is unknown, or the known ids are not all numbers that a float holds exactly.
        """
        known = self._numbers
        if not len(ids):
            return np.zeros(0, dtype=np.int32)
        if not len(known):
            raise KeyError(ids[0])
        found = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        unknown = known[found] != ids
        if unknown.any():
            raise KeyError(ids[int(unknown.argmax())])
        return found.astype(np.int32)
