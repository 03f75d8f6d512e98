"""Initial weights of a detector: a pretrained backbone of any known form, a whole detector, or none."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fvcore.common.config import CfgNode
from torch import Tensor

from momentum_transfer.backbones import hub
from momentum_transfer.backbones.build import detectron2_names
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.safe_load.read_file import read_tree
from momentum_transfer.backbones.source import SourceBackbone, is_constant
from momentum_transfer.backbones.timm_network import TimmArchitecture
from momentum_transfer.core.checkpoints import read_archive
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, given_name, is_hub_name, sha256_of
from momentum_transfer.core.log import warn
from momentum_transfer.transfer import any_backbone

#: A ResNet's tensor within a detector. The extra norm of C4 heads, ``roi_heads.res5.norm``, is the detector's own.
_RESNET = re.compile(r"^(?:backbone\.bottom_up\.|backbone\.|roi_heads\.)((?:stem|res[2-5])\.(?!norm\.).*)$")
_COUNTER = "num_batches_tracked"
#: Settings that older versions of Detectron2 keep among the weights.
_SETTING = re.compile(r"anchor_generator|^pixel_(mean|std)$")
#: What only a detector has, besides its backbone.
_HEADS = ("proposal_generator.", "head.", "sem_seg_head.")
#: A network of timm within a detector: under a pyramid (without ViTDet's own relative positions), or by itself.
_UNDER_PYRAMID = re.compile(r"^backbone\.(?:bottom_up|net)\.(?!.*\.rel_pos_[hw]$)(.*)$")
_ALONE = re.compile(r"^backbone\.(.*)$")
#: Files of a run: its weights, and what its training began with.
WEIGHTS, CLAIM = "model_final.pth", "training.json"
#: How weights that are no files begin.
_TIMM, _MODULE = "timm:", "module:"
#: Random initialisation, so that it never happens by a forgotten option.
NONE = "none"
#: A tensor's largest weight after a training over that at its start, or over 1 where it started smaller: far beyond
#: every training that ends well (docs/backbones.md).
LARGEST_GROWTH = 1000.0


@dataclass(frozen=True)
class InitialWeights:
    """Tensors by Detectron2's names. backbone: ``stem.conv1.weight`` …; detector: ``backbone.…``."""

    name: str
    sha256: str = ""
    network: str = ""
    architecture: str = ""  # of a backbone that is no ResNet, whose tensors have timm's names
    checkpoint: Mapping[str, str] = field(default_factory=dict)  # as ``SourceBackbone.checkpoint``, for records
    backbone: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    detector: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    places: tuple[int, ...] | None = None  # of ``detector``'s classes among those to train; None: it knows just these
    rest: tuple[int, ...] = ()  # places of the others, whose rows are those of ``novel``, or start at random
    novel: Mapping[str, Tensor] = field(default_factory=dict, repr=False)  # a second detector


def read_initial(
    weights: str, cfg: CfgNode | None = None, source: InitialWeights | SourceBackbone | None = None
) -> InitialWeights:
    """The tensors of ``--weights`` as they stand in the detector of a config.

    Args:
        weights: see `read_source`. source: what it has read of them already.
        cfg: its MODEL.BACKBONE.ARCH names the network that the weights must be of; None for a ResNet.

    Raises:
        InputError: there is no such file, it is damaged, holds no whole backbone or that of another network.
    """
    asked = any_backbone.asked_architecture(cfg) if cfg is not None and cfg.MODEL.BACKBONE.ARCH else None
    source = source or read_source(weights, asked)
    if isinstance(source, InitialWeights):
        return source
    found = source.architecture
    fields: Any = {"name": given_name(weights), "sha256": source.sha256, "network": source.network}
    fields["checkpoint"] = source.checkpoint
    if asked is None and isinstance(found, Architecture):
        names = detectron2_names(found)
        state = {names[name]: tensor for name, tensor in source.state.items()}
        if cfg is not None and found.style == "caffe" and not cfg.MODEL.RESNETS.STRIDE_IN_1X1:
            warn(
                f"{weights} is a {found}; only Detectron2's engine builds it: MODEL.RESNETS.STRIDE_IN_1X1 True INPUT."
                "FORMAT BGR MODEL.PIXEL_MEAN '[103.53, 116.28, 123.675]' MODEL.PIXEL_STD '[1, 1, 1]'"
            )
        return InitialWeights(**fields, backbone=state)
    if asked is None or cfg is None:
        raise InputError(
            f"expected a ResNet's weights, found those of {found} in {weights}; set MODEL.BACKBONE.ARCH {found}"
        )
    if not isinstance(found, TimmArchitecture) or found.name.partition(".")[0] != asked.name.partition(".")[0]:
        raise InputError(
            f"expected the weights of {asked}, found those of {found} in {weights}; let both be one network"
        )
    state = any_backbone.detector_state(cfg, source.state)
    return InitialWeights(**fields, architecture=str(asked), backbone=state)


