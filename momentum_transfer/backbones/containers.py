"""Checkpoint containers: finds the dicts of tensors that the family rules name, and lists everything else.

Checkpoints in several files: transformers' index (``model.safetensors.index.json``) and its shards.

Refusals: files that hold no backbone that can be read, recognised before any family rule, each with its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from momentum_transfer.backbones.families import FAMILIES, normalise
from momentum_transfer.backbones.safe_load.read_file import read_tree
from momentum_transfer.backbones.safe_load.unpickler import JAX_REASON
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of, sha256_of_text
from momentum_transfer.core.untrusted import read_json


@dataclass(frozen=True)
class Entry:
    """One tensor of the file: its full key there, and its name without wrapper components."""

    key: str
    name: str
    tensor: Tensor


Tables = Mapping[str, list[Entry]]


def tensor_tables(tree: Any) -> dict[str, list[Entry]]:
    """The dicts of tensors that any family's container names: container -> entries.

    Raises:
        InputError: two tensors have one path (the key "a.b" beside a dict "a" with "b"), so a report would lose one.
    """
    containers = dict.fromkeys(
        place.container for rule in FAMILIES for spots in rule.networks.values() for place in spots
    )
    tables = {}
    for container in containers:
        node: Any = tree
        for part in filter(None, container.split(".")):
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping):
            prefix = f"{container}." if container else ""
            entries = [
                Entry(f"{prefix}{key}", normalise(str(key)), value)
                for key, value in node.items()
                if isinstance(value, Tensor)
            ]
            if entries:
                tables[container] = _with_one_backbone(entries)
    paths = Counter(entry.key for entries in tables.values() for entry in entries)
    twice = next((key for key, count in paths.items() if count > 1), None)
    if twice is not None:
        raise InputError(f"expected one tensor a path, found two at {twice}; the checkpoint is damaged or crafted")
    return tables


def _with_one_backbone(entries: list[Entry]) -> list[Entry]:
    """A C4 detector of Detectron2, or its segmenter, has a bare ResNet (``backbone.stem`` …), and a C4 detector keeps
    res5 among its heads: all of it under ``backbone.bottom_up.``, as in detectors with a pyramid."""
    if not any(entry.name.startswith("backbone.stem.conv1.") for entry in entries):
        return entries
    moved = re.compile(r"^(?:backbone|roi_heads)\.(?=(?:stem|res[2-5])\.(?!norm\.))")
    return [Entry(entry.key, moved.sub("backbone.bottom_up.", entry.name), entry.tensor) for entry in entries]


def leftovers(tree: Any, tables: Tables) -> dict[str, str]:
    """What the file holds beside the tables: other dicts with tensors as ``path.*``, other top-level entries by key."""
    rest: dict[str, str] = {}

    def walk(node: Mapping[Any, Any], container: str) -> None:
        for key, value in node.items():
            path = f"{container}.{key}" if container else str(key)
            leads_to_a_table = any(name == path or name.startswith(f"{path}.") for name in tables)
            if isinstance(value, Mapping) and leads_to_a_table:
                walk(value, path)
            elif isinstance(value, Tensor):
                if container not in tables:
                    rest[path] = "another part of the file"
            elif _holds_tensors(value):
                rest[f"{path}.*"] = "another part of the file"
            elif not container:
                rest[path] = "not weights (training state or settings)"

    if isinstance(tree, Mapping):
        walk(tree, "")
    return rest


def _holds_tensors(node: Any) -> bool:
    if isinstance(node, Mapping):
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return isinstance(node, Tensor)
    return any(_holds_tensors(value) for value in node)


INDEX = ".index.json"


def is_index(path: Path) -> bool:
    """Whether the file's name says that it lists shards."""
    return path.name.endswith(INDEX)


