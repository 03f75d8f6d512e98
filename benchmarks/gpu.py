"""Everything that a card is wanted for, in one run of at most nine minutes: what is green, how fast, how much memory.

python benchmarks/gpu.py [--output FOLDER] [--minutes 9] [--parts NAME …]

Each part is a process of its own with a part of the time; what it prints is kept in OUTPUT/NAME.txt, and a part that
fails or runs out of time leaves the others their turn. Parts:

tests       the tests marked gpu, and with two devices the tests of NCCL
step        a Momentum² step of ResNet-50, Momentum BN's forward beside BN's, the EMA beside a loop
training    whole runs on JPEG files, views on the device: images/s, MFU, waiting; bf16, bf16 compiled, fp16
detector2   Mask R-CNN R50-FPN, 800 px, batch 2, beside Detectron2 and torchvision
detector16  the same with batch 16
search      kNN and retrieval at ImageNet's size: 50,000 queries, 1,281,167 x 2048, seconds and memory
svm         the low-shot SVM, 1000 classes x 16 images x 2048, and scoring of 50,000 images

--tiny runs every part at toy sizes on the CPU: a rehearsal, no figures.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, table

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Part:
    """A process and the fraction of the time that it may take.

    Args:
        words: of its command line behind the interpreter. tiny: the same at toy sizes on the CPU.
        seconds: at most; less where the whole run has less left.
    """

    words: tuple[str, ...]
    tiny: tuple[str, ...]
    seconds: int


def _part(name: str, *words: str) -> tuple[str, ...]:
    return ("-m", f"benchmarks.gpu_parts.{name}", *words)


def _detector(batch: int) -> Part:
    words = (str(HERE / "detector.py"), "--no-memory", "--detector", "mask_rcnn_fpn_1x")
    card = ("--device", "cuda", "--depth", "50", "--size", "800", "--batch", str(batch), "--rounds", "5")
    small = ("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", "32", "MODEL.RPN.POST_NMS_TOPK_TRAIN", "64")
    toy = ("--depth", "18", "--size", "64", "--batch", "1", "--rounds", "1")
    return Part((*words, *card), (*words, *toy, *small), 75)


PARTS = {
    "tests": Part(
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests"),
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "--collect-only", "tests/pretrain"),
        90,
    ),
    "step": Part(
        (str(HERE / "pretrain.py"), "--device", "cuda", "--model", "resnet50", "--rounds", "8"),
        (str(HERE / "pretrain.py"), "--model", "resnet18", "--rounds", "1"),
        75,
    ),
    "training": Part(_part("training"), _part("training", "--tiny"), 150),
    "detector2": _detector(2),
    "detector16": _detector(16),
    "search": Part(_part("search"), _part("search", "--tiny"), 60),
    "svm": Part(_part("svm"), _part("svm", "--tiny"), 45),
}


def run_part(name: str, part: Part, folder: Path, tiny: bool, seconds: float) -> tuple[str, float]:
    """Run it; what became of it, and the seconds that it took. Its output goes to FOLDER/NAME.txt."""
    begun = time.monotonic()
    with open(folder / f"{name}.txt", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, *(part.tiny if tiny else part.words)], cwd=HERE.parent, stdout=log,
            stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
            outcome = "done" if code == 0 else f"failed (exit code {code})"
        except subprocess.TimeoutExpired:
            _end(process)
            outcome = f"out of time after {seconds:.0f} s"
    return outcome, time.monotonic() - begun


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and what it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(args: argparse.Namespace) -> None:
    """Run the parts in order; print what each said, then the summary."""
    import torch  # takes seconds, which --help does without

    if not args.tiny and not torch.cuda.is_available():
        raise InputError("expected a CUDA device, found none; --tiny rehearses every part on the CPU")
    if args.minutes <= 0:
        raise InputError(f"expected --minutes above 0, found {args.minutes:g}")
    args.output.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    say(f"{device}, torch {torch.__version__}; {len(args.parts)} parts, output in {args.output}")
    rows, failed = [], []
    for name in args.parts:
        left = end - time.monotonic()
        if left < 5:
            outcome, seconds = "not begun: no time left", 0.0
        else:
            outcome, seconds = run_part(name, PARTS[name], args.output, args.tiny, min(left, PARTS[name].seconds))
            say(f"== {name} ==")
            for line in (args.output / f"{name}.txt").read_text(encoding="utf-8", errors="replace").splitlines():
                say(line)
        rows.append((name, outcome, f"{seconds:.0f}"))
        failed += [name] if outcome.startswith("failed") else []
    table(f"{device}", ("part", "outcome", "seconds"), rows)
    if failed:
        raise SystemExit(f"error: {', '.join(failed)} failed; see {args.output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu"), metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS), metavar="NAME")
    parser.add_argument("--tiny", action="store_true", help="toy sizes on the CPU: whether every part runs")
    sys.exit(run_tool(parser, main))
