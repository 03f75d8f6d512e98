"""Detector weights under Detectron2's names: what one engine trains, the other one reads.

The engine's modules carry Detectron2's names already, except inside a ResNet, where they are torchvision's; inside any
other network they are timm's in both engines.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from momentum_transfer.backbones.build import detectron2_names
from momentum_transfer.transfer.initial_weights import match_backbone, match_detector
from momentum_transfer.transfer.torchvision_engine.backbone import BottomUp
from momentum_transfer.transfer.torchvision_engine.detectors import Detector

#: State of a training that Detectron2's files do not hold.
_OWN = ("loss_normalizer.value",)


def names(detector: Detector) -> dict[str, str]:
    """Own name → Detectron2's name, for every tensor that its files hold."""
    bottom_up, pyramid = getattr(detector.backbone, "bottom_up", None), hasattr(detector.backbone, "top_block")
    resnet = detectron2_names(bottom_up.architecture) if isinstance(bottom_up, BottomUp) else None
    # Without a pyramid the network is Detectron2's backbone itself, not its ``bottom_up``; res5 of C4 is a head's.
    outside_it = "backbone.bottom_up." if pyramid else "backbone."
    prefixes = {"backbone.bottom_up.": ("", outside_it), "roi_heads.res5.": ("layer4.", "roi_heads.")}
    found = {}
    for name in detector.state_dict():
        if name.endswith(_OWN):
            continue
        found[name] = re.sub(r"^heads\.head\.", "head.", name)
        if resnet is None:
            found[name] = found[name] if pyramid else found[name].replace(".bottom_up.", ".", 1)
            continue
        for prefix, (inside, outside) in prefixes.items():
            # The table lacks the extra norm of C4 heads, which keeps its name.
            if name.startswith(prefix) and (key := inside + name[len(prefix) :]) in resnet:
                found[name] = outside + resnet[key]
    return found


def export_state(detector: Detector) -> dict[str, Tensor]:
    """The detector's tensors under Detectron2's names."""
    state = detector.state_dict()
    return {d2_name: state[own].detach().cpu() for own, d2_name in names(detector).items()}


def own_state(detector: Detector) -> dict[str, Tensor]:
    """What a resumed training needs beside ``export_state``."""
    return {name: value.detach().cpu() for name, value in detector.state_dict().items() if name.endswith(_OWN)}


def load_detector(detector: Detector, state: Mapping[str, Tensor], source: str) -> None:
    """Load a whole detector, Detectron2's names; InputError if it is another one (``match_detector``)."""
    _load(detector, match_detector(_shapes(detector), state, source))


def load_backbone(
    detector: Detector, state: Mapping[str, Tensor], source: str, architecture: str = ""
) -> tuple[list[str], list[str]]:
    """Load a pretrained backbone into a fresh detector; InputError unless it is covered wholly (``match_backbone``).

    Returns the Detectron2 names of the detector's tensors that were loaded, and of those that stay new.
    """
    found, new = match_backbone(_shapes(detector), state, source, architecture)
    _load(detector, found)
    return list(found), new


def _shapes(detector: Detector) -> dict[str, torch.Size]:
    state = detector.state_dict()
    return {d2_name: state[own].shape for own, d2_name in names(detector).items()}


def _load(detector: Detector, found: Mapping[str, Tensor]) -> None:
    own = {d2_name: name for name, d2_name in names(detector).items()}
    detector.load_state_dict({own[name]: value for name, value in found.items()}, strict=False)
