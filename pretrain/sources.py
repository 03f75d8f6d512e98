"""Any checkpoint in, one backbone out, every key accounted for.

The layouts are rules in ``pretrain.source_families``. All rules are scored on the file by how many backbone tensors
(name and shape) they find, then by how many keys of the file they explain; the best wins, a tie is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretrain.backbones import DEPTHS, Architecture, ResNet, build_backbone
from pretrain.console import say
from pretrain.errors import InputError
from pretrain.files import sha256_of, sha256_of_text
from pretrain.key_report import CoverageError, KeyReport
from pretrain.safe_load import read_safetensors_metadata, read_tree
from pretrain.source_families import BY_NAME, FAMILIES, ONLY, Family, Place, normalise
from pretrain.source_layouts import to_detectron2, to_torchvision_name
from pretrain.source_refusals import refuse_other_models, refuse_values

#: The ``format`` of this project's checkpoints.
OWN_FORMAT = "momentum-transfer/1"
COUNTER = "num_batches_tracked"


@dataclass
class SourceBackbone:
    """A backbone read from a file.

    Attributes:
        state: torchvision names -> tensors, BatchNorm statistics and counters included, no classifier.
        architecture: inferred from names and shapes.
        family: name of the rule that read it.
        network: "student", "teacher", or "backbone" where the file holds one network and does not say which.
        path: the file itself (a run folder is resolved to its checkpoint).
        sha256: of that file.
        metadata: text that travels with conversions: source, hashes, network, method.
        report: what became of every key.
    """

    state: dict[str, Tensor]
    architecture: Architecture
    family: str
    network: str
    path: Path
    sha256: str
    metadata: dict[str, str]
    report: KeyReport = field(repr=False)

    def build(self) -> ResNet:
        """The network with these weights: float32, eval mode, every tensor loaded strictly."""
        network = build_backbone(self.architecture)
        network.load_state_dict(self.state, strict=True)
        return network.float().eval()


def load_backbone(
    path: str | Path, *, which: str | None = None, family: str | None = None, trust_pickle: bool = False
) -> SourceBackbone:
    """Read the backbone of a checkpoint of any known family.

    Args:
        path: a file, or an output folder of ``tools/pretrain.py`` (its last checkpoint is taken).
        which: "student" or "teacher" where the file holds both; the default is the one that the paper evaluates.
        family: name of a rule in ``source_families.FAMILIES``; the default is the rule that fits best.
        trust_pickle: allow the file to run code while it is read.

    Raises:
        CoverageError: backbone tensors are missing, mis-shaped or unexplained; it carries the report.
        InputError: no checkpoint, no ResNet, an ambiguous family, no such network, or values that are no weights.
    """
    if which not in (None, "student", "teacher"):
        raise InputError(f"expected which to be student or teacher, found {which!r}")
    if family is not None and family not in BY_NAME:
        raise InputError(f"expected a family of {', '.join(BY_NAME)}, found {family!r}")
    file = checkpoint_file(Path(path))
    tree = read_tree(file, trust_pickle=trust_pickle)
    tables = tensor_tables(tree)
    refuse_other_models(tree, tables, file)
    reading = _choose(tables, tree, which, family, file)
    source = _finish(reading, tree, file)
    if which is not None and source.network not in (which, ONLY):
        raise InputError(f"expected the {which}, found a file that holds only the {source.network}: {file}")
    return source


def checkpoint_file(path: Path) -> Path:
    """``path`` itself, or for a run folder the checkpoint that its ``last`` pointer names, else its exported backbone.

    Raises:
        InputError: the folder holds neither.
    """
    if not path.is_dir():
        return path
    for folder in (path / "checkpoints", path):
        pointer = folder / "last"
        if pointer.is_file():
            name = pointer.read_text(encoding="utf-8").strip()
            if Path(name).name != name or not (folder / name).is_file():
                raise InputError(
                    f"expected {pointer} to name a checkpoint beside it, found {name!r}; correct or delete it"
                )
            return folder / name
    exported = path / "backbone.safetensors"
    if exported.is_file():
        return exported
    raise InputError(f"expected a checkpoint file or a run folder, found a folder without checkpoints/last: {path}")


# ------------------------------------------------------------------------------------------ what the file holds


@dataclass(frozen=True)
class Entry:
    """One tensor of the file: its full key there, and its name without wrapper components."""

    key: str
    name: str
    tensor: Tensor


Tables = Mapping[str, list[Entry]]


def tensor_tables(tree: Any) -> dict[str, list[Entry]]:
    """The dicts of tensors that any family's container names: container -> entries."""
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
                tables[container] = entries
    return tables


