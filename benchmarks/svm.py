"""Low-shot SVM: the batched solver beside one LinearSVC per class, and scoring beside one product per classifier.

python benchmarks/svm.py [--shapes 100x16 1000x4 1000x16] [--dim 2048] [--device cpu]

One core, one run, in CPU seconds, the same synthetic features (class means with noise, ReLU, L2-normalised), 11
costs. The batched solver fits ``--batched`` of the classes and liblinear ``--reference`` of them; times are given per
class, with the solver's preparation, done once, divided by all classes. With --device cuda the batched
solver runs there, in wall seconds.
"""

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
from sklearn.svm import LinearSVC

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table
from momentum_transfer.core.neighbours import normalized
from momentum_transfer.lowshot.svm.lowshot_svm import evaluate
from momentum_transfer.lowshot.svm.solvers import (
    LinearClassifiers,
    fit_batched,
    fit_liblinear,
    shared_basis,
    signed_targets,
)

COSTS = [2.0**power for power in range(-5, 6)]


def seconds(device: str) -> float:
    """CPU seconds of this process, which other processes on a busy machine do not lengthen; wall seconds on a GPU."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def synthetic(classes: int, each: int, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features [classes · each, dim] around class means that do not depend on ``seed``, and their labels."""
    means = np.random.default_rng(0).standard_normal((classes, dim), dtype=np.float32)
    labels = np.repeat(np.arange(classes), each)
    noise = np.random.default_rng(seed).standard_normal((len(labels), dim), dtype=np.float32)
    return normalized(np.maximum(0.6 * means[labels] + noise + 0.3, 0) ** 1.5), labels


def objectives(classifiers: LinearClassifiers, features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The minimised quantity [costs, classes] of targets ±1, in float64."""
    values = []
    for cost, weights, biases in zip(COSTS, classifiers.weights, classifiers.biases, strict=True):
        hinge = np.maximum(0.0, 1.0 - targets * (features.astype(np.float64) @ weights.T + biases))
        penalty = (weights.astype(np.float64) ** 2).sum(axis=1) + biases.astype(np.float64) ** 2
        values.append(0.5 * penalty + cost * (hinge**2).sum(axis=0))
    return np.array(values)


def fitting(classes: int, shots: int, dim: int, batched: int, reference: int, device: str) -> tuple[object, ...]:
    """One row of the table of fits."""
    clock = partial(seconds, device)
    features, labels = synthetic(classes, shots, dim, seed=1)
    targets = signed_targets(labels, classes)
    began = clock()
    shared_basis(features, torch.float32, device)
    once = clock() - began
    batched = min(batched, classes)
    began = clock()
    found = fit_batched(features, targets[:, :batched], COSTS, device=device)
    ours = (clock() - began - once) / batched + once / classes
    began = clock()
    expected = fit_liblinear(features, targets[:, :reference], COSTS)
    reference_seconds = (clock() - began) / reference
    part = LinearClassifiers(found.weights[:, :reference], found.biases[:, :reference])
    worst = np.max(
        objectives(part, features, targets[:, :reference]) / objectives(expected, features, targets[:, :reference])
    )
    return (
        f"{classes} × {shots} × {dim}",
        f"{1000 * ours:.1f}",
        f"{1000 * reference_seconds:.0f}",
        f"{reference_seconds / ours:.1f}",
        f"{worst - 1:.1e}",
    )


def scoring(classes: int, dim: int, images: int) -> tuple[object, ...]:
    """One row: all costs and classes by matrix products, against LinearSVC.decision_function for each of them."""
    features, labels = synthetic(classes, max(1, images // classes), dim, seed=2)
    generator = np.random.default_rng(3)
    classifiers = LinearClassifiers(
        generator.standard_normal((len(COSTS), classes, dim)), generator.standard_normal((len(COSTS), classes))
    )
    clock = time.process_time
    began = clock()
    evaluate(classifiers, features, labels, ("top1", "top5"))
    ours = clock() - began
    rows, sample = features.astype(np.float64), 20
    machine = LinearSVC().fit(rows[[0, -1]], [0, 1])  # its weights are replaced below
    began = clock()
    for label in range(sample):
        machine.coef_[0], machine.intercept_[0] = classifiers.weights[0, label], classifiers.biases[0, label]
        machine.decision_function(rows)
    reference_seconds = (clock() - began) / sample * classes * len(COSTS)
    return (
        f"{len(features)} images × {classes} classes × {len(COSTS)} costs",
        f"{ours:.2f}",
        f"{reference_seconds:.1f}",
        f"{reference_seconds / ours:.1f}",
    )


def main(args: argparse.Namespace) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    rows: list[tuple[object, ...]] = []
    for shape in args.shapes:
        classes, shots = map(int, shape.split("x"))
        rows.append(fitting(classes, shots, args.dim, args.batched, args.reference, args.device))
        say(f"{rows[-1][0]}: {rows[-1][3]}×")
    columns = ("classes × k × D", "batched, ms a class", "LinearSVC, ms a class", "ratio", "objective: worst − 1")
    table(f"SVM fit, 11 costs, {'one core' if args.device == 'cpu' else args.device}", columns, rows)
    say(f"measured on at most {args.batched} (batched) and {args.reference} (LinearSVC) of the classes")
    headings = ("scoring", "one product, s", "decision_function each, s", "ratio")
    table("SVM scoring, one core", headings, [scoring(args.score_classes, args.dim, args.score_images)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["100x16", "1000x4", "1000x16"], metavar="CLASSESxSHOTS")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--batched", type=int, default=128, help="classes that the batched solver fits")
    parser.add_argument("--reference", type=int, default=2, help="classes that LinearSVC fits")
    parser.add_argument("--device", default="cpu", help="of the batched solver: cpu or cuda")
    parser.add_argument("--score-images", type=int, default=4000)
    parser.add_argument("--score-classes", type=int, default=200)
    sys.exit(run_tool(parser, main))
