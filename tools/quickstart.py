"""The whole chain on embedded data: pretrain, convert, detect, probe, report; in minutes on two cores.

    python tools/quickstart.py [--output outputs/quickstart] [--fresh] [--dry-run]

It runs the commands that you would type, and prints each: for a Momentum² Teacher backbone, and for the same
architecture at random initialisation with calibrated BN statistics. A killed quickstart goes on where it was.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.console import Stopped, run_tool, say
from momentum_transfer.errors import InputError
from momentum_transfer.files import sha256_of_text, write_text
from momentum_transfer.shipped import started, typed, workplace

BACKBONES = ("momentum2_digits", "random_digits")
LOWSHOT = "configs/smoke/lowshot_digits.yaml"


def steps(output: Path) -> list[tuple[str, list[str]]]:
    """(title, arguments) of every command of the chain, in order; each resumes by itself."""
    results = ["--results", f"{output}/results.jsonl"]
    chain: list[tuple[str, list[str]]] = []
    for name in BACKBONES:
        run = f"{output}/{name}"
        weights = f"{run}/backbone.pkl"
        probe = ["--config", LOWSHOT, "--weights", run, *results]
        chain += [
            (
                f"{name}: pretrain",
                ["tools/pretrain.py", "--config", f"configs/smoke/{name}.yaml", "--resume", "OUTPUT_DIR", run],
            ),
            (
                f"{name}: convert to Detectron2 weights",
                ["tools/convert.py", run, weights, "--report", f"{run}/conversion.json"],
            ),
            (f"{name}: kNN", ["tools/lowshot.py", "knn", *probe]),
            (f"{name}: low-shot SVM", ["tools/lowshot.py", "svm", *probe]),
            (
                f"{name}: fine-tune Mask R-CNN",
                [
                    *("tools/transfer.py", "--config", "configs/smoke/mask_rcnn_digits.yaml", "--weights", weights),
                    *("--engine", "torchvision", "--resume", *results, "OUTPUT_DIR", f"{run}/mask_rcnn"),
                ],
            ),
        ]
    pixels = ["--config", LOWSHOT, "--weights", "pixels", *results]
    chain += [
        ("raw pixels: kNN", ["tools/lowshot.py", "knn", *pixels]),
        ("raw pixels: low-shot SVM", ["tools/lowshot.py", "svm", *pixels]),
    ]
    runs = [f"{output}/{name}" for name in BACKBONES]
    chain.append(
        (
            "report",
            ["tools/report.py", f"{output}/results.jsonl", "--runs", *runs, "--out", f"{output}/report.html"],
        )
    )
    return chain


def run_chain(output: Path) -> None:
    """Run what is not yet done; remember each finished step, so that a second call goes on."""
    memory = output / "quickstart.json"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the running step too, see _run
    finished = _finished(memory)
    begun = time.monotonic()
    chain = steps(output)
    for number, (title, command) in enumerate(chain, start=1):
        key = sha256_of_text(json.dumps(command))[:12]
        if key in finished and title != "report":
            say(f"[{number}/{len(chain)}] {title}: done before")
            continue
        say(f"[{number}/{len(chain)}] {title}\n  $ {typed(command)}")
        began = time.monotonic()
        _run(command, title)
        finished[key] = round(time.monotonic() - began, 1)
        write_text(memory, json.dumps(finished, indent=1))
        say(f"  {finished[key]} s\n")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (2**20 if sys.platform != "darwin" else 2**30)
    say(f"quickstart took {time.monotonic() - begun:.0f} s; the largest process held {peak:.2f} GiB")
    say(f"report: {(output / 'report.html').resolve()}  (Markdown beside it; numbers in results.jsonl)")


def _finished(memory: Path) -> dict[str, float]:
    try:
        loaded = json.loads(memory.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(f"cannot read {memory}: {error}; start over with --fresh") from error
    return {str(key): float(value) for key, value in loaded.items()}


def _run(command: list[str], title: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([sys.executable, *started(command)], cwd=workplace(), env=environment)
    again = "the finished steps are kept; run the same command again to go on"
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the terminal sent it to the step too, which saves and leaves
        process.wait()
        raise Stopped(f"stopped during {title}; {again}", 130) from None
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code in (130, 143):
        raise Stopped(f"stopped during {title}; {again}", code)
    if code:
        raise InputError(f"the step {title} ended with exit code {code} (see above); {again}")


def main(args: argparse.Namespace) -> None:
    """Run, or with --dry-run only print, the chain."""
    output = Path(os.path.relpath(args.output, workplace()))  # where the steps run
    if args.dry_run:
        for _, command in steps(output):
            say(typed(command))
        return
    os.chdir(workplace())
    if args.fresh and output.exists():
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)
    run_chain(output)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", default="outputs/quickstart", help="where everything goes (default: %(default)s)")
    made.add_argument("--fresh", action="store_true", help="delete the output folder first")
    made.add_argument("--dry-run", action="store_true", help="print the commands only")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
