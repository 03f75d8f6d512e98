"""Writes backbones under Detectron2's names (.pkl), torchvision's or timm's (.pth, .safetensors); converts whole files.

float32, float64 and integer tensors (``num_batches_tracked``) keep their bits everywhere. numpy has no bfloat16 and
Detectron2 trains in float32, so the two half formats are widened to float32 in a .pkl, which is exact. Equal backbones
give equal files.

The settings that Detectron2 needs for a converted .pkl are printed, and written beside it as a YAML to merge: its model
zoo's configurations are for weights in BGR with a standard deviation of 1 and the stride in the first 1x1 convolution.
They load every tensor of a converted .pkl without a warning, and compute other features from it.
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
import yaml
from safetensors.torch import save_file
from torch import Tensor

from momentum_transfer.backbones import build, norm_rescale, vitdet
from momentum_transfer.backbones.build import AnyArchitecture, Backbone, expected_shapes
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.read import BACKBONE_FORMAT, load_backbone
from momentum_transfer.backbones.resnet import DEPTHS, Architecture
from momentum_transfer.backbones.source import CoverageError, SourceBackbone
from momentum_transfer.backbones.timm_models import TimmArchitecture
from momentum_transfer.backbones.understanding import input_in, read_model_config
from momentum_transfer.core.checkpoints import write_archive
from momentum_transfer.core.digests import sealed, sealed_metadata
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path, write_text
from momentum_transfer.core.log import say, warn

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
    if path.suffix == ".safetensors":
        _write_safetensors(path, whole, text)
        return
    # clone: a tensor mapped from a larger file would drag its whole storage along
    own = {name: tensor.clone() for name, tensor in whole.items()}
    with atomic_path(path) as temporary:
        write_archive(temporary, {"state_dict": own, "metadata": text})


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
    # Detectron2 prints the author and takes any but "Caffe2".
    tree = {"model": model, "matching_heuristics": True, "__author__": "momentum-transfer", "metadata": text}
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


def _write_safetensors(path: str | Path, state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The tensors with sorted metadata: in the library's random order equal backbones would have different hashes."""
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in state.values())
    # The library does not write tensors on one storage.
    own = {name: tensor.clone() if users[tensor.untyped_storage().data_ptr()] > 1 else tensor
           for name, tensor in state.items()}  # fmt: skip
    with atomic_path(path) as temporary:
        save_file(own, temporary, sealed_metadata(own, metadata))
        with open(temporary, "r+b") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
            header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
            text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
            if len(text) > length:
                raise ValueError(f"expected a header of at most {length} bytes, found {len(text)} after sorting")
            stream.seek(8)
            stream.write(text.ljust(length))  # JSON allows spaces at its end, as the format does


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
    training = {name for name, _ in backbone.named_buffers() if name.rpartition(".")[2] in _PAIR_BUFFERS}
    return {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in backbone.state_dict().items()
        if name not in training
    }


def export_backbone(path: str | Path, backbone: Backbone, metadata: dict[str, str]) -> None:
    """Write the backbone of a pretraining as safetensors, under torchvision's or timm's names; ``metadata`` is added to
    the architecture: network, normalisation, method, config hash."""
    described = {"format": BACKBONE_FORMAT, **build.metadata_of(backbone.architecture), **metadata}
    _write_safetensors(path, backbone_state(backbone), described)


_HEADER = "# Settings of Detectron2 for weights of momentum-transfer convert"
_FUNCTION = "call momentum_transfer.add_momentum_transfer_config(cfg) before you merge"


def _write_settings(path: Path, source: SourceBackbone) -> None:
    """Write the settings for ``source``, and print them with what no setting can say."""
    if isinstance(source.architecture, Architecture) and source.architecture.stem != "imagenet":
        warn(
            f"no detector builds the {source.architecture.stem} stem of {source.architecture} (3x3, stride 1): "
            "Detectron2 would leave its first convolution at random; no settings are written"
        )
        path.unlink(missing_ok=True)  # an earlier conversion's, of other weights
        return
    tree = _settings(source)
    text = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None)
    write_text(path, f"{_HEADER}: {source.architecture}; merge it last.\n{text}")
    say(f"wrote {path}: merge it into Detectron2's configuration, whose defaults are for other weights:")
    say("  " + " ".join(_overrides(tree)))
    for note in _notes(source.architecture):
        say(f"  {note}")


def _settings(source: SourceBackbone) -> dict[str, Any]:
    """The settings as Detectron2's configuration nests them; those of a ViT need this project's keys there."""
    architecture = source.architecture
    # A ResNet asks for no input, but timm's config beside it may.
    images = build.own_input(architecture) or input_in(read_model_config(source.path)) or NetworkInput()
    mean, std = images.pixels
    caffe = isinstance(architecture, Architecture) and architecture.style == "caffe"
    model: dict[str, Any] = {"PIXEL_MEAN": mean[::-1] if caffe else mean, "PIXEL_STD": [1.0] * 3 if caffe else std}
    if isinstance(architecture, Architecture):
        block, _ = DEPTHS[architecture.name]
        width = architecture.width
        model["RESNETS"] = {
            "DEPTH": int(architecture.name.removeprefix("resnet")), "STRIDE_IN_1X1": caffe, "STEM_OUT_CHANNELS": width,
            "RES2_OUT_CHANNELS": width * block.expansion, "NUM_GROUPS": 1, "WIDTH_PER_GROUP": width,
        }  # fmt: skip
    else:
        model |= {"BACKBONE": {"ARCH": str(architecture), "FREEZE_AT": 0}, "VIT": {"FORM": "vitdet"}}
    return {"VERSION": 2, "INPUT": {"FORMAT": "BGR" if caffe else "RGB"}, "MODEL": model}


