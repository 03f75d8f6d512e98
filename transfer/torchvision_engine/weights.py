"""Detector weights under Detectron2's names: what one engine trains, the other one reads.

The engine's modules carry Detectron2's names already, except inside a ResNet, where they are torchvision's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from pretrain.errors import InputError
from pretrain.source_layouts import to_detectron2
from transfer.torchvision_engine.models import Detector

#: State of a training that Detectron2's files do not hold.
_OWN = ("loss_normalizer.value",)


def detectron2_name(name: str, single_scale: bool) -> str:
    """The name of a detector's tensor in Detectron2's files.

    Args:
        name: a key of the detector's ``state_dict``.
        single_scale: the backbone is a bare ResNet (C4), which is not called ``bottom_up`` there.
    """
    prefix = "backbone.bottom_up."
    if name.startswith(prefix):
        return ("backbone." if single_scale else prefix) + to_detectron2(name[len(prefix) :])
    if name.startswith("roi_heads.res5.") and not name.startswith("roi_heads.res5.norm."):
        return "roi_heads." + to_detectron2("layer4." + name[len("roi_heads.res5.") :])
    return re.sub(r"^heads\.head\.", "head.", name)


def names(detector: Detector) -> dict[str, str]:
    """Own name → Detectron2's name, for every tensor that its files hold."""
    single_scale = not hasattr(detector.backbone, "top_block")
    return {name: detectron2_name(name, single_scale) for name in detector.state_dict() if not name.endswith(_OWN)}


def export_state(detector: Detector) -> dict[str, Tensor]:
    """The detector's tensors under Detectron2's names."""
    state = detector.state_dict()
    return {theirs: state[own].detach().cpu() for own, theirs in names(detector).items()}


def own_state(detector: Detector) -> dict[str, Tensor]:
    """What a resumed training needs beside ``export_state``."""
    return {name: value.detach().cpu() for name, value in detector.state_dict().items() if name.endswith(_OWN)}


def load_detector(detector: Detector, state: Mapping[str, Tensor], source: str) -> None:
    """Load a whole detector, Detectron2's names.

    Raises:
        InputError: a tensor is missing, left over or of another shape.
    """
    table = names(detector)
    wanted = {theirs: own for own, theirs in table.items() if not own.endswith("num_batches_tracked")}
    missing = sorted(set(wanted) - set(state))
    extra = sorted(name for name in set(state) - set(table.values()) if not _ignorable(name))
    if missing or extra:
        raise InputError(
            f"{source} does not hold this detector: {_some('missing', missing)}{_some('left over', extra)}; "
            "use the config that it was trained with"
        )
    _assign(detector, {own: state[theirs] for own, theirs in table.items() if theirs in state}, source)


def load_backbone(detector: Detector, state: Mapping[str, Tensor], source: str) -> tuple[list[str], list[str]]:
    """Load a pretrained ResNet (Detectron2's names, ``stem.conv1.weight`` …) into a fresh detector.

    Returns:
        Detectron2 names of the detector's tensors that were loaded, and of those that stay new.

    Raises:
        InputError: not every tensor of the backbone is covered (a silently random backbone is the costliest mistake
            in transfer), or one has another shape.
    """
    loaded, new, missing = {}, [], []
    for own, theirs in names(detector).items():
        if own.endswith("num_batches_tracked"):
            continue
        key = _in_resnet(theirs)
        if key is None or key.startswith("res5.norm."):  # the extra norm of C4 heads belongs to the detector
            new.append(theirs)
        elif key in state:
            loaded[own] = state[key]
        else:
            missing.append(key)
    if missing:
        raise InputError(
            f"{source} covers {len(loaded)} of the backbone's {len(loaded) + len(missing)} tensors: "
            f"{_some('missing', sorted(missing))}; let MODEL.RESNETS.DEPTH and the widths be the checkpoint's"
        )
    _assign(detector, loaded, source)
    return [detectron2_name(own, not hasattr(detector.backbone, "top_block")) for own in loaded], new


def _in_resnet(name: str) -> str | None:
    """The key within a ResNet's own file, or None where the tensor belongs to the detector."""
    found = re.match(r"^(?:backbone\.bottom_up\.|backbone\.|roi_heads\.)((?:stem|res[2-5])\..*)$", name)
    return found[1] if found else None


def _ignorable(name: str) -> bool:
    """Counters, and tensors that Detectron2 writes though they are settings."""
    return name.endswith("num_batches_tracked") or "anchor_generator" in name or name in ("pixel_mean", "pixel_std")


def _assign(detector: Detector, tensors: Mapping[str, Tensor], source: str) -> None:
    state = detector.state_dict()
    for name, value in tensors.items():
        if state[name].shape != value.shape:
            raise InputError(
                f"{source}: expected {name} of shape {tuple(state[name].shape)}, found {tuple(value.shape)}; "
                "let the config's depth, widths and class count be those of the weights"
            )
    detector.load_state_dict(dict(tensors), strict=False)


def _some(what: str, found: list[str]) -> str:
    if not found:
        return ""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{len(found)} {what} ({', '.join(found[:3])}{more}) "
