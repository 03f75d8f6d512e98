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
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import cache_root, sha256_of_text
from momentum_transfer.core.log import say
from momentum_transfer.core.urls import is_url


def main(args: argparse.Namespace) -> None:
    from momentum_transfer.core.settings import load_config
    from momentum_transfer.pretrain.config import get_cfg

    preset = load_config(get_cfg(), args.config)
    own = _own_images(args.train, preset.DATA.NAME == "images") if args.train else []
    own += [] if args.minutes is None else ["RUN.MINUTES", str(args.minutes)]
    if args.weights:
        own += ["MODEL.WEIGHTS", args.weights]
    cfg = load_config(get_cfg(), args.config, [*own, *args.overrides])
    if "DATA.FILE_LIST" in own and cfg.METHOD.NAME == "supervised":
        raise InputError(f"expected folders of classes for METHOD.NAME supervised, found boxes in {args.train}; choose "
                         "a method without labels")  # fmt: skip
    say(f"{cfg.METHOD.NAME}, {cfg.MODEL.ARCH} on {cfg.DATA.NAME}; output in {cfg.OUTPUT_DIR}")
    from momentum_transfer.pretrain.train import train  # here, because it imports torch, which takes seconds

    train(cfg, resuming=args.resume, stop_after=args.stop_after, preset=preset)


def _own_images(train: str, every: bool) -> list[str]:
    """Settings of --train: the folder, of whose images ``every`` one is taken, or the list of a detection set's."""
    if not is_url(train) and (every or not Path(train).expanduser().is_dir()):
        from momentum_transfer.images.class_folders import LabelledFiles, write_list
        from momentum_transfer.transfer.data.own.open import training_images

        if files := training_images(train):
            paths = tuple(file.resolve() for file in files)
            listed = cache_root() / "own" / f"images-{sha256_of_text(str(paths))[:12]}.txt"
            write_list(listed, LabelledFiles(paths, (0,) * len(paths), ("unlabelled",)))
            say(f"{counted(len(files), 'image')} of {train}, without labels")
            return ["DATA.NAME", "filelist", "DATA.ROOT", str(listed.parent), "DATA.FILE_LIST", str(listed)]
    if every:
        return ["DATA.ROOT", train]
    from momentum_transfer.images.class_folders import training_part

    split = "train" if is_url(train) else training_part(Path(train).expanduser())
    return ["DATA.ROOT", train, "DATA.NAME", "imagefolder", "DATA.SPLIT", split]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config", required=True, metavar="FILE", help="YAML settings; see configs/")
    add("--train", metavar="X", help="your own images: a folder, or a detection set as transfer takes it")
    add("--weights", metavar="W", help="start from them instead of at random: any that convert reads")
    add("--minutes", type=float, metavar="M", help="a length of M minutes (pretrain/own_small)")
    add("--resume", action="store_true", help="go on from OUTPUT_DIR's last checkpoint, if any")
    add("--stop-after", type=int, metavar="N", help="save and leave after step N, for time slices")
    add("overrides", nargs="*", metavar="KEY VALUE", help="settings instead of the file's")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
