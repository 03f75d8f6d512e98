"""Pretrain a backbone.

python tools/pretrain.py --config configs/smoke/momentum2_digits.yaml [--resume] [KEY VALUE …]
torchrun --nproc-per-node 8 tools/pretrain.py --config configs/pretrain/momentum2_r50_100e.yaml DATA.ROOT IMAGENET
"""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.console import run_tool
from momentum_transfer.settings import load_config
from pretrain.config import get_cfg
from pretrain.train import train


def main(args: argparse.Namespace) -> None:
    """Merge the settings and train."""
    cfg = load_config(get_cfg(), args.config, args.overrides)
    train(cfg, resuming=args.resume, stop_after=args.stop_after)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML settings; see configs/")
    parser.add_argument("--resume", action="store_true", help="go on from OUTPUT_DIR's last checkpoint, if any")
    parser.add_argument("--stop-after", type=int, metavar="N", help="save and leave after step N, for time slices")
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings in the place of the file's")
    sys.exit(run_tool(parser, main))
