"""From a code base's names of a network that timm has to timm's: applies one table to the tensors of a file.

The tables are in ``timm_layout_tables``. A rule's target may end in ``[q]``, ``[k]``, ``[v]`` or in ``[1]``, ``[2]``:
parts of one tensor, stacked in that order. What a table cannot say (a shape, a sum of two tensors) is the layout's
``finish``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Sources = dict[str, tuple[str, ...]]


@dataclass
class Converted:
    """Tensors under timm's names.

    Attributes:
        tensors: timm name -> tensor.
        sources: timm name -> the file's inner names that it was made of.
        dropped: inner name -> why it is no part of the backbone.
        unknown: inner names that no rule of the layout knows.
        doubled: inner names whose place was taken already.
        notes: what was done to the values, in words.
    """

    tensors: Tensors = field(default_factory=dict)
    sources: Sources = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def replace(self, olds: tuple[str, ...], news: Tensors) -> None:
        """Put ``news`` in the place of the tensors ``olds``, of which all of them were made."""
        made_of = tuple(dict.fromkeys(name for old in olds for name in self.sources.pop(old)))
        for old in olds:
            del self.tensors[old]
        self.tensors.update(news)
        self.sources.update(dict.fromkeys(news, made_of))


@dataclass(frozen=True)
class Layout:
    """How one code base names a network's tensors.

    Attributes:
        name: of the layout.
        evidence: each of these patterns must match a name for the layout to be recognised.
        against: no name may match one of these.
        names: pattern of a whole name -> timm's name.
        drops: pattern -> why the tensor is no part of the backbone.
        finish: what remains to be done under timm's names.
    """

    name: str
    evidence: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=lambda: {"(.+)": r"\1"})
    drops: Mapping[str, str] = field(default_factory=dict)
    against: tuple[str, ...] = ()
    finish: Callable[[Converted], None] | None = None

    def recognises(self, names: list[str]) -> bool:
        """Whether the inner names are this layout's."""
        return all(any(re.search(p, name) for name in names) for p in self.evidence) and not any(
            re.search(p, name) for name in names for p in self.against
        )

    def convert(self, inside: Mapping[str, Tensor]) -> Converted:
        """Tensors under the names of the file to tensors under timm's."""
        made = Converted()
        pieces: dict[str, dict[str, tuple[str, Tensor]]] = {}
        for name, tensor in inside.items():
            reason = next((why for pattern, why in self.drops.items() if re.search(pattern, name)), None)
            if reason is not None:
                made.dropped[name] = reason
                continue
            target = self._target(name)
            if target is None:
                made.unknown.append(name)
                continue
            whole, piece = target
            if piece:
                taken = pieces.setdefault(whole, {}).setdefault(piece, (name, tensor))
                if taken[0] != name:
                    made.doubled.append(name)
            elif whole in made.tensors:
                made.doubled.append(name)
            else:
                made.tensors[whole], made.sources[whole] = tensor, (name,)
        for whole, parts in pieces.items():
            _stack(made, whole, parts)
        if self.finish is not None:
            self.finish(made)
        return made

    def _target(self, name: str) -> tuple[str, str] | None:
        """timm's name and which part of that tensor it is, "" for all of it. A name of a file may hold brackets."""
        for pattern, target in self.names.items():
            match = re.fullmatch(pattern, name)
            if match:
                whole, _, piece = target.partition("[")
                return match.expand(whole), match.expand(piece)[:1]
        return None


def _stack(made: Converted, whole: str, parts: Mapping[str, tuple[str, Tensor]]) -> None:
    """Parts to one tensor; where one is missing or of another shape, they stay unknown and are accounted so."""
    order = [parts[piece] for piece in sorted(parts, key="12qkv".index)]
    same = len({tuple(tensor.shape) for _, tensor in order}) == 1
    if "".join(sorted(parts)) in ("12", "kqv") and same and whole not in made.tensors:
        made.tensors[whole] = torch.cat([tensor for _, tensor in order])
        made.sources[whole] = tuple(name for name, _ in order)
    else:
        made.unknown.extend(name for name, _ in order)
