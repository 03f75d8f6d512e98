"""The measures of `choose --screen` of one checkpoint on embedded data, as records: which of them order checkpoints?

    python studies/screen_measures.py --weights CKPT --results FILE --data digits

``screen/digits``: 300 training digits with their classes. ``screen/scenes``: 300 regions of 150 training scenes.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np

sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say

#: Side of the images: their own.
_SIDES = {"digits": 32, "scenes": 128}


def main(args: argparse.Namespace) -> None:
    from momentum_transfer.backbones.read import load_backbone
    from momentum_transfer.core.records import append, make_record
    from momentum_transfer.suites.choose.screen import measure

    source = load_backbone(args.weights)
    sample = digits(args.seed) if args.data == "digits" else scenes(args.seed)
    values = measure(source, sample, _SIDES[args.data]).values
    about = {"checkpoint": source.checkpoint, "network": source.network, "seed": args.seed}
    append(args.results, [
        make_record(f"screen/{args.data}", name, value if math.isfinite(value) else math.nan, **about)
        for name, value in values.items()
    ])  # fmt: skip
    say(f"{source.name}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))


def digits(seed: int):
    """As many training digits of each class."""
    from momentum_transfer.images.datasets import build_dataset
    from momentum_transfer.suites.choose.screen import MOST_IMAGES, Sample

    data, random = build_dataset("digits"), np.random.default_rng(seed)
    labels = np.asarray(data.labels)
    each = MOST_IMAGES // len(np.unique(labels))
    rows = np.concatenate([random.permutation(np.flatnonzero(labels == one))[:each] for one in np.unique(labels)])
    images = tuple(data[int(row)][0] for row in rows)
    return Sample(images, labels[rows], np.arange(len(rows)), int(labels.max()) + 1, small=True)


def scenes(seed: int):
    """Regions of training scenes."""
    from momentum_transfer.suites.choose.screen import sample_of_boxes
    from momentum_transfer.transfer.data.annotations import open_dataset
    from momentum_transfer.transfer.data.digit_scenes import RECIPES, ensure_scenes

    folder = ensure_scenes(RECIPES["digit_scenes"])
    return sample_of_boxes(open_dataset("digit_scenes", folder / "train", folder / "annotations/train.json"), seed)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True, help="checkpoint of any known family")
    parser.add_argument("--results", type=Path, required=True, help="file that the records are appended to")
    parser.add_argument("--data", choices=tuple(_SIDES), required=True, help="whose images")
    parser.add_argument("--seed", type=int, default=0, help="of the images that are drawn (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
