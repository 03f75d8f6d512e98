"""From a code base's names of a network that timm has to timm's: applies one table to the tensors of a file.

The tables are in ``timm_layout_tables``. A rule's target may end in ``[q]``, ``[k]``, ``[v]`` or in ``[1]``, ``[2]``:
parts of one tensor, stacked in that order. What a table cannot say (a shape, a sum of two tensors) is the layout's
``finish``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass
class Converted:
    """Tensors under timm's names.

    Attributes:
        tensors: timm name -> tensor.
        sources: timm name -> the file's inner names that it was made of.
        dropped: inner name -> why it is no part of the backbone.
        doubled: inner names whose place was taken already.
        notes: what was done to the values, in words.
    """

    tensors: Tensors = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def replace(self, olds: tuple[str, ...], news: Tensors) -> None:
        """Replace the tensors ``olds`` by ``news``, each made of all of them."""
        made_of = tuple(dict.fromkeys(name for old in olds for name in self.sources.pop(old)))
        for old in olds:
            del self.tensors[old]
        self.tensors.update(news)
        self.sources.update(dict.fromkeys(news, made_of))


@dataclass(frozen=True)
class Layout:
    """How one code base names a network's tensors.

    Attributes:
        evidence: each of these patterns must match a name for the layout to be recognised; none of ``against`` may.
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
        """Tensors under the names of the file to tensors under timm's; names that no rule knows are left out."""
        converted = Converted()
        pieces: dict[str, dict[str, tuple[str, Tensor]]] = {}
        for name, tensor in inside.items():
            reason = next((why for pattern, why in self.drops.items() if re.search(pattern, name)), None)
            if reason is not None:
                converted.dropped[name] = reason
                continue
            whole, piece = self._target(name)
            if piece:
                taken, _ = pieces.setdefault(whole, {}).setdefault(piece, (name, tensor))
                if taken != name:
                    converted.doubled.append(name)
            elif whole in converted.tensors:
                converted.doubled.append(name)
            elif whole:
                converted.tensors[whole], converted.sources[whole] = tensor, (name,)
        for whole, parts in pieces.items():
            _stack(converted, whole, parts)
        if self.finish is not None:
            self.finish(converted)
        return converted

    def _target(self, name: str) -> tuple[str, str]:
        """timm's name, "" for none, and which part of that tensor it is, "" for all of it. Both may hold brackets."""
        for pattern, target in self.names.items():
            match = re.fullmatch(pattern, name)
            if match:
                whole, _, piece = target.partition("[")
                return match.expand(whole), match.expand(piece)[:1]
        return "", ""


def _stack(converted: Converted, whole: str, parts: Mapping[str, tuple[str, Tensor]]) -> None:
    """Parts to one tensor; where one is missing or of another shape, they are left out and so unexpected."""
    order = [parts[piece] for piece in sorted(parts, key="12qkv".index)]
    same = len({tuple(tensor.shape) for _, tensor in order}) == 1
    if "".join(sorted(parts)) in ("12", "kqv") and same and whole not in converted.tensors:
        converted.tensors[whole] = torch.cat([tensor for _, tensor in order])
        converted.sources[whole] = tuple(name for name, _ in order)
