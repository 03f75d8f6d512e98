"""Whether the compiled kernels of masks are there, and worth their import."""

import importlib
import sys
from functools import cache
from types import ModuleType

from momentum_transfer.core.log import warn

_NAME = "momentum_transfer.transfer.scores.kernels"
_WORTH = 1 << 25  # characters of codes: to score them without the kernels takes as long more as importing numba


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
    except ModuleNotFoundError:  # an extra
        return None
    except Exception as error:  # a NumPy that it does not fit, no folder for its cache, or a cache that is damaged
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warn(f"masks are scored without numba, to the same numbers ({reason:.200})")
        return None
