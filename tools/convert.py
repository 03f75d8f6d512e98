"""Convert any known checkpoint to Detectron2 or torchvision weights: all keys accounted for, or nothing written.

python tools/convert.py CHECKPOINT OUT.pkl                              Detectron2 weights, their settings in OUT.yaml
python tools/convert.py CHECKPOINT OUT.safetensors --network student     torchvision names (.pth too)
python tools/convert.py VIT.pth OUT.safetensors --arch 'timm:vit_base_patch16_224?img_size=448' --resize-positions
python tools/convert.py BYOL_LARS.pth OUT.pkl --norm-rescale SGD.pth    NormRescale with an anchor (RCF, equation 3)
python tools/convert.py SGD.pth OUT.pth --scale 10                      the norms that LARS leaves, nothing else
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.backbones.families import BY_NAME, FAMILIES
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import say

#: ``norm_rescale.SCOPES`` and its default, repeated here because that module imports torch, which takes seconds.
SCOPES, DEFAULT_SCOPE = ("conv", "bn", "conv+bn", "all"), "conv+bn"


def main(args: argparse.Namespace) -> None:
    say(f"reading {args.checkpoint}")  # before torch is imported, which takes seconds
    from momentum_transfer.backbones.convert import check_target, convert_file
    from momentum_transfer.backbones.source import CoverageError

    if args.report:
        check_target(Path(args.report))
    try:
        source = convert_file(
            args.checkpoint, args.out, network=args.network, family=args.family, anchor=args.norm_rescale,
            constant=args.constant, scale=args.scale, scope=args.scope, trust_pickle=args.trust_pickle,
            architecture=args.arch, resize_positions=args.resize_positions,
            without_prefix=args.without_prefix,
        )  # fmt: skip
    except CoverageError as error:
        _write_report(args.report, error.report)
        raise
    _write_report(args.report, source.report)


def refusals(args: argparse.Namespace, shared: Any) -> Iterator[tuple[str, str]]:
    """(what, reason) of all that ``main`` would refuse before it writes; ``shared``: see `suites.preflight`."""
    from momentum_transfer.backbones.convert import check_suffix, check_target
    from momentum_transfer.core.errors import refusals as refused

    options = {"network": args.network, "family": args.family, "trust_pickle": args.trust_pickle}
    resized = {"architecture": args.arch, "resize_positions": args.resize_positions}
    shared.make(args.out, args.checkpoint, **options, **resized)
    shared.read(args.out)
    if args.norm_rescale:
        shared.read(args.norm_rescale)
    out = Path(args.out)
    yield from refused({"name": lambda: check_suffix(out), "folder": lambda: check_target(out)})


def _write_report(path: str | None, report: Any) -> None:
    if path is not None:
        write_text(path, json.dumps(report.as_dict(), indent=1) + "\n")
        say(f"wrote {path}: what became of every key")


def parser() -> argparse.ArgumentParser:
    families = "\n".join(f"  {family.name:18} {family.title}" for family in FAMILIES)
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"families that are recognised:\n{families}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("checkpoint", help="a file, an output folder of tools/pretrain.py, hf:org/name, or random-of:CKPT")
    add("out", help="OUT.pkl (Detectron2), OUT.pth or OUT.safetensors (torchvision's or timm's names)")
    add("--network", choices=("student", "teacher"), help="network to take; default: what the paper evaluates")
    add("--family", choices=sorted(BY_NAME), help="layout of the checkpoint; default: the one that fits best")
    add("--arch", metavar="TEXT", help="architecture, where no tensor shows it: timm:NAME, resnet50?style=caffe")
    add("--resize-positions", action="store_true", help="resample position embeddings to the img_size of --arch")
    without = "a ViT's .pkl without its CLS token and registers, which is another function"
    add("--without-prefix", action="store_true", help=without)
    add("--report", metavar="FILE.json", help="write what became of every key")
    rescale = parser.add_mutually_exclusive_group()
    rescale.add_argument("--norm-rescale", metavar="ANCHOR", help="give every weight its norm in this checkpoint")
    rescale.add_argument("--constant", type=float, metavar="X", help="multiply every weight by X (RCF table 8: 0.1)")
    rescale.add_argument("--scale", type=float, metavar="X", help="of a ResNet: the same, and BN statistics follow")
    scope = "which tensors are rescaled (default: %(default)s, every learned weight)"
    add("--scope", choices=SCOPES, default=DEFAULT_SCOPE, help=scope)
    add("--trust-pickle", action="store_true", help="let the checkpoint run code while it is read")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
