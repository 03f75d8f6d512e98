"""Detectors small enough for a test, and samples for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from PIL import Image, ImageDraw

from momentum_transfer.transfer import config
from momentum_transfer.transfer.experiment import Engine, Experiment, Finetuned
from momentum_transfer.transfer.initial_weights import InitialWeights, read_trained
from momentum_transfer.transfer.predictions import Predictions
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.torchvision_engine.structures import BitMasks, Sample, Target

CLASSES = 3

_COMMON = """MODEL.DEVICE cpu
MODEL.RESNETS.DEPTH 10 MODEL.RESNETS.STEM_OUT_CHANNELS 32 MODEL.RESNETS.RES2_OUT_CHANNELS 32
MODEL.RESNETS.STRIDE_IN_1X1 False MODEL.RESNETS.NORM BN MODEL.BACKBONE.FREEZE_AT 0 MODEL.FPN.OUT_CHANNELS 32
INPUT.FORMAT RGB INPUT.MASK_FORMAT bitmask INPUT.MIN_SIZE_TRAIN [64] INPUT.MIN_SIZE_TEST 64 INPUT.RANDOM_FLIP none
DATALOADER.NUM_WORKERS 0 TEST.DETECTIONS_PER_IMAGE 20 SOLVER.IMS_PER_BATCH 2
MODEL.ROI_HEADS.NUM_CLASSES 3 MODEL.RETINANET.NUM_CLASSES 3 MODEL.FCOS.NUM_CLASSES 3
MODEL.RPN.BATCH_SIZE_PER_IMAGE 32 MODEL.RPN.PRE_NMS_TOPK_TRAIN 100 MODEL.RPN.PRE_NMS_TOPK_TEST 100
MODEL.RPN.POST_NMS_TOPK_TRAIN 40 MODEL.RPN.POST_NMS_TOPK_TEST 40 MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE 16"""

_PYRAMID = """
MODEL.RESNETS.OUT_FEATURES ['res2','res3','res4','res5'] MODEL.FPN.IN_FEATURES ['res2','res3','res4','res5']
MODEL.BACKBONE.NAME build_resnet_fpn_backbone MODEL.ANCHOR_GENERATOR.SIZES [[8],[16],[32],[64],[128]]
MODEL.RPN.IN_FEATURES ['p2','p3','p4','p5','p6'] MODEL.ROI_HEADS.IN_FEATURES ['p2','p3','p4','p5'] MODEL.MASK_ON True
MODEL.ROI_HEADS.NAME StandardROIHeads MODEL.ROI_BOX_HEAD.NAME FastRCNNConvFCHead MODEL.ROI_BOX_HEAD.NUM_FC 2
MODEL.ROI_BOX_HEAD.FC_DIM 64 MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION 7 MODEL.ROI_MASK_HEAD.NUM_CONV 1
MODEL.ROI_MASK_HEAD.CONV_DIM 32"""

_DENSE = """MODEL.RESNETS.OUT_FEATURES ['res3','res4','res5'] MODEL.FPN.IN_FEATURES ['res3','res4','res5']
MODEL.RETINANET.NUM_CONVS 1 MODEL.FCOS.NUM_CONVS 1
MODEL.ANCHOR_GENERATOR.SIZES [[16,20,25],[32,40,50],[64,80,101],[128,161,203],[256,322,406]]"""

DETECTORS = {
    "mask_rcnn": _PYRAMID,
    "mask_rcnn_4conv1fc": _PYRAMID + " MODEL.ROI_BOX_HEAD.NUM_CONV 2 MODEL.ROI_BOX_HEAD.NUM_FC 1"
    " MODEL.ROI_BOX_HEAD.CONV_DIM 32 MODEL.ROI_BOX_HEAD.NORM BN MODEL.FPN.NORM BN MODEL.ROI_MASK_HEAD.NORM BN",
    "cascade": _PYRAMID + " MODEL.ROI_HEADS.NAME CascadeROIHeads MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG True",
    "retinanet": _DENSE + " MODEL.META_ARCHITECTURE RetinaNet MODEL.BACKBONE.NAME build_retinanet_resnet_fpn_backbone",
    "fcos": _DENSE
    + " MODEL.FPN.OUT_CHANNELS 64 MODEL.META_ARCHITECTURE FCOS MODEL.BACKBONE.NAME build_fcos_resnet_fpn_backbone",
    "faster_rcnn_c4": "MODEL.ROI_HEADS.NAME Res5ROIHeadsExtraNorm MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION 14"
    " MODEL.ANCHOR_GENERATOR.SIZES [[16,32,64]]",
    "mask_rcnn_c4": "MODEL.ROI_HEADS.NAME Res5ROIHeadsExtraNorm MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION 14"
    " MODEL.ANCHOR_GENERATOR.SIZES [[16,32,64]] MODEL.MASK_ON True MODEL.ROI_MASK_HEAD.CONV_DIM 32",
}


_DEEPLAB = """MODEL.META_ARCHITECTURE SemanticSegmentor MODEL.BACKBONE.NAME build_resnet_deeplab_backbone
MODEL.RESNETS.OUT_FEATURES ['res5'] MODEL.SEM_SEG_HEAD.NAME DeepLabV3Head MODEL.SEM_SEG_HEAD.IN_FEATURES ['res5']
MODEL.SEM_SEG_HEAD.NUM_CLASSES 3 MODEL.SEM_SEG_HEAD.CONVS_DIM 16 MODEL.SEM_SEG_HEAD.ASPP_CHANNELS 16
MODEL.SEM_SEG_HEAD.ASPP_DILATIONS [2,4,6] MODEL.SEM_SEG_HEAD.NORM BN MODEL.SEM_SEG_HEAD.ASPP_DROPOUT 0.0
SOLVER.LR_SCHEDULER_NAME WarmupPolyLR"""

#: DeepLab-v3 at both output strides.
SEGMENTORS = {
    "stride8": _DEEPLAB
    + " MODEL.RESNETS.RES4_DILATION 2 MODEL.RESNETS.RES5_DILATION 4 MODEL.SEM_SEG_HEAD.COMMON_STRIDE 8",
    "stride16": _DEEPLAB + " MODEL.RESNETS.RES5_DILATION 2 MODEL.SEM_SEG_HEAD.COMMON_STRIDE 16",
}


def tiny_config(detector: str, *overrides: str) -> CfgNode:
    """Settings of one of ``DETECTORS`` or ``SEGMENTORS``, then KEY VALUE pairs."""
    return config.load(None, [*_COMMON.split(), *(DETECTORS | SEGMENTORS)[detector].split(), *overrides])


def tiny_samples(sizes: Sequence[tuple[int, int]] = ((64, 64), (48, 70)), seed: int = 0) -> list[Sample]:
    """Noise with rectangles as objects, one sample for each (height, width)."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for number, (height, width) in enumerate(sizes):
        image = torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)
        boxes = torch.tensor([[4.0, 6.0, 30.0, 34.0], [width - 36.0, height - 28.0, width - 3.0, height - 2.0]])
        bitmaps = torch.zeros(2, height, width, dtype=torch.bool)
        for bitmap, box in zip(bitmaps, boxes.int().tolist(), strict=True):
            bitmap[box[1] : box[3], box[0] : box[2]] = True
        target = Target(boxes, torch.tensor([number % CLASSES, 2]), BitMasks(bitmaps))
        samples.append(Sample(image, number, height, width, target=target))
    return samples


