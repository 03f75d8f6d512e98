"""What virtual processes cost: forwards and training steps with BN in groups beside plain BN.

python benchmarks/norm_groups.py [--model resnet18 resnet50] [--groups 8] [--rounds N] [--device cpu|cuda]

All contestants take turns on the same images; a ratio is the median over rounds of theirs / plain BN's. On the CPU the
clock is CPU time of one thread unless --threads says more.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import nn

from momentum_transfer.backbones.resnet import Architecture, build_backbone
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, table
from momentum_transfer.core.machine import keep_freed_memory
from momentum_transfer.pretrain.norms import Norm, commit_pair, pair_norms

#: architecture -> image side, batch on the CPU, batch on a GPU
SIZES = {"resnet18": (32, 128, 1024), "resnet50": (224, 16, 256)}
NORMS = ("BN", "MomentumBN", "EMAN")


def contestants(name: str, groups: int, device: torch.device) -> dict[str, nn.Module]:
    """Networks by norm and number of virtual processes; plain BN first."""
    architecture = Architecture(name)
    made = {}
    for norm in NORMS:
        for count in (1, groups):
            label = norm if count == 1 else f"{norm} in {count} groups"
            made[label] = build_backbone(architecture, Norm(norm, groups=count)).to(device)
    return made


def seconds(
    networks: dict[str, nn.Module], run: Callable[[nn.Module], None], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of each contestant in every round after the first."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in networks}
    for number in range(rounds + 1):
        for name, network in networks.items():
            begun = clock()
            run(network)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number:
                times[name].append(clock() - begun)
    return times


def report(title: str, times: dict[str, list[float]]) -> None:
    plain = times["BN"]
    rows = []
    for name, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, plain, strict=True))
        rows.append((name, f"{1000 * statistics.median(values):.1f}", f"{ratio:.3f}"))
    table(title, ("", "ms", "x plain BN"), rows)


def measure(name: str, args: argparse.Namespace, device: torch.device) -> None:
    side, cpu_batch, gpu_batch = SIZES[name]
    batch = gpu_batch if device.type == "cuda" else cpu_batch
    if batch % args.groups:
        raise InputError(f"expected --groups that divide a batch of {batch}, found {args.groups}; take a divisor")
    images = torch.randn(batch, 3, side, side, device=device)
    networks = contestants(name, args.groups, device)

    @torch.no_grad()
    def forward(network: nn.Module) -> None:
        network(images)
        commit_pair(pair_norms(network))

    def step(network: nn.Module) -> None:
        network.zero_grad()
        network(images).square().mean().backward()

    report(f"{name}, {batch} images of {side} px: forward", seconds(networks, forward, args.rounds, device))
    trained = {label: network for label, network in networks.items() if label.startswith("BN")}
    report(f"{name}: forward and backward", seconds(trained, step, args.rounds, device))


def main(args: argparse.Namespace) -> None:
    device = torch.device(args.device)
    torch.set_num_threads(args.threads)
    if device.type == "cpu":
        keep_freed_memory()
    say(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {device}")
    for name in args.model:
        measure(name, args, device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--groups", type=int, default=8, help="virtual processes")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    sys.exit(run_tool(parser, main))
