"""Largest differences between the torchvision engine and Detectron2, for each detector: same weights, same images.

python benchmarks/parity.py [--detector mask_rcnn_fpn_1x …] [--depth 18 50 101] [--size 128]

Every configs/transfer protocol by its own YAML at random weights, with images whose sides are and are not multiples of
32, and with small batches of regions. Needs Detectron2. Boxes are in pixels, masks the fraction of pixels that differ,
gradients relative to the largest one of their tensor.
"""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import table
from momentum_transfer.transfer import config
from momentum_transfer.transfer.config import task_name
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.data.semantic_datasets import get_semantic_dataset
from momentum_transfer.transfer.torchvision_engine.data import annotated_images
from momentum_transfer.transfer.torchvision_engine.detection_run import mapper_of
from momentum_transfer.transfer.torchvision_engine.semantic_run import SemanticMapper, images_of
from momentum_transfer.transfer.torchvision_engine.structures import Sample

DETECTORS = (
    "mask_rcnn_fpn_1x", "mask_rcnn_fpn_1x_rcf", "cascade_mask_rcnn_fpn_1x", "mask_rcnn_c4_1x", "voc07_c4",
    "lvis_v1_mask_rcnn_fpn_2x", "retinanet_1x", "fcos_1x", "deeplab_v3_stride8", "deeplab_v3_stride16",
)  # fmt: skip
#: Small enough for a CPU; every candidate is a detection, so that random weights give something to compare.
SMALL = """MODEL.DEVICE cpu MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE 32 MODEL.RPN.POST_NMS_TOPK_TRAIN 60
MODEL.RPN.POST_NMS_TOPK_TEST 60 MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.0 MODEL.RETINANET.SCORE_THRESH_TEST 0.0
MODEL.FCOS.SCORE_THRESH_TEST 0.0 TEST.DETECTIONS_PER_IMAGE 40 MODEL.ROI_HEADS.NUM_CLASSES 10
MODEL.RETINANET.NUM_CLASSES 10 MODEL.FCOS.NUM_CLASSES 10 MODEL.SEM_SEG_HEAD.NUM_CLASSES 11 INPUT.MASK_FORMAT bitmask
MODEL.SEM_SEG_HEAD.ASPP_DROPOUT 0.0"""


def settings(detector: str, depth: int, size: int) -> Any:
    """The protocol's own config at another depth and image size."""
    channels = "64" if depth < 50 else "256"
    sizes = ["INPUT.MIN_SIZE_TRAIN", f"[{size}]", "INPUT.CROP.SIZE", f"[{size}, {size}]"]
    network = ["MODEL.RESNETS.DEPTH", str(depth), "MODEL.RESNETS.RES2_OUT_CHANNELS", channels]
    return config.load(f"transfer/{detector}", [*SMALL.split(), *sizes, *network])


def samples_of(cfg: Any, size: int) -> list[Sample]:
    """Two digit scenes: one of ``size`` pixels, one cut to sides that no stride divides (whole for DeepLab)."""
    random, mapper = np.random.default_rng(0), mapper_of(cfg, train=True)
    if task_name(cfg) == "segmentation":
        data = get_semantic_dataset("digit_scenes_sem_seg_train")
        crops = SemanticMapper(mapper, (size, size))
        return [crops.train(p, data.labels(i), random) for i, p in enumerate(images_of(data)[:2])]
    images = annotated_images(get_dataset("digit_scenes_train"))
    samples = [mapper.train(image, random) for image in images[:2]]
    mapper.short_edges = [size - 15]
    samples[1] = mapper.train(images[1], random)
    return samples


def main(args: argparse.Namespace) -> None:
    """Compare and print one row a detector and depth."""
    if importlib.util.find_spec("detectron2") is None:
        raise InputError("parity needs Detectron2, which is not installed; see its own installation page")
    from benchmarks import engine_parity as parity

    torch.use_deterministic_algorithms(True)
    for detector in args.detector:
        rows = []
        for depth in args.depth:
            cfg = settings(detector, depth, args.size)
            if task_name(cfg) == "segmentation" and depth < 50:
                continue  # Detectron2's DeepLab has bottlenecks only
            samples = samples_of(cfg, args.size)
            ours, detectron2 = parity.random_pair(cfg, samples)
            found = parity.prediction_differences(ours, detectron2, samples)
            found |= parity.loss_differences(ours, detectron2, samples)
            rows.append((f"R{depth}", *(f"{value:.1e}" if value else "0" for value in found.values())))
        if rows:
            table(detector, ["network", *found], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detector", nargs="+", default=DETECTORS, help="configs of configs/transfer (stems)")
    parser.add_argument("--depth", type=int, nargs="+", default=[18, 50, 101])
    parser.add_argument("--size", type=int, default=128, help="pixels, a multiple of 32")
    sys.exit(run_tool(parser, main))
