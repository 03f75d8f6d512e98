"""One checkpoint with other norms, in many variants: what a detector, or few labels, make of each (RCF, section 4.1).

    python studies/norm_variants.py detect --config configs/smoke/faster_rcnn_c4_digits.yaml --weights CKPT
    python studies/norm_variants.py finetune --config configs/smoke/lowshot_digits.yaml --weights CKPT

A variant is the checkpoint (a ResNet) with larger weights, as LARS leaves them (tools/convert.py --scale);
some are rescaled again: by NormRescale with the checkpoint as its anchor, or by .1. Each is fine-tuned with the
same seeds, so that trials are pairs; records bear the variants' names. `momentum-transfer study norm_rescale` runs all.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, table

#: Variant -> (factor, which weights, what is done then). NormRescale restores the statistics too (scope all).
VARIANTS: dict[str, tuple[float, str, str]] = {
    "original": (1.0, "conv+bn", ""),
    "x3": (3.0, "conv+bn", ""),
    "x10": (10.0, "conv+bn", ""),
    "conv_x10": (10.0, "conv", ""),
    "bn_x10": (10.0, "bn", ""),
    "x3_normrescale": (3.0, "conv+bn", "normrescale"),
    "x10_normrescale": (10.0, "conv+bn", "normrescale"),
    "x10_constant": (10.0, "conv+bn", "constant"),
    "conv_x10_normrescale": (10.0, "conv", "normrescale"),
    "conv_x10_constant": (10.0, "conv", "constant"),
    "bn_x10_normrescale": (10.0, "bn", "normrescale"),
    "bn_x10_constant": (10.0, "bn", "constant"),
}
CONSTANT = 0.1


def make_variants(weights: str, folder: Path, names: list[str]) -> dict[str, Path]:
    """Variant -> its file in ``folder``."""
    from momentum_transfer.backbones import norm_rescale
    from momentum_transfer.backbones.convert import architecture_metadata, write
    from momentum_transfer.backbones.read import load_backbone

    original = load_backbone(weights)
    rows, files = [], {}
    for name in names:
        factor, scope, then = VARIANTS[name]
        variant = replace(original, state=dict(original.state))
        scaled = norm_rescale.apply_lars(variant, factor, scope)
        if then == "normrescale":
            variant.state = norm_rescale.rescale_to_anchor(variant.state, original.state, "all")
        elif then == "constant":
            variant.state = norm_rescale.rescale_by_constant(variant.state, CONSTANT)
        files[name] = folder / f"{name}.pkl"
        metadata = architecture_metadata(variant) | {"scaled": f"{scaled}; {then}"}
        write(files[name], variant.state, variant.architecture, metadata)
        learned = {key: value for key, value in variant.state.items() if norm_rescale.in_scope(key, value, "conv+bn")}
        ratios = [float(tensor.norm() / original.state[key].norm()) for key, tensor in learned.items()]
        apart = max(float((t - original.state[key]).norm() / original.state[key].norm()) for key, t in learned.items())
        rows.append([name, f"{min(ratios):.3g} to {max(ratios):.3g}", f"{apart:.1e}"])
    table(
        "variants: learned weights beside the original's", ["variant", "norm, times", "largest relative distance"], rows
    )
    return files


def detect(args: argparse.Namespace, name: str, weights: Path) -> None:
    """Fine-tune and score a detector from one variant."""
    from momentum_transfer.transfer.config import load
    from momentum_transfer.transfer.run import Request, run

    cfg = load(args.config, ["TRIALS", str(args.trials), *args.overrides])
    cfg = _in_its_folder(cfg, name)
    run(cfg, Request(str(weights), args.results, resume=True))


def finetune(args: argparse.Namespace, name: str, weights: Path) -> None:
    """Fine-tune a classifier from one variant."""
    from momentum_transfer.core.settings import load_config
    from momentum_transfer.lowshot.config import get_cfg
    from momentum_transfer.lowshot.run import Request, run

    cfg = load_config(get_cfg(), args.config, ["FINETUNE.TRIALS", str(args.trials), *args.overrides])
    cfg = _in_its_folder(cfg, name)
    run(cfg, Request("finetune", str(weights), results=args.results))


def _in_its_folder(cfg: Any, name: str) -> Any:
    """The settings with a folder of the variant's own."""
    cfg.defrost()
    cfg.OUTPUT_DIR = str(Path(cfg.OUTPUT_DIR) / name)
    cfg.freeze()
    return cfg


def main(args: argparse.Namespace) -> None:
    """Make the variants, then run each."""
    if unknown := [name for name in args.variants if name not in VARIANTS]:
        raise InputError(f"expected variants of {', '.join(VARIANTS)}, found {unknown[0]!r}")
    args.results.parent.mkdir(parents=True, exist_ok=True)
    say(f"{args.command} from {len(args.variants)} variants of {args.weights}")
    for name, file in make_variants(args.weights, args.results.parent / "variants", args.variants).items():
        (detect if args.command == "detect" else finetune)(args, name, file)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("detect", "finetune"))
    parser.add_argument("--config", required=True, help="of tools/transfer.py, or of tools/lowshot.py")
    parser.add_argument("--weights", required=True, help="the original: a checkpoint or a run's folder")
    parser.add_argument("--results", type=Path, required=True, help="where records go, beside the variants' files")
    parser.add_argument("--trials", type=int, default=5, help="seeds (default: %(default)s)")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), metavar="VARIANT", help="default: all")
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
