"""Checkpoints of every training: written whole or not at all, read without running code, checked before they are used.

``OUTPUT_DIR/checkpoints/step_0000999.pt`` holds the state after 999 steps; the text file ``last`` names the newest, and
the last N are kept. Those of detectors end in ``.pth`` and hold the detector under ``model``, as Detectron2's do.

The digest detects damage; the checks of parts, types and steps detect a file that another program or a person altered,
of which a half-fitting part would otherwise be trained on in silence.
"""

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


class CheckpointFolder:
    """The checkpoints of one run: the newest ``keep`` files; the file ``pointer`` names the newest."""

    def __init__(self, folder: str | Path, keep: int = 2, suffix: str = ".pt", pointer: str = "last") -> None:
        self.folder = Path(folder)
        self.keep, self.suffix, self.pointer = keep, suffix, pointer

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Write the state, point ``last`` to it, remove the oldest; killed at any moment, ``last`` stays whole."""
        path = self.folder / f"step_{step:07d}{self.suffix}"
        remove_leftovers(self.folder, below=False)  # of a save that was killed
        with atomic_path(path) as temporary:
            write_archive(temporary, state)
        write_text(self.folder / self.pointer, path.name + "\n")
        files = sorted(self._steps().values(), key=lambda file: (len(file.name), file.name))
        newest = files.index(path)
        # Later steps belong to a run that was given up by pointing ``last`` to an earlier file.
        for old in [*files[: max(newest + 1 - self.keep, 0)], *files[newest + 1 :]]:
            old.unlink(missing_ok=True)
        return path

    def _steps(self) -> dict[int, Path]:
        """The checkpoints by step; not what else the user put beside them."""
        files = self.folder.glob(f"step_*{self.suffix}")
        return {int(found[1]): file for file in files if (found := re.fullmatch(r"step_(\d{1,18})\.\w+", file.name))}

    def last(self) -> Path | None:
        """The newest whole checkpoint, or None.

        Where ``last`` is missing beside checkpoints (deleted, or killed before it was first written), that of the
        latest step, with a warning. Raises InputError if ``last`` names a file that is not there.
        """
        pointer = self.folder / self.pointer
        if not pointer.is_file():
            steps = self._steps()
            if not steps:
                return None
            newest = steps[max(steps)]
            warn(f"{pointer} is missing; resuming from the latest checkpoint beside it: {newest.name}")
            return newest
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
        path = self.folder / name
        plain = 0 < len(name) < 200 and "\0" not in name and Path(name).name == name
        if not plain or not path.is_file():
            raise InputError(f"expected {pointer} to name a checkpoint beside it, found {shown(name)}; delete it")
        return path


def write_archive(path: Path, state: dict[str, Any]) -> None:
    """``torch.save`` with a digest of the content; a full disk raises OSError, which torch's zip writer hides."""
    try:
        with open(path, "wb") as stream:
            torch.save(sealed(state), stream)
    except RuntimeError as error:
        refused = refused_by_system(error, path.parent)
        if refused is None:
            raise
        raise OSError(refused, os.strerror(refused), str(path)) from error


def load(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint of pretraining or few-label training on the CPU, running no code; InputError if it is none."""
    state = read_archive(path, own=True)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise InputError(f"expected a checkpoint of format {FORMAT}, found {shown(found)} in {path}; give another")
    return state


def read_archive(path: str | Path, *, own: bool = False) -> Any:
    """Read what ``torch.save`` wrote, on the CPU, running no code; verify its digest or else the archive's checksums.

    With ``own``, a file without a digest is warned of. Raises InputError if there is no such file, it is damaged, or of
    another kind.
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
        warn(f"{path} holds no digest of its content; its checksums are right")
    return tree


_NEXT = "take another checkpoint, or start a new OUTPUT_DIR"


def check_parts(state: Mapping[str, Any], parts: Mapping[str, type | tuple[type, ...]], path: Path) -> None:
    """Raise InputError unless every part is there and of its type (a bool is no int)."""
    for name, kind in parts.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(each.__name__ for each in kinds)
        if name not in state:
            raise InputError(f"expected {name} ({expected}) in {path}, found none; {_NEXT}")
        value = state[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"expected {name} in {path} as {expected}, found {shown(value)[:80]}; {_NEXT}")


def check_step(step: int, total: int, path: Path, first: int = 1) -> None:
    """Raise InputError unless ``step``, the steps done, lies between ``first`` and ``total``."""
    if not first <= step <= total:
        raise InputError(f"expected {path} after {first} to {total} steps of this training, found {step}; {_NEXT}")


def check_numbers(numbers: Any, what: str, path: Path) -> None:
    """Raise InputError unless ``numbers`` is a mapping from names to numbers."""
    if not isinstance(numbers, Mapping) or not all(
        isinstance(name, str) and isinstance(value, (int, float)) for name, value in numbers.items()
    ):
        raise InputError(f"expected numbers by name under {what} of {path}, found {shown(numbers)[:80]}; {_NEXT}")


def check_generator(state: Any, what: str, path: Path) -> None:
    """Raise InputError unless ``state`` is what ``torch.get_rng_state`` gives."""
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.shape != torch.get_rng_state().shape:
        raise InputError(f"expected the state of a random number generator as {what} of {path}, found none; {_NEXT}")


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Turn what torch raises in the block, because a state does not fit, into an InputError of one line."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"expected a checkpoint of this model, found another in {path}: {one_line(error)}") from error


#: Keys of a parameter group that are no settings of the training, or are set at every step.
_FREE = ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")


def load_optimizer(optimizer: Optimizer, state: dict[str, Any], path: Path) -> None:
    """Load the state of a fresh optimizer; call it within ``fitting``.

    Raises InputError if the settings (momentum, weight decay, …) are not the optimizer's own, which torch would
    replace, or if a state has another shape than its parameter.
    """
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if numbers != list(range(len(numbers))) or not set(state["state"]) <= set(numbers):
        raise InputError(f"expected the optimizer's parameters in {path} numbered from 0, found others; {_NEXT}")
    settings = [{key: value for key, value in group.items() if key not in _FREE} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for number, (before, group) in enumerate(zip(settings, optimizer.param_groups, strict=True)):
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
