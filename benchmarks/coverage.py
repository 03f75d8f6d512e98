"""Do intervals hold? Coverage beside hotcoco's and an unpaired bootstrap, and false alarms of nine measures at once.

python benchmarks/coverage.py [--pairs 400] [--runs 2000]

Pairs of detectors that find every object with the same chance, so that their AP differs by luck alone; an interval of
95 % should hold 0 in 95 % of pairs. Ground truth and both result files are new for every pair: 100 images, either drawn
one by one or as 20 films of 5 frames, on each of which either detector has good or bad luck of its own. Then nine
measures (means over 200 images) whose outcomes correlate by rho: how often any one of them is called different where
none is, and how many are found where all differ by three standard errors, by Holm and by max-t. hotcoco is in the extra
``benchmark``. About ten CPU minutes.
"""

import argparse
import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table
from momentum_transfer.verdicts.comparison import ALPHA, Comparison, ItemEvidence, compare
from momentum_transfer.verdicts.corrections import holm, max_t
from momentum_transfer.verdicts.outcomes import item_weights

IMAGES, FRAMES, CLASSES, PAIR_RESAMPLES = 100, 5, 3, 300
MEASURES, ITEMS, RESAMPLES = 9, 200, 1000


def pair(random: np.random.Generator, films: bool) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Ground truth, and the results of two detectors that are equally good."""
    truth: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": [], "categories": []}
    truth["images"] = [{"id": i + 1, "height": 480, "width": 640} for i in range(IMAGES)]
    truth["categories"] = [{"id": k + 1, "name": str(k)} for k in range(CLASSES)]
    results: list[list[dict[str, Any]]] = [[], []]
    luck = random.normal(0, 1.5, (2, IMAGES // FRAMES)) if films else np.zeros((2, IMAGES))
    for image in range(IMAGES):
        hardness, count = random.normal(), 1 + random.poisson(3)
        boxes = _boxes(random, count)
        labels = random.integers(1, CLASSES + 1, count)
        for box, label in zip(boxes, labels, strict=True):
            entry = {"id": len(truth["annotations"]) + 1, "image_id": image + 1, "category_id": int(label)}
            truth["annotations"].append({**entry, "bbox": box.tolist(), "area": float(box[2] * box[3]), "iscrowd": 0})
        for side, found in enumerate(results):
            skill = 1 + luck[side, image // FRAMES if films else image] - hardness
            seen = random.random(count) < 1 / (1 + np.exp(-skill))
            false = 1 + random.poisson(0.5)
            moved = boxes[seen] + random.normal(0, 0.06, (seen.sum(), 4)) * boxes[seen][:, [2, 3, 2, 3]]
            scores = np.concatenate((random.beta(4, 2, seen.sum()), random.beta(2, 4, false)))
            guesses = np.concatenate((labels[seen], random.integers(1, CLASSES + 1, false)))
            boxes_found = np.concatenate((moved, _boxes(random, false)))
            found += [{"image_id": image + 1, "category_id": int(k), "bbox": box.tolist(), "score": float(score)}
                      for k, box, score in zip(guesses, boxes_found, scores, strict=True)]  # fmt: skip
    return truth, results


def _boxes(random: np.random.Generator, count: int) -> np.ndarray:
    """[count, 4], far enough from the edges that moved ones stay inside."""
    return np.concatenate((random.uniform(40, 280, (count, 2)), random.uniform(40, 160, (count, 2))), axis=1)


def ours(truth: dict[str, Any], results: list[list[dict[str, Any]]], films: bool) -> dict[str, tuple[float, float]]:
    """95 % intervals of the first's AP less the second's: images paired, images apart, whole films paired."""
    from momentum_transfer.transfer.scores import coco
    from momentum_transfer.verdicts.average_precision import replicates

    a, b = (coco.evaluate(truth, side) for side in results)
    values, n, found = [{0: each.metrics["AP"]} for each in (a, b)], PAIR_RESAMPLES, {}
    ways = {"ours": None, **({"ours, films resampled": np.arange(IMAGES) // FRAMES} if films else {})}
    for name, groups in ways.items():
        weights = item_weights(IMAGES, n, groups=groups, blocks=100)
        first, second = (replicates(each.items, weights)["AP"] for each in (a, b))
        clusters = None if groups is None else int(groups.max()) + 1
        evidence = ItemEvidence(IMAGES, first[:n], second[:n], first[n:], second[n:], clusters=clusters)
        change = compare(*values, evidence=evidence)
        found[name] = (change.low or 0.0, change.high or 0.0)
        if groups is None:
            apart = replicates(b.items, item_weights(IMAGES, n, seed=1))["AP"]
            low, high = np.percentile(first[:n] - apart, [2.5, 97.5])
            found["unpaired bootstrap"] = (float(low), float(high))
    return found


def hotcoco(truth: dict[str, Any], results: list[list[dict[str, Any]]], folder: Path) -> dict[str, tuple[float, float]]:
    """hotcoco's interval, turned as ours; {} where it is not installed."""
    with contextlib.suppress(ImportError):
        import hotcoco as module

        (folder / "truth.json").write_text(json.dumps(truth), encoding="utf-8")
        index = module.COCO(str(folder / "truth.json"))
        sides = []
        for place, side in enumerate(results):
            (folder / f"{place}.json").write_text(json.dumps(side), encoding="utf-8")
            sides.append(module.COCOeval(index, index.load_res(str(folder / f"{place}.json")), "bbox"))
            sides[-1].evaluate()
        interval = module.compare(*sides[::-1], n_bootstrap=PAIR_RESAMPLES)["ci"]["AP"]
        return {"hotcoco": (100 * interval["lower"], 100 * interval["upper"])}
    return {}


