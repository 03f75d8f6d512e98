"""Ranges of the settings that several evaluations share, checked before any image is read."""

import math
from collections.abc import Sequence
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.errors import InputError
from momentum_transfer.settings import value_of

#: The smallest value of each; every evaluation reads some of them, and all are checked at once.
_SMALLEST = {
    "SEED": 0,
    "DATASETS.SEED": 0,
    "INPUT.IMAGE_SIZE": 1,
    "FEATURES.BATCH_SIZE": 1,
    "FEATURES.WORKERS": 0,
    "SEARCH.QUERY_CHUNK": 1,
    "SEARCH.DATABASE_CHUNK": 1,
    "RETRIEVAL.TOP": 1,
    "SVM.DRAWS": 1,
    "SVM.HELD_OUT_PER_CLASS": 1,
}


def check_settings(cfg: CfgNode) -> None:
    """Raise :class:`InputError` for a size, count or seed that nothing can be computed with."""
    for key, smallest in _SMALLEST.items():
        value = value_of(cfg, key)
        if value < smallest:
            raise InputError(f"expected {key} of at least {smallest}, found {value}; correct the config")
    check_numbers("SVM.SHOTS", cfg.SVM.SHOTS, whole=True)
    check_numbers("SVM.COSTS", cfg.SVM.COSTS)


def check_numbers(key: str, values: Sequence[Any], *, whole: bool = False, needed: bool = True) -> None:
    """Raise :class:`InputError` unless ``values`` are positive finite numbers.

    Args:
        whole: integers only. needed: an empty list is an error too.
    """
    kind = "whole numbers" if whole else "numbers"
    if needed and not len(values):
        raise InputError(f"expected at least one value in {key}, found none")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not 0 < value < math.inf:
            raise InputError(f"expected positive {kind} in {key}, found {value!r}; correct the config")
