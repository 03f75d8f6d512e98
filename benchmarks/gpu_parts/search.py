"""kNN and retrieval from one search at ImageNet's size on the device: seconds and memory, float32 and bf16."""

import argparse
import resource
import sys
import time

import numpy as np
import torch

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.log import table
from momentum_transfer.core.neighbours import search
from momentum_transfer.lowshot import knn
from momentum_transfer.lowshot.features.feature_set import FeatureSet

TOP = 1000


def features_of(count: int, dim: int, classes: int, seed: int, device: torch.device) -> FeatureSet:
    """Features around class means that do not depend on ``seed``, sampled on the device."""
    means = torch.randn(classes, dim, generator=torch.Generator(device).manual_seed(0), device=device)
    generator = torch.Generator(device).manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator, device=device)
    found = np.empty((count, dim), dtype=np.float32)
    for start in range(0, count, 1 << 16):
        mine = labels[start : start + (1 << 16)]
        noise = torch.randn(len(mine), dim, generator=generator, device=device)
        found[start : start + len(mine)] = (noise + 0.2 * means[mine]).cpu().numpy()
    return FeatureSet(found, labels.cpu().numpy(), "sampled", "")


def main(args: argparse.Namespace) -> None:
    """One row for each precision."""
    device = choose_device("cpu" if args.tiny else "cuda")
    queries, size, dim, classes = (50, 2000, 32, 10) if args.tiny else (50_000, 1_281_167, 2048, 1000)
    database, asked = (features_of(count, dim, classes, seed, device) for seed, count in ((1, size), (2, queries)))
    rows = []
    for precision in ("fp32", "bf16"):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        found = search(database.features, asked.features, min(TOP, size), precision=precision, device=device)
        searched = time.perf_counter() - begun
        (top1,) = knn.knn_scores(found, database, asked, ["eman"])
        precision_of = knn.retrieval_scores(found, database, asked, TOP)[0].value
        whole = time.perf_counter() - begun
        gib = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        scores = (f"{top1[0].value:.2f}", f"{precision_of:.2f}")
        rows.append((precision, f"{searched:.1f}", f"{whole:.1f}", f"{gib:.1f}", f"{host:.1f}", *scores))
    columns = ("", "search s", "with scores s", "device GiB", "host GiB", "kNN", "mAP")
    table(f"{queries} queries, database {size} x {dim}, top {TOP}", columns, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    sys.exit(run_tool(parser, main))
