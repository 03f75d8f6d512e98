"""Backbones between torchvision's names and Detectron2's, and the files that hold them.

The names come from one table (``momentum_transfer.backbones.layouts``, of which the inverse is derived), completed
by the architecture's own list of tensors, so that each direction covers every tensor or fails.

Number formats: float32, float64 and integer tensors (``num_batches_tracked``) keep their bits everywhere. numpy has no
bfloat16 and Detectron2 trains in float32, so the two half formats are widened to float32 in a .pkl, which is exact.

The backbone of a pretraining as a file: safetensors under torchvision's or timm's names, with its architecture.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors.torch import save_file
from torch import Tensor

from momentum_transfer.backbones import vitdet
from momentum_transfer.backbones.build import AnyArchitecture, Backbone, metadata_of
from momentum_transfer.backbones.read import (
    SourceBackbone,
    detectron2_names,
    expected_shapes,
    infer_detectron2,
    load_backbone,
)
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.timm_network import TimmArchitecture
from momentum_transfer.core.checkpoints import write_archive
from momentum_transfer.core.digests import sealed, sealed_metadata
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path

#: What ``__author__`` says in the .pkl; Detectron2 prints it and takes any value but "Caffe2".
AUTHOR = "momentum-transfer"
SUFFIXES = (".pkl", ".pth", ".safetensors")


def to_detectron2(state: Mapping[str, Tensor], architecture: AnyArchitecture) -> dict[str, np.ndarray]:
    """Detectron2's names and numpy arrays.

    Args:
        state: torchvision name -> tensor, exactly the tensors of ``architecture``.
        architecture: a ResNet's depth, width and stem.

    Raises:
        InputError: no ResNet, or a tensor is missing, of another shape, or not part of the backbone (a head, say).
    """
    names = detectron2_names(architecture)
    _check(state, architecture)
    return {name: _to_numpy(state[ours]) for ours, name in names.items()}


def from_detectron2(weights: Mapping[str, np.ndarray | Tensor]) -> dict[str, Tensor]:
    """torchvision's names and torch tensors; the inverse of ``to_detectron2``.

    Raises:
        InputError: as ``to_detectron2``; ``num_batches_tracked`` must be there too (``load_backbone`` fills it in).
    """
    tensors = {name: torch.as_tensor(value) for name, value in weights.items()}
    architecture = infer_detectron2({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    ours = {name: name_here for name_here, name in detectron2_names(architecture).items()}
    state = {ours.get(name, name): tensor for name, tensor in tensors.items()}
    _check(state, architecture)
    return {name: state[name] for name in expected_shapes(architecture)}


def _check(state: Mapping[str, Tensor], architecture: AnyArchitecture) -> None:
    expected = expected_shapes(architecture)
    problems = [f"{name} is missing" for name in expected if name not in state]
    problems += [f"{name} belongs to no {architecture.name}" for name in state if name not in expected]
    problems += [
        f"{name} has shape {list(tensor.shape)}, not {list(expected[name])}"
        for name, tensor in state.items()
        if name in expected and tuple(tensor.shape) != expected[name]
    ]
    if problems:
        width = f" of width {architecture.width}" if isinstance(architecture, Architecture) else ""
        raise InputError(
            f"expected exactly the {len(expected)} tensors of a {architecture.name}{width}, found {len(problems)} "
            f"problems, the first: {problems[0]}; nothing was converted"
        )


def _to_numpy(tensor: Tensor) -> np.ndarray:
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.detach().cpu().contiguous().numpy()


def read_detectron2(path: str | Path) -> dict[str, np.ndarray]:
    """The weights of a Detectron2 backbone .pkl under Detectron2's names, without running what the pickle names.

    Raises:
        InputError: not such a file, or not a whole backbone.
    """
    source = load_backbone(path, family="detectron2")
    return to_detectron2(source.state, source.architecture)


def write(
    path: str | Path,
    state: Mapping[str, Tensor],
    architecture: AnyArchitecture,
    metadata: Mapping[str, str] | None = None,
    *,
    without_prefix: bool = False,
) -> None:
    """Write a backbone; the suffix chooses the format: .pkl (Detectron2), .pth or .safetensors (the network's
    own names: torchvision's or timm's).

    A .pkl of a plain ViT is for Detectron2's ViT under its simple feature pyramid (``vitdet.for_detectron2``, with
    ``without_prefix``). A .pkl or .pth carries ``metadata`` under that key, beside ``model`` or ``state_dict``;
    .safetensors in its header.

    Raises:
        InputError: another suffix, or a state that is not exactly the backbone.
    """
    path = Path(path)
    check_suffix(path)
    text = {str(key): str(value) for key, value in (metadata or {}).items()}
    if path.suffix == ".pkl":
        write_detectron2(path, state, architecture, text, without_prefix=without_prefix)
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
    """The same tensors, those that share their storage with another copied: safetensors writes no shared ones."""
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in state.values())
    return {
        name: tensor.clone() if users[tensor.untyped_storage().data_ptr()] > 1 else tensor
        for name, tensor in state.items()
    }


def check_target(path: Path) -> None:
    """Raise, before anything is computed, where no file can be written.

    Raises:
        InputError: a folder has that name, or what should be its folder is a file or cannot be written to.
    """
    if path.is_dir():
        raise InputError(f"expected the name of a file to write, found a folder: {path}; name a file in it")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise InputError(f"expected a folder for {path}, found that {folder} is a file; choose another name")
    if not os.access(folder, os.W_OK):
        raise InputError(f"expected a folder that can be written to for {path}, found {folder}; choose another one")


def check_suffix(path: Path) -> None:
    """Raise unless the suffix names a format that can be written.

    Raises:
        InputError: it does not.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"expected an output name ending in {', '.join(SUFFIXES)}, found {path.name}; choose one of them"
        )


