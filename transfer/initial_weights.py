"""What a detector starts from: a pretrained backbone of any known form, a whole detector, or nothing (said aloud)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pretrain.errors import InputError
from pretrain.files import sha256_of
from pretrain.sources import detectron2_names, load_backbone

#: Stands for random initialisation, so that it never happens by a forgotten option.
NONE = "none"


@dataclass(frozen=True)
class InitialWeights:
    """Tensors by Detectron2's names. backbone: ``stem.conv1.weight`` …; detector: ``backbone.…``."""

    name: str
    sha256: str = ""
    network: str = ""
    backbone: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    detector: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


def read_initial(weights: str) -> InitialWeights:
    """Read what ``--weights`` names.

    Args:
        weights: a ``.pkl`` of tools/convert.py or any checkpoint that ``pretrain.sources`` reads, a ``.pth`` of a
            detector of either engine, or ``none``.

    Raises:
        InputError: there is no such file, it is damaged, or it holds no whole backbone.
    """
    if weights == NONE:
        return InitialWeights(NONE)
    path = Path(weights)
    if not path.exists():
        raise InputError(
            f"weights not found: {path}; convert a checkpoint with tools/convert.py, or give --weights none for a "
            "detector whose backbone too starts at random"
        )
    if path.suffix == ".pth":
        state = read_detector(path)
        if any(name.startswith(("proposal_generator.", "head.", "sem_seg_head.")) for name in state):
            return InitialWeights(str(path), sha256_of(path), detector=state)
    source = load_backbone(path)
    names = detectron2_names(source.architecture)
    state = {names[name]: tensor for name, tensor in source.state.items()}
    return InitialWeights(str(path), source.sha256, source.network, backbone=state)


def read_detector(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a detector's ``.pth`` of either engine (``{"model": …}`` or a bare mapping).

    Raises:
        InputError: the file is missing or no such checkpoint.
    """
    if not Path(path).is_file():
        raise InputError(f"detector weights not found: {path}")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged files
        raise InputError(
            f"expected a detector checkpoint in {path}, but it cannot be read ({type(error).__name__}); "
            "give the model_final.pth of a finished run"
        ) from error
    state = loaded.get("model", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"expected a mapping of names to tensors in {path}, found something else")
    return state
