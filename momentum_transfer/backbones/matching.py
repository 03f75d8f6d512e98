"""Family detection: applies every family rule to a file, scores the results and chooses the best.

The score is the number of backbone tensors found with the right shape, then the number of keys explained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentum_transfer.backbones.build import AnyArchitecture
from momentum_transfer.backbones.containers import Entry, Tables
from momentum_transfer.backbones.families import BY_NAME, FAMILIES, NAMED, ONLY, Family, Place
from momentum_transfer.backbones.key_report import KeyReport
from momentum_transfer.backbones.layouts import to_torchvision_name
from momentum_transfer.backbones.shapes import COUNTER, expected_shapes, infer_architecture
from momentum_transfer.backbones.timm_network import TimmArchitecture
from momentum_transfer.errors import InputError

#: The ``format`` of this project's checkpoints.
OWN_FORMAT = "momentum-transfer/1"


@dataclass
class Reading:
    """One rule applied to a file."""

    family: Family
    network: str
    available: tuple[str, ...]
    architecture: AnyArchitecture | None
    state: dict[str, Tensor]
    report: KeyReport
    unexplained: int = 0
    problem: str = ""

    @property
    def score(self) -> tuple[int, int]:
        """(backbone tensors found with the right shape, keys of the file that the rule explains)."""
        floats = sum(not target.endswith(COUNTER) for target in self.report.used.values())
        return floats, len(self.report.used) + len(self.report.dropped) - self.unexplained

    def describe(self) -> str:
        return f"{self.family.name} ({self.score[0]} backbone tensors, {self.score[1]} keys explained)"


def choose(
    tables: Tables,
    tree: Any,
    which: str | None,
    family: str | None,
    path: Path,
    architecture: AnyArchitecture | None = None,
) -> Reading:
    """The best reading of a file, with the decisions in its notes.

    Args:
        tables: of ``tensor_tables``.
        tree: the whole file, for the default network of this project's checkpoints.
        which: the network asked for, or None.
        family: the rule asked for, or None.
        architecture: what the file holds, where that is known; else a ResNet is inferred.

    Raises:
        InputError: nothing found, a tie, or a checkpoint of another version of this project.
    """
    version = str(tree.get("format", "")) if isinstance(tree, Mapping) else ""
    own = version == OWN_FORMAT
    if version.startswith("momentum-transfer/") and not own:
        raise InputError(f"expected a checkpoint of format {OWN_FORMAT}, found {version}: {path}; use its own version")
    if family is not None or own:
        rules: tuple[Family, ...] = (BY_NAME[family or "momentum-transfer"],)
    else:
        names = [entry.name for entries in tables.values() for entry in entries]
        rules = tuple(rule for rule in FAMILIES if rule.has_evidence(names))
    if isinstance(architecture, TimmArchitecture):  # the other layouts are ResNets'
        rules = tuple(rule for rule in rules if rule.layout == "torchvision")
    default = tree.get("network_default") if own else None
    readings = _readings(rules, tables, which, default, family, architecture)
    if architecture is not None and family is None and not any(reading.report.complete for reading in readings):
        readings += _readings((NAMED,), tables, which, default, family, architecture)
    readings.sort(key=lambda reading: reading.score, reverse=True)
    if not readings or (readings[0].score[0] == 0 and architecture is None):
        raise InputError(_nothing_found(tables, rules, readings, path))
    best, *others = readings
    ties = [other for other in others if other.score == best.score]
    if ties:
        names = [reading.family.name for reading in (best, *ties)]
        raise InputError(
            f"expected one family to fit {path} best, found a tie of {', '.join(names)} ({best.score[0]} backbone "
            f"tensors each); choose one, for example --family {names[0]}"
        )
    runner_up = f"; runner-up {others[0].describe()}" if others else ""
    best.report.notes.append(f"{path.name}: {best.describe()}, {best.family.title}{runner_up}")
    best.report.notes.append(_network_note(best, which))
    return best


def _readings(rules: tuple[Family, ...], *arguments: Any) -> list[Reading]:
    """Of each rule that finds a place in the file; the rest of the arguments as ``_read`` takes them."""
    return [reading for rule in rules if (reading := _read(rule, *arguments)) is not None]


def _network_note(reading: Reading, which: str | None) -> str:
    held = " and ".join(reading.available)
    if which is not None:
        return f"network: {reading.network}, as asked (the file holds {held})"
    if len(reading.available) > 1:
        return f"network: {reading.network}, the default of {reading.family.title} (file: {held}; --which chooses)"
    return f"network: {reading.network}, the only one in the file"


def _read(
    rule: Family,
    tables: Tables,
    which: str | None,
    default: str | None,
    family: str | None,
    architecture: AnyArchitecture | None,
) -> Reading | None:
    """Apply one rule; None where the file has none of its places, or not the network asked for."""
    found = {
        network: place
        for network, spots in rule.networks.items()
        if (place := _first_place(spots, tables, asked=family is not None)) is not None
    }
    if not found or (rule.needs and rule.needs not in found):
        return None
    network = which or default or rule.default
    if network not in found:
        if which is not None and ONLY not in found:
            problem = f"expected a {which} network, found only the {' and '.join(found)} (family {rule.name})"
            return Reading(rule, which, tuple(found), None, {}, KeyReport(), problem=problem)
        network = next(iter(found))
    return _account(rule, network, found, tables, architecture)


def _first_place(spots: tuple[Place, ...], tables: Tables, *, asked: bool) -> Place | None:
    for place in spots:
        names = [entry.name for entry in tables.get(place.container, ())]
        evident = asked or not place.evidence or any(re.search(place.evidence, name) for name in names)
        if evident and any(name.startswith(place.prefix) for name in names):
            return place
    return None


def _account(
    rule: Family, network: str, found: Mapping[str, Place], tables: Tables, architecture: AnyArchitecture | None
) -> Reading:
    """Give every tensor of the file its fate under ``rule``.

    What a given architecture names is never a head, whatever it is called: ConvNeXt has a ``head.norm``.
    """
    report = KeyReport()
    named = frozenset[str]() if architecture is None else expected_shapes(architecture)
    unexplained = 0
    inside: dict[str, Entry] = {}
    second: list[str] = []
    for container, entries in tables.items():
        for entry in entries:
            owner = _owner(entry, container, found)
            reason = rule.reason_to_drop(entry.name)
            name = to_torchvision_name(entry.name[len(found[network].prefix) :], rule.layout)
            if reason and not (owner == network and name in named):
                report.dropped[entry.key] = reason
            elif owner == network:
                if inside.setdefault(name, entry) is not entry:
                    second.append(entry.key)  # two keys, one tensor of the backbone: which is meant, nobody can tell
            elif owner is not None:
                report.dropped[entry.key] = f"the other network ({owner})"
            elif copy := _copied(entry, container, rule, found):
                report.dropped[entry.key] = f"another copy of the {copy}"
            else:
                here = container == found[network].container
                report.dropped[entry.key] = "outside the backbone's prefix" if here else "another part of the file"
                unexplained += 1
    reading = Reading(rule, network, tuple(found), None, {}, report, unexplained)
    try:
        shapes = {name: tuple(entry.tensor.shape) for name, entry in inside.items()}
        reading.architecture = infer_architecture(shapes) if architecture is None else architecture
    except InputError as error:
        reading.problem = str(error)
        return reading
    reading.state = _compare(inside, reading.architecture, report)
    report.unexpected.extend(second)
    return reading


def _owner(entry: Entry, container: str, found: Mapping[str, Place]) -> str | None:
    """The network to whose place the entry belongs; the longest prefix decides."""
    owners = [
        (len(place.prefix), network)
        for network, place in found.items()
        if place.container == container and entry.name.startswith(place.prefix)
    ]
    return max(owners)[1] if owners else None


def _copied(entry: Entry, container: str, rule: Family, found: Mapping[str, Place]) -> str:
    """The network of which the entry is in a further place of the same container (MMSelfSup saves some twice)."""
    for network, place in found.items():
        for other in rule.networks[network]:
            if other.prefix and container == place.container == other.container and entry.name.startswith(other.prefix):
                return network
    return ""


def _compare(inside: Mapping[str, Entry], architecture: AnyArchitecture, report: KeyReport) -> dict[str, Tensor]:
    """Match the entries under the prefix with the architecture; fills ``report``."""
    expected = expected_shapes(architecture)
    state: dict[str, Tensor] = {}
    for name, shape in expected.items():
        entry = inside.get(name)
        if entry is None:
            if name.endswith(COUNTER):
                report.filled.append(name)
                state[name] = torch.zeros((), dtype=torch.int64)
            else:
                report.missing.append(name)
        elif tuple(entry.tensor.shape) != shape:
            report.wrong_shape.append((entry.key, tuple(entry.tensor.shape), shape))
        else:
            report.used[entry.key] = name
            state[name] = entry.tensor
    report.unexpected.extend(entry.key for name, entry in inside.items() if name not in expected)
    return state


def _nothing_found(tables: Tables, rules: tuple[Family, ...], readings: list[Reading], path: Path) -> str:
    """Why no rule found a backbone, with what the file holds."""
    problems = [reading.problem for reading in readings if reading.problem]
    keys = [entry.key for entries in tables.values() for entry in entries]
    if not keys:
        return (
            f"expected a checkpoint with a dict of tensors, found none in {path}; known families: {', '.join(BY_NAME)}"
        )
    found = f"{len(keys)} tensors, such as {', '.join(keys[:3])}"
    heads = re.compile(r"(^|\.)(fc|head|classifier|linear|projector|projection_head)\.")
    if all(heads.search(key) for key in keys):
        return (
            f"expected a ResNet backbone, found only a head ({found}) in {path}; give the checkpoint of the whole model"
        )
    if problems:
        return f"{problems[0]} ({found}) in {path}; give a ResNet's checkpoint, or name its --family and --which"
    return f"expected the names of a known family, found {found} in {path}; known families: {', '.join(BY_NAME)}"


def coverage_message(reading: Reading, path: Path) -> str:
    """One line on what is missing, mis-shaped or unexplained."""
    report = reading.report
    if reading.architecture is None:
        return f"{reading.problem} in {path} (family {reading.family.name}); nothing was loaded"
    parts = []
    if report.missing:
        parts.append(f"{len(report.missing)} missing ({', '.join(report.missing[:3])})")
    if report.wrong_shape:
        key, shape, wanted = report.wrong_shape[0]
        parts.append(f"{len(report.wrong_shape)} of another shape ({key} is {list(shape)}, expected {list(wanted)})")
    if report.unexpected:
        parts.append(
            f"{len(report.unexpected)} that no {reading.architecture.name} has, or has once already "
            f"({', '.join(report.unexpected[:3])})"
        )
    return (
        f"expected every tensor of a {reading.architecture.name}, found {'; '.join(parts)} in {path} "
        f"(family {reading.family.name}); nothing was loaded"
    )
