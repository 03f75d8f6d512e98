"""Checkpoints of every training: written whole or not at all, read without running code.

``OUTPUT_DIR/checkpoints/step_0000999.pt`` after 999 steps, and a text file ``last`` that names the newest; the last N
are kept. Those of detectors end in ``.pth`` and hold the detector under ``model``, as Detectron2's do.
"""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

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
