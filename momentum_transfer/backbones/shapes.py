"""Architecture from tensor shapes: identifies the ResNet; lists the tensors that any architecture has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch

from momentum_transfer.backbones.build import AnyArchitecture, build_backbone
from momentum_transfer.backbones.layouts import to_detectron2, to_torchvision_name
from momentum_transfer.backbones.resnet import DEPTHS, Architecture
from momentum_transfer.core.errors import InputError

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
