"""Whole pretraining runs of ResNet-50 at 224 px on JPEG files: images a second, MFU, and the fraction spent waiting.

MFU is the fraction of the card's dense bf16 (or fp16) peak that the networks' own multiply-adds make up: two teacher
forwards, two student forwards and their backward passes of twice a forward each, heads left out. Where the card's peak
is not listed, a large matrix product is timed in its place and the line says so.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.data import write_images
from benchmarks.pretrain import forward_flops
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, table
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.train import train

#: Dense bf16 TFLOP/s by the makers' data sheets; the first name that the device's contains.
PEAKS = {"H200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "A10": 125.0}
VARIANTS: dict[str, dict[str, object]] = {
    "bf16, channels last": {"RUN.PRECISION": "bf16"},
    "bf16, channels last, compiled": {"RUN.PRECISION": "bf16", "RUN.COMPILE": True},
    "fp16, channels last": {"RUN.PRECISION": "fp16"},
}


def peak_of(device: torch.device) -> tuple[float, str]:
    """Floating-point operations a second, and where the figure comes from."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    for known, teraflops in PEAKS.items():
        if known in name:
            return 1e12 * teraflops, f"{known}'s data sheet"
    side = 8192 if device.type == "cuda" else 256
    one = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    times = []
    for _ in range(8):
        begun = time.perf_counter()
        one @ one
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return 2 * side**3 / min(times), f"a product of {side} x {side} matrices"


def run_one(folder: Path, data: Path, changes: dict[str, object], tiny: bool) -> list[dict[str, float]]:
    """Train; the lines of metrics.jsonl but the first, which warms up."""
    steps, batch = (4, 8) if tiny else (36, 512)
    settings: dict[str, object] = {
        "OUTPUT_DIR": folder, "DATA.NAME": "imagefolder", "DATA.ROOT": data, "DATA.VIEWS_ON": "device",
        "DATA.IMAGE_SIZE": 64 if tiny else 224, "MODEL.ARCH": "resnet10" if tiny else "resnet50",
        "MODEL.WIDTH": 8 if tiny else 64, "SOLVER.BATCH_SIZE": batch, "SOLVER.STEPS": steps,
        "SOLVER.WARMUP_EPOCHS": 0.0,
        "RUN.LOG_EVERY": 1 if tiny else 4, "RUN.CHANNELS_LAST": True, "RUN.CHECKPOINT_EVERY": 10**6,
        "RUN.DEVICE": "cpu" if tiny else "cuda", **changes,
    }  # fmt: skip
    train(load_config(get_cfg(), None, [str(word) for pair in settings.items() for word in pair]))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "seconds" in line][len(lines) // 3 :]


def main(args: argparse.Namespace) -> None:
    """One row for each variant."""
    device = torch.device("cpu" if args.tiny else "cuda")
    size, batch = (64, 8) if args.tiny else (224, 512)
    flops = 8 * forward_flops(Architecture("resnet10", 8) if args.tiny else Architecture("resnet50"), size)
    peak, source = peak_of(device)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        write_images(_class_folder(Path(temporary)), 16 if args.tiny else 1024)
        for name, changes in VARIANTS.items():
            if args.tiny and changes.get("RUN.COMPILE"):
                continue  # the compiler takes minutes of a CPU
            try:
                lines = run_one(Path(temporary) / name.replace(" ", "_"), Path(temporary), changes, args.tiny)
            except InputError as error:
                say(f"{name}: {error}")
                continue
            seconds = statistics.median(line["seconds"] for line in lines)
            waiting = statistics.median(line["data_seconds"] / line["seconds"] for line in lines)
            memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
            rate = batch / seconds
            rows.append((name, f"{rate:.0f}", f"{flops * rate / peak:.1%}", f"{waiting:.1%}", f"{memory:.1f}"))
    heading = f"pretraining at {size} px, batch {batch}; MFU against {source}, {peak / 1e12:.0f} TFLOP/s"
    table(heading, ("", "images/s", "MFU", "waiting", "peak GiB"), rows)


def _class_folder(root: Path) -> Path:
    folder = root / "train" / "generated"
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    sys.exit(run_tool(parser, main))