def read_source(weights: str, asked: TimmArchitecture | None = None) -> InitialWeights | SourceBackbone:
    """Read what ``--weights`` names: a backbone as its file has it; a whole detector, or none, is ready to use.

    Args:
        weights: a ``.pkl`` of tools/convert.py or any checkpoint that ``backbones.read`` reads, a ``.pth`` of a
            detector of either engine or the folder of the run that trained it, a file by its name on the Hub
            (``hf:org/name``), ``timm:NAME`` for the weights that timm publishes, ``random-of:`` and any of these for a
            backbone of that architecture at random, or ``none``.
        asked: the network, where the file does not name it.

    Raises:
        InputError: there is no such file, it is damaged, or holds no whole backbone.
    """
    if weights.lower() == NONE:
        return InitialWeights(NONE)
    if weights.startswith(_MODULE):
        raise InputError(
            f"expected a ResNet's weights or those of a network of timm under a detector, found {weights}; a module of "
            "your own goes through the probes: momentum-transfer lowshot, or mt.evaluate"
        )
    if weights.startswith((_TIMM, RANDOM_OF)):
        return load_backbone(weights, architecture=asked)
    path = hub.local_file(weights) if is_hub_name(weights) else Path(weights)
    if _is_run(path):
        path = trained_weights(path)
        weights = str(path)
    if not path.exists():
        raise InputError(
            f"weights not found: {path}; convert a checkpoint with tools/convert.py, or give --weights none for a "
            "detector whose backbone too starts at random"
        )
    tree = read_tree(path) if path.suffix == ".pth" else None
    state = _tensors_in(tree) or {}
    if any(name.startswith(_HEADS) for name in state) and any(name.startswith("backbone.") for name in state):
        return InitialWeights(given_name(weights), sha256_of(path), detector=state)
    return load_backbone(weights, architecture=asked, tree=tree)


def _is_run(path: Path) -> bool:
    """Whether a folder is OUTPUT_DIR of a fine-tuning, finished or not, or of several trials."""
    return path.is_dir() and any(
        any(path.glob(f"{each}{name}")) for each in ("", "trial_*/") for name in (WEIGHTS, CLAIM)
    )


def trained_weights(run: Path) -> Path:
    """The detector's file in the folder of a run; InputError if it is not finished, or holds several trials."""
    if (run / WEIGHTS).is_file():
        return run / WEIGHTS
    if trials := sorted(path.parent for path in run.glob(f"trial_*/{WEIGHTS}")):
        raise InputError(f"expected one run, found {len(trials)} trials in {run}; give one of them, {trials[0]}")
    why = "no run of `transfer`"
    if (run / CLAIM).is_file():
        unfinished = "a training that has not ended; go on with `transfer --resume`"
        why = unfinished if has_checkpoint(run) else "a training that left no checkpoint; run `transfer` again"
    raise InputError(f"expected a finished run with {WEIGHTS} in {run}, found {why}")


def has_checkpoint(folder: Path) -> bool:
    """Whether there is something to resume: a checkpoint of either engine, or the final weights."""
    single = any((folder / name).is_file() for name in (WEIGHTS, "last_checkpoint"))
    return single or any(folder.glob("checkpoints/step_*.pth"))


