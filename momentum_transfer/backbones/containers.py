"""Checkpoint containers: finds the dicts of tensors that the family rules name, and lists everything else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from momentum_transfer.backbones.families import FAMILIES, normalise
from momentum_transfer.core.errors import InputError


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
