"""Reads a backbone from any known checkpoint and accounts for every key.

The layouts are rules in ``backbones.families``; ``backbones.matching`` scores all of them on the file. The best wins, a
tie is an error.

Any known checkpoint into a module, with the report of what became of every key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from momentum_transfer.backbones import hub
from momentum_transfer.backbones.build import AnyArchitecture, architecture_in, metadata_of, parse_architecture
from momentum_transfer.backbones.containers import (
    INDEX,
    is_index,
    leftovers,
    read_shards,
    refuse_other_formats,
    refuse_other_models,
    refuse_values,
    refuse_vitdet,
    sha256_of_checkpoint,
    tensor_tables,
)
from momentum_transfer.backbones.families import BY_NAME, ONLY
from momentum_transfer.backbones.hub import is_hub_name
from momentum_transfer.backbones.layouts import detectron2_names, expected_shapes, infer_detectron2
from momentum_transfer.backbones.matching import OWN_FORMAT, Reading, choose, coverage_message
from momentum_transfer.backbones.model_config import detectors_network, read_model_config, timm_architecture_in
from momentum_transfer.backbones.module_network import MODULE
from momentum_transfer.backbones.safe_load.read_file import read_safetensors_metadata, read_tree
from momentum_transfer.backbones.source import (
    RANDOM_SEED,
    CoverageError,
    KeyReport,
    SourceBackbone,
    named_backbone,
    random_of,
)
from momentum_transfer.backbones.timm_models import TIMM
from momentum_transfer.backbones.understanding import Hints
from momentum_transfer.core import digests
from momentum_transfer.core.checkpoints import CheckpointFolder, learned_settings, pretraining_hash
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, weights_name
from momentum_transfer.core.log import say, speaking

__all__ = ["CoverageError", "KeyReport", "SourceBackbone", "carried_metadata", "checkpoint_file", "detectron2_names",
           "expected_shapes", "infer_detectron2", "load_backbone"]  # fmt: skip

#: What a folder without a training's checkpoints may hold: this project's export, transformers', timm's, open_clip's.
EXPORTED = ("backbone.safetensors", "model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin",
            f"pytorch_model.bin{INDEX}", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")  # fmt: skip


def load_backbone(
    path: str | Path,
    architecture: str | AnyArchitecture | None = None,
    *,
    which: str | None = None,
    family: str | None = None,
    trust_pickle: bool = False,
    resize_positions: bool = False,
) -> SourceBackbone:
    """Read the backbone of a checkpoint of any known family.

    Args:
        path: a file, an output folder of ``tools/pretrain.py`` (its last checkpoint is taken), or weights on the Hub,
            ``hf:org/name[@revision][:file]``; or ``timm:NAME``, the weights that timm publishes, or
            ``module:package.path:factory``, a module that the user's own code makes, which this runs; or
            ``random-of:`` and any of these: the same architecture at random (``source.random_of``).
        architecture: of the network, ``timm:NAME?img_size=224`` for example, where the file does not tell it.
        which: "student" or "teacher" where the file holds both; the default is the one that the paper evaluates.
        family: name of a rule in ``source_families.FAMILIES``; the default is the rule that fits best.
        trust_pickle: allow the file to run code while it is read.
        resize_positions: resample position embeddings to the image size of ``architecture``.

    Raises:
        CoverageError: backbone tensors are missing, mis-shaped or unexplained; it carries the report.
        InputError: no checkpoint, an unknown network, an ambiguous family, no such network, or values that are no
            weights.
    """
    if which not in (None, "student", "teacher"):
        raise InputError(f"expected which to be student or teacher, found {which!r}")
    if family is not None and family not in BY_NAME:
        raise InputError(f"expected a family of {', '.join(BY_NAME)}, found {family!r}")
    if str(path).startswith(RANDOM_OF):
        return _at_random(str(path), architecture, which, family, trust_pickle, resize_positions)
    if str(path).startswith((TIMM, MODULE)):
        if isinstance(architecture, str) and architecture != str(path):
            raise InputError(
                f"expected no --arch with {path}, which is a network by itself, found {architecture}; leave it out, "
                f"or repeat the same text (options stand behind the name: {TIMM}NAME?img_size=224)"
            )
        return named_backbone(str(path), which, family)
    file = checkpoint_file(path)
    refuse_other_formats(file)
    read = read_shards if is_index(file) else read_tree
    tree = read(file, trust_pickle=trust_pickle)
    tables, carried = tensor_tables(tree), carried_metadata(tree, file)
    hints = _hints(tree, carried, file, architecture, resize_positions)
    refuse_vitdet(tables, file)
    if hints.asked is None and hints.told is None:
        refuse_other_models(tree, tables, file)
    reading = choose(tables, tree, which, family, file, hints)
    _say_network(reading, carried)
    if which is not None and reading.network != which:
        held = "one network and does not say which" if reading.network == ONLY else f"the {reading.network} only"
        raise InputError(f"expected the {which}, found a file that holds {held}: {file}; leave --which out")
    source = _finish(reading, tree, carried, file)
    source.name = weights_name(path if is_hub_name(path) else file)
    if is_hub_name(path):
        source.metadata["source"] = hub.origin(path, file)
    return source


def _at_random(
    text: str,
    architecture: str | AnyArchitecture | None,
    which: str | None,
    family: str | None,
    trust_pickle: bool,
    resize_positions: bool,
) -> SourceBackbone:
    """``random-of:CHECKPOINT``: a network of the checkpoint's architecture, and none of its weights."""
    like = text.removeprefix(RANDOM_OF)
    if not like or like.startswith(RANDOM_OF):
        raise InputError(f"expected {RANDOM_OF}CHECKPOINT, found {text!r}; name a checkpoint behind it")
    if like.startswith(TIMM):  # nothing is fetched for a name
        found = parse_architecture(like)
    else:
        with speaking(quiet=True):
            found = load_backbone(
                like, architecture, which=which, family=family, trust_pickle=trust_pickle,
                resize_positions=resize_positions,
            ).architecture  # fmt: skip
    source = random_of(found, like)
    say(f"{source.name}: {found} at random, seed {RANDOM_SEED}; BatchNorm statistics (if any) of two images")
    return source


