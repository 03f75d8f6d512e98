"""Checks of a checkpoint as a whole before a training goes on with it: its parts, their types, its step.

The digest tells damage by chance; these tell a file that another program wrote or a hand has altered, of which a
half-fitting part would otherwise be trained on, or exported untrained, in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from momentum_transfer.core.errors import InputError, one_line, shown
from momentum_transfer.core.log import warn

_NEXT = "take another checkpoint, or start a new OUTPUT_DIR"


def check_parts(state: Mapping[str, Any], parts: Mapping[str, type | tuple[type, ...]], path: Path) -> None:
    """Raise InputError unless every part is there and of its type (where int is asked for, bool is none)."""
    for name, kind in parts.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        if name not in state:
            raise InputError(f"expected {name} ({wanted}) in {path}, found none; {_NEXT}")
        value = state[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"expected {name} in {path} as {wanted}, found {shown(value)[:80]}; {_NEXT}")


def check_step(step: int, total: int, path: Path, first: int = 1) -> None:
    """Raise InputError unless ``step``, the steps done, lies between ``first`` and ``total``."""
    if not first <= step <= total:
        raise InputError(
            f"expected {path} after {first} to {total} steps, as long as this training is, found {step}; {_NEXT}"
        )


def check_numbers(found: Any, what: str, path: Path) -> None:
    """Raise InputError unless ``found`` is a mapping from names to numbers."""
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(value, (int, float)) for name, value in found.items()
    ):
        raise InputError(f"expected numbers by name under {what} of {path}, found {shown(found)[:80]}; {_NEXT}")


def check_generator(state: Any, what: str, path: Path) -> None:
    """Raise InputError unless ``state`` is what ``torch.get_rng_state`` gives."""
    wanted = torch.get_rng_state()
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.shape != wanted.shape:
        raise InputError(f"expected the state of a random number generator as {what} of {path}, found none; {_NEXT}")


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """What torch raises in the block because a state fits neither model nor optimizer becomes one InputError line."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"expected a checkpoint of this model, found another in {path}: {one_line(error)}") from error


#: What of a parameter group is no setting of the training, or set at every step.
_FREE = ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")


def load_optimizer(optimizer: Optimizer, state: dict[str, Any], path: Path) -> None:
    """Give a fresh optimizer its state; call it within ``fitting``.

    Raises:
        InputError: other settings (momentum, weight decay, …) than the optimizer's own, which torch would take over; a
            state of another shape than its parameter (numbers and tensors of one element are left out).
    """
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if numbers != list(range(len(numbers))) or not set(state["state"]) <= set(numbers):
        raise InputError(f"expected the optimizer's parameters in {path} numbered from 0, found others; {_NEXT}")
    own = [{key: value for key, value in group.items() if key not in _FREE} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for number, (before, group) in enumerate(zip(own, optimizer.param_groups, strict=True)):
        for key, value in before.items():
            if key not in group or type(group[key]) is not type(value) or group[key] != value:
                raise InputError(
                    f"expected {key} {shown(value)} in group {number} of the optimizer in {path}, found "
                    f"{shown(group.get(key))}; {_NEXT}"
                )
    if any(group.get("momentum") or "betas" in group for group in optimizer.param_groups) and not optimizer.state:
        warn(f"{path} holds no momenta of the optimizer; they begin at zero, as in a new training")
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.numel() != 1 and value.shape != parameter.shape:
                    raise InputError(
                        f"expected {name} of the optimizer in {path} of shape {list(parameter.shape)}, found "
                        f"{list(value.shape)}; {_NEXT}"
                    )
