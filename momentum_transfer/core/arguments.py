"""Types of command-line arguments that several tools take."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(least: int, of: str = "a whole number") -> Callable[[str], int]:
    """The type of a count: ``least`` or more; ``of`` says in its error what is counted."""

    def count(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected {of} of at least {least}, found {text}")
        return int(text)

    return count


def resamples(text: str) -> int:
    """How often test images are resampled: 0, or often enough for an interval."""
    if not (text.isascii() and text.isdecimal()) or 0 < int(text) < 100:
        raise argparse.ArgumentTypeError(f"expected 0 or at least 100 resamples, found {text}")
    return int(text)
