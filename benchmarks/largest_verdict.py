"""What does a verdict on large files cost? The command itself on two result files, in CPU seconds and peak memory.

python benchmarks/largest_verdict.py [--images 100000] [--detections 100] [--classes 80] [--resamples 1000]

The second file lacks every tenth detection: by default 10,000,000 and 9,000,000 in 100,000 images. Both are written
entry by entry to a temporary folder (--folder keeps them); making them is not counted.
"""

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.evaluators.synthetic import write
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say

_BLOCK = 1 << 20


def entries(file: TextIO) -> Iterator[str]:
    """The objects of a flat JSON list, as text, one block of the file at a time."""
    rest = ""
    while block := file.read(_BLOCK):
        *whole, rest = (rest + block).split("}")
        yield from (entry.lstrip("[, ") + "}" for entry in whole)


def without_every_tenth(source: Path, target: Path) -> tuple[int, int]:
    """Numbers of entries of both files."""
    count = kept = 0
    with open(source, encoding="utf-8") as file, open(target, "w", encoding="utf-8") as out:
        for count, entry in enumerate(entries(file), start=1):
            if count % 10:
                out.write(("[" if not kept else ", ") + entry)
                kept += 1
        out.write("]")
    return count, kept


def main(args: argparse.Namespace) -> None:
    """Make the files, run the command, print what it took."""
    with contextlib.ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        say(f"writing two result files to {folder}")
        write(folder, args.images, args.classes, args.detections, segm=False, federated=False)
        counts = without_every_tenth(folder / "results.json", folder / "fewer.json")
        say(f"{counts[0]:,} and {counts[1]:,} detections in {args.images:,} images")
        files = [str(folder / f"{name}.json") for name in ("ground_truth", "results", "fewer")]
        words = ["tools/verdict.py", *files, "--resamples", str(args.resamples)]
        done = subprocess.run(
            [sys.executable, *words], cwd=Path(__file__).resolve().parents[1], check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(f"exit code {done.returncode}: {used.ru_utime + used.ru_stime:.0f} CPU s, {used.ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--detections", type=int, default=100, help="of an image")
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="keeps the files")
    sys.exit(run_tool(parser, main))
