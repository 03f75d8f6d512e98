"""Write a fine-tuned detector as a file that runs without this project, and check that it finds the same.

    python tools/export.py --detector OUTPUT_DIR --format onnx --out detector.onnx
    python tools/export.py --detector OUTPUT_DIR --format pt2 --out detector.pt2 --size 640x640

onnx and pt2 hold RetinaNet and FCOS: one image in (float32 [3, H, W], RGB, 0 … 255, H and W multiples of 32), boxes,
scores and classes out; suppression is inside. How to resize and pad stands in the file (docs/predict.md).
"""

import argparse
import re
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say

FORMATS = {"onnx": ".onnx", "pt2": ".pt2"}


def main(args: argparse.Namespace) -> None:
    suffix = FORMATS[args.format]
    if args.out.suffix != suffix:
        raise InputError(f"expected --out to end in {suffix} with --format {args.format}, found {args.out}")
    say(f"loading {args.detector}")
    from momentum_transfer.transfer.detector_run import load_run  # here, because torch takes seconds
    from momentum_transfer.transfer.export.write import export

    run = load_run(args.detector, engine="torchvision", device="cpu")
    export(run, args.format, args.out, size=args.size, images=args.check)
    say(f"wrote {args.out} ({args.out.stat().st_size / 1e6:.1f} MB)")


def _format(text: str) -> str:
    if text == "torchvision":
        raise argparse.ArgumentTypeError(
            "torchvision's detectors round anchors, take strides from the image's size and clip before suppression, so "
            "these weights would find other boxes in them; use pt2, which needs torch and torchvision alone"
        )
    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(FORMATS)}, found {text}")
    return text


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})[x×](\d{1,5})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected HEIGHTxWIDTH, for example 640x640, found {text}")
    return int(found[1]), int(found[2])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--detector", required=True, metavar="RUN", help="OUTPUT_DIR of transfer, or a model_*.pth in it")
    add("--format", required=True, type=_format, metavar="onnx|pt2", help="what to write")
    add("--out", required=True, type=Path, metavar="FILE", help="the file to write")
    add("--size", type=_size, metavar="HEIGHTxWIDTH", help="a program of this size only (default: any)")
    add("--check", nargs="*", default=[], metavar="IMAGE", help="images to check it with")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