def infer_architecture(shapes: Mapping[str, tuple[int, ...]]) -> Architecture:
    """Depth, width and stem from torchvision names and shapes.

    Raises:
        InputError: no ResNet of ``DEPTHS``.
    """
    stem = shapes.get("conv1.weight")
    if stem is None or len(stem) != 4 or stem[1] != 3 or stem[2] != stem[3] or stem[2] not in (3, 7):
        raise InputError(f"expected a stem conv1.weight of shape [C, 3, 7, 7] or [C, 3, 3, 3], found {_shape(stem)}")
    blocks = tuple(
        len({name.split(".")[1] for name in shapes if name.startswith(f"layer{stage}.")}) for stage in (1, 2, 3, 4)
    )
    bottleneck = "layer1.0.conv3.weight" in shapes
    for name, (block, depths) in DEPTHS.items():
        if depths == blocks and (block.expansion == 4) == bottleneck:
            return Architecture(name, stem[0], "imagenet" if stem[2] == 7 else "small")
    kind = "Bottleneck" if bottleneck else "BasicBlock"
    raise InputError(
        f"expected the blocks of one of {', '.join(DEPTHS)}, found {blocks} blocks ({kind}) in layer1 to layer4"
    )


@lru_cache(maxsize=32)
def expected_shapes(architecture: Architecture) -> Mapping[str, tuple[int, ...]]:
    """torchvision name -> shape of every parameter and buffer."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in build_backbone(architecture).state_dict().items()}


def detectron2_names(architecture: Architecture) -> dict[str, str]:
    """torchvision name -> Detectron2 name of every parameter and buffer, one to one."""
    return {name: to_detectron2(name) for name in expected_shapes(architecture)}


def infer_detectron2(shapes: Mapping[str, tuple[int, ...]]) -> Architecture:
    """``infer_architecture`` from Detectron2's names."""
    return infer_architecture({to_torchvision_name(name, "detectron2"): shape for name, shape in shapes.items()})


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))


# ------------------------------------------------------------------------------------------------ scoring the rules


@dataclass
class Reading:
    """One rule applied to a file."""

    family: Family
    network: str
    available: tuple[str, ...]
    architecture: Architecture | None
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


def _choose(tables: Tables, tree: Any, which: str | None, family: str | None, path: Path) -> Reading:
    own = isinstance(tree, Mapping) and tree.get("format") == OWN_FORMAT
    if family is not None or own:
        rules: tuple[Family, ...] = (BY_NAME[family or "momentum-transfer"],)
    else:
        names = [entry.name for entries in tables.values() for entry in entries]
        rules = tuple(rule for rule in FAMILIES if rule.has_evidence(names))
    default = tree.get("network_default") if own else None
    readings = [reading for rule in rules if (reading := _read(rule, tables, which, default)) is not None]
    readings.sort(key=lambda reading: reading.score, reverse=True)
    if not readings or readings[0].score[0] == 0:
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


def _network_note(reading: Reading, which: str | None) -> str:
    held = " and ".join(reading.available)
    if which is not None:
        return f"network: {reading.network}, as asked (the file holds {held})"
    if len(reading.available) > 1:
        return f"network: {reading.network}, the default of {reading.family.title} (file: {held}; --which chooses)"
    return f"network: {reading.network}, the only one in the file"


def _read(rule: Family, tables: Tables, which: str | None, default: str | None) -> Reading | None:
    """Apply one rule; None where the file has none of its places, or not the network asked for."""
    found = {
        network: place for network, spots in rule.networks.items() if (place := _first_place(spots, tables)) is not None
    }
    if not found or (rule.needs and rule.needs not in found):
        return None
    network = which or default or rule.default
    if network not in found:
        if which is not None and ONLY not in found:
            problem = f"expected a {which} network, found only the {' and '.join(found)} (family {rule.name})"
            return Reading(rule, which, tuple(found), None, {}, KeyReport(), problem=problem)
        network = next(iter(found))
    return _account(rule, network, found, tables)


