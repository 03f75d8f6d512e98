"""Checkpoints of every training: written whole or not at all, read without running code.

``OUTPUT_DIR/checkpoints/step_0000999.pt`` after 999 steps, and a text file ``last`` that names the newest; the last N
are kept. Those of detectors end in ``.pth`` and hold the detector under ``model``, as Detectron2's do.
"""

from __future__ import annotations

import errno
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch

from momentum_transfer.errors import InputError
from momentum_transfer.files import atomic_path, write_text

FORMAT = "momentum-transfer/1"
POINTER = "last"


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        folder: made at the first ``save``.
        keep: number of checkpoints that stay.
        suffix: of the files.
    """

    def __init__(self, folder: str | Path, keep: int = 2, suffix: str = ".pt") -> None:
        self.folder = Path(folder)
        self.keep, self.suffix = keep, suffix

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Writes the state after ``step`` steps, then points ``last`` to it, then removes the oldest beyond ``keep``.

        A full disk or a kill at any moment leaves ``last`` on a whole checkpoint.

        Raises:
            OSError: no space (``errno.ENOSPC``) or another failure of the disk.
        """
        path = self.folder / f"step_{step:07d}{self.suffix}"
        for rest in self.folder.glob(f".step_*{self.suffix}"):  # of a save that was killed
            rest.unlink(missing_ok=True)
        with atomic_path(path) as temporary:
            write_archive(temporary, state)
        write_text(self.folder / POINTER, path.name + "\n")
        files = sorted(self.folder.glob(f"step_*{self.suffix}"), key=lambda file: (len(file.name), file.name))
        newest = files.index(path)
        # Later steps are of a course that was given up, by pointing ``last`` to an earlier file.
        for old in [*files[: max(newest + 1 - self.keep, 0)], *files[newest + 1 :]]:
            old.unlink(missing_ok=True)
        return path

    def last(self) -> Path | None:
        """The newest whole checkpoint; None when there is none.

        Raises:
            InputError: ``last`` names a file that is not there.
        """
        pointer = self.folder / POINTER
        if not pointer.is_file():
            return None
        name = pointer.read_text(encoding="utf-8").strip()
        path = self.folder / name
        if Path(name).name != name or not path.is_file():
            raise InputError(f"expected {pointer} to name a checkpoint beside it, found {name!r}; correct or delete it")
        return path


def write_archive(path: Path, state: dict[str, Any]) -> None:
    """Write what ``torch.save`` writes; a full disk stays the OSError that it is."""
    try:
        with open(path, "wb") as stream:
            torch.save(state, stream)
    except RuntimeError as error:  # torch's zip writer hides the system's error
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        if shutil.disk_usage(path.parent).free < 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device", str(path)) from error
        raise


def load(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint of pretraining or of training with few labels on the CPU; no code in it is run.

    Raises:
        InputError: no such file, truncated, or not a checkpoint of this format.
    """
    state = read_archive(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise InputError(f"expected a checkpoint of format {FORMAT}, found {found!r} in {path}; give one of this tool")
    return state


def read_archive(path: str | Path) -> Any:
    """What ``write_archive`` wrote, on the CPU; no code in it is run.

    Raises:
        InputError: no such file, truncated, or of another kind.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected a checkpoint, found no file {path}; give the path of a checkpoint")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"expected a whole checkpoint, found {path} truncated or damaged; "
            f"to go on from an earlier one, write its name into {path.parent / POINTER}"
        ) from error
    except Exception as error:  # weights_only's refusals are pickle.UnpicklingError and whatever the bytes provoke
        raise InputError(f"expected a checkpoint of this project, found another file {path}: {error}") from error
