"""The low-shot SVM at ImageNet's size: all classes and costs fitted on the device, and scored on the CPU's threads."""

import argparse
import sys
import time

import torch

from benchmarks.svm import COSTS, synthetic
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.log import table
from momentum_transfer.lowshot.svm.lowshot_svm import evaluate
from momentum_transfer.lowshot.svm.solvers import fit_batched, signed_targets


def main(args: argparse.Namespace) -> None:
    """One row for each number of shots."""
    device = choose_device("cpu" if args.tiny else "cuda")
    torch.set_num_threads(torch.get_num_threads() if args.tiny else max(torch.get_num_threads(), 8))
    classes, dim, images = (5, 32, 100) if args.tiny else (1000, 2048, 50_000)
    test, labels = synthetic(classes, images // classes, dim, seed=2)
    rows = []
    for shots in (1, 4, 16):
        features, own = synthetic(classes, shots, dim, seed=1)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        found = fit_batched(features, signed_targets(own, classes), COSTS, device=device)
        fitted = time.perf_counter() - begun
        top1 = evaluate(found, test, labels, ("top1",))["top1"].max()
        whole = time.perf_counter() - begun
        gib = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
        rows.append((f"{classes} x {shots}", f"{fitted:.1f}", f"{whole:.1f}", f"{gib:.1f}", f"{100 * top1:.2f}"))
    columns = ("classes x images", "fit s", "with scores s", "device GiB", "best top-1")
    table(f"SVM of {len(COSTS)} costs on {dim} features, {images} test images", columns, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    sys.exit(run_tool(parser, main))