def _tensors_in(tree: Any) -> dict[str, Tensor] | None:
    """The tensors of a detector's file, ``{"model": …}`` or a bare mapping; None if it holds anything else."""
    state = tree.get("model", tree) if isinstance(tree, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        return None
    return state


def read_detector(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a detector's ``.pth`` of either engine (``{"model": …}`` or a bare mapping); else InputError."""
    if not Path(path).is_file():
        raise InputError(f"detector weights not found: {path}")
    try:
        loaded = read_archive(path)
    except InputError as error:
        raise InputError(f"{error}; give the model_final.pth of a finished run") from error
    if (state := _tensors_in(loaded)) is None:
        raise InputError(f"expected a mapping of names to tensors in {path}, found something else")
    return state


def read_trained(path: Path) -> InitialWeights:
    """A detector that was just trained, to predict with; not hashed, since records name what it began with."""
    return InitialWeights(str(path), detector=read_detector(path))


def match_backbone(
    shapes: Mapping[str, Sequence[int]], backbone: Mapping[str, Tensor], source: str, architecture: str = ""
) -> tuple[dict[str, Tensor], list[str]]:
    """Which of a detector's tensors a pretrained backbone fills.

    Args:
        shapes: shape of every tensor of the detector, by Detectron2's names.
        backbone: ``stem.conv1.weight`` …. source: its name in errors. architecture: of a network that is no ResNet.

    Returns:
        Tensors to load by the detector's names, and the names of those that stay new.

    Raises:
        InputError: not every tensor of the detector's backbone is covered (a silently random backbone is the costliest
            mistake in transfer), or one has another shape.
    """
    found: dict[str, Tensor] = {}
    new, missing = [], []
    pattern, advice = _RESNET, "let MODEL.RESNETS.DEPTH and the widths be the checkpoint's"
    if architecture:
        pattern = _UNDER_PYRAMID if any(_UNDER_PYRAMID.match(name) for name in shapes) else _ALONE
        advice = "let MODEL.BACKBONE.ARCH be the checkpoint's"
    matches = {name: pattern.match(name) for name in shapes}
    inner = {name: match[1] for name, match in matches.items() if match is not None}  # keys of the backbone's own file
    for name in shapes:
        inside = inner.get(name)
        if inside is None:
            new.append(name)
        elif inside in backbone:
            found[name] = backbone[inside]
        elif not name.endswith(_COUNTER):
            missing.append(inside)
    if missing:
        raise InputError(
            f"{source} covers {len(found)} of the backbone's {len(found) + len(missing)} tensors: "
            f"{_some('missing', missing)}; {advice}"
        )
    _check_shapes(shapes, found, source)
    used = {inner[name] for name in found}
    if unused := [name for name in backbone if name not in used and not name.endswith(_COUNTER)]:
        raise InputError(
            f"{source} holds {_some('tensors that this detector has no place for', unused)}; "
            + (advice if architecture else "let MODEL.RESNETS.DEPTH and NORM be the checkpoint's")
        )
    return found, new


def match_detector(shapes: Mapping[str, Sequence[int]], state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """All tensors of a detector, by Detectron2's names; InputError if one is missing, left over or of another shape."""
    missing = [name for name in shapes if name not in state and not name.endswith(_COUNTER)]
    extra = [name for name in state if name not in shapes and not name.endswith(_COUNTER) and not _SETTING.search(name)]
    if missing or extra:
        raise InputError(
            f"{source} does not hold this detector: {_some('missing', missing)} {_some('left over', extra)}; "
            "use the config that it was trained with"
        )
    found = {name: state[name] for name in shapes if name in state}
    _check_shapes(shapes, found, source)
    if broken := [name for name, value in found.items() if value.is_floating_point() and not value.isfinite().all()]:
        raise InputError(f"{source} holds {_some('tensors that are not finite', broken)}; its training has diverged")
    if constant := [name for name, value in found.items() if name.startswith("backbone.") and is_constant(name, value)]:
        raise InputError(f"{source} holds {_some('tensors of one value', constant)}; take the original file")
    return found


def check_trained(trained: InitialWeights, initial: InitialWeights) -> None:
    """InputError for a diverged training: a weight grew beyond ``LARGEST_GROWTH`` times its tensor's start, 1 at least.

    BN statistics do not count; tensors that are not finite are left to ``match_detector``. Where the start is not known
    (``initial`` without tensors) the limit is ``LARGEST_GROWTH`` itself.
    """
    start: Mapping[str, Tensor] = initial.detector
    if initial.backbone:
        shapes = {name: value.shape for name, value in trained.detector.items()}
        start, _ = match_backbone(shapes, initial.backbone, initial.name, initial.architecture)
    grown = {}
    for name, value in trained.detector.items():
        if value.is_floating_point() and value.numel() and "running_" not in name:
            before = float(start[name].abs().max()) if name in start else 0.0
            grown[name] = float(value.abs().max()) / max(before, 1.0)
    name = max(grown, key=lambda key: grown[key], default="")
    if name and grown[name] > LARGEST_GROWTH:
        raise InputError(
            f"expected weights up to {LARGEST_GROWTH:g}, or as many times those at the start, found {name} at "
            f"{float(trained.detector[name].abs().max()):.3g} in {trained.name}: the training has diverged, and no "
            "score is recorded; lower SOLVER.BASE_LR or set SOLVER.CLIP_GRADIENTS.ENABLED True, with another OUTPUT_DIR"
        )


def _check_shapes(shapes: Mapping[str, Sequence[int]], found: Mapping[str, Tensor], source: str) -> None:
    for name, value in found.items():
        if tuple(shapes[name]) != tuple(value.shape):
            raise InputError(
                f"{source}: expected {name} of shape {tuple(shapes[name])}, found {tuple(value.shape)}; "
                "let the config's depth, widths and class count be those of the weights"
            )


def _some(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} {what} ({', '.join(sorted(names)[:3])}{more})"