def shard_files(index: Path) -> list[Path]:
    """The shards of an index, in the order of their names.

    Raises:
        InputError: no such file, no index, or a shard that is not beside it.
    """
    return [index.parent / name for name in sorted(set(_weight_map(index).values()))]


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    told = read_json(index, "an index of shards")
    placed = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(placed, dict) or not placed or not all(isinstance(name, str) for name in placed.values()):
        raise InputError(f"expected a weight_map of tensors to files, found none in {index}; download it again")
    for name in sorted(set(placed.values())):
        if Path(name).name != name:
            raise InputError(f"expected shards beside their index, found {name!r} in {index}; it is damaged or crafted")
        if not (index.parent / name).is_file():
            raise InputError(f"expected the shard {name} beside {index}, found none; download all of its shards")
    return placed


def read_shards(index: Path, *, trust_pickle: bool = False) -> dict[str, Any]:
    """The tensors of all shards, as one file would hold them.

    Raises:
        InputError: as ``shard_files`` and ``read_tree``; or a shard does not hold what the index says, or more.
    """
    placed = _weight_map(index)
    whole: dict[str, Any] = {}
    for file in shard_files(index):
        tree = read_tree(file, trust_pickle=trust_pickle)
        wanted = {name for name, place in placed.items() if place == file.name}
        held = set(tree) if isinstance(tree, Mapping) else set()
        if held != wanted:
            name = sorted(map(str, held ^ wanted))[0]
            raise InputError(
                f"expected in {file} the {len(wanted)} tensors that {index.name} lists, found {len(held)} "
                f"({name} differs); the files are of different downloads, take all anew"
            )
        whole.update(tree)
    return whole


def sha256_of_checkpoint(path: Path) -> str:
    """Hash of a file; of an index, that of its shards' hashes."""
    if not is_index(path):
        return sha256_of(path)
    return sha256_of_text(" ".join(sha256_of(file) for file in shard_files(path)))


class Named(Protocol):
    """A tensor of the file: ``momentum_transfer.backbones.read.Entry``."""

    @property
    def name(self) -> str: ...


_OTHER_MODELS = (
    ("torchvision's vision transformer", r"^(conv_proj|encoder\.pos_embedding)(\.|$)"),
    ("a detector",
     r"(^|\.)(roi_heads?|rpn|rpn_head|proposal_generator|bbox_head|mask_head|fpn_lateral\d|fcos_head|retina_cls"
     r"|head\.(classification|regression)_head|backbone\.fpn|fpn_convs)(\.|$)"),
    ("a segmenter", r"(^|\.)(decode_head|auxiliary_head|aux_classifier|classifier\.\d+\.convs)\."),
)  # fmt: skip


#: The backbone of a detector of Detectron2 or of this project, which can be taken out.
_OWN_DETECTOR = ("backbone.bottom_up.", "backbone.net.", "sem_seg_head.")
#: ViTDet's network, in both engines: blocks, of which no norm of timm's follows the last.
_VITDET = re.compile(r"^backbone\.net\.blocks\.0\.")
_FINAL_NORM = re.compile(r"^backbone\.net\.(fc_)?norm\.")

#: Suffix or end of a file's name -> what wrote it. Their kernels are stored in another order, under other names.
_OTHER_FORMATS = {
    ".npz": "JAX weights in numpy's archive (ViT's, MLP-Mixer's, SigLIP's releases)",
    ".msgpack": "Flax weights", ".h5": "TensorFlow or Keras weights", ".keras": "Keras weights",
    ".pb": "a TensorFlow graph", ".index": "a TensorFlow checkpoint", ".tflite": "TensorFlow Lite weights",
    ".onnx": "an ONNX program", ".gguf": "quantised weights (GGUF)", ".mlmodel": "a Core ML program",
}  # fmt: skip


def refuse_other_formats(path: Path) -> None:
    """Raise for the files of JAX, Flax, TensorFlow and of exported programs, known by their names.

    Raises:
        InputError: the file is one of them.
    """
    kind = next((what for end, what in _OTHER_FORMATS.items() if path.name.lower().endswith(end)), "")
    if re.search(r"\.data-\d+-of-\d+$", path.name):
        kind = "a TensorFlow checkpoint"
    if kind and path.is_file():
        raise InputError(
            f"expected torch weights, found {kind}: {path}; take the torch file of the same network, timm's or "
            "transformers' (model.safetensors)"
        )