def write_detectron2(
    path: str | Path,
    state: Mapping[str, Tensor],
    architecture: AnyArchitecture,
    metadata: Mapping[str, str] | None = None,
    *,
    without_prefix: bool = False,
) -> None:
    """Write Detectron2's weight file: a pickle that its ``DetectionCheckpointer`` matches by name suffixes.

    Raises:
        InputError: ``state`` is not exactly the backbone.
    """
    if isinstance(architecture, TimmArchitecture):
        _check(state, architecture)
        tensors = vitdet.for_detectron2(state, architecture, without_prefix)
        model = {name: _to_numpy(tensor) for name, tensor in tensors.items()}
        metadata = {**(metadata or {}), "function": "Detectron2's ViT: no prefix tokens, no final norm"}
    else:
        model = to_detectron2(state, architecture)
    tree = {
        "model": model,
        "matching_heuristics": True,
        "__author__": AUTHOR,
        "metadata": dict(metadata or {}),
    }
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        pickler = _ArrayPickler(stream, protocol=4)  # the newest that Python 3.7 reads
        pickler.fast = True  # no memo: it would hold a copy of every array until the end
        pickler.dump(sealed(tree))


class _ArrayPickler(pickle.Pickler):
    """Writes arrays as calls of ``numpy.ndarray(shape, dtype, bytes)``.

    numpy 2 pickles its arrays under a module name that the older numpy of many Detectron2 installations lacks; the
    class has had one name throughout. ``bytearray`` makes the arrays writable when they are read.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return np.ndarray, (value.shape, value.dtype.str, bytearray(value.data))
        return NotImplemented


def architecture_metadata(source: SourceBackbone, rescaling: str = "") -> dict[str, str]:
    """What travels with a converted file: source and its hash, family, network, architecture, rescaling if any."""
    added = {"norm_rescale": rescaling} if rescaling else {}
    return dict(sorted({"format": "momentum-transfer/backbone/1", **source.metadata, **added}.items()))


#: What BN layers keep for training: Momentum BN's pair of views, virtual processes. Not part of a backbone.
PAIR_BUFFERS = ("alpha", "pending_mean", "pending_var", "pending_count", "group_mean", "group_var")


def backbone_state(backbone: Backbone) -> dict[str, Tensor]:
    """The backbone under torchvision's or timm's names, without what only training needs; copies on the CPU.

    Under Momentum BN, running_mean and running_var are the final history: the paper dumps the teacher with it.
    """
    return {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in backbone.state_dict().items()
        if name.rpartition(".")[2] not in PAIR_BUFFERS
    }


def export_backbone(path: str | Path, backbone: Backbone, metadata: dict[str, str]) -> None:
    """Writes ``backbone.safetensors`` atomically: torchvision's or timm's names, architecture in the metadata.

    Args:
        metadata: added to the architecture: which network, normalisation, method, config hash.
    """
    described = {"format": "momentum-transfer/backbone/1", **metadata_of(backbone.architecture), **metadata}
    state = backbone_state(backbone)
    with atomic_path(path) as temporary:
        safetensors.torch.save_file(state, temporary, sealed_metadata(state, described))
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
