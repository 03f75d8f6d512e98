"""Check that Python and torch are new enough, before they fail with an obscure error.

Python 3.6 must be able to parse this file, so that an old Python gets the message too.
"""

import sys

_PYTHON = (3, 10)
_TORCH = (2, 4)  # as in pyproject.toml


def check_python():
    """Exit with one line if Python is too old: nothing of the project could be imported."""
    if sys.version_info[:2] < _PYTHON:
        found = ".".join(str(part) for part in sys.version_info[:3])
        raise SystemExit(
            f"error: expected Python {_PYTHON[0]}.{_PYTHON[1]} or newer, found {found} ({sys.executable}); "
            "install a newer one, and momentum-transfer into it"
        )


def check_torch():
    """Raise InputError if the installed torch is too old, without importing it, which takes seconds."""
    import importlib.metadata

    from momentum_transfer.core.errors import InputError

    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    numbers = found.split("+")[0].split(".")[:2]
    if len(numbers) == 2 and all(part.isdigit() for part in numbers) and tuple(map(int, numbers)) < _TORCH:
        wanted = f"{_TORCH[0]}.{_TORCH[1]}"
        raise InputError(
            f"expected torch {wanted} or newer, found {found}; pip install -U 'torch>={wanted}' torchvision"
        )
