"""Seconds per training iteration: the torchvision engine, Detectron2 (if installed), torchvision's stock Mask R-CNN.

python tools/benchmark.py detector [--detector mask_rcnn_fpn_1x] [--depth 18 50] [--size 128 256] [KEY VALUE …]

Both engines take the same config, weights and batch of digit scenes, and their turns alternate within one process.
Stock Mask R-CNN (no counterpart for other detectors) has BN and heads of its own sizes; it is there for scale.
"""

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

import numpy as np
import torch
from torch import Tensor, nn

from pretrain.console import say, table
from transfer import config
from transfer.datasets import get_dataset
from transfer.torchvision_engine.data import read_pictures
from transfer.torchvision_engine.masks import BitMasks
from transfer.torchvision_engine.models import build_detector
from transfer.torchvision_engine.run import mapper_of
from transfer.torchvision_engine.structures import Sample
from transfer.torchvision_engine.weights import export_state

Losses = Callable[[], dict[str, Tensor]]


def settings(args: argparse.Namespace, depth: int, size: int) -> Any:
    """The protocol's config at another depth and image size."""
    widths = ["MODEL.RESNETS.STEM_OUT_CHANNELS", "64", "MODEL.RESNETS.RES2_OUT_CHANNELS", "64" if depth < 50 else "256"]
    classes = [word for head in ("ROI_HEADS", "RETINANET", "FCOS") for word in (f"MODEL.{head}.NUM_CLASSES", "10")]
    return config.load(
        ROOT / "configs/transfer" / f"{args.detector}.yaml",
        ["MODEL.RESNETS.DEPTH", str(depth), *widths, *classes, "INPUT.MIN_SIZE_TRAIN", f"[{size}]", "INPUT.MASK_FORMAT",
         "bitmask", "MODEL.DEVICE", args.device, *args.overrides],
    )  # fmt: skip


def batch_of(cfg: Any, count: int) -> tuple[list[Sample], float]:
    """``count`` digit scenes through the config's data path, and the seconds that took."""
    data, mapper = read_pictures(get_dataset("digit_scenes_train")), mapper_of(cfg, train=True)
    random = np.random.default_rng(0)
    begun = time.perf_counter()
    samples = [mapper.train(picture, random) for picture in data.pictures[:count]]
    return samples, time.perf_counter() - begun


def contestants(cfg: Any, samples: list[Sample], device: str) -> dict[str, tuple[nn.Module, Losses]]:
    """Name → model and what computes its losses on the batch."""
    torch.manual_seed(0)
    ours = build_detector(cfg).to(device).train()
    found: dict[str, tuple[nn.Module, Losses]] = {"torchvision engine": (ours, lambda: ours(samples))}  # type: ignore[dict-item]
    if importlib.util.find_spec("detectron2"):
        from transfer import detectron2_engine as engine

        with tempfile.TemporaryDirectory() as folder:
            theirs = engine.build_model(engine.detectron2_config(cfg, seed=0, out_dir=Path(folder))).train()
        theirs.load_state_dict(export_state(ours))
        found["Detectron2"] = (theirs, lambda: engine.training_losses(theirs, samples))
    if cfg.MODEL.ROI_HEADS.NAME == "StandardROIHeads" and cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN":
        found["stock torchvision"] = _stock(cfg, samples, device)
    return found


def _stock(cfg: Any, samples: list[Sample], device: str) -> tuple[nn.Module, Losses]:
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    backbone = resnet_fpn_backbone(backbone_name=f"resnet{cfg.MODEL.RESNETS.DEPTH}", weights=None, trainable_layers=5)
    size = cfg.INPUT.MIN_SIZE_TRAIN[0]
    heads, rpn = cfg.MODEL.ROI_HEADS, cfg.MODEL.RPN
    model = (
        MaskRCNN(
            backbone,
            num_classes=11,
            min_size=size,
            max_size=1333,
            box_batch_size_per_image=heads.BATCH_SIZE_PER_IMAGE,
            rpn_batch_size_per_image=rpn.BATCH_SIZE_PER_IMAGE,
            rpn_pre_nms_top_n_train=rpn.PRE_NMS_TOPK_TRAIN,
            rpn_post_nms_top_n_train=rpn.POST_NMS_TOPK_TRAIN,
        )
        .to(device)
        .train()
    )
    images = [sample.image.float().div(255).to(device) for sample in samples]
    targets = []
    for sample in samples:
        target = sample.target
        if target is None or not isinstance(target.masks, BitMasks):
            raise ValueError("stock Mask R-CNN needs bitmaps")
        masks = target.masks.bitmaps.to(torch.uint8)
        truth = {"boxes": target.boxes, "labels": target.classes + 1, "masks": masks}
        targets.append({name: value.to(device) for name, value in truth.items()})
    return model, lambda: model(images, targets)


def iteration(model: nn.Module, losses: Losses, optimizer: torch.optim.Optimizer, device: str) -> float:
    """Seconds of one whole training step."""
    _wait(device)
    begun = time.perf_counter()
    total = torch.stack(list(losses().values())).sum()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure(args: argparse.Namespace, depth: int, size: int) -> list[tuple[str, ...]]:
    """Rows: network, size, contestant, median seconds, ratio to Detectron2, share of the data path."""
    cfg = settings(args, depth, size)
    samples, data_seconds = batch_of(cfg, args.batch)
    entries = contestants(cfg, samples, args.device)
    optimizers = {
        n: torch.optim.SGD(m.parameters(), lr=1e-4, momentum=0.9, foreach=True) for n, (m, _) in entries.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in entries}
    for turn in range(args.rounds + 2):
        for name, (model, losses) in entries.items():
            spent = iteration(model, losses, optimizers[name], args.device)
            if turn >= 2:  # the first ones warm up
                seconds[name].append(spent)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    rows: list[tuple[str, ...]] = []
    for name, value in median.items():
        ratio = f"{value / median['Detectron2']:.3f}" if "Detectron2" in median else "–"
        share = f"{data_seconds / (data_seconds + value):.1%}"
        rows.append((f"R{depth}", f"{size}", name, f"{value:.3f}", ratio, share))
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure every depth and size and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detector", default="mask_rcnn_fpn_1x", help="a config of configs/transfer (stem)")
    parser.add_argument("--depth", type=int, nargs="+", default=[18, 50])
    parser.add_argument("--size", type=int, nargs="+", default=[128, 256], help="short edge in pixels")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings, for example smaller RoI batches")
    args = parser.parse_intermixed_args(argv)
    rows = [row for depth in args.depth for size in args.size for row in measure(args, depth, size)]
    columns = ("network", "px", "who", "s/iteration", "÷ Detectron2", "data share (1 worker)")
    table(f"{args.detector}, batch {args.batch}, {args.device}, {torch.get_num_threads()} threads", columns, rows)
    if not importlib.util.find_spec("detectron2"):
        say("Detectron2 is not installed here, so there is no ratio to it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
