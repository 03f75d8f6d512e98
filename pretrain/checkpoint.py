"""Checkpoints of pretraining: written whole or not at all, read without running code; and the exported backbone.

``OUTPUT_DIR/checkpoints/step_0000999.pt`` and a text file ``last`` that names the newest; the last N are kept.
"""

from __future__ import annotations

import errno
import json
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from pretrain.backbones import ResNet
from pretrain.errors import InputError
from pretrain.files import atomic_path, write_text

FORMAT = "momentum-transfer/1"
POINTER = "last"
PAIR_BUFFERS = ("alpha", "pending_mean", "pending_var", "pending_count")  # of Momentum BN; not part of a backbone


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        folder: made at the first ``save``.
        keep: number of checkpoints that stay.
    """

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        self.folder = Path(folder)
        self.keep = keep

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Writes the state after ``step`` steps, then points ``last`` to it, then removes the oldest beyond ``keep``.

        A full disk or a kill at any moment leaves ``last`` on a whole checkpoint.

        Raises:
            OSError: no space (``errno.ENOSPC``) or another failure of the disk.
        """
        path = self.folder / f"step_{step:07d}.pt"
        for rest in self.folder.glob(".step_*.pt"):  # of a save that was killed
            rest.unlink(missing_ok=True)
        with atomic_path(path) as temporary:
            write_archive(temporary, state)
        write_text(self.folder / POINTER, path.name + "\n")
        files = sorted(self.folder.glob("step_*.pt"), key=lambda file: (len(file.name), file.name))
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
    """Reads a checkpoint of this project on the CPU; no code in it is run.

    Raises:
        InputError: no such file, truncated, or not a checkpoint of this format.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected a checkpoint, found no file {path}; give the path of a .pt file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"expected a whole checkpoint, found {path} truncated or damaged; "
            f"to go on from an earlier one, write its name into {path.parent / POINTER}"
        ) from error
    except Exception as error:  # weights_only's refusals are pickle.UnpicklingError and whatever the bytes provoke
        raise InputError(f"expected a checkpoint of tools/pretrain.py, found another file {path}: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise InputError(f"expected a checkpoint of format {FORMAT}, found {found!r} in {path}; give one of this tool")
    return state


def backbone_state(backbone: ResNet) -> dict[str, Tensor]:
    """The backbone under torchvision's names, without what only training needs; copies on the CPU.

    Under Momentum BN, running_mean and running_var are the final history: the paper dumps the teacher with it.
    """
    return {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in backbone.state_dict().items()
        if name.rpartition(".")[2] not in PAIR_BUFFERS
    }


def export_backbone(path: str | Path, backbone: ResNet, metadata: dict[str, str]) -> None:
    """Writes ``backbone.safetensors`` atomically: torchvision names, architecture in the metadata.

    Args:
        metadata: added to the architecture: which network, normalisation, method, config hash.
    """
    architecture = backbone.architecture
    described = {
        "format": "momentum-transfer/backbone/1",
        "architecture": architecture.name,
        "width": str(architecture.width),
        "stem": architecture.stem,
        **metadata,
    }
    with atomic_path(path) as temporary:
        safetensors.torch.save_file(backbone_state(backbone), temporary, described)
        _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """Puts the metadata of a safetensors file in order of names: the library writes it in a random one, so that equal
    backbones would be files of different hashes."""
    with open(path, "r+b") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
        if len(text) > length:
            raise ValueError(f"expected a header of at most {length} bytes, found {len(text)} after sorting")
        stream.seek(8)
        stream.write(text.ljust(length))  # JSON allows spaces at its end, as the format does
