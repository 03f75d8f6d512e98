"""Name layouts of ResNets: tables from other code bases' names to torchvision's; inverses are derived.

Architecture from tensor shapes: identifies the ResNet; lists the tensors that any architecture has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import torch

from momentum_transfer.backbones.build import AnyArchitecture, build_backbone
from momentum_transfer.backbones.resnet import DEPTHS, Architecture
from momentum_transfer.core.errors import InputError

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


#: BatchNorm's integer buffer: batches seen. Files from before torch 0.4.1 and Detectron2's own lack it.
COUNTER = "num_batches_tracked"


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
def expected_shapes(architecture: AnyArchitecture) -> Mapping[str, tuple[int, ...]]:
    """torchvision's or timm's name -> shape of every parameter and buffer."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in build_backbone(architecture).state_dict().items()}


def detectron2_names(architecture: AnyArchitecture) -> dict[str, str]:
    """torchvision name -> Detectron2 name of every parameter and buffer, one to one.

    Raises:
        InputError: no ResNet; Detectron2 has names for ResNets alone.
    """
    if not isinstance(architecture, Architecture):
        raise InputError(
            f"expected a ResNet for Detectron2's .pkl, found {architecture}, for which Detectron2 has no names; "
            "write OUT.safetensors under timm's names"
        )
    return {name: to_detectron2(name) for name in expected_shapes(architecture)}


def infer_detectron2(shapes: Mapping[str, tuple[int, ...]]) -> Architecture:
    """``infer_architecture`` from Detectron2's names."""
    return infer_architecture({to_torchvision_name(name, "detectron2"): shape for name, shape in shapes.items()})


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))