def _hints(
    tree: Any, carried: Mapping[str, str], file: Path, asked: str | AnyArchitecture | None, resize_positions: bool
) -> Hints:
    """The architecture that the user, the file's metadata, a timm training, or a config or a detector's
    ``network.json`` beside the file names."""
    if resize_positions and asked is None:
        raise InputError("expected --arch with the img_size to resize positions to, found none; give both")
    if isinstance(asked, str):
        asked = parse_architecture(asked)
    config = read_model_config(file)
    told = architecture_in(carried) or timm_architecture_in(config) or detectors_network(file)
    named = tree.get("arch") if isinstance(tree, Mapping) else None
    if told is None and asked is None and isinstance(named, str):
        told = timm_architecture_in({"architecture": named})
    return Hints(asked, told, config, resize_positions)


def checkpoint_file(path: str | Path) -> Path:
    """``path`` itself; for a run folder the checkpoint that its ``last`` pointer names; else a folder's ``EXPORTED``.

    ``hf:org/name…`` is fetched from the Hub.

    Raises:
        InputError: the folder holds neither, ``last`` names a file that is not there, or the Hub has no such file.
    """
    if is_hub_name(path):
        return hub.local_file(path)
    path = Path(path)
    if not path.is_dir():
        return path
    for folder in (path / "checkpoints", path):
        if (newest := CheckpointFolder(folder).last()) is not None:
            return newest
    for name in EXPORTED:
        if (path / name).is_file():
            return path / name
    for other in sorted(path.iterdir()):
        refuse_other_formats(other)
    raise InputError(
        f"expected a checkpoint file or a run folder, found a folder without checkpoints/last or {EXPORTED[1]}: {path}"
    )


def _say_network(reading: Reading, carried: Mapping[str, str]) -> None:
    """Take the network's name from the metadata where the layout does not tell it; print the decisions."""
    if reading.network == ONLY and "network" in carried:
        reading.network = carried["network"]
        reading.report.notes[-1] = f"network: {reading.network}, as the file's metadata says"
    for note in reading.report.notes:
        say(note)


