"""kNN and retrieval from one search, beside doing them apart, and beside faiss's flat index.

python benchmarks/knn.py [--queries 1000] [--database 60000] [--dim 2048] [--classes 100]

One core, one run, in CPU seconds (wall seconds on a GPU), the same synthetic features. "Apart" is how evaluation
scripts commonly do it: kNN by a product and a top-k for every 100 queries, retrieval by sorting the whole database
for each query and walking its first 1000 places in Python; ``--sample`` times fewer queries and scales. The search
takes features as they are and normalises them; faiss wants them normalised, so it is timed with and without that. It is
used if it is installed (``pip install faiss-cpu``). With a CUDA device the search runs there, at ImageNet's size if
asked: --queries 50000 --database 1281167.
"""

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.log import say, table
from momentum_transfer.core.neighbours import normalized, search
from momentum_transfer.lowshot import knn
from momentum_transfer.lowshot.features.feature_set import FeatureSet

TOP, K = 1000, 20
#: CPU seconds of this process, which other processes on a busy machine do not lengthen.
clock = time.perf_counter if choose_device().type == "cuda" else time.process_time


def synthetic(count: int, dim: int, classes: int, seed: int) -> FeatureSet:
    """Features around class means that do not depend on ``seed``."""
    means = np.random.default_rng(0).standard_normal((classes, dim), dtype=np.float32)
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    features = generator.standard_normal((count, dim), dtype=np.float32)
    features += 0.2 * means[labels]
    return FeatureSet(features, labels, "synthetic", "")


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = clock()
    result = work()
    return clock() - began, result


def together(database: FeatureSet, queries: FeatureSet, precision: str) -> tuple[float, float]:
    """(top1, mAP) in percent, from one search."""
    found = search(database.features, queries.features, TOP, precision=precision, device=choose_device())
    (first,) = knn.knn_scores(found, database, queries, ["eman"])
    return first[0].value, knn.retrieval_scores(found, database, queries, TOP)[0].value


def apart(database: FeatureSet, queries: FeatureSet) -> tuple[float, float]:
    """(top1, mAP) in percent, the plain way."""
    bank, rows = torch.from_numpy(normalized(database.features)), torch.from_numpy(normalized(queries.features))
    labels = torch.from_numpy(database.labels)
    right = 0
    for begin in range(0, len(rows), 100):
        nearest = (rows[begin : begin + 100] @ bank.T).topk(K).indices
        votes = torch.nn.functional.one_hot(labels[nearest], database.num_classes).sum(1)
        right += int((votes.argmax(1).numpy() == queries.labels[begin : begin + 100]).sum())
    precisions = []
    for row, label in zip(rows, queries.labels, strict=True):
        order = torch.argsort(bank @ row, descending=True)[:TOP].tolist()
        hits, total = 0, 0.0
        for place, index in enumerate(order, start=1):
            if database.labels[index] == label:
                hits += 1
                total += hits / place
        precisions.append(total / max(hits, 1))
    return 100 * right / len(rows), 100 * float(np.mean(precisions))


def flat_index(database: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """faiss: build the index and search it; features are normalised beforehand."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(database.shape[1])
    index.add(database)
    found: np.ndarray = index.search(queries, TOP)[1]
    return found


def main(args: argparse.Namespace) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    database = synthetic(args.database, args.dim, args.classes, seed=1)
    queries = synthetic(args.queries, args.dim, args.classes, seed=2)
    rows: list[tuple[str, str, str]] = []
    ours, scores = seconds(lambda: together(database, queries, args.precision))
    rows.append((f"one search ({args.precision}, {choose_device().type}), kNN and retrieval", f"{ours:.1f}", "1.0"))
    alone, found = seconds(
        lambda: search(database.features, queries.features, TOP, precision=args.precision, device=choose_device())
    )
    rows.append(("the search alone", f"{alone:.1f}", f"{alone / ours:.2f}"))
    sample = len(queries) if args.sample is None else min(args.sample, len(queries))
    if sample:
        few = FeatureSet(queries.features[:sample], queries.labels[:sample], "sample", "")
        plain, expected = seconds(lambda: apart(database, few))
        plain *= len(queries) / sample
        rows.append((f"apart (timed on {sample} queries)", f"{plain:.1f}", f"{plain / ours:.1f}"))
        same = together(database, few, args.precision)
        say(f"on the sample: top1 {same[0]:.2f} and {expected[0]:.2f}, mAP {same[1]:.4f} and {expected[1]:.4f}")
    if importlib.util.find_spec("faiss"):
        prepared, (bank, wanted) = seconds(lambda: (normalized(database.features), normalized(queries.features)))
        flat, indices = seconds(lambda: flat_index(bank, wanted))
        agree = np.mean([len(set(a) & set(b)) / TOP for a, b in zip(found.indices, indices, strict=True)])
        for what, its in (
            (f"normalising, then faiss flat ({100 * agree:.3f} % the same)", prepared + flat),
            ("faiss flat without the normalising", flat),
        ):
            rows.append((what, f"{its:.1f}", f"{its / alone:.2f} of the search"))
    else:
        say("faiss is not installed: not compared")
    say(f"{args.queries} queries, database {args.database} × {args.dim}: top1 {scores[0]:.2f}, mAP {scores[1]:.2f}")
    table("top 1000 neighbours", ("", "seconds", "ratio"), rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--database", type=int, default=60000)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--sample", type=int, help="queries of the plain way (default: all); 0 leaves it out")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    sys.exit(run_tool(parser, main))
