"""torch.compile of the networks, and its failures in one line."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import torch

from momentum_transfer.core.errors import InputError
from momentum_transfer.pretrain.methods import Method

_NEXT = "install one (Debian: g++), or set RUN.COMPILE False"


def compile_networks(method: Method, device: torch.device) -> None:
    """Compiles student and teacher in place, so that the names in the state stay; the work is done by the first step.

    The kernels of a CPU are C++, which takes a compiler, and minutes in the first step.

    Raises:
        InputError: there is no compiler.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None and shutil.which("clang++") is None:
        raise InputError(f"expected a C++ compiler for RUN.COMPILE True on the CPU, found no {compiler}; {_NEXT}")
    for network in method.networks().values():
        network.compile()


@contextlib.contextmanager
def compile_errors() -> Iterator[None]:
    """Turns a failure of the compiler within the block into an InputError that names its cause."""
    try:
        yield
    except RuntimeError as error:
        kind = type(error).__module__
        if not kind.startswith(("torch._dynamo", "torch._inductor")):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        causes = [line for line in lines if "error:" in line or "Error:" in line] or lines or [type(error).__name__]
        note = "" if any("error:" in line for line in causes) else " (without a message: it was ended from outside)"
        raise InputError(
            f"expected the networks to compile under RUN.COMPILE True, found: {causes[-1][:300]}{note}; "
            "repair the compiler, or set RUN.COMPILE False and go on with another OUTPUT_DIR"
        ) from error
