"""Run the whole chain on embedded data, in minutes on two cores: pretrain, convert, detect, probe, report.

    python tools/quickstart.py [--output outputs/quickstart] [--fresh] [--jobs N] [--dry-run]

It runs the commands that you would type, and prints each: for a Momentum² Teacher backbone, and for the same
architecture at random with calibrated BN statistics. With two cores, two commands run side by side, and their lines
begin with their titles. The same command resumes a killed quickstart.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, silent
from momentum_transfer.core.machine import available_cores
from momentum_transfer.core.run_lock import alone
from momentum_transfer.core.shipped import typed, workplace
from momentum_transfer.suites.chain import Step, run_chain

_BACKBONES = ("momentum2_digits", "random_digits")
_LOWSHOT = "configs/smoke/lowshot_digits.yaml"


def steps(output: Path) -> list[Step]:
    """Every command of the chain, in a possible order with the long ones early. Each resumes by itself."""
    results = ["--results", f"{output}/results.jsonl"]
    chain: list[Step] = []
    for name in _BACKBONES:
        run = f"{output}/{name}"
        weights = f"{run}/backbone.pkl"
        pretrain = ["tools/pretrain.py", "--config", f"configs/smoke/{name}.yaml", "--resume", "OUTPUT_DIR", run]
        convert = ["tools/convert.py", run, weights, "--report", f"{run}/conversion.json"]
        detect = ["tools/transfer.py", "--config", "configs/smoke/mask_rcnn_digits.yaml", "--weights", weights]
        detect += ["--engine", "torchvision", "--resume", *results, "OUTPUT_DIR", f"{run}/mask_rcnn"]
        trained, converted = f"{name}: pretrain", f"{name}: convert to Detectron2 weights"
        chain += [
            Step(trained, pretrain),
            Step(converted, convert, (trained,)),
            Step(f"{name}: fine-tune Mask R-CNN", detect, (converted,)),
            *_probes(name, ["--config", _LOWSHOT, "--weights", run, *results], (trained,)),
        ]
    chain += _probes("raw pixels", ["--config", _LOWSHOT, "--weights", "pixels", *results], ())
    runs = [f"{output}/{name}" for name in _BACKBONES]
    report = ["tools/report.py", f"{output}/results.jsonl", "--runs", *runs, "--out", f"{output}/report.html"]
    return [*chain, Step("report", report, tuple(step.title for step in chain), always=True)]


def _probes(name: str, arguments: list[str], needs: tuple[str, ...]) -> list[Step]:
    nearest = Step(f"{name}: kNN", ["tools/lowshot.py", "knn", *arguments], needs)
    return [nearest, Step(f"{name}: low-shot SVM", ["tools/lowshot.py", "svm", *arguments], (nearest.title,))]


def main(args: argparse.Namespace) -> None:
    if args.jobs < 1:
        raise InputError(f"expected --jobs of at least 1, found {args.jobs}")
    output = Path(os.path.relpath(args.output, workplace()))  # where the steps run
    if args.dry_run:
        for step in steps(output):
            say(typed(step.command))
        return
    os.chdir(workplace())
    if args.fresh and output.exists():
        with alone(output):  # refuses a quickstart that is running
            pass
        shutil.rmtree(output)
    begun = time.monotonic()
    with alone(output), silent():  # the steps speak
        peak = run_chain(steps(output), output / "quickstart.json", args.jobs)
    say(f"quickstart took {time.monotonic() - begun:.0f} s; the largest process held {peak:.2f} GiB")
    say(f"report: {(output / 'report.html').resolve()}  (Markdown beside it; numbers in results.jsonl)")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output", default="outputs/quickstart", help="where everything goes (default: %(default)s)")
    add("--fresh", action="store_true", help="delete the output folder first")
    jobs = min(2, available_cores())
    add("--jobs", type=int, default=jobs, metavar="N", help="steps side by side (here: %(default)s)")
    add("--dry-run", action="store_true", help="print the commands only")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