def _overrides(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """KEY VALUE for the command line of Detectron2's train_net, without VERSION."""
    words: list[str] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            words += _overrides(value, f"{prefix}{key}.")
        elif key != "VERSION":
            words += [f"{prefix}{key}", f"'{value}'" if isinstance(value, list) else str(value)]
    return words


def _notes(architecture: AnyArchitecture) -> list[str]:
    """What a user of Detectron2 must know beside the settings."""
    if isinstance(architecture, Architecture):
        block, _ = DEPTHS[architecture.name]
        if block.expansion > 1:
            return []
        alone = architecture.name != "resnet10" and architecture.width == 64
        lacks = "no C4 head for" if alone else "no"
        return [f"Detectron2 itself builds {lacks} {architecture}: {_FUNCTION}"]
    with torch.device("meta"):
        shape = vitdet.describe(build.build_backbone(architecture))
    return [
        f"these keys are this project's: {_FUNCTION}",
        "in a LazyConfig of ViTDet: model.pixel_mean, model.pixel_std and model.input_format as above, and backbone.net"
        f" with embed_dim={shape.width}, depth={shape.depth}, num_heads={shape.heads}, patch_size=16, "
        f"pretrain_img_size={16 * shape.grid}, pretrain_use_cls_token=False",
    ]


def _check_settings(file: Path) -> None:
    """InputError where Detectron2's settings cannot be written, or would replace a file of another make."""
    check_target(file)
    if file.exists() and not file.read_bytes().startswith(_HEADER.encode()):
        what = f"no file {file}, or one of an earlier conversion: Detectron2's settings go there"
        raise InputError(f"expected {what}; found another; choose another output name")


def convert_file(
    checkpoint: str | Path,
    out: str | Path,
    *,
    network: str | None = None,
    family: str | None = None,
    anchor: str | Path | None = None,
    constant: float | None = None,
    scale: float | None = None,
    scope: str = norm_rescale.DEFAULT_SCOPE,
    trust_pickle: bool = False,
    architecture: str | None = None,
    resize_positions: bool = False,
    without_prefix: bool = False,
) -> SourceBackbone:
    """Read, rescale if asked, write; every key is accounted for, or nothing is written.

    A .pkl gets the settings that Detectron2 needs for it beside it: OUT.yaml.

    Args:
        checkpoint, network, family, trust_pickle, architecture, resize_positions: as for ``read.load_backbone``.
        out: the suffix chooses the format: .pkl (Detectron2, a ResNet or a plain ViT), .pth or .safetensors
            (torchvision's names or timm's).
        anchor: NormRescale: give every weight the norm that it has in this checkpoint (RCF, equation 3).
        constant: multiply every weight by this instead (RCF, table 8).
        scale: multiply every weight of a ResNet by this, and its BatchNorm statistics as they follow.
        scope: which tensors are rescaled, one of ``norm_rescale.SCOPES``; with ``scale`` of ``LARS_SCOPES``.
        without_prefix: leave CLS tokens and registers of a ViT out of a .pkl, which is then another function.

    Raises:
        InputError: as ``load_backbone`` and ``write``; :class:`CoverageError` carries the report of the keys.
    """
    out = Path(out)
    check_suffix(out)
    check_target(out)
    if out.suffix == ".pkl":
        _check_settings(out.with_suffix(".yaml"))
    if sum(each is not None for each in (anchor, constant, scale)) > 1:
        raise InputError("expected one of anchor, constant and scale, found several; convert twice")
    title = f"keys of {checkpoint}"
    try:
        source = load_backbone(
            checkpoint, architecture, network=network, family=family, trust_pickle=trust_pickle,
            resize_positions=resize_positions,
        )  # fmt: skip
    except CoverageError as error:
        error.report.show(title)
        raise
    source.report.show(title)
    scaling = norm_rescale.apply_lars(source, scale, scope)
    rescaling = norm_rescale.apply(source, anchor, constant, scope, trust_pickle=trust_pickle)
    if not rescaling and not scaling and (warning := norm_rescale.lars_warning(source.state)):
        warn(warning)
    metadata = architecture_metadata(source, rescaling) | ({"scaled": scaling} if scaling else {})
    write(out, source.state, source.architecture, metadata, without_prefix=without_prefix)
    rescaled = (f", NormRescale {rescaling}" if rescaling else "") + (f", {scaling}" if scaling else "")
    say(f"wrote {out}: {source.architecture}, network {source.network}{rescaled}")
    if out.suffix == ".pkl":
        _write_settings(out.with_suffix(".yaml"), source)
    return source
