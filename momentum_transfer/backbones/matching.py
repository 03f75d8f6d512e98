"""Family detection: applies every family rule to a file and chooses the best.

The score is the number of backbone tensors found with the right shape, then the number of keys explained.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentum_transfer.backbones.build import AnyArchitecture, expected_shapes
from momentum_transfer.backbones.containers import Entry, Tables
from momentum_transfer.backbones.families import BY_NAME, FAMILIES, ONLY, Family, Place
from momentum_transfer.backbones.resnet import COUNTER, Architecture
from momentum_transfer.backbones.source import KeyReport
from momentum_transfer.backbones.understanding import Hints, Understood, understand
from momentum_transfer.backbones.vitdet import POSITIONS
from momentum_transfer.core.errors import InputError

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
    renamed: int = 0
    looks_like: str = ""

    @property
    def score(self) -> tuple[int, int]:
        """(backbone tensors found with the right shape, keys of the file that the rule explains)."""
        floats = sum(not name.endswith(COUNTER) for name in self.state)
        return floats, len(self.report.used) + len(self.report.dropped) - self.unexplained

    def describe(self) -> str:
        return f"{self.family.name} ({self.score[0]} backbone tensors, {self.score[1]} keys explained)"


def choose(tables: Tables, tree: Any, network: str | None, family: str | None, path: Path, hints: Hints) -> Reading:
    """The best reading of a file, with the decisions in its notes.

    Args:
        tree: the whole file, for the default network of this project's checkpoints.
        network, family: those asked for, or None.

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
    default = tree.get("network_default") if own else None
    attempts = [_read(rule, tables, network, default, family, hints) for rule in rules]
    readings = [reading for reading in attempts if reading is not None]
    readings.sort(key=lambda reading: (reading.score, bool(reading.looks_like)), reverse=True)
    if not readings or (readings[0].score[0] == 0 and not any(reading.looks_like for reading in readings)):
        raise InputError(_nothing_found(tables, readings, path, hints))
    best, *others = readings
    ties = [other for other in others if other.score == best.score and best.score[0]]
    if ties:
        names = [reading.family.name for reading in (best, *ties)]
        found = f"a tie of {', '.join(names)} ({best.score[0]} backbone tensors each)"
        raise InputError(f"expected one family to fit {path} best, found {found}; choose one: --family {names[0]}")
    runner_up = f"; runner-up {others[0].describe()}" if others else ""
    best.report.notes.append(f"{path.name}: {best.describe()}, {best.family.title}{runner_up}")
    held, why = " and ".join(best.available), "the only one in the file"
    if network is not None:
        why = f"as asked (the file holds {held})"
    elif len(best.available) > 1:
        why = f"the default of {best.family.title} (file: {held}; --network chooses)"
    best.report.notes.append(f"network: {best.network}, {why}")
    return best


def _read(
    rule: Family, tables: Tables, network: str | None, default: str | None, family: str | None, hints: Hints
) -> Reading | None:
    """Apply one rule; None if the file has none of its places."""
    found = {
        name: place
        for name, spots in rule.networks.items()
        if (place := _first_place(spots, tables, asked=family is not None)) is not None
    }
    if not found or (rule.needs and rule.needs not in found):
        return None
    chosen = network or default or rule.default
    if chosen not in found:
        if network is not None and ONLY not in found:
            problem = f"expected a {network} network, found only the {' and '.join(found)} (family {rule.name})"
            return Reading(rule, network, tuple(found), None, {}, KeyReport(), problem=problem)
        chosen = next(iter(found))
    return _account(rule, chosen, found, tables, hints)


def _first_place(spots: tuple[Place, ...], tables: Tables, *, asked: bool) -> Place | None:
    for place in spots:
        names = [entry.name for entry in tables.get(place.container, ())]
        evident = asked or not place.evidence or any(re.search(place.evidence, name) for name in names)
        if evident and any(name.startswith(place.prefix) for name in names):
            return place
    return None


def _account(rule: Family, network: str, found: Mapping[str, Place], tables: Tables, hints: Hints) -> Reading | None:
    """Account for every tensor of the file under ``rule``; None if the rule has no names of this layout."""
    report, unexplained, second = KeyReport(), 0, []
    inside: dict[str, Entry] = {}
    for container, entries in tables.items():
        for entry in entries:
            owner = _owner(entry, container, found)
            if owner == network:
                name = entry.name[len(found[network].prefix) :]
                if inside.setdefault(name, entry) is not entry:
                    second.append(entry.key)  # two keys for one tensor of the backbone
            elif reason := rule.reason_to_drop(entry.name):
                report.dropped[entry.key] = reason
            elif owner is not None:
                report.dropped[entry.key] = f"the other network ({owner})"
            elif copy := _copied(entry, container, rule, found):
                report.dropped[entry.key] = f"another copy of the {copy}"
            else:
                here = container == found[network].container
                report.dropped[entry.key] = "outside the backbone's prefix" if here else "another part of the file"
                unexplained += 1
    understood = understand(rule, inside, hints)
    if understood is None:
        return None
    reading = Reading(rule, network, tuple(found), understood.architecture, {}, report, unexplained,
                      understood.problem, len(understood.tensors), understood.looks_like)  # fmt: skip
    report.notes.extend(understood.notes)
    if understood.architecture is not None:
        reading.state = _compare(understood, inside, rule, report)
        report.unexpected.extend(second)
    return reading


