"""One checkpoint with other norms, in many arms: what a detector, or few labels, make of each (RCF, section 4.1).

    python studies/norm_arms.py detect --config configs/smoke/faster_rcnn_c4_digits.yaml --weights CKPT
    python studies/norm_arms.py finetune --config configs/smoke/lowshot_digits.yaml --weights CKPT

An arm is the checkpoint (a ResNet) with the norms that LARS leaves and nothing else (tools/convert.py --scale), and
some of these rescaled again: by NormRescale with the checkpoint as its anchor, or by the constant .1. Every arm is
fine-tuned with the same seeds, so that trials are pairs; records bear the arms' names. `momentum-transfer study
norm_rescale` runs all of it.
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

#: Arm -> (factor, which weights, what is done then). The statistics of NormRescale's arms return, too (scope all).
ARMS: dict[str, tuple[float, str, str]] = {
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


def make_arms(weights: str, folder: Path, names: list[str]) -> dict[str, Path]:
    """Arm -> its file in ``folder``; the reading is that of ``momentum_transfer.backbones.read``."""
    from momentum_transfer.backbones import norm_rescale
    from momentum_transfer.backbones import norm_rescale as synthetic_lars
    from momentum_transfer.backbones.convert import architecture_metadata, write
    from momentum_transfer.backbones.read import load_backbone

    original = load_backbone(weights)
    rows, made = [], {}
    for name in names:
        factor, scope, then = ARMS[name]
        arm = replace(original, state=dict(original.state))
        said = synthetic_lars.apply_lars(arm, factor, scope)
        if then == "normrescale":
            arm.state = norm_rescale.rescale_to_anchor(arm.state, original.state, "all")
        elif then == "constant":
            arm.state = norm_rescale.rescale_by_constant(arm.state, CONSTANT)
        made[name] = folder / f"{name}.pkl"
        write(made[name], arm.state, arm.architecture, architecture_metadata(arm) | {"scaled": f"{said}; {then}"})
        learned = {key: tensor for key, tensor in arm.state.items() if norm_rescale.in_scope(key, tensor, "conv+bn")}
        ratios = [float(tensor.norm() / original.state[key].norm()) for key, tensor in learned.items()]
        apart = max(float((t - original.state[key]).norm() / original.state[key].norm()) for key, t in learned.items())
        rows.append([name, f"{min(ratios):.3g} to {max(ratios):.3g}", f"{apart:.1e}"])
    table("arms: learned weights beside the original's", ["arm", "norm, times", "largest relative distance"], rows)
    return parser


def detect(args: argparse.Namespace, name: str, weights: Path) -> None:
    """Fine-tune and score a detector from one arm."""
    from momentum_transfer.transfer.config import load
    from momentum_transfer.transfer.run import Request, run

    cfg = load(args.config, ["TRIALS", str(args.trials), *args.overrides])
    cfg = _in_its_folder(cfg, name)
    run(cfg, Request(str(weights), args.results, resume=True))


def finetune(args: argparse.Namespace, name: str, weights: Path) -> None:
    """Fine-tune a classifier from one arm."""
    from momentum_transfer.core.settings import load_config
    from momentum_transfer.lowshot.config import get_cfg
    from momentum_transfer.lowshot.run import Request, run

    cfg = load_config(get_cfg(), args.config, ["FINETUNE.TRIALS", str(args.trials), *args.overrides])
    cfg = _in_its_folder(cfg, name)
    run(cfg, Request("finetune", str(weights), results=args.results))


def _in_its_folder(cfg: Any, name: str) -> Any:
    """The settings with a folder of the arm's own."""
    cfg.defrost()
    cfg.OUTPUT_DIR = str(Path(cfg.OUTPUT_DIR) / name)
    cfg.freeze()
    return cfg


def main(args: argparse.Namespace) -> None:
    """Make the arms, then run each."""
    if unknown := [name for name in args.arms if name not in ARMS]:
        raise InputError(f"expected arms of {', '.join(ARMS)}, found {unknown[0]!r}")
    args.results.parent.mkdir(parents=True, exist_ok=True)
    say(f"{args.command} from {len(args.arms)} arms of {args.weights}")
    for name, file in make_arms(args.weights, args.results.parent / "arms", args.arms).items():
        (detect if args.command == "detect" else finetune)(args, name, file)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("detect", "finetune"))
    parser.add_argument("--config", required=True, help="of tools/transfer.py, or of tools/lowshot.py")
    parser.add_argument("--weights", required=True, help="the original: a checkpoint or a run's folder")
    parser.add_argument("--results", type=Path, required=True, help="where records go; the arms' files lie beside them")
    parser.add_argument("--trials", type=int, default=5, help="seeds (default: %(default)s)")
    parser.add_argument(
        "--arms", nargs="+", default=list(ARMS), metavar="ARM", help=f"of {', '.join(ARMS)} (default: all)"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