def coverage(places: range, films: bool, folder: Path) -> dict[str, np.ndarray]:
    """The intervals of every method, [pairs, 2], over new pairs, of which each number is another."""
    found: dict[str, list[tuple[float, float]]] = {}
    for place in places:
        if place % 50 == 0:
            say(f"pair {place} of {len(places)}, {'films' if films else 'images'} drawn")
        truth, results = pair(np.random.default_rng([place, films]), films)
        for name, interval in (ours(truth, results, films) | hotcoco(truth, results, folder)).items():
            found.setdefault(name, []).append(interval)
    return {name: np.array(intervals) for name, intervals in found.items()}


def families(runs: int, rho: float, shift: float) -> dict[str, np.ndarray]:
    """Whether each of nine measures is called different, [runs, 9], by each correction and by none.

    Args:
        shift: true difference of every measure, in standard errors.
    """
    random = np.random.default_rng([runs, int(100 * rho)])
    weights = item_weights(ITEMS, RESAMPLES, blocks=100).astype(np.float64)
    weights /= weights.sum(axis=1, keepdims=True)
    corrections: dict[str, Callable[[list[Comparison]], list[float]]] = {
        "none": lambda found: [one.p or 0.0 for one in found],
        "Holm": lambda found: holm([one.p or 0.0 for one in found]),
        "max-t": max_t,
    }
    called: dict[str, list[np.ndarray]] = {name: [] for name in corrections}
    for _ in range(runs):
        common, own = random.normal(size=(ITEMS, 1)), random.normal(size=(ITEMS, MEASURES))
        outcomes = math.sqrt(rho) * common + math.sqrt(1 - rho) * own + shift / math.sqrt(ITEMS)
        means, zero = weights @ outcomes, np.zeros(len(weights))
        found = [
            compare({0: float(outcomes[:, k].mean())}, {0: 0.0}, evidence=ItemEvidence(
                ITEMS, means[:RESAMPLES, k], zero[:RESAMPLES], means[RESAMPLES:, k], zero[RESAMPLES:]))
            for k in range(MEASURES)
        ]  # fmt: skip
        for name, correct in corrections.items():
            called[name].append(np.array(correct(found)) <= ALPHA)
    return {name: np.array(each) for name, each in called.items()}


def main(args: argparse.Namespace) -> None:
    """Print both tables."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for title, films in (("one by one", False), (f"in films of {FRAMES}", True)):
            for method, ends in coverage(range(args.pairs), films, Path(name)).items():
                held = 100 * ((ends[:, 0] <= 0) & (ends[:, 1] >= 0)).mean()
                width = np.diff(ends, axis=1).mean()
                rows.append([title, method, f"{held:.1f}", f"{100 - held:.1f}", f"{width:.1f}"])
    heads = ["images drawn", "interval", "coverage", "false alarms", "width, points"]
    table(f"{args.pairs} pairs of equal detectors, {IMAGES} images, {PAIR_RESAMPLES} resamples, in %", heads, rows)
    rows = []
    for rho in (0.0, 0.5, 0.9):
        say(f"{2 * args.runs} runs at rho {rho:g}")
        null, real = families(args.runs, rho, 0.0), families(args.runs, rho, 3.0)
        rows.append([f"{rho:g}", *(f"{100 * null[name].any(axis=1).mean():.1f}" for name in null),
                     *(f"{100 * real[name].mean():.1f}" for name in real)])  # fmt: skip
    heads = ["rho", "any alarm: no correction", "Holm", "max-t", "found: no correction", "Holm", "max-t"]
    table(f"{MEASURES} measures of {ITEMS} images, {args.runs} runs, in %", heads, rows)
    say(f"standard errors: {100 * math.sqrt(0.05 * 0.95 / args.pairs):.1f} of a 95 % in the first table, "
        f"{100 * math.sqrt(0.05 * 0.95 / args.runs):.1f} of a 5 % in the second")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--runs", type=int, default=2000)
    sys.exit(run_tool(parser, main))