def _owner(entry: Entry, container: str, found: Mapping[str, Place]) -> str | None:
    """The network to whose place the entry belongs; the longest prefix decides."""
    owners = [(len(place.prefix), network) for network, place in found.items()
              if place.container == container and entry.name.startswith(place.prefix)]  # fmt: skip
    return max(owners)[1] if owners else None


def _copied(entry: Entry, container: str, rule: Family, found: Mapping[str, Place]) -> str:
    """The network of which the entry is in a further place of the same container (MMSelfSup saves some twice)."""
    for network, place in found.items():
        for other in rule.networks[network]:
            if other.prefix and container == place.container == other.container and entry.name.startswith(other.prefix):
                return network
    return ""


def _compare(understood: Understood, inside: Mapping[str, Entry], rule: Family, report: KeyReport) -> dict[str, Tensor]:
    """Match the tensors under the prefix with the architecture; fills ``report``."""
    assert understood.architecture is not None
    state: dict[str, Tensor] = {}
    became: dict[str, list[str]] = {}
    wrong: set[str] = set()
    for name, shape in expected_shapes(understood.architecture).items():
        tensor = understood.tensors.get(name)
        if tensor is None:
            if name.endswith(COUNTER):
                report.filled.append(name)
                state[name] = torch.zeros((), dtype=torch.int64)
            else:
                report.missing.append(name)
            continue
        if (*tensor.shape, 1, 1) == shape:  # a linear layer as timm's 1x1 convolution
            tensor = tensor[:, :, None, None]
        sources = understood.sources[name]
        if tuple(tensor.shape) == shape:
            state[name] = tensor
            for source in sources:
                became.setdefault(source, []).append(name)
            continue
        for source in [source for source in sources if source not in became] or sources[-1:]:
            entry = inside[source]
            if entry.key not in wrong:
                wrong.add(entry.key)
                report.wrong_shape.append((entry.key, tuple(entry.tensor.shape), shape))
    for source, entry in inside.items():
        reason = understood.dropped.get(source) or rule.reason_to_drop(entry.name)
        if entry.key in wrong:
            continue
        if source in became:
            report.used[entry.key] = ", ".join(became[source])
        elif reason and source not in understood.doubled:
            report.dropped[entry.key] = reason
        else:
            report.unexpected.append(entry.key)
    return state


def _nothing_found(tables: Tables, readings: list[Reading], path: Path, hints: Hints) -> str:
    """Why no rule found a backbone, with what the file holds."""
    readings = sorted(readings, key=lambda reading: reading.renamed, reverse=True)  # the one that knows most names
    problems = [reading.problem for reading in readings if reading.problem]
    keys, known = [entry.key for entries in tables.values() for entry in entries], ", ".join(BY_NAME)
    if not keys:
        return f"expected a checkpoint with a dict of tensors, found none in {path}; known families: {known}"
    found = f"{len(keys)} tensors, such as {', '.join(keys[:3])}"
    heads = re.compile(r"(^|\.)(fc|head|classifier|linear|projector|projection_head)\.")
    if all(heads.search(key) for key in keys):
        return f"expected a backbone, found only a head ({found}) in {path}; give the checkpoint of the whole model"
    if any(re.search(r"(^|\.)(token_embedding|embeddings\.word_embeddings)\.weight$", key) for key in keys):
        return f"expected a backbone, found only a text tower ({found}) in {path}; give the image tower, or both"
    if problems:
        return f"{problems[0]} ({found}) in {path}; give a backbone's checkpoint, or --arch, --family and --network"
    asked = [reading for reading in readings if hints.asked and reading.architecture == hints.asked]
    if asked:  # no tensor has its shape: another width, or another kind of network
        return coverage_message(max(asked, key=lambda reading: len(reading.report.wrong_shape)), path)
    return (f"expected the names of a known family, found {found} in {path}; known families: {known}; --arch timm:NAME "
            "names any other network of timm")  # fmt: skip


def coverage_message(reading: Reading, path: Path) -> str:
    """One line on what is missing, mis-shaped or unexplained."""
    report = reading.report
    if reading.architecture is None:
        return f"{reading.problem} in {path} (family {reading.family.name}); nothing was loaded"
    called = reading.architecture.name if isinstance(reading.architecture, Architecture) else str(reading.architecture)
    positions = (*POSITIONS, "position_embeddings", "positional_embedding", "position_embedding.weight")
    if report.wrong_shape and not (report.missing or report.unexpected) and all(
        key.endswith(positions) and shape[-1:] == expected[-1:] for key, shape, expected in report.wrong_shape
    ):  # fmt: skip
        key, shape, expected = report.wrong_shape[0]
        return (
            f"expected positions of {called}, found those of another image size ({key} is {list(shape)}, expected "
            f"{list(expected)}) in {path}; give the file's own size, or resample them: convert --resize-positions"
        )
    looks_like = f"; its tensors are those of {reading.looks_like}" if reading.looks_like not in ("", called) else ""
    parts = []
    if report.missing:
        parts.append(f"{len(report.missing)} missing ({', '.join(report.missing[:3])})")
    if report.wrong_shape:
        key, shape, expected = report.wrong_shape[0]
        parts.append(f"{len(report.wrong_shape)} of another shape ({key} is {list(shape)}, expected {list(expected)})")
    if report.unexpected:
        keys = ", ".join(report.unexpected[:3])
        parts.append(f"{len(report.unexpected)} that are not part of a {called}, or occur twice ({keys})")
    return (f"expected every tensor of a {called}, found {'; '.join(parts)} in {path} (family {reading.family.name}); "
            f"nothing was loaded{looks_like}")  # fmt: skip
