"""Reads a backbone from any known checkpoint and accounts for every key.

Files that this project exported or converted are read straight by their metadata. In any other file the families' rules
(``backbones.families``) are compared (``backbones.matching``): the best one counts, a tie is an error.
"""

import contextlib
from collections.abc import Mapping
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from momentum_transfer.backbones import build, containers, hub
from momentum_transfer.backbones import source as sources
from momentum_transfer.backbones.build import AnyArchitecture, architecture_in, parse_architecture
from momentum_transfer.backbones.containers import INDEX
from momentum_transfer.backbones.families import BY_NAME, ONLY
from momentum_transfer.backbones.matching import OWN_FORMAT, Reading, choose, coverage_message
from momentum_transfer.backbones.module_network import MODULE, of_text
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.safe_load.read_file import read_safetensors_metadata, read_tree, refuse_other_formats
from momentum_transfer.backbones.source import CoverageError, KeyReport, SourceBackbone, refuse_values
from momentum_transfer.backbones.timm_models import TIMM, TimmArchitecture
from momentum_transfer.backbones.timm_network import published
from momentum_transfer.backbones.understanding import (
    Hints,
    detectors_network,
    input_in,
    read_model_config,
    timm_architecture_in,
)
from momentum_transfer.core import digests
from momentum_transfer.core.checkpoints import CheckpointFolder
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, given_name, is_hub_name, sha256_of, weights_name
from momentum_transfer.core.log import say, speaking, warn
from momentum_transfer.core.settings import learned_settings, pretraining_hash

