"""Cost of a network: parameters and floating-point operations, by fvcore's counters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fvcore.common.config import CfgNode
from fvcore.nn import FlopCountAnalysis, parameter_count
from torch import Tensor, nn

from momentum_transfer.core.devices import choose_device
from momentum_transfer.transfer.torchvision_engine.c4 import Res5RoIHeads
from momentum_transfer.transfer.torchvision_engine.detectors import RCNN, Detector, OneStage
from momentum_transfer.transfer.torchvision_engine.engine import build
from momentum_transfer.transfer.torchvision_engine.linear_segmentation import LinearSegmentor

#: Sides of the image that operations are counted for are multiples of this.
_STEP = 32


@dataclass(frozen=True)
class Cost:
    """What a network is made of and needs.

    Attributes:
        parameters, trained: numbers of them; trained ones take gradients.
        flops: multiply-adds of one image (fvcore counts one for both), all regions and detections taken as there are at
            most: RPN.POST_NMS_TOPK_TEST and TEST.DETECTIONS_PER_IMAGE.
        backbone_flops: those of backbone and pyramid. side: of that square image, in pixels.
    """

    parameters: int
    trained: int
    flops: float
    backbone_flops: float
    side: int

    def __str__(self) -> str:
        return (
            f"{self.parameters / 1e6:.2f} M parameters, {self.trained / 1e6:.2f} M of them trained; "
            f"{self.flops / 1e9:.2f} G multiply-adds an image of {self.side} × {self.side} px, "
            f"{self.backbone_flops / 1e9:.2f} G of them in the backbone"
        )

    def as_record(self) -> dict[str, Any]:
        """Details of a record."""
        return {
            "parameters": self.parameters,
            "trained_parameters": self.trained,
            "gflops": round(self.flops / 1e9, 3),
            "gflops_side": self.side,
        }


def cost_of(cfg: CfgNode) -> Cost:
    """Count a config's network, which both engines build alike, by tracing one image on the config's device."""
    device = choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        network = build(cfg).eval().to(device)
    backbone, step = network.backbone, math.lcm(network.backbone.size_divisibility, _STEP)
    side = backbone.square or math.ceil(cfg.INPUT.MIN_SIZE_TEST / step) * step
    trained = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    with torch.no_grad():
        image = torch.zeros(1, 3, side, side, device=device)
        maps: dict[str, Tensor] = {}
        kept = backbone.register_forward_hook(lambda _module, _inputs, found: maps.update(found))
        below = _flops(backbone, image)
        kept.remove()
        parts = _heads(cfg, network, image[0], {name: torch.zeros_like(found) for name, found in maps.items()})
        above = sum(times * _flops(part, *inputs) for part, inputs, times in parts)
    return Cost(int(parameter_count(network)[""]), trained, below + above, below, side)


#: A part of a network, inputs of the sizes that it sees, and how often it does.
_Part = tuple[nn.Module, list[Tensor], int]


def _heads(cfg: CfgNode, network: Detector, image: Tensor, maps: dict[str, Tensor]) -> Iterator[_Part]:
    """The parts behind the backbone."""
    if isinstance(network, RCNN):
        rpn = network.proposal_generator
        yield from ((rpn.rpn_head, [maps[name]], 1) for name in rpn.levels)
        yield from _regions(cfg, network.roi_heads, maps)
    elif isinstance(network, OneStage):
        yield _OfList(network.heads.head), [maps[name] for name in network.heads.levels], 1
    elif isinstance(network, LinearSegmentor):
        yield network.sem_seg_head.predictor, [network.features(image).flatten(1).T], 1
    else:
        yield network.get_submodule("sem_seg_head"), list(maps.values())[-1:], 1


def _regions(cfg: CfgNode, heads: Any, maps: dict[str, Tensor]) -> Iterator[_Part]:
    """Region heads on one region each."""
    regions, detections = cfg.MODEL.RPN.POST_NMS_TOPK_TEST, cfg.TEST.DETECTIONS_PER_IMAGE
    if isinstance(heads, Res5RoIHeads):
        pooled = _region(maps[heads.level], heads.pooler)
        found = heads.res5(pooled)
        yield heads.res5, [pooled], regions + (detections if heads.mask_head is not None else 0)
        yield heads.box_predictor, [found.mean(dim=[2, 3])], regions
        if heads.mask_head is not None:
            yield heads.mask_head, [found], detections
        return
    level = maps[heads.levels[0]]
    pooled, several = _region(level, heads.box_pooler), isinstance(heads.box_head, nn.ModuleList)
    boxes, predictors = ((part if several else [part]) for part in (heads.box_head, heads.box_predictor))
    for head, predictor in zip(boxes, predictors, strict=True):
        yield head, [pooled], regions
        yield predictor, [head(pooled)], regions
    if heads.mask_head is not None:
        yield heads.mask_head, [_region(level, heads.mask_pooler)], detections


def _region(level: Tensor, pooler: Any) -> Tensor:
    return level.new_zeros(1, level.shape[1], pooler.resolution, pooler.resolution)


class _OfList(nn.Module):
    """A part that takes its maps as one list."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *maps: Tensor) -> Any:
        return self.part(list(maps))


class _Flat(nn.Module):
    """A part whose results are one flat tuple, as tracing wants them."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(_tensors(self.part(*inputs)))


def _tensors(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    parts: Sequence[Any] = list(found.values()) if isinstance(found, dict) else list(found)
    return [tensor for part in parts for tensor in _tensors(part)]


def _flops(part: nn.Module, *inputs: Tensor) -> float:
    counted = FlopCountAnalysis(_Flat(part), inputs)
    counted.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    counted.tracer_warnings("none")
    counted.set_op_handle("aten::scaled_dot_product_attention", _attention)
    return float(counted.total())


def _attention(inputs: list[Any], outputs: list[Any]) -> float:
    """Queries [N, heads, L, d] with keys [N, heads, S, d], then weights with values: 2 N heads L S d."""
    query, key = (value.type().sizes() for value in inputs[:2])
    return float(2 * math.prod(query) * key[-2])