def refuse_other_models(tree: Any, tables: Mapping[str, Sequence[Named]], path: Path) -> None:
    """Raise for torchvision's vision transformers, detectors, segmenters and JAX weights.

    Raises:
        InputError: the file is one of them.
    """
    for entries in tables.values():
        if any(entry.name.startswith(_OWN_DETECTOR) for entry in entries):
            continue
        for kind, pattern in _OTHER_MODELS:
            match = next((entry.name for entry in entries if re.search(pattern, entry.name)), None)
            if match is not None:
                raise InputError(
                    f"expected a backbone, found {kind} ({match}) in {path}; give the backbone's own checkpoint"
                )
    jax_name = next(_haiku_names(tree), None)
    if jax_name is not None:
        raise InputError(f"expected torch weights, found Haiku's ({jax_name}) in {path}. {JAX_REASON}")


def refuse_vitdet(tables: Mapping[str, Sequence[Named]], path: Path) -> None:
    """Raise for detectors on ViTDet's network, of which no ViT of timm can be made again.

    Raises:
        InputError: the file is one of them.
    """
    for entries in tables.values():
        names = [entry.name for entry in entries]
        if any(map(_VITDET.match, names)) and not any(map(_FINAL_NORM.match, names)):
            raise InputError(
                "expected a backbone, found ViTDet's network in a detector, without the tokens and the final norm of "
                f"the ViT that it was made of, in {path}; go on with the whole detector, transfer --weights {path.name}"
            )


def _haiku_names(node: Any, depth: int = 0) -> Iterator[str]:
    """Haiku separates module names with ``/~/`` or ``/`` and calls kernels ``w``."""
    if depth > 6:
        return
    if isinstance(node, (list, tuple)):
        for value in node:
            yield from _haiku_names(value, depth + 1)
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if isinstance(key, str) and ("/~/" in key or (isinstance(value, Mapping) and "/" in key and "w" in value)):
                yield key
            else:
                yield from _haiku_names(value, depth + 1)


def refuse_values(state: Mapping[str, Tensor], path: Path) -> None:
    """Raise for weights that are not finite floating-point numbers, convolutions and linear layers of one value,
    negative variances, and counters not integer.

    Raises:
        InputError: naming the first such tensor.
    """
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked"):
            if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
                raise InputError(
                    f"expected an integer counter, found {tensor.dtype} in {name} of {path}; the weights were cast "
                    "with their counters: cast only the floating-point tensors, or leave the counters out"
                )
        elif not tensor.is_floating_point():
            kind = "complex" if tensor.is_complex() else "integer"
            raise InputError(
                f"expected floating-point weights, found {kind} ones ({name} is {tensor.dtype}) in {path}; "
                "give the weights before quantisation"
            )
        elif not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"expected finite weights, found NaN or Inf in {name} of {path}; the training diverged, take an "
                "earlier checkpoint"
            )
        elif is_constant(name, tensor):
            raise InputError(
                f"expected trained weights, found {float(tensor.flatten()[0]):g} in all {tensor.numel():,} places of "
                f"{name} of {path}; nothing was copied into it: take the original file, or write it anew"
            )
        elif name.endswith("running_var") and bool((tensor < 0).any()):
            raise InputError(
                f"expected variances of at least 0, found {float(tensor.min()):.3g} in {name} of {path}; the file is "
                "damaged, take the original"
            )


def is_constant(name: str, tensor: Tensor) -> bool:
    """Whether the weights of a convolution or a linear layer are all one value.

    No network of timm begins so: scales, position biases and norms do, which are other names or vectors.
    """
    matrix = name.endswith("weight") and tensor.dim() > 1 and tensor.numel() > 1
    return matrix and bool((tensor == tensor.flatten()[0]).all())
