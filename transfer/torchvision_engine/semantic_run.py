"""Semantic segmentation from settings: the model, its training batches, its predictions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from momentum_transfer.backbones.resnet import build_backbone
from momentum_transfer.core import samplers
from momentum_transfer.core.distributed import rank, world_size
from momentum_transfer.core.samplers import Batches, Place, RepeatedPasses
from momentum_transfer.transfer import any_backbone
from momentum_transfer.transfer.data.semantic_datasets import IGNORE, SemanticData
from momentum_transfer.transfer.predictions import results_path
from momentum_transfer.transfer.torchvision_engine import semantic_data
from momentum_transfer.transfer.torchvision_engine.backbone import BottomUp, SingleScale, dilate
from momentum_transfer.transfer.torchvision_engine.detection_run import mapper_of
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.layers import norm_layer
from momentum_transfer.transfer.torchvision_engine.models import architecture_of, freeze_at
from momentum_transfer.transfer.torchvision_engine.segmentors import (
    ASPP,
    LAST_MAP,
    DeepLabHead,
    LinearHead,
    LinearSegmentor,
    Segmentor,
)
from momentum_transfer.transfer.torchvision_engine.semantic_data import (
    SemanticMapper,
    SemanticTrainingSamples,
    predict_labels,
)
from momentum_transfer.transfer.torchvision_engine.structures import Sample


def unsupported(cfg: CfgNode) -> str | None:
    """Why the torchvision engine cannot run a semantic config, or None."""
    head, crop = cfg.MODEL.SEM_SEG_HEAD, cfg.INPUT.CROP
    if head.NAME == "LinearHead":
        return next(_linear_problems(cfg), None)
    stride = any_backbone.output_stride(cfg)
    checks = (
        (head.NAME == "DeepLabV3Head", "MODEL.SEM_SEG_HEAD.NAME is not DeepLabV3Head or LinearHead"),
        (head.IGNORE_VALUE == IGNORE, f"MODEL.SEM_SEG_HEAD.IGNORE_VALUE is not {IGNORE}"),
        (list(head.IN_FEATURES) == ["res5"], "MODEL.SEM_SEG_HEAD.IN_FEATURES is not [res5]"),
        (not head.USE_DEPTHWISE_SEPARABLE_CONV, "depthwise separable ASPP"),
        (head.ASPP_CHANNELS == head.CONVS_DIM, "ASPP_CHANNELS and CONVS_DIM differ"),
        (stride == head.COMMON_STRIDE, f"MODEL.SEM_SEG_HEAD.COMMON_STRIDE is not the dilated backbone's {stride}"),
        (head.LOSS_TYPE in ("cross_entropy", "hard_pixel_mining"), "MODEL.SEM_SEG_HEAD.LOSS_TYPE"),
        (not crop.ENABLED or crop.TYPE == "absolute", "INPUT.CROP.TYPE is not absolute"),
        (not crop.ENABLED or all(s % stride == 0 for s in crop.SIZE), f"INPUT.CROP.SIZE is no multiple of {stride}"),
    )
    return next((reason for fine, reason in checks if not fine), None)


def _linear_problems(cfg: CfgNode) -> Iterator[str]:
    """What a linear probe cannot be made of."""
    head, crop = cfg.MODEL.SEM_SEG_HEAD, cfg.INPUT.CROP
    if not cfg.MODEL.BACKBONE.FROZEN:
        yield "MODEL.SEM_SEG_HEAD.NAME LinearHead probes a frozen backbone; set MODEL.BACKBONE.FROZEN True"
    if head.IGNORE_VALUE != IGNORE:
        yield f"MODEL.SEM_SEG_HEAD.IGNORE_VALUE is not {IGNORE}"
    if head.LOSS_TYPE != "cross_entropy":
        yield "MODEL.SEM_SEG_HEAD.LOSS_TYPE of a LinearHead is not cross_entropy"
    if head.NORM not in ("", "BN", "SyncBN"):
        yield "MODEL.SEM_SEG_HEAD.NORM of a LinearHead is none of BN, SyncBN and the empty name"
    known = ("last", "res2", "res3", "res4", "res5")
    if not head.IN_FEATURES or any(name not in known for name in head.IN_FEATURES):
        yield f"MODEL.SEM_SEG_HEAD.IN_FEATURES are not some of {', '.join(known)}"
    if head.BLOCKS > 1 and not (cfg.MODEL.BACKBONE.ARCH and any_backbone.is_plain(cfg)):
        yield "MODEL.SEM_SEG_HEAD.BLOCKS above 1 needs a plain ViT; name maps in IN_FEATURES"
    if crop.ENABLED and crop.TYPE != "absolute":
        yield "INPUT.CROP.TYPE is not absolute"


def _backbone(cfg: CfgNode) -> SingleScale:
    """Maps without a pyramid: of a network of timm, or of a ResNet whose last stages may be dilated."""
    if cfg.MODEL.BACKBONE.ARCH:
        network = any_backbone.build_network(cfg)
        return SingleScale(network, max(network.strides.values()), cfg.MODEL.BACKBONE.SQUARE)
    resnets = cfg.MODEL.RESNETS
    norm = norm_layer(resnets.NORM)
    resnet = build_backbone(architecture_of(cfg), norm if norm is not None else torch.nn.Identity)
    if resnets.RES4_DILATION > 1:
        dilate(resnet.layer3, [resnets.RES4_DILATION])
    if resnets.RES5_DILATION > 1:
        dilate(resnet.layer4, [resnets.RES5_DILATION * grid for grid in resnets.RES5_MULTI_GRID])
    return SingleScale(BottomUp(resnet, freeze_at=freeze_at(cfg)))


def _linear(cfg: CfgNode) -> LinearSegmentor:
    """The linear probe of a config."""
    head, backbone = cfg.MODEL.SEM_SEG_HEAD, _backbone(cfg)
    widths = list(backbone.channels.values())
    channels = sum(widths[-1] if name == LAST_MAP else backbone.channels[name] for name in head.IN_FEATURES)
    linear = LinearHead(channels * head.BLOCKS, head.NUM_CLASSES, head.NORM, head.IGNORE_VALUE, head.LOSS_WEIGHT)
    step = max(backbone.strides.values())
    backbone.size_divisibility = step
    pixels = {"pixel_mean": cfg.MODEL.PIXEL_MEAN, "pixel_std": cfg.MODEL.PIXEL_STD}
    return LinearSegmentor(backbone, linear, head.IN_FEATURES, head.BLOCKS, **pixels)


def build(cfg: CfgNode) -> Segmentor | LinearSegmentor:
    """The network of a config, freshly initialised, on the CPU, in training mode."""
    if cfg.MODEL.SEM_SEG_HEAD.NAME == "LinearHead":
        return _linear(cfg)
    head, backbone = cfg.MODEL.SEM_SEG_HEAD, _backbone(cfg)
    crop = cfg.INPUT.CROP
    pool = (crop.SIZE[0] // head.COMMON_STRIDE, crop.SIZE[1] // head.COMMON_STRIDE) if crop.ENABLED else None
    aspp = ASPP(backbone.channels["res5"], head.ASPP_CHANNELS, head.ASPP_DILATIONS, head.NORM, pool, head.ASPP_DROPOUT)
    return Segmentor(
        backbone,
        DeepLabHead(
            aspp,
            head.CONVS_DIM,
            head.NUM_CLASSES,
            stride=head.COMMON_STRIDE,
            ignore=head.IGNORE_VALUE,
            hard_pixels=head.LOSS_TYPE == "hard_pixel_mining",
            weight=head.LOSS_WEIGHT,
        ),
        cfg.MODEL.PIXEL_MEAN,
        cfg.MODEL.PIXEL_STD,
    )


class _Joined(ConcatDataset[Sample]):
    """Several training sets as one: an index runs through all of them."""

    def __getitem__(self, place: Place) -> Sample:
        position, index = place
        for part, end in zip(self.datasets, self.cumulative_sizes, strict=True):
            if index < end:
                return part[(position, index - end + len(part))]  # type: ignore[arg-type]  # parts take places
        raise IndexError(index)


def training_loader(
    cfg: CfgNode, data: Sequence[SemanticData], seed: int, start: int, network: Any = None
) -> DataLoader[Any]:
    """Endless batches of the training sets ``data`` from iteration ``start`` on.

    Of a linear ``network`` whose images repeat themselves they hold features instead of images.
    """
    crop = cfg.INPUT.CROP
    size = (int(crop.SIZE[0]), int(crop.SIZE[1])) if crop.ENABLED else None
    cropping = SemanticMapper(mapper_of(cfg, train=True), size, crop.SINGLE_CATEGORY_MAX_AREA)
    sets: list[Dataset[Sample]] = []
    for one in data:
        held = None
        if isinstance(network, LinearSegmentor) and semantic_data.repeats_itself(cfg):
            held = semantic_data.cached_features(cfg, network, one, cropping)
        sets.append(held or SemanticTrainingSamples(one, cropping, seed))
    samples = _Joined(sets)
    order, size = RepeatedPasses(torch.ones(len(samples)), seed), cfg.SOLVER.IMS_PER_BATCH // world_size()
    batches = Batches(order, size, rank=rank(), world=world_size(), start=start)
    return samplers.training_loader(samples, batches, workers=cfg.DATALOADER.NUM_WORKERS, collate=list)


def predict(cfg: CfgNode, segmentor: Detector, data: SemanticData, out_dir: Path) -> tuple[Path, tuple[()], float]:
    """Write one label PNG an image of a test set; the folder, nothing to be scored by boxes, seconds per image."""
    folder = results_path(out_dir, data.name).with_suffix("")
    return folder, (), predict_labels(segmentor, data, cfg, folder)
