"""Losses of a Detectron2 model on the torchvision engine's samples: for comparisons and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from momentum_transfer.transfer.torchvision_engine.masks import BitMasks
from momentum_transfer.transfer.torchvision_engine.structures import Sample


def their_inputs(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Samples in Detectron2's form, with what they have of targets or labels."""
    return [_input(sample) for sample in samples]


def _input(sample: Sample) -> dict[str, Any]:
    from detectron2.structures import BitMasks as TheirBitMasks
    from detectron2.structures import Boxes, Instances

    given: dict[str, Any] = {"image": sample.image, "height": sample.height, "width": sample.width}
    if sample.labels is not None:
        given["sem_seg"] = sample.labels
    if sample.target is not None:
        given["instances"] = instances = Instances(tuple(sample.image.shape[1:]))
        instances.gt_boxes = Boxes(sample.target.boxes.clone())
        instances.gt_classes = sample.target.classes.clone()
        if isinstance(sample.target.masks, BitMasks):
            instances.gt_masks = TheirBitMasks(sample.target.masks.bitmaps)
    return given


def training_losses(model: nn.Module, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Losses of a model in training mode; every sample needs a target or labels."""
    from detectron2.utils.events import EventStorage

    if any(sample.target is None and sample.labels is None for sample in samples):
        raise ValueError("every sample needs a target")
    with EventStorage():
        losses: dict[str, Tensor] = model(their_inputs(samples))
    return losses
