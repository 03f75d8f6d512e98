"""Scores beside the public evaluators: the same files, one core, one run.

python benchmarks/scores.py boxes|masks|lvis|lvis-val|coco-20k|all [--images N] [--repeats 3] [--without NAME …]
    [--keep FOLDER]

Time is what a user waits for: reading both files + evaluating = total, in CPU seconds of one core (imports excluded),
the least of ``--repeats`` runs in turn; the references, which take minutes, run once. Peak memory is that of the whole
process. The difference is the largest one from the reference's precision and recall tables; without a reference from
ours; of an evaluator that gives no tables, from our summary. Masks are scored once more without numba as
``ours-numpy`` (ours counts the import of it). The rivals and numba are the extra ``benchmark``:
pip install "momentum-transfer[benchmark]".
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table

HERE = Path(__file__).resolve().parent / "evaluators"
COCO = ("ours", "hotcoco", "ultrafast-pycocotools", "vernier", "faster-coco-eval", "pycocotools")
MASKS = ("ours", "ours-numpy", *COCO[1:])
LVIS = ("ours", "hotcoco", "ultrafast-pycocotools", "vernier", "lvis-api")
REFERENCES = ("pycocotools", "lvis-api")
DISTRIBUTIONS = {"ours": "numpy", "ours-numpy": "numba", "lvis-api": "lvis"}  # where it is not the evaluator's own name


@dataclass(frozen=True)
class Workload:
    """Synthetic files, and who reads them."""

    images: int
    classes: int
    detections: int  # an image
    evaluators: tuple[str, ...]
    segm: bool = False
    federated: bool = False


WORKLOADS = {
    "boxes": Workload(5000, 80, 100, COCO),
    "masks": Workload(5000, 80, 100, MASKS, segm=True),
    "lvis": Workload(1000, 1203, 300, LVIS, federated=True),
    # As large as LVIS's validation set. The references take hours and tens of GiB there.
    "lvis-val": Workload(20000, 1203, 300, LVIS[:-1], federated=True),
    "coco-20k": Workload(20000, 80, 300, COCO[:3]),
}


def measure(workload: Workload, name: str, folder: Path) -> dict[str, Any]:
    """Seconds and MiB of one run, or what it died of."""
    files = [str(folder / file) for file in ("ground_truth.json", "results.json", f"{name}.npz")]
    command = [sys.executable, str(HERE / "contend.py"), name, *files]
    command += ["--iou-type", "segm"] * workload.segm + ["--federated"] * workload.federated
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    done = subprocess.run(command, env=os.environ | threads, text=True, capture_output=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compete(title: str, workload: Workload, repeats: int, without: list[str], folder: Path) -> None:
    """Run all evaluators of a workload on the same files and print them side by side."""
    sizes = [str(size) for size in (workload.images, workload.classes, workload.detections)]
    options = ["--segm"] * workload.segm + ["--federated"] * workload.federated
    if not (folder / "ground_truth.json").exists():  # it is written last
        subprocess.run([sys.executable, str(HERE / "synthetic.py"), str(folder), *sizes, *options], check=True)
    chosen = [name for name in workload.evaluators if name not in without]
    present = [name for name in chosen if _installed(DISTRIBUTIONS.get(name, name))]
    best: dict[str, dict[str, Any]] = {}
    for turn in range(repeats):
        for name in present:
            if turn and name in REFERENCES:
                continue
            found = measure(workload, name, folder)
            old = best.get(name)
            if old is None or "failed" in found or _total(found) < _total(old):
                best[name] = found
    heading = (
        f"{title}: {workload.images} images, {workload.classes} classes, {workload.detections} detections an image"
    )
    columns = ("", "load s", "evaluate s", "total s", "ours ÷ it", "peak MiB", "ours ÷ it", "largest difference")
    table(heading, columns, [_row(name, best, folder) for name in present])
    for missing in sorted(set(chosen) - set(present)):
        say(f"{missing} is not installed and did not take part")


def _installed(distribution: str) -> bool:
    try:
        return bool(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return False


def _total(figures: dict[str, Any]) -> float:
    return float("inf") if "failed" in figures else figures["load"] + figures["evaluate"]


def _row(name: str, best: dict[str, dict[str, Any]], folder: Path) -> tuple[str, ...]:
    own, mine = best[name], best["ours"]
    if "failed" in own:
        return (name, *[""] * 6, own["failed"][:60])
    return (
        f"{name} {own['version']}".strip(), f"{own['load']:.2f}", f"{own['evaluate']:.2f}", f"{_total(own):.2f}",
        f"{_total(mine) / _total(own):.2f}", f"{own['peak']:.0f}", f"{mine['peak'] / own['peak']:.2f}",
        _difference(name, best, folder),
    )  # fmt: skip


def _difference(name: str, best: dict[str, dict[str, Any]], folder: Path) -> str:
    against = next((reference for reference in REFERENCES if "load" in best.get(reference, {})), "ours")
    with np.load(folder / f"{name}.npz") as tables, np.load(folder / f"{against}.npz") as reference:
        if "precision" not in tables:
            return _summary_difference(tables["percent"], folder)
        largest = max(
            float(np.abs(tables[key].reshape(reference[key].shape) - reference[key]).max())
            for key in ("precision", "recall")
        )
    return f"{largest:.1e}" if largest else "0"


def _summary_difference(percent: np.ndarray, folder: Path) -> str:
    with np.load(folder / "ours.npz") as ours:
        count = min(len(percent), len(ours["percent"]))
        largest = float(np.nanmax(np.abs(percent[:count] - ours["percent"][:count]))) / 100
    return f"{largest:.1e} of {count} numbers" if largest else f"0 of {count} numbers"


def main(args: argparse.Namespace) -> None:
    """Pin this process and its children to one core; run what was asked."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in ("boxes", "masks", "lvis") if args.workload == "all" else (args.workload,):
        workload = WORKLOADS[name]
        if args.images:
            workload = Workload(**{**vars(workload), "images": args.images})
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if args.keep is None else args.keep / name
            folder.mkdir(parents=True, exist_ok=True)
            compete(name, workload, args.repeats, args.without, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=(*WORKLOADS, "all"), help="all: boxes, masks and lvis")
    parser.add_argument("--images", type=int, help="instead of the workload's own number")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the fastest counts")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="evaluators that are left out")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files there, or use those that are")
    sys.exit(run_tool(parser, main))
