"""Whether the compiled kernels of masks are there, and worth their import."""

import importlib
import sys
from functools import cache
from types import ModuleType

_NAME = "transfer.scores.kernels"
_WORTH = 1 << 25  # characters of codes: to score them without the kernels takes as long more as importing numba
_MISSING = (ImportError, RuntimeError, OSError)  # numba is an extra, and may not fit this NumPy or find no cache folder


def kernels(characters: int = 0) -> ModuleType | None:
    """``transfer.scores.kernels``, or None where NumPy and pycocotools are to do its work, to the same numbers.

    Args:
        characters: how many are to be decoded, as far as is known; few do without the kernels unless they are imported.
    """
    return _kernels() if characters >= _WORTH else sys.modules.get(_NAME)


@cache
def _kernels() -> ModuleType | None:
    try:
        return importlib.import_module(_NAME)
    except _MISSING:
        return None
