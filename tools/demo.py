"""See within a minute what this does: pretrain a backbone on embedded digits, and measure it.

    python tools/demo.py [--output outputs/demo] [--steps 400]

A small ResNet learns from handwritten digits without labels by Momentum² Teacher; then linear classifiers on 4 labelled
images a digit measure its features, beside those of the same network at random and of the raw pixels. It runs the
commands that you would type, and prints each. The whole chain, detectors too, is the quickstart.
"""

import argparse
import os
import runpy
import sys
import time
from pathlib import Path
from statistics import mean
from unittest import mock

HERE = Path(__file__).resolve().parent
if not __package__:  # python tools/NAME.py
    sys.path[0] = str(HERE.parent)

from momentum_transfer.core import records
from momentum_transfer.core.command import Stopped, run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.core.shipped import typed

SHOTS = 4
#: A network and batches small enough for a minute, instead of the quickstart's.
SMALL = ("MODEL.WIDTH", "16")
SHORT = ("SOLVER.BATCH_SIZE", "32", "SOLVER.WARMUP_EPOCHS", "0.3")


def commands(output: Path, steps: int) -> list[list[str]]:
    """The tools with their arguments, in order; each resumes by itself."""
    results = output / "results.jsonl"
    learned, random = str(output / "momentum2_digits"), str(output / "random_digits")
    chain = [
        ["pretrain", "--config", "smoke/momentum2_digits", "--resume", "OUTPUT_DIR", learned, *SMALL, *SHORT,
         "SOLVER.STEPS", str(steps)],
        ["pretrain", "--config", "smoke/random_digits", "--resume", "OUTPUT_DIR", random, *SMALL],
    ]  # fmt: skip
    chain += [
        ["lowshot", "svm", "--config", "smoke/lowshot_digits", "--weights", weights, "--results", str(results),
         "SVM.SHOTS", f"({SHOTS},)"]
        for weights in (learned, random, "pixels")
    ]  # fmt: skip
    return [*chain, ["report", str(results), "--runs", learned, random, "--out", str(output / "report.html")]]


def main(args: argparse.Namespace) -> None:
    """Run the commands in this process, so that torch is imported once; then print the numbers."""
    if args.steps < 1:
        raise InputError(f"expected --steps of at least 1, found {args.steps}")
    output, begun = Path(args.output), time.monotonic()
    chain = commands(output, args.steps)
    for number, (name, *arguments) in enumerate(chain, start=1):
        say(f"[{number}/{len(chain)}] $ {typed([f'tools/{name}.py', *arguments])}")
        _run(name, arguments)
        say()
    scores = accuracies(output / "results.jsonl")
    for name, score in scores.items():
        say(f"{score:5.1f} %  {name}")
    say(f"of held-out digits recognised from {SHOTS} labelled images each: the pretrained backbone is "
        f"{scores['momentum2_digits'] - scores['random_digits']:+.1f} points from random, "
        f"{scores['momentum2_digits'] - scores['pixels']:+.1f} from raw pixels")  # fmt: skip
    say(f"page: {(output / 'report.html').resolve()} ({time.monotonic() - begun:.0f} s)")


def accuracies(results: Path) -> dict[str, float]:
    """Checkpoint -> top-1 accuracy at ``SHOTS``, mean over trials, in percent."""
    values: dict[str, list[float]] = {}
    for record in records.read(results)[0]:
        if record["task"] == f"svm/k={SHOTS}" and record["metric"] == "top1":
            values.setdefault(record["checkpoint"]["name"], []).append(record["value"])
    return {name: mean(trials) for name, trials in values.items()}


def _run(name: str, arguments: list[str]) -> None:
    """Run a tool in this process, under the command line that it would have."""
    script = str(HERE / f"{name}.py")
    with mock.patch.object(sys, "argv", [os.path.relpath(script), *arguments]):
        try:
            runpy.run_module(f"momentum_transfer.tools.{name}", run_name="__main__")
        except SystemExit as ended:
            if ended.code in (130, 143):
                raise Stopped("stopped; run the same command again to go on", int(ended.code)) from ended
            if ended.code:
                raise InputError(f"{name} ended with exit code {ended.code} (see above)") from ended


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output", default="outputs/demo", help="where everything goes (default: %(default)s)")
    add("--steps", type=int, default=400, help="of pretraining (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
