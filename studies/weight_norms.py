"""Norms of a checkpoint's learned backbone weights, as records: has LARS made them as large as RCF says?

    python studies/weight_norms.py --weights CKPT --results FILE

RCF (arXiv 2208.00275), appendix B.4: LARS leaves weights about 10 times as large as SGD does. A record is the geometric
mean over tensors of the 2-norm, so that the ratio of two checkpoints' is the geometric mean of the tensors' ratios:
``weights/conv norm`` of the convolutions, ``weights/bn norm`` of BatchNorm's scales (those of norm 0 left out).
"""

import argparse
import math
import statistics
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say


def main(args: argparse.Namespace) -> None:
    from momentum_transfer.backbones.norm_rescale import norms
    from momentum_transfer.backbones.read import load_backbone
    from momentum_transfer.core.records import append, make_record

    source = load_backbone(args.weights)
    about = {"checkpoint": {"name": source.name, "sha256": source.sha256}, "network": source.network}
    records = []
    for kind in ("conv", "bn"):
        found = [norm for name, norm in norms(source.state, kind).items() if norm and not name.endswith("bias")]
        if not found:
            raise InputError(f"expected weights of {kind} in {args.weights}, found none; give a ResNet's")
        mean = math.exp(statistics.fmean(map(math.log, found)))
        records.append(make_record(f"weights/{kind}", "norm", mean, **about, tensors=len(found)))
        say(f"{source.name}: {kind}, geometric mean of {len(found)} norms {mean:.4g}")
    append(args.results, records)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True, help="checkpoint of a ResNet, of any known family")
    parser.add_argument("--results", type=Path, required=True, help="file that the records are appended to")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
