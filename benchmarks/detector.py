"""Seconds per training iteration: the torchvision engine, Detectron2 (if installed), torchvision's stock Mask R-CNN.

python benchmarks/detector.py [--detector mask_rcnn_fpn_1x] [--depth 18 50] [--size 128 256] [KEY VALUE …]

Both engines take the same config, weights and batch of digit scenes. Their turns alternate within one process, and
the order turns round from round to round; the ratio is the median of the rounds' own ratios, with their quartiles.
Memory is the peak of a process of its own for each. Stock Mask R-CNN (for other detectors there is none) is for scale.
Beside them stands what the convolutions and matrix products of one of our iterations take alone, and where our
iteration goes by torch's profiler.
"""

import argparse
import importlib.util
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.arithmetic import alone as arithmetic
from benchmarks.arithmetic import recorded, split
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table
from momentum_transfer.transfer import config
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.torchvision_engine.data import annotated_images
from momentum_transfer.transfer.torchvision_engine.detection_run import mapper_of
from momentum_transfer.transfer.torchvision_engine.detectors import export_state
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from momentum_transfer.transfer.torchvision_engine.structures import BitMasks, Sample

OURS, THEIRS, STOCK = "torchvision engine", "Detectron2", "stock torchvision"
ARITHMETIC = "our convolutions and products alone"
WARM_UP = 2  # rounds that are not counted
Losses = Callable[[], dict[str, Tensor]]


def settings(args: argparse.Namespace, depth: int, size: int) -> Any:
    """The protocol's config at another depth and image size."""
    widths = ["MODEL.RESNETS.STEM_OUT_CHANNELS", "64", "MODEL.RESNETS.RES2_OUT_CHANNELS", "64" if depth < 50 else "256"]
    classes = [word for head in ("ROI_HEADS", "RETINANET", "FCOS") for word in (f"MODEL.{head}.NUM_CLASSES", "10")]
    return config.load(
        f"transfer/{args.detector}",
        ["MODEL.RESNETS.DEPTH", str(depth), *widths, *classes, "INPUT.MIN_SIZE_TRAIN", f"[{size}]", "INPUT.MASK_FORMAT",
         "bitmask", "MODEL.DEVICE", args.device, *args.overrides],
    )  # fmt: skip


def batch_of(cfg: Any, count: int) -> tuple[list[Sample], float]:
    """``count`` digit scenes through the config's data path, and the seconds that took."""
    images, mapper = annotated_images(get_dataset("digit_scenes_train")), mapper_of(cfg, train=True)
    random = np.random.default_rng(0)
    mapper.train(images[0], random)  # the first one imports and opens
    begun = time.perf_counter()
    samples = [mapper.train(image, random) for image in images[:count]]
    return samples, time.perf_counter() - begun


def names_of(cfg: Any) -> list[str]:
    """Who can take part."""
    found = [OURS] + ([THEIRS] if importlib.util.find_spec("detectron2") else [])
    stock = cfg.MODEL.ROI_HEADS.NAME == "StandardROIHeads" and cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN"
    return found + ([STOCK] if stock else [])


def contestant(name: str, cfg: Any, samples: list[Sample]) -> tuple[nn.Module, Losses]:
    """A model, and what computes its losses on the batch."""
    device = cfg.MODEL.DEVICE
    if name == STOCK:
        return _stock(cfg, samples, device)
    torch.manual_seed(0)
    ours = build_detector(cfg).to(device).train()
    if name == OURS:
        return ours, lambda: ours(samples)
    from benchmarks.engine_parity import training_losses
    from momentum_transfer.transfer.detectron2_engine.data import detectron2_config
    from momentum_transfer.transfer.detectron2_engine.models import build_model

    with tempfile.TemporaryDirectory() as folder:
        peer = build_model(detectron2_config(cfg, seed=0, out_dir=Path(folder))).train()
    peer.load_state_dict(export_state(ours))
    return peer, lambda: training_losses(peer, samples)


def _stock(cfg: Any, samples: list[Sample], device: str) -> tuple[nn.Module, Losses]:
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    backbone = resnet_fpn_backbone(backbone_name=f"resnet{cfg.MODEL.RESNETS.DEPTH}", weights=None, trainable_layers=5)
    heads, rpn = cfg.MODEL.ROI_HEADS, cfg.MODEL.RPN
    model = MaskRCNN(
        backbone,
        num_classes=11,
        min_size=cfg.INPUT.MIN_SIZE_TRAIN[0],
        max_size=1333,
        box_batch_size_per_image=heads.BATCH_SIZE_PER_IMAGE,
        rpn_batch_size_per_image=rpn.BATCH_SIZE_PER_IMAGE,
        rpn_pre_nms_top_n_train=rpn.PRE_NMS_TOPK_TRAIN,
        rpn_post_nms_top_n_train=rpn.POST_NMS_TOPK_TRAIN,
    )
    model.to(device).train()
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


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def iteration(losses: Losses, optimizer: torch.optim.Optimizer) -> None:
    """One whole training step."""
    total = torch.stack(list(losses().values())).sum()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()


