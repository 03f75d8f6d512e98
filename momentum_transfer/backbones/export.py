"""The backbone of a pretraining as a file: safetensors under torchvision's or timm's names, with its architecture."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import safetensors.torch
from torch import Tensor

from momentum_transfer.backbones.build import Backbone, metadata_of
from momentum_transfer.core.digests import sealed_metadata
from momentum_transfer.core.files import atomic_path

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