def _first_place(spots: tuple[Place, ...], tables: Tables) -> Place | None:
    for place in spots:
        if any(entry.name.startswith(place.prefix) for entry in tables.get(place.container, ())):
            return place
    return None


def _account(rule: Family, network: str, found: Mapping[str, Place], tables: Tables) -> Reading:
    """Give every tensor of the file its fate under ``rule``."""
    report = KeyReport()
    unexplained = 0
    inside: dict[str, Entry] = {}
    for container, entries in tables.items():
        for entry in entries:
            owner = _owner(entry, container, found)
            reason = rule.reason_to_drop(entry.name)
            if reason:
                report.dropped[entry.key] = reason
            elif owner == network:
                name = entry.name[len(found[network].prefix) :]
                inside[to_torchvision_name(name, rule.layout)] = entry
            elif owner is not None:
                report.dropped[entry.key] = f"the other network ({owner})"
            else:
                here = container == found[network].container
                report.dropped[entry.key] = "outside the backbone's prefix" if here else "another part of the file"
                unexplained += 1
    reading = Reading(rule, network, tuple(found), None, {}, report, unexplained)
    try:
        reading.architecture = infer_architecture({name: tuple(entry.tensor.shape) for name, entry in inside.items()})
    except InputError as error:
        reading.problem = str(error)
        return reading
    reading.state = _compare(inside, reading.architecture, report)
    return reading


def _owner(entry: Entry, container: str, found: Mapping[str, Place]) -> str | None:
    """The network to whose place the entry belongs; the longest prefix decides."""
    owners = [
        (len(place.prefix), network)
        for network, place in found.items()
        if place.container == container and entry.name.startswith(place.prefix)
    ]
    return max(owners)[1] if owners else None


def _compare(inside: Mapping[str, Entry], architecture: Architecture, report: KeyReport) -> dict[str, Tensor]:
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


# ------------------------------------------------------------------------------------------------------ the result


def _finish(reading: Reading, tree: Any, path: Path) -> SourceBackbone:
    report = reading.report
    carried = carried_metadata(tree, path)
    if reading.network == ONLY and "network" in carried:
        reading.network = carried["network"]
        report.notes[-1] = f"network: {reading.network}, as the file's metadata says"
    for note in report.notes:
        say(note)
    if not report.complete or reading.architecture is None:
        raise CoverageError(_coverage_message(reading, path), report)
    refuse_values(reading.state, path)
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if not isinstance(value, Tensor) and not any(
                used.startswith(f"{key}.") for used in (*report.used, *report.dropped)
            ):
                report.dropped[str(key)] = "not weights (training state or settings)"
    sha256 = sha256_of(path)
    architecture, network = reading.architecture, reading.network
    metadata = {
        "source": path.name,
        "source_sha256": sha256,
        "source_family": reading.family.name,
        **carried,
        "network": network,
        "architecture": architecture.name,
        "width": str(architecture.width),
        "stem": architecture.stem,
    }
    return SourceBackbone(reading.state, architecture, reading.family.name, network, path, sha256, metadata, report)


def carried_metadata(tree: Any, path: Path) -> dict[str, str]:
    """Text that an earlier conversion, export or pretraining run left in the file."""
    if not isinstance(tree, Mapping):
        return {}
    carried = dict(read_safetensors_metadata(path))
    inner = tree.get("metadata")
    if isinstance(inner, Mapping):
        carried.update({str(key): str(value) for key, value in inner.items() if isinstance(value, (str, int, float))})
    if tree.get("format") == OWN_FORMAT:
        carried["method"] = str(tree.get("method", ""))
        carried["step"] = str(tree.get("step", ""))
        if isinstance(tree.get("config"), str):
            carried["config_hash"] = sha256_of_text(tree["config"])[:12]
    return carried


def _coverage_message(reading: Reading, path: Path) -> str:
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
            f"{len(report.unexpected)} that no {reading.architecture.name} has ({', '.join(report.unexpected[:3])})"
        )
    return (
        f"expected every tensor of a {reading.architecture.name}, found {'; '.join(parts)} in {path} "
        f"(family {reading.family.name}); nothing was loaded"
    )