def timed(step: Callable[[], object], device: str) -> tuple[float, float]:
    """Wall seconds and CPU seconds (of all threads) of a call."""
    _wait(device)
    begun, cpu = time.perf_counter(), time.process_time()
    step()
    _wait(device)
    return time.perf_counter() - begun, time.process_time() - cpu


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def peak_memory(args: argparse.Namespace, name: str, depth: int, size: int) -> str:
    """Peak MiB of a process that builds one contestant and trains it for two iterations."""
    command = [sys.executable, "-W", "ignore", __file__, "--alone", name, "--detector", args.detector, "--depth"]
    command += [str(depth), "--size", str(size), "--batch", str(args.batch), "--device", args.device, *args.overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def alone(args: argparse.Namespace) -> None:
    """Two iterations of ``args.alone``; prints the peak in MiB (of the GPU with --device cuda)."""
    cfg = settings(args, args.depth[0], args.size[0])
    samples, _ = batch_of(cfg, args.batch)
    model, losses = contestant(args.alone, cfg, samples)
    optimizer = optimizer_of(model)
    for _ in range(2):
        iteration(losses, optimizer)
    if args.device.startswith("cuda"):
        print(f"{torch.cuda.max_memory_allocated() / 2**20:.0f}")
    else:
        print(f"{_peak_of_this_process():.0f}")


def _peak_of_this_process() -> float:
    """MiB. Linux counts in getrusage's maximum the process that started this one, but not in VmHWM."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS counts bytes


def spread(ratios: list[float]) -> str:
    """Median and quartiles."""
    if len(ratios) < 2:
        return f"{ratios[0]:.3f}"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


def measure(args: argparse.Namespace, depth: int, size: int) -> list[tuple[str, ...]]:
    """Rows: network, size, contestant, median seconds, ratios to Detectron2, fraction of the data path, peak memory."""
    cfg = settings(args, depth, size)
    samples, data_seconds = batch_of(cfg, args.batch)
    entries = {name: contestant(name, cfg, samples) for name in names_of(cfg)}
    optimizers = {name: optimizer_of(model) for name, (model, _) in entries.items()}
    steps: dict[str, Callable[[], object]] = {
        name: partial(iteration, losses, optimizers[name]) for name, (_, losses) in entries.items()
    }
    with recorded(entries[OURS][0]) as calls:
        entries[OURS][1]()
    if args.device == "cpu":
        split(f"R{depth}, {size} px", steps[OURS], [entries[OURS][0].backbone], 3)
    steps[ARITHMETIC] = arithmetic(calls, [])
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for turn in range(args.rounds + WARM_UP):
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            spent = timed(steps[name], args.device)
            if turn >= WARM_UP:
                seconds[name].append(spent)
    rows: list[tuple[str, ...]] = []
    pairs = zip(seconds[ARITHMETIC], seconds[OURS], strict=True)
    part = spread([products[1] / whole[1] for products, whole in pairs])
    say(f"R{depth}, {size} px: convolutions and products alone take {part} of our iteration's CPU time")
    for name, values in seconds.items():
        wall = statistics.median(value for value, _ in values)
        ratios = ["–", "–"]
        if THEIRS in seconds:
            pairs = list(zip(values, seconds[THEIRS], strict=True))
            ratios = [spread([mine[kind] / other[kind] for mine, other in pairs]) for kind in (0, 1)]
        fraction = f"{data_seconds / (data_seconds + wall):.1%}"
        memory = "–" if args.no_memory or name == ARITHMETIC else peak_memory(args, name, depth, size)
        rows.append((f"R{depth}", f"{size}", name, f"{wall:.3f}", *ratios, fraction, memory))
        say(f"R{depth}, {size} px, {name}: {wall:.3f} s an iteration, wall ÷ Detectron2 {ratios[0]}, CPU {ratios[1]}")
    return rows


def main(args: argparse.Namespace) -> None:
    """Measure every depth and size and print one table."""
    if args.alone:
        alone(args)
        return
    rows = [row for depth in args.depth for size in args.size for row in measure(args, depth, size)]
    columns = ("network", "px", "who", "s/iteration", "wall ÷ Detectron2", "CPU ÷ Detectron2", "data, %", "peak MiB")
    what = f"{args.detector}, batch {args.batch}, {args.device}, {torch.get_num_threads()} threads"
    table(f"{what}; ratios: median (quartiles of {args.rounds} rounds)", columns, rows)
    if not importlib.util.find_spec("detectron2"):
        say("Detectron2 is not installed here, so there is no ratio to it")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detector", default="mask_rcnn_fpn_1x", help="a config of configs/transfer (stem)")
    parser.add_argument("--depth", type=int, nargs="+", default=[18, 50])
    parser.add_argument("--size", type=int, nargs="+", default=[128, 256], help="short edge in pixels")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-memory", action="store_true", help="leave out the processes that measure the peak memory")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings, for example smaller RoI batches")
    sys.exit(run_tool(parser, main))
