"""What a checkpoint family is: where its files keep which network, and what else they hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Names = Mapping[str, str]

STUDENT, TEACHER, ONLY = "student", "teacher", "backbone"


@dataclass(frozen=True)
class Place:
    """Where one network of a file may be.

    Attributes:
        container: dotted path of dict keys, "" for the top level.
        prefix: of the network's tensors there.
        evidence: the place counts only if this pattern matches a name in the container, or the family was asked for.
    """

    container: str
    prefix: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Family:
    """How one family of checkpoints is laid out.

    Attributes:
        name: what ``--family`` takes.
        title: the methods and code bases that write this layout.
        networks: network -> the places where it may be; the first that holds tensors counts.
        default: the network that the paper evaluates, used where the file holds it.
        drops: pattern on the normalised name -> why it is no part of the backbone.
        evidence: the rule competes only if one of these patterns matches a name in the file; empty: always.
        needs: the rule competes only if the file holds this network.
        layout: how backbone tensors may be named: names of ``timm_layout_tables``, "numbered" (lightly's Sequential)
            or "detectron2"; "" for any of ``timm_layout_tables``.
    """

    name: str
    title: str
    networks: Mapping[str, tuple[Place, ...]]
    default: str
    drops: Names = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    layout: str = ""
    needs: str = ""

    def reason_to_drop(self, name: str) -> str:
        """Why a normalised name is no part of the backbone; "" where no drop rule matches."""
        return next((reason for pattern, reason in self.drops.items() if re.search(pattern, name)), "")

    def has_evidence(self, names: list[str]) -> bool:
        """Whether the normalised names of a file speak for this family."""
        return not self.evidence or any(re.search(pattern, name) for name in names for pattern in self.evidence)


def places(prefix: str, *containers: str) -> tuple[Place, ...]:
    """The same prefix in several containers."""
    return tuple(Place(container, prefix) for container in containers)


def normalise(name: str) -> str:
    """``name`` without the components that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))
