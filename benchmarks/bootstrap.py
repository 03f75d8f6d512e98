"""Bootstrap of the difference of two detectors' COCO AP beside hotcoco's: the same files, one core, one run.

python benchmarks/bootstrap.py [--images 5000] [--resamples 1000] [--rival-resamples 20]

Both resample the images of one ground truth for two result files. Time is CPU seconds of one core for the resampling
alone, for both sides together: files are read and matched before. The rival runs fewer resamples and its time is scaled
to the same number. Peak memory is that of the whole process; ours keeps the arrays of the items files only, as the
report does. hotcoco is in the extra ``benchmark``.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from benchmarks.evaluators.synthetic import write
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table

SIDES = ("first", "second")


def prepare(folder: Path, images: int) -> None:
    """Ground truth and two result files, the second without every tenth detection; their items files."""
    from momentum_transfer.transfer.scores import coco

    write(folder, images, 80, 100, segm=False, federated=False)
    first = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for name, results in zip(SIDES, (first, [entry for n, entry in enumerate(first) if n % 10]), strict=True):
        (folder / f"{name}.json").write_text(json.dumps(results), encoding="utf-8")
        found = coco.evaluate(folder / "ground_truth.json", results)
        np.savez_compressed(folder / f"{name}.npz", **found.items.arrays())  # type: ignore[arg-type]  # as in core/records.py


def ours(folder: Path, resamples: int) -> dict[str, Any]:
    """Replicates of both sides from their items files."""
    from momentum_transfer.verdicts.average_precision import replicates
    from momentum_transfer.verdicts.outcomes import item_weights
    from momentum_transfer.verdicts.ranked import Ranked

    began = time.process_time()
    sides = []
    for name in SIDES:
        with np.load(folder / f"{name}.npz") as archive:
            sides.append(Ranked.from_arrays(dict(archive)))
    weights = item_weights(sides[0].images, resamples)
    first, second = (replicates(side, weights)["AP"] for side in sides)
    return {"seconds": time.process_time() - began, "std": float((first - second).std(ddof=1))}


def hotcoco(folder: Path, resamples: int) -> dict[str, Any]:
    """hotcoco.compare, less what it takes without resampling."""
    import hotcoco as module

    index = module.COCO(str(folder / "ground_truth.json"))
    sides = [module.COCOeval(index, index.load_res(str(folder / f"{name}.json")), "bbox") for name in SIDES]
    for side in sides:
        side.evaluate()
    began = time.process_time()
    module.compare(*sides, n_bootstrap=0)
    between = time.process_time()
    found = module.compare(*sides, n_bootstrap=resamples)
    ended = time.process_time()
    return {"seconds": (ended - between) - (between - began), "std": 100 * found["ci"]["AP"]["std_err"]}


CONTENDERS = {"ours": ours, "hotcoco": hotcoco}


def contend(name: str, folder: Path, resamples: int) -> None:
    """One contender, in this process: print its figures as JSON."""
    found = CONTENDERS[name](folder, resamples)
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found, default=str))


def main(args: argparse.Namespace) -> None:
    """Run both on one core, and say how they compare."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if args.contend:
        contend(args.contend, Path(args.folder), args.resamples)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, args.images)
        size = sum((folder / f"{side}.npz").stat().st_size for side in SIDES) / 2e6
        rows, seconds = [], {}
        for contender, resamples in (("ours", args.resamples), ("hotcoco", args.rival_resamples)):
            words = ["--contend", contender, "--folder", name, "--resamples", str(resamples)]
            done = subprocess.run(
                [sys.executable, __file__, *words], capture_output=True, text=True, check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"},
            )  # fmt: skip
            if done.returncode:
                rows.append([contender, str(resamples), "", "", "", done.stderr.strip().splitlines()[-1][:60]])
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            seconds[contender] = found["seconds"] * args.resamples / resamples
            ratio = seconds[contender] / seconds["ours"]
            rows.append(
                [contender, str(resamples), f"{seconds[contender]:.1f}", f"{ratio:.1f}", f"{found['peak']:.0f}",
                 f"{found['std']:.3f}"]
            )  # fmt: skip
        scaled = f"CPU s for {args.resamples}, both sides"
        heads = ["", "resamples run", scaled, "times ours", "peak MiB", "std of the AP difference"]
        table(f"bootstrap of COCO box AP, {args.images} images x 80 classes x 100 detections", heads, rows)
        say(f"an items file of one side takes {size:.2f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--rival-resamples", type=int, default=20, help="its time is scaled from these")
    parser.add_argument("--contend", choices=tuple(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    sys.exit(run_tool(parser, main))
