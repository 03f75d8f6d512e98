"""Writes backbones: under Detectron2's names (.pkl), or under torchvision's or timm's (.pth, .safetensors).

float32, float64 and integer tensors (``num_batches_tracked``) keep their bits everywhere. numpy has no bfloat16 and
Detectron2 trains in float32, so the two half formats are widened to float32 in a .pkl, which is exact.
"""

import json
import os
import pickle
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from momentum_transfer.backbones import build, vitdet
from momentum_transfer.backbones.build import AnyArchitecture, Backbone, expected_shapes
from momentum_transfer.backbones.read import BACKBONE_FORMAT, SourceBackbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.timm_models import TimmArchitecture
from momentum_transfer.core.checkpoints import write_archive
from momentum_transfer.core.digests import sealed, sealed_metadata
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path

#: What ``__author__`` says in the .pkl; Detectron2 prints it and takes any value but "Caffe2".
_AUTHOR = "momentum-transfer"
SUFFIXES = (".pkl", ".pth", ".safetensors")


def to_detectron2(state: Mapping[str, Tensor], architecture: AnyArchitecture) -> dict[str, np.ndarray]:
    """Detectron2's names and numpy arrays of a ResNet; InputError unless ``state`` is exactly the backbone."""
    names = build.detectron2_names(architecture)
    _check(state, architecture)
    return {name: _to_numpy(state[ours]) for ours, name in names.items()}


def _check(state: Mapping[str, Tensor], architecture: AnyArchitecture) -> None:
    expected = expected_shapes(architecture)
    problems = [f"{name} is missing" for name in expected if name not in state]
    problems += [f"{name} belongs to no {architecture.name}" for name in state if name not in expected]
    problems += [f"{name} has shape {list(tensor.shape)}, not {list(expected[name])}" for name, tensor in state.items()
                 if name in expected and tuple(tensor.shape) != expected[name]]  # fmt: skip
    if problems:
        width = f" of width {architecture.width}" if isinstance(architecture, Architecture) else ""
        found = f"{len(problems)} problems, the first: {problems[0]}; nothing was converted"
        raise InputError(f"expected exactly the {len(expected)} tensors of a {architecture.name}{width}, found {found}")


def _to_numpy(tensor: Tensor) -> np.ndarray:
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.detach().cpu().contiguous().numpy()


def write(
    path: str | Path, state: Mapping[str, Tensor], architecture: AnyArchitecture,
    metadata: Mapping[str, str] | None = None, *, without_prefix: bool = False,
) -> None:  # fmt: skip
    """Write a backbone as .pkl (Detectron2's names), .pth or .safetensors (torchvision's or timm's), by the suffix.

    A .pkl of a plain ViT is for Detectron2's ViT under its simple feature pyramid (``vitdet.for_detectron2``, with
    ``without_prefix``). ``metadata`` stands under that key of a .pkl or .pth, and in the header of a .safetensors.

    Raises:
        InputError: another suffix, or a state that is not exactly the backbone.
    """
    path = Path(path)
    check_suffix(path)
    text = {str(key): str(value) for key, value in (metadata or {}).items()}
    if path.suffix == ".pkl":
        _write_detectron2(path, state, architecture, text, without_prefix)
        return
    _check(state, architecture)
    whole = {name: state[name].detach().cpu().contiguous() for name in expected_shapes(architecture)}
    with atomic_path(path) as temporary:
        if path.suffix == ".safetensors":
            save_file(_unshared(whole), temporary, metadata=sealed_metadata(whole, text))
        else:
            # clone: a tensor mapped from a larger file would drag its whole storage along
            own = {name: tensor.clone() for name, tensor in whole.items()}
            write_archive(temporary, {"state_dict": own, "metadata": text})


def _unshared(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors on one storage, which safetensors does not write; others as they are."""
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in state.values())
    return {
        name: tensor.clone() if users[tensor.untyped_storage().data_ptr()] > 1 else tensor
        for name, tensor in state.items()
    }


def check_target(path: Path) -> None:
    """Raise InputError, before anything is computed, where no file can be written."""
    if path.is_dir():
        raise InputError(f"expected the name of a file to write, found a folder: {path}; name a file in it")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise InputError(f"expected a folder for {path}, found that {folder} is a file; choose another name")
    if not os.access(folder, os.W_OK):
        raise InputError(f"expected a folder that can be written to for {path}, found {folder}; choose another one")


def check_suffix(path: Path) -> None:
    """Raise InputError unless the suffix names a format that can be written."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"expected an output name ending in {', '.join(SUFFIXES)}, found {path.name}; choose one")


def _write_detectron2(
    path: Path, state: Mapping[str, Tensor], architecture: AnyArchitecture, text: dict[str, str], without_prefix: bool
) -> None:
    """A pickle that Detectron2's ``DetectionCheckpointer`` matches by name suffixes."""
    if isinstance(architecture, TimmArchitecture):
        _check(state, architecture)
        tensors = vitdet.for_detectron2(state, architecture, without_prefix)
        model = {name: _to_numpy(tensor) for name, tensor in tensors.items()}
        text = {**text, "function": "Detectron2's ViT: no prefix tokens, no final norm"}
    else:
        model = to_detectron2(state, architecture)
    tree = {"model": model, "matching_heuristics": True, "__author__": _AUTHOR, "metadata": text}
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        pickler = _ArrayPickler(stream, protocol=4)  # the newest that Python 3.7 reads
        pickler.fast = True  # no memo: it would hold a copy of every array until the end
        pickler.dump(sealed(tree))


class _ArrayPickler(pickle.Pickler):
    """Writes arrays as calls of ``numpy.ndarray(shape, dtype, bytes)``, a name that every numpy has; numpy 2's own
    pickles need a newer module. ``bytearray`` makes the arrays writable when they are read."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return np.ndarray, (value.shape, value.dtype.str, bytearray(value.data))
        return NotImplemented


def architecture_metadata(source: SourceBackbone, rescaling: str = "") -> dict[str, str]:
    """What travels with a converted file: source and its hash, family, network, architecture, rescaling if any."""
    added = {"norm_rescale": rescaling} if rescaling else {}
    return dict(sorted({"format": BACKBONE_FORMAT, **source.metadata, **added}.items()))


#: What BN layers keep for training: Momentum BN's pair of views, virtual processes. Not part of a backbone.
_PAIR_BUFFERS = ("alpha", "pending_mean", "pending_var", "pending_count", "group_mean", "group_var")


def backbone_state(backbone: Backbone) -> dict[str, Tensor]:
    """The backbone under torchvision's or timm's names, without what only training needs; copies on the CPU.

    Under Momentum BN, running_mean and running_var are the final history: the paper dumps the teacher with it.
    """
    return {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in backbone.state_dict().items()
        if name.rpartition(".")[2] not in _PAIR_BUFFERS
    }


def export_backbone(path: str | Path, backbone: Backbone, metadata: dict[str, str]) -> None:
    """Write the backbone of a pretraining atomically as safetensors, under torchvision's or timm's names; ``metadata``
    is added to the architecture: network, normalisation, method, config hash."""
    described = {"format": BACKBONE_FORMAT, **build.metadata_of(backbone.architecture), **metadata}
    state = backbone_state(backbone)
    with atomic_path(path) as temporary:
        save_file(state, temporary, sealed_metadata(state, described))
        _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file: the library's random order would give equal backbones other hashes."""
    with open(path, "r+b") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
        if len(text) > length:
            raise ValueError(f"expected a header of at most {length} bytes, found {len(text)} after sorting")
        stream.seek(8)
        stream.write(text.ljust(length))  # JSON allows spaces at its end, as the format does