def write_shapes(folder: Path, images: int = 4, size: int = 64) -> str:
    """A COCO-format set of bright shapes on dark noise; returns the name that ``get_dataset`` takes."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    entries: dict[str, list] = {"images": [], "annotations": [], "categories": []}
    entries["categories"] = [
        {"id": 10 * (k + 1), "name": name} for k, name in enumerate(("square", "diamond", "triangle"))
    ]
    for number in range(images):
        picture = Image.fromarray(random.integers(0, 60, (size, size, 3), dtype=np.uint8))
        pen = ImageDraw.Draw(picture)
        for place, (x, y) in enumerate(((6, 5), (size // 2 + 2, size // 2))):
            side, kind = 22 + 2 * ((number + place) % 3), (number + place) % 3
            polygon = [(x + side * u, y + side * v) for u, v in _OUTLINES[kind]]
            pen.polygon(polygon, fill=tuple(int(v) for v in random.integers(150, 255, 3)))
            entries["annotations"].append(
                {"id": len(entries["annotations"]) + 1, "image_id": number + 1, "category_id": 10 * (kind + 1),
                 "bbox": [x, y, side, side], "area": side * side, "iscrowd": 0,
                 "segmentation": [[float(c) for corner in polygon for c in corner]]}
            )  # fmt: skip
        name = f"{number:03d}.png"
        picture.save(folder / "images" / name)
        entries["images"].append({"id": number + 1, "file_name": name, "height": size, "width": size})
    (folder / "shapes.json").write_text(json.dumps(entries))
    return f"{folder / 'images'}:{folder / 'shapes.json'}"


_OUTLINES = (
    ((0, 0), (1, 0), (1, 1), (0, 1)),
    ((0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)),
    ((0.5, 0), (1, 1), (0, 1)),
)


def shapes_config(detector: str, folder: Path, *overrides: str) -> CfgNode:
    """``tiny_config`` on ``write_shapes``."""
    name = (
        write_shapes(folder / "data")
        if not (folder / "data").exists()
        else f"{folder}/data/images:{folder}/data/shapes.json"
    )
    data = ["DATASETS.TRAIN", repr((name,)), "DATASETS.TEST", repr((name,)), "OUTPUT_DIR", str(folder / "out")]
    return tiny_config(detector, *data, "TEST.VISUALS", "0", *overrides)


def train_tiny(engine: Engine, cfg: CfgNode, seed: int, folder: Path, **options: Any) -> Finetuned:
    """Train from a random start on the data of a config."""
    return engine.finetune(Experiment(cfg, open_task(cfg), InitialWeights("none")), seed, folder, **options)


def predict_tiny(engine: Engine, cfg: CfgNode, weights: Path, folder: Path) -> list[Predictions]:
    """Predict for the test sets of a config with a trained network."""
    return engine.predict(Experiment(cfg, open_task(cfg, training=False), read_trained(weights)), folder)


def check_data(cfg: CfgNode, **options: Any) -> None:
    """Look through the data of a config."""
    open_task(cfg).check(cfg, **options)
