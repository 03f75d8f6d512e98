"""Checkpoints in several files: transformers' index (``model.safetensors.index.json``) and its shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from momentum_transfer.backbones.safe_load.read_file import read_tree
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of, sha256_of_text
from momentum_transfer.core.text_files import read_json

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
