"""Pretrain a backbone.

python tools/pretrain.py --config configs/smoke/momentum2_digits.yaml [--resume] [KEY VALUE …]
python tools/pretrain.py --config pretrain/momentum2_r50_100e --train IMAGES
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
    """Merge the settings and train."""
    from momentum_transfer.core.settings import load_config
    from momentum_transfer.pretrain.config import get_cfg

    own = ["DATA.NAME", "imagefolder", "DATA.ROOT", args.train, "DATA.SPLIT", "."] if args.train else []
    cfg = load_config(get_cfg(), args.config, [*own, *args.overrides])
    say(f"{cfg.METHOD.NAME}, {cfg.MODEL.ARCH} on {cfg.DATA.NAME}; output in {cfg.OUTPUT_DIR}")
    from momentum_transfer.pretrain.train import (
        train,  # after the settings, because it imports torch, which takes seconds
    )

    train(cfg, resuming=args.resume, stop_after=args.stop_after, preset=load_config(get_cfg(), args.config))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--config", required=True, metavar="FILE", help="YAML settings; see configs/")
    made.add_argument("--train", metavar="FOLDER", help="your own images: flat, or in folders")
    made.add_argument("--resume", action="store_true", help="go on from OUTPUT_DIR's last checkpoint, if any")
    made.add_argument("--stop-after", type=int, metavar="N", help="save and leave after step N, for time slices")
    made.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings in the place of the file's")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
