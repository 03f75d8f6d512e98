"""Feature extraction as shipped (channels-last, bf16 autocast) beside eager float32.

python benchmarks/features.py [--arch resnet50] [--image-size 224] [--batch 32] [--batches 3]

One core, one run, in CPU seconds (wall seconds on a GPU), the same images in memory; reading and decoding
are not part of it.
"""

import argparse
import os
import sys
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from momentum_transfer.backbones.resnet import DEPTHS, Architecture, build_resnet
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.log import say, table
from momentum_transfer.lowshot.features.extract import StageFeatures, compute

#: CPU seconds of this process, which other processes on a busy machine do not lengthen.
clock = time.perf_counter if choose_device().type == "cuda" else time.process_time


def main(args: argparse.Namespace) -> None:
    """Measure in turns, so that a busy machine slows all alike, and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    where = choose_device()
    plain = build_resnet(Architecture(args.arch)).eval().to(where)
    shipped = StageFeatures(build_resnet(Architecture(args.arch))).to(where)
    shipped.to(memory_format=torch.channels_last)
    shipped.backbone.load_state_dict(plain.state_dict())
    images = torch.randn(args.batch, 3, args.image_size, args.image_size)

    @torch.no_grad()
    def eager() -> torch.Tensor:
        features: torch.Tensor = plain(images.to(where)).cpu()
        return features

    ways = {
        "eager float32": eager,
        "channels-last, float32": lambda: compute(shipped, images, "fp32", where).cpu(),
        "channels-last, bf16 (as shipped)": lambda: compute(shipped, images, "bf16", where).cpu(),
    }
    best = dict.fromkeys(ways, float("inf"))
    outputs = {}
    for _ in range(args.batches + 1):
        for name, way in ways.items():
            began = clock()
            outputs[name] = way()
            best[name] = min(best[name], clock() - began)
    reference = outputs["eager float32"]
    rows = [
        (
            name,
            f"{args.batch / seconds:.1f}",
            f"{best['eager float32'] / seconds:.2f}",
            f"{torch.cosine_similarity(outputs[name], reference).min():.5f}",
        )
        for name, seconds in best.items()
    ]
    table(
        f"{args.arch}, {args.image_size} px, {where.type}",
        ("", "images/s", "ratio", "smallest cosine to float32"),
        rows,
    )
    say(f"the best of {args.batches + 1} batches of {args.batch}, taken in turns")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=sorted(DEPTHS), default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=3)
    sys.exit(run_tool(parser, main))
