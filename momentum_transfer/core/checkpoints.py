"""Checkpoints of every training: written whole or not at all, read without running code.

``OUTPUT_DIR/checkpoints/step_0000999.pt`` after 999 steps, and a text file ``last`` that names the newest; the last N
are kept. Those of detectors end in ``.pth`` and hold the detector under ``model``, as Detectron2's do.

Checks of a checkpoint as a whole before a training goes on with it: its parts, their types, its step.

The digest tells damage by chance; these tell a file that another program wrote or a hand has altered, of which a
half-fitting part would otherwise be trained on, or exported untrained, in silence.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from momentum_transfer.core.digests import KEY, sealed, verify, verify_records
from momentum_transfer.core.errors import InputError, one_line, shown
from momentum_transfer.core.files import atomic_path, refused_by_system, remove_leftovers, write_text
from momentum_transfer.core.log import warn

FORMAT = "momentum-transfer/1"
POINTER = "last"


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        folder: made at the first ``save``.
        keep: number of checkpoints that stay.
        suffix: of the files.
        pointer: the file that names the newest.
    """

    def __init__(self, folder: str | Path, keep: int = 2, suffix: str = ".pt", pointer: str = POINTER) -> None:
        self.folder = Path(folder)
        self.keep, self.suffix, self.pointer = keep, suffix, pointer

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Writes the state after ``step`` steps, then points ``last`` to it, then removes the oldest beyond ``keep``.

        A full disk or a kill at any moment leaves ``last`` on a whole checkpoint.

        Raises:
            OSError: no space (``errno.ENOSPC``) or another failure of the disk.
        """
        path = self.folder / f"step_{step:07d}{self.suffix}"
        remove_leftovers(self.folder, below=False)  # of a save that was killed
        with atomic_path(path) as temporary:
            write_archive(temporary, state)
        write_text(self.folder / self.pointer, path.name + "\n")
        files = sorted(self.folder.glob(f"step_*{self.suffix}"), key=lambda file: (len(file.name), file.name))
        newest = files.index(path)
        # Later steps are of a course that was given up, by pointing ``last`` to an earlier file.
        for old in [*files[: max(newest + 1 - self.keep, 0)], *files[newest + 1 :]]:
            old.unlink(missing_ok=True)
        return path

    def last(self) -> Path | None:
        """The newest whole checkpoint; None when there is none.

        Where ``last`` is missing beside checkpoints (deleted, or a kill came before it was first written), it is the
        one of the latest step, with a warning.

        Raises:
            InputError: ``last`` names a file that is not there.
        """
        pointer = self.folder / self.pointer
        if not pointer.is_file():
            files = [file for file in self.folder.glob(f"step_*{self.suffix}") if _step_of(file) is not None]
            newest = max(files, key=lambda file: _step_of(file) or 0, default=None)
            if newest is not None:
                warn(f"{pointer} is missing; the latest checkpoint beside it is taken for the last: {newest.name}")
            return newest
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
        path = self.folder / name
        if not _is_name(name) or not path.is_file():
            raise InputError(
                f"expected {pointer} to name a checkpoint beside it, found {shown(name)}; correct or delete it"
            )
        return path


def _is_name(text: str) -> bool:
    return 0 < len(text) < 200 and "\0" not in text and Path(text).name == text


def _step_of(file: Path) -> int | None:
    found = re.fullmatch(r"step_(\d{1,18})\.\w+", file.name)
    return int(found[1]) if found else None


def write_archive(path: Path, state: dict[str, Any]) -> None:
    """Write what ``torch.save`` writes, with the digest of its content; a full disk stays the OSError that it is."""
    try:
        with open(path, "wb") as stream:
            torch.save(sealed(state), stream)
    except RuntimeError as error:  # torch's zip writer hides the system's error
        refused = refused_by_system(error, path.parent)
        if refused is None:
            raise
        raise OSError(refused, os.strerror(refused), str(path)) from error


def load(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint of pretraining or of training with few labels on the CPU; no code in it is run.

    Raises:
        InputError: no such file, damaged, or not a checkpoint of this format.
    """
    state = read_own(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise InputError(
            f"expected a checkpoint of format {FORMAT}, found {shown(found)} in {path}; give one of this tool"
        )
    return state


def read_own(path: str | Path) -> Any:
    """What ``write_archive`` wrote, on the CPU, compared with its digest; no code in it is run.

    Files of versions before 2026-11-22 have no digest: of them the archive's checksums are compared, with a warning.

    Raises:
        InputError: no such file, damaged, or of another kind.
    """
    return read_archive(path, own=True)


def read_archive(path: str | Path, *, own: bool = False) -> Any:
    """What ``torch.save`` wrote, on the CPU, compared with the digest or else the checksums in it; no code is run.

    The digest itself is left out. A file of this project's ``own`` without one is warned of.

    Raises:
        InputError: no such file, damaged, or of another kind.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected a checkpoint, found no file {path}; give the path of a checkpoint")
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"expected a whole checkpoint, found {path} truncated or damaged; "
            "to go on from an earlier one, write its name into the file that names the last"
        ) from error
    except Exception as error:  # weights_only's refusals are pickle.UnpicklingError and whatever the bytes provoke
        detail = one_line(error)
        raise InputError(f"expected a checkpoint of this project, found another file {path}: {detail}") from error
    if verify(tree, path):
        del tree[KEY]
        return tree
    verify_records(path)
    if own:
        warn(f"{path} holds no digest of its content (it was written before 2026-11-22); its checksums are right")
    return tree


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
