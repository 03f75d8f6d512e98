"""Pretrain a backbone without labels (or with them, for the supervised baseline).

python tools/pretrain.py --config configs/smoke/momentum2_digits.yaml [--resume] [KEY VALUE …]
python tools/pretrain.py --config pretrain/momentum2_r50_100e --train IMAGES [--weights W]
torchrun --nproc-per-node 8 tools/pretrain.py --config configs/pretrain/momentum2_r50_100e.yaml DATA.ROOT IMAGENET
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say


def main(args: argparse.Namespace) -> None:
    from momentum_transfer.core.settings import load_config
    from momentum_transfer.pretrain.config import get_cfg

    preset = load_config(get_cfg(), args.config)
    own = ["DATA.ROOT", args.train] if args.train else []
    if args.train and preset.DATA.NAME != "images":
        own += ["DATA.NAME", "imagefolder", "DATA.SPLIT", "."]
    own += [] if args.minutes is None else ["RUN.MINUTES", str(args.minutes)]
    if args.weights:
        own += ["MODEL.WEIGHTS", args.weights]
    cfg = load_config(get_cfg(), args.config, [*own, *args.overrides])
    say(f"{cfg.METHOD.NAME}, {cfg.MODEL.ARCH} on {cfg.DATA.NAME}; output in {cfg.OUTPUT_DIR}")
    from momentum_transfer.pretrain.train import train  # here, because it imports torch, which takes seconds

    train(cfg, resuming=args.resume, stop_after=args.stop_after, preset=preset)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config", required=True, metavar="FILE", help="YAML settings; see configs/")
    add("--train", metavar="FOLDER", help="your own images: flat, or in folders")
    add("--weights", metavar="W", help="start from them instead of at random: any that convert reads")
    add("--minutes", type=float, metavar="M", help="a length of M minutes (pretrain/own_small)")
    add("--resume", action="store_true", help="go on from OUTPUT_DIR's last checkpoint, if any")
    add("--stop-after", type=int, metavar="N", help="save and leave after step N, for time slices")
    add("overrides", nargs="*", metavar="KEY VALUE", help="settings instead of the file's")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
