"""Name layouts of ResNets: tables from other code bases' names to torchvision's; inverses are derived."""

from __future__ import annotations

from collections.abc import Callable, Mapping

#: Detectron2 stage -> torchvision stage.
STAGES: Mapping[str, str] = {"res2": "layer1", "res3": "layer2", "res4": "layer3", "res5": "layer4"}
#: Detectron2 module of the stem -> torchvision module.
STEM: Mapping[str, str] = {"stem.conv1": "conv1", "stem.conv1.norm": "bn1"}
#: Detectron2 module inside a block -> torchvision module.
BLOCK: Mapping[str, str] = {
    "conv1": "conv1", "conv1.norm": "bn1",
    "conv2": "conv2", "conv2.norm": "bn2",
    "conv3": "conv3", "conv3.norm": "bn3",
    "shortcut": "downsample.0", "shortcut.norm": "downsample.1",
}  # fmt: skip
#: lightly's ``nn.Sequential(*children)``: 2 is the ReLU, 3 the max-pooling, 8 the average pooling, 9 the classifier.
NUMBERED: Mapping[str, str] = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}

TO_DETECTRON2_STAGE = {right: left for left, right in STAGES.items()}
TO_DETECTRON2_STEM = {right: left for left, right in STEM.items()}
TO_DETECTRON2_BLOCK = {right: left for left, right in BLOCK.items()}


def from_detectron2(name: str) -> str:
    """``res2.0.conv1.norm.weight`` -> ``layer1.0.bn1.weight``; a name outside the table is returned as it is."""
    return _rename(name, STEM, STAGES, BLOCK)


def to_detectron2(name: str) -> str:
    """``layer1.0.bn1.weight`` -> ``res2.0.conv1.norm.weight``; a name outside the table is returned as it is."""
    return _rename(name, TO_DETECTRON2_STEM, TO_DETECTRON2_STAGE, TO_DETECTRON2_BLOCK)


def from_numbered(name: str) -> str:
    """``4.0.bn1.weight`` -> ``layer1.0.bn1.weight``; a name outside the table is returned as it is."""
    head, dot, rest = name.partition(".")
    return f"{NUMBERED[head]}{dot}{rest}" if head in NUMBERED else name


def _rename(name: str, stem: Mapping[str, str], stages: Mapping[str, str], block: Mapping[str, str]) -> str:
    module, _, tensor = name.rpartition(".")
    if module in stem:
        return f"{stem[module]}.{tensor}"
    stage, _, rest = module.partition(".")
    index, _, inner = rest.partition(".")
    if stage in stages and inner in block:
        return f"{stages[stage]}.{index}.{block[inner]}.{tensor}"
    return name


_LAYOUTS: Mapping[str, Callable[[str], str]] = {
    "torchvision": lambda name: name,
    "numbered": from_numbered,
    "detectron2": from_detectron2,
}


def to_torchvision_name(name: str, layout: str) -> str:
    """The torchvision name of ``name`` in a layout of ``_LAYOUTS``."""
    return _LAYOUTS[layout](name)
