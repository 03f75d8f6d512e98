"""How well does a backbone do with few labels? Frozen features, linear classifiers, fine-tuning, FixMatch.

python tools/lowshot.py features|knn|retrieval|svm|diagnostics|linear|finetune|fixmatch
    --config configs/smoke/lowshot_digits.yaml --weights outputs/run [KEY VALUE …]

--weights takes a checkpoint, a run's folder, timm:NAME (the weights that timm publishes), module:package.path:factory
(any torch.nn.Module that your own code makes, which this runs), random-of:CHECKPOINT (a network of its architecture at
random, seed 0), or a word: "pixels" (no backbone: the image itself; features, knn, retrieval, svm) or "scratch" (a
random start, another one in every trial; linear, finetune, fixmatch). knn, retrieval and svm also
take features made elsewhere: --features TRAIN.npz --test-features TEST.npz. Under torchrun, features, linear, finetune
and fixmatch share the work between processes; knn, retrieval and svm share the extraction, and the first process does
the rest.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say
from momentum_transfer.lowshot.config import EVALUATIONS, get_cfg


def main(args: argparse.Namespace) -> None:
    """Merge the settings and evaluate."""
    from momentum_transfer.core.settings import load_config

    cfg = load_config(get_cfg(), args.config, [*_own_data(args), *args.overrides])
    say(f"{args.command} of {args.weights or args.features or 'no weights'} on {cfg.DATASETS.NAME}")
    from momentum_transfer.lowshot.run import (  # after the settings, because it imports torch, which takes seconds
        Request,
        run,
    )

    run(cfg, Request(**{name: getattr(args, name) for name in Request.__dataclass_fields__ if hasattr(args, name)}))


def _own_data(args: argparse.Namespace) -> list[str]:
    """--train, --val and --split as settings."""
    if args.train is None:
        if args.val is not None or args.split is not None:
            raise InputError("expected --train FOLDER with --val or --split, found none; add it")
        return []
    train = Path(args.train).expanduser().resolve()
    settings = ["DATASETS.NAME", "imagefolder", "DATASETS.ROOT", str(train.parent), "DATASETS.TRAIN", train.name]
    if args.val is not None and args.split is not None:
        raise InputError("expected --val or --split, found both; leave one out")
    if args.val is not None:
        return [*settings, "DATASETS.TEST", str(Path(args.val).expanduser().resolve())]
    if args.split is not None:
        return [*settings, "DATASETS.SPLIT", str(args.split)]
    parts = [name for name in ("val", "valid", "validation", "test") if (train / name).is_dir()]
    if not (train / "train").is_dir() or not parts:
        raise InputError(f"expected --val FOLDER or --split 0.8, or folders train and val in {train}; add one of them")
    if parts[1:]:
        from momentum_transfer.images.reading import image_files

        count = sum(len(image_files(train / name)) for name in parts[1:])
        say(f"left out: {counted(count, 'image')} of {' and '.join(parts[1:])}, which neither trains nor tests")
    return ["DATASETS.NAME", "imagefolder", "DATASETS.ROOT", str(train), "DATASETS.TRAIN", "train",
            "DATASETS.TEST", parts[0]]  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("command", choices=("features", *EVALUATIONS))
    made.add_argument("--config", required=True, help="YAML file, see configs/lowshot and configs/smoke")
    made.add_argument("--weights", default="", help="checkpoint, run folder, hf:org/name, timm:NAME, random-of:CKPT, …")
    made.add_argument("--network", choices=("teacher", "student"), help="network of the checkpoint")
    made.add_argument("--train", metavar="FOLDER", help="images of one's own, a folder a class (or train/ and val/)")
    made.add_argument("--val", metavar="FOLDER", help="what tests, a folder a class; or:")
    made.add_argument("--split", type=float, metavar="SHARE", help="share of --train's images that train")
    made.add_argument("--family", help="kind of a foreign checkpoint, if it is not recognised")
    made.add_argument(
        "--arch", metavar="TEXT", help="architecture of a checkpoint that does not tell it, or of scratch: timm:NAME"
    )
    made.add_argument("--features", metavar="TRAIN.npz", default="", help="features made elsewhere, with labels")
    made.add_argument("--test-features", metavar="TEST.npz", default="")
    made.add_argument("--results", type=Path, metavar="FILE", help="default: OUTPUT_DIR/results.jsonl")
    made.add_argument(
        "--verify", action="store_true",
        help="read every image file to know it in the feature cache by content (default: by path, size and time)",
    )  # fmt: skip
    made.add_argument(
        "--forbid-overlap", action="store_true",
        help="refuse test images that are, byte for byte, among the training images (default: a warning)",
    )  # fmt: skip
    made.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
