"""Checkpoint containers: finds the dicts of tensors that the families name, and what else a file holds.

Checkpoints in several files, by transformers' index (``model.safetensors.index.json``) and its shards; files that hold
no backbone, refused before any family is tried, each with its reason.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    tables = {}
    places = (place for rule in FAMILIES for spots in rule.networks.values() for place in spots)
    for container in dict.fromkeys(place.container for place in places):
        node: Any = tree
        for part in filter(None, container.split(".")):
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping):
            prefix = f"{container}." if container else ""
            entries = [Entry(f"{prefix}{key}", normalise(str(key)), value) for key, value in node.items()
                       if isinstance(value, Tensor)]  # fmt: skip
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


def _shards(index: Path) -> dict[Path, set[str]]:
    """Shard -> the tensors in it, by the index."""
    listed = read_json(index, "an index of shards")
    placed = listed.get("weight_map") if isinstance(listed, dict) else None
    if not isinstance(placed, dict) or not placed or not all(isinstance(name, str) for name in placed.values()):
        raise InputError(f"expected a weight_map of tensors to files, found none in {index}; download it again")
    for name in sorted(set(placed.values())):
        if Path(name).name != name:
            raise InputError(f"expected shards beside their index, found {name!r} in {index}; it is damaged or crafted")
        if not (index.parent / name).is_file():
            raise InputError(f"expected the shard {name} beside {index}, found none; download all of its shards")
    return {index.parent / name: {tensor for tensor, place in placed.items() if place == name}
            for name in sorted(set(placed.values()))}  # fmt: skip


def read_shards(index: Path, *, trust_pickle: bool = False) -> dict[str, Any]:
    """The tensors of all shards as those of one file; InputError if a shard is absent, or not what the index says."""
    whole: dict[str, Any] = {}
    for file, listed in _shards(index).items():
        tree = read_tree(file, trust_pickle=trust_pickle)
        held = set(tree) if isinstance(tree, Mapping) else set()
        if held != listed:
            name = sorted(map(str, held ^ listed))[0]
            found = f"{len(held)} ({name} differs); the files are of different downloads, take all anew"
            raise InputError(f"expected in {file} the {len(listed)} tensors that {index.name} lists, found {found}")
        whole.update(tree)
    return whole


def sha256_of_shards(index: Path) -> str:
    """Hash of the hashes of an index's shards."""
    return sha256_of_text(" ".join(sha256_of(file) for file in _shards(index)))


_OTHER_MODELS = (
    ("torchvision's vision transformer", r"^(conv_proj|encoder\.pos_embedding)(\.|$)"),
    ("a detector",
     r"(^|\.)(roi_heads?|rpn|rpn_head|proposal_generator|bbox_head|mask_head|fpn_lateral\d|fcos_head|retina_cls"
     r"|head\.(classification|regression)_head|backbone\.fpn|fpn_convs)(\.|$)"),
    ("a segmenter", r"(^|\.)(decode_head|auxiliary_head|aux_classifier|classifier\.\d+\.convs)\."),
)  # fmt: skip


#: The backbone of a detector of Detectron2, of this project or of torchvision, which can be taken out.
_OWN_DETECTOR = ("backbone.bottom_up.", "backbone.net.", "backbone.body.", "sem_seg_head.")
#: ViTDet's network, in both engines: blocks, of which no norm of timm's follows the last.
_VITDET = re.compile(r"^backbone\.net\.blocks\.0\.")
_FINAL_NORM = re.compile(r"^backbone\.net\.(fc_)?norm\.")


def refuse_other_models(tree: Any, tables: Tables, path: Path) -> None:
    """Raise InputError for torchvision's vision transformers, detectors, segmenters and JAX weights."""
    for entries in tables.values():
        if any(entry.name.startswith(_OWN_DETECTOR) for entry in entries):
            continue
        for kind, pattern in _OTHER_MODELS:
            match = next((entry.name for entry in entries if re.search(pattern, entry.name)), None)
            if match is not None:
                raise InputError(f"expected a backbone, found {kind} ({match}) in {path}; give the backbone's own file")
    jax_name = next(_haiku_names(tree), None)
    if jax_name is not None:
        raise InputError(f"expected torch weights, found Haiku's ({jax_name}) in {path}. {JAX_REASON}")


def refuse_vitdet(tables: Tables, path: Path) -> None:
    """Raise InputError for detectors on ViTDet's network, of which no ViT of timm can be made again."""
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