def _finish(reading: Reading, tree: Any, carried: Mapping[str, str], path: Path) -> SourceBackbone:
    report, architecture = reading.report, reading.architecture
    report.dropped.update(leftovers(tree, tensor_tables(tree)))
    if not report.complete or architecture is None:
        raise CoverageError(coverage_message(reading, path), report)
    refuse_values(reading.state, path)
    sha256 = sha256_of_checkpoint(path)
    metadata = {
        "source": path.name,
        "source_sha256": sha256,
        "source_family": reading.family.name,
        **carried,
        "network": reading.network,
        **metadata_of(architecture),
    }
    return SourceBackbone(
        reading.state, architecture, reading.family.name, reading.network, path, sha256, metadata, report
    )


def carried_metadata(tree: Any, path: Path) -> dict[str, str]:
    """Text that an earlier conversion, export or pretraining run left in the file."""
    if not isinstance(tree, Mapping):
        return {}
    carried = {key: value for key, value in read_safetensors_metadata(path).items() if key != digests.KEY}
    inner = tree.get("metadata")
    if isinstance(inner, Mapping):
        carried.update({str(key): str(value) for key, value in inner.items() if isinstance(value, (str, int, float))})
    if tree.get("format") == OWN_FORMAT:
        carried["method"] = str(tree.get("method", ""))
        carried["step"] = str(tree.get("step", ""))
        described = tree.get("architecture")
        if isinstance(described, Mapping) and isinstance(described.get("text"), str):
            carried["architecture"] = described["text"]
        if isinstance(tree.get("config"), str):
            with contextlib.suppress(InputError):  # no settings: the backbone is readable all the same
                carried["config_hash"] = pretraining_hash(tree["config"])
                settings = learned_settings(tree["config"])
                carried["optimizer"] = str(settings.get("SOLVER.OPTIMIZER", ""))
                with_teacher = any(str(name).startswith("teacher.") for name in tree.get("model") or ())
                carried["norm_teacher"] = str(settings.get("NORM.TEACHER", "")) if with_teacher else ""
    return carried


class Loaded(NamedTuple):
    """A network with a checkpoint's weights, and the account of the checkpoint's keys."""

    module: nn.Module
    report: KeyReport


def load(
    path: str | Path,
    into: nn.Module | None = None,
    *,
    which: str | None = None,
    family: str | None = None,
    trust_pickle: bool = False,
    architecture: str | None = None,
) -> Loaded:
    """The backbone of a checkpoint of any known family.

    Args:
        path, which, family, trust_pickle, architecture: as for
            :func:`momentum_transfer.backbones.read.load_backbone`.
        into: a network under torchvision's or timm's names that takes the weights, ``torchvision.models.resnet50()``
            for example; what it has besides the backbone (its classifier ``fc``) stays as it is. Without it a backbone
            of the checkpoint's architecture is made: images [N, 3, H, W] -> features [N, C], in eval mode.

    Raises:
        InputError: as ``load_backbone``; or ``into`` lacks a tensor of the backbone, has it in another shape, or has
            backbone tensors that the checkpoint lacks. Nothing is loaded then.
    """
    source = load_backbone(path, which=which, family=family, trust_pickle=trust_pickle, architecture=architecture)
    if into is None:
        return Loaded(source.build(), source.report)
    _check(into, source.state)
    into.load_state_dict(source.state, strict=False)
    return Loaded(into, source.report)


def _check(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    theirs = module.state_dict()
    parts = {name.split(".")[0] for name in state}
    problems = [f"it lacks {name}" for name in state if name not in theirs]
    problems += [f"{name} is {tuple(theirs[name].shape)}, not {tuple(value.shape)}" for name, value in state.items()
                 if name in theirs and theirs[name].shape != value.shape]  # fmt: skip
    problems += [f"the checkpoint lacks {name}" for name in theirs if name.split(".")[0] in parts and name not in state]
    if problems:
        raise InputError(
            f"expected a network of the checkpoint's architecture under torchvision's names, found {len(problems)} "
            f"differences, the first: {problems[0]}; leave into out, and the right one is made"
        )
