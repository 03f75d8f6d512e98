"""Detector weights under Detectron2's names: what one engine trains, the other one reads.

The engine's modules carry Detectron2's names already, except inside a ResNet, where they are torchvision's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from pretrain.errors import InputError
from pretrain.sources import detectron2_names
from transfer.torchvision_engine.models import Detector

#: State of a training that Detectron2's files do not hold.
_OWN = ("loss_normalizer.value",)


def names(detector: Detector) -> dict[str, str]:
    """Own name → Detectron2's name, for every tensor that its files hold."""
    table = detectron2_names(detector.backbone.bottom_up.architecture)
    # The backbone of C4 detectors is a bare ResNet, which is not called ``bottom_up`` there; its res5 is a head's.
    bottom_up = "backbone.bottom_up." if hasattr(detector.backbone, "top_block") else "backbone."
    prefixes = {"backbone.bottom_up.": ("", bottom_up), "roi_heads.res5.": ("layer4.", "roi_heads.")}
    found = {}
    for name in detector.state_dict():
        theirs = re.sub(r"^heads\.head\.", "head.", name)
        for prefix, (inside, outside) in prefixes.items():
            if name.startswith(prefix):
                key = inside + name[len(prefix) :]
                theirs = (
                    outside + table[key] if key in table else theirs
                )  # C4's extra norm is no ResNet's
        if not name.endswith(_OWN):
            found[name] = theirs
    return found


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
    table = names(detector)
    loaded, new, missing = {}, [], []
    for own, theirs in table.items():
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
    return [table[own] for own in loaded], new


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