#: The ``format`` in the metadata of this project's exports and conversions.
BACKBONE_FORMAT = "momentum-transfer/backbone/1"
#: ``__author__`` of the finished detectors that Detectron2's authors publish, most of them on ResNets of Caffe's style.
_ZOO = "Detectron2 Model Zoo"
#: What stands in a converted .pth or .pkl beside its weights.
_BESIDE = {"metadata", "matching_heuristics", "__author__", digests.KEY}
#: What a folder without a training's checkpoints may hold: this project's export, transformers', timm's, open_clip's.
_EXPORTED = ("backbone.safetensors", "model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin",
            f"pytorch_model.bin{INDEX}", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")  # fmt: skip


def load_backbone(
    path: str | Path, architecture: str | AnyArchitecture | None = None, *, network: str | None = None,
    family: str | None = None, trust_pickle: bool = False, resize_positions: bool = False,
    tree: Any = None,
) -> SourceBackbone:  # fmt: skip
    """Read the backbone of a checkpoint of any known family.

    Args:
        path: a file, an output folder of ``tools/pretrain.py`` (its last checkpoint is taken); weights on the Hub,
            ``hf:org/name[@revision][:file]``; ``timm:NAME``, the weights that timm publishes;
            ``module:package.path:factory``, a module that the user's own code makes, which this runs; or
            ``random-of:`` and any of these: the same architecture at random (``source.random_of``).
        architecture: of the network, such as ``timm:NAME?img_size=224``, where the file does not say it.
        network: "student" or "teacher" where the file holds both; the default is the one that the paper evaluates.
        family: name of a rule in ``families.FAMILIES``; the default is the rule that fits best.
        trust_pickle: allow the file to run code while it is read.
        resize_positions: resample position embeddings to the image size of ``architecture``.
        tree: what ``read_tree`` has read of the file already.

    Raises:
        CoverageError: backbone tensors are missing, mis-shaped or unexplained; it carries the report.
        InputError: no checkpoint, an unknown network, an ambiguous family, no such network, or values that are no
            weights.
    """
    if network not in (None, "student", "teacher"):
        raise InputError(f"expected network to be student or teacher, found {network!r}")
    if family is not None and family not in BY_NAME:
        raise InputError(f"expected a family of {', '.join(BY_NAME)}, found {family!r}")
    if str(path).startswith(RANDOM_OF):
        options = {"network": network, "family": family, "trust_pickle": trust_pickle}
        return _at_random(str(path), architecture, resize_positions=resize_positions, **options)
    if str(path).startswith((TIMM, MODULE)):
        return _by_name(str(path), architecture, network or family)
    file = checkpoint_file(path)
    refuse_other_formats(file)
    if tree is None:
        tree = (containers.read_shards if file.name.endswith(INDEX) else read_tree)(file, trust_pickle=trust_pickle)
    carried = carried_metadata(tree, file)
    reading = None
    if family is None and architecture is None and not resize_positions:
        reading = _own(tree, carried, file)
    if reading is None:
        tables, hints = containers.tensor_tables(tree), _hints(tree, carried, file, architecture, resize_positions)
        containers.refuse_vitdet(tables, file)
        if hints.asked is None and hints.known is None:
            containers.refuse_other_models(tree, tables, file)
        reading = choose(tables, tree, network, family, file, hints)
        reading.report.dropped.update(containers.leftovers(tree, tables))
    _settle_network(reading, network, carried, file)
    source = _finish(reading, carried, file)
    on_hub = is_hub_name(path)
    source.name = weights_name(path) if on_hub else given_name(file)
    if on_hub:
        source.metadata["source"] = hub.origin(path, file)
    return source


def _by_name(name: str, architecture: str | AnyArchitecture | None, part: str | None) -> SourceBackbone:
    """The weights behind ``timm:`` or ``module:``; InputError if another network, or a part of it, is asked for."""
    if isinstance(architecture, str) and architecture != name:
        raise InputError(
            f"expected no --arch with {name}, which is a network by itself, found {architecture}; leave it out, "
            f"or repeat the same text (options stand behind the name: {TIMM}NAME?img_size=224)"
        )
    if part is not None:
        raise InputError(f"expected no --network and no --family with {name}, which is one network; leave them out")
    if name.startswith(MODULE):
        return sources.of_network(of_text(name).build())
    named = parse_architecture(name)
    assert isinstance(named, TimmArchitecture)
    return sources.of_network(published(named))


def _settle_network(reading: Reading, network: str | None, carried: Mapping[str, str], file: Path) -> None:
    """Which network it is, by the metadata where the layout does not show it; InputError if another was asked for."""
    if reading.network == ONLY and "network" in carried:
        reading.network = carried["network"]
        reading.report.notes[-1] = f"network: {reading.network}, as the file's metadata says"
    for note in reading.report.notes:
        say(note)
    if network is not None and reading.network != network:
        held = "one network and does not say which" if reading.network == ONLY else f"the {reading.network} only"
        raise InputError(f"expected the {network}, found a file that holds {held}: {file}; leave --network out")


def _own(tree: Any, carried: Mapping[str, str], file: Path) -> Reading | None:
    """A backbone that this project exported or converted, straight by its metadata.

    None for any other file, and for one that does not hold exactly what its metadata says: matching explains it.
    """
    architecture = architecture_in(carried) if carried.get("format") == BACKBONE_FORMAT else None
    if architecture is None:
        return None
    container = next((key for key in ("model", "state_dict") if isinstance(tree.get(key), Mapping)), "")
    is_resnet, in_detectron2s_names = isinstance(architecture, Architecture), container == "model"
    if (container and not set(tree) <= _BESIDE | {container}) or (in_detectron2s_names and not is_resnet):
        return None
    tensors, shapes = tree[container] if container else tree, build.expected_shapes(architecture)
    names = build.detectron2_names(architecture) if in_detectron2s_names else {name: name for name in shapes}
    held = {key: tuple(value.shape) if isinstance(value, Tensor) else None for key, value in tensors.items()}
    if held != {names[name]: shape for name, shape in shapes.items()}:
        return None
    report = KeyReport(used={f"{container}.{key}" if container else key: name for name, key in names.items()})
    report.dropped = {key: "not weights (training state or settings)" for key in tree if key in _BESIDE}
    only = f"network: {ONLY}, the only one in the file"
    report.notes = [f"{file.name}: {architecture}, as this project wrote it", only]
    family = BY_NAME["detectron2" if in_detectron2s_names else "torchvision" if is_resnet else "named"]
    state = {name: tensors[key] for name, key in names.items()}
    return Reading(family, ONLY, (ONLY,), architecture, state, report)


def _at_random(text: str, architecture: str | AnyArchitecture | None, **options: Any) -> SourceBackbone:
    """``random-of:CHECKPOINT``: a network of the checkpoint's architecture, and none of its weights."""
    like = text.removeprefix(RANDOM_OF)
    if not like or like.startswith(RANDOM_OF):
        raise InputError(f"expected {RANDOM_OF}CHECKPOINT, found {text!r}; name a checkpoint behind it")
    if like.startswith(TIMM):  # nothing is fetched for a name
        found = parse_architecture(like)
    else:
        with speaking(quiet=True):
            found = load_backbone(like, architecture, **options).architecture
    source = sources.random_of(found, like)
    say(f"{source.name}: {found} at random, seed {sources.RANDOM_SEED}; BatchNorm statistics of two sample images")
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
    described, top = architecture_in(carried), tree if isinstance(tree, Mapping) else {}
    known = described if isinstance(described, TimmArchitecture) else None
    known = known or timm_architecture_in(config) or detectors_network(file)
    if known is None and asked is None:
        known = timm_architecture_in({"architecture": top.get("arch")})
    stated, zoo = asked if isinstance(asked, Architecture) else described, top.get("__author__") == _ZOO
    style = stated.style if isinstance(stated, Architecture) else "caffe" if zoo else "pytorch"
    return Hints(asked, known, config, resize_positions, style)


def checkpoint_file(path: str | Path) -> Path:
    """``path`` itself; the local copy of ``hf:org/name…`` or a URL; the ``last`` checkpoint of a run folder; of another
    folder the first of ``_EXPORTED``."""
    if is_hub_name(path):
        return hub.local_file(path)
    path = Path(path)
    if not path.is_dir():
        return path
    for folder in (path / "checkpoints", path):
        if (newest := CheckpointFolder(folder).last()) is not None:
            return newest
    for name in _EXPORTED:
        if (path / name).is_file():
            return path / name
    for other in sorted(path.iterdir()):
        refuse_other_formats(other)
    raise InputError(
        f"expected a checkpoint file or a run folder, found a folder without checkpoints/last or {_EXPORTED[1]}: {path}"
    )


def _finish(reading: Reading, carried: Mapping[str, str], path: Path) -> SourceBackbone:
    report, architecture, family, network = reading.report, reading.architecture, reading.family.name, reading.network
    if not report.complete or architecture is None:
        raise CoverageError(coverage_message(reading, path), report)
    refuse_values(reading.state, path)
    _warn_of_input(architecture, path)
    sha256 = containers.sha256_of_shards(path) if path.name.endswith(INDEX) else sha256_of(path)
    origin = {"source": path.name, "source_sha256": sha256, "source_family": family}
    metadata = {**origin, **carried, "network": network, **build.metadata_of(architecture)}
    return SourceBackbone(reading.state, architecture, family, network, path, sha256, metadata, report)


def _warn_of_input(architecture: AnyArchitecture, path: Path) -> None:
    """Warn where timm's config beside a file has another mean or std than the network's images are normalised by."""
    stated = input_in(read_model_config(path))
    if stated is None:
        return
    used = build.own_input(architecture) or NetworkInput()
    if all(isclose(*pair, abs_tol=1e-3) for pair in zip(stated.mean + stated.std, used.mean + used.std, strict=True)):
        return
    mean, std = stated.pixels
    own = "" if isinstance(architecture, Architecture) else "MODEL.BACKBONE.PIXELS settings "
    warn(
        f"{path.with_name('config.json')} has mean {stated.mean} and std {stated.std}, but images of {architecture} "
        f"are normalised by {used.mean} and {used.std}; for a detector set {own}MODEL.PIXEL_MEAN '{mean}' "
        f"MODEL.PIXEL_STD '{std}' (INPUT.FORMAT RGB); other tools have no such setting"
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
        carried |= {"weights": tree["weights"]} if isinstance(tree.get("weights"), str) else {}
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
    path: str | Path, into: nn.Module | None = None, *, network: str | None = None, family: str | None = None,
    trust_pickle: bool = False, architecture: str | None = None,
) -> Loaded:  # fmt: skip
    """The backbone of a checkpoint of any known family.

    Args:
        path, network, family, trust_pickle, architecture: as for :func:`load_backbone`.
        into: a network under torchvision's or timm's names that takes the weights, ``torchvision.models.resnet50()``
            for example; what it has besides the backbone stays as it is. Without it a backbone of the checkpoint's
            architecture is made: images [N, 3, H, W] -> features [N, C], in eval mode.

    Raises:
        InputError: as ``load_backbone``; or its tensors are not exactly those of ``into``: nothing is loaded.
    """
    source = load_backbone(path, network=network, family=family, trust_pickle=trust_pickle, architecture=architecture)
    if into is None:
        return Loaded(source.build(), source.report)
    if isinstance(source.architecture, Architecture) and source.architecture.style != "pytorch":
        raise InputError(f"expected weights of torchvision's style, found {source.architecture}; leave into out")
    _check(into, source.state)
    into.load_state_dict(source.state, strict=False)
    return Loaded(into, source.report)


def _check(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    held = module.state_dict()
    parts = {name.split(".")[0] for name in state}
    problems = [f"it lacks {name}" for name in state if name not in held]
    problems += [f"{name} is {tuple(held[name].shape)}, not {tuple(value.shape)}" for name, value in state.items()
                 if name in held and held[name].shape != value.shape]  # fmt: skip
    problems += [f"the checkpoint lacks {name}" for name in held if name.split(".")[0] in parts and name not in state]
    if problems:
        found = f"{len(problems)} differences, the first: {problems[0]}; leave into out, and the right one is made"
        raise InputError(
            f"expected a network of the checkpoint's architecture under torchvision's names, found {found}"
        )
