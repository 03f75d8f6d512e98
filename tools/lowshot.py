"""How well does a backbone do with few labels? Frozen features, linear classifiers, fine-tuning, FixMatch.

python tools/lowshot.py features|knn|retrieval|svm|diagnostics|linear|finetune|fixmatch
    --config configs/smoke/lowshot_digits.yaml --weights outputs/run [KEY VALUE …]

--weights takes a checkpoint, a run's folder, timm:NAME (the weights that timm publishes), module:package.path:factory
(any torch.nn.Module of your own code, which is run), random-of:CHECKPOINT (a network of its architecture at random,
seed 0), "pixels" (no backbone: the image itself; features, knn, retrieval, svm) or "scratch" (a random start, another
one in every trial; linear, finetune, fixmatch). knn, retrieval and svm also take features made elsewhere: --features
TRAIN.npz --test-features TEST.npz. Under torchrun all processes work on features, linear, finetune and fixmatch; of
knn, retrieval and svm on the extraction, and rank 0 does the rest.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import own_file, run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say
from momentum_transfer.lowshot.config import EVALUATIONS, get_cfg


def main(args: argparse.Namespace) -> None:
    from momentum_transfer.core.settings import load_config

    cfg = load_config(get_cfg(), args.config, [*_own_data(args), *args.overrides])
    say(f"{args.command} of {args.weights or args.features or 'no weights'} on {cfg.DATASETS.NAME}")
    from momentum_transfer.lowshot.run import run  # here, because it imports torch, which takes seconds

    run(cfg, _request(args))


def _request(args: argparse.Namespace) -> Any:
    from momentum_transfer.lowshot.run import Request

    return Request(**{name: getattr(args, name) for name in Request.__dataclass_fields__ if hasattr(args, name)})


def refusals(args: argparse.Namespace, shared: Any) -> Iterator[tuple[str, str]]:
    """(what, reason) of all that ``main`` would refuse before it computes; ``shared``: see `suites.preflight`."""
    from momentum_transfer.core.settings import load_config
    from momentum_transfer.lowshot.run import refusals as of_run

    source = shared.read(args.weights, network=args.network, family=args.family, architecture=args.arch)
    cfg = load_config(get_cfg(), args.config, [*_own_data(args), *args.overrides])
    yield from of_run(cfg, _request(args), source, shared.data, shared.space)


def _own_data(args: argparse.Namespace) -> list[str]:
    """--train, --val and --split as settings."""
    if args.train is None:
        if args.val is not None or args.split is not None:
            raise InputError("expected --train FOLDER with --val or --split, found none; add it")
        return []
    train = Path(args.train).expanduser().resolve()
    if args.val is not None and args.split is not None:
        raise InputError("expected --val or --split, found both; leave one out")
    from momentum_transfer.images.class_folders import named_parts

    first, parts = named_parts(train)
    if args.split is not None and parts:  # train and val would be the classes
        raise InputError(f"expected no --split with {train}, which has its own train/ and val/; leave it out")
    if args.val is None and args.split is None and not parts:
        raise InputError(f"expected --val FOLDER or --split 0.8, or folders train and val in {train}; add one of them")
    test = parts[0] if args.val is None and parts else str(Path(args.val or "").expanduser().resolve())
    if left := [name for name in parts if train / name != train / test]:
        from momentum_transfer.images.reading import image_files

        count = sum(len(image_files(train / name)) for name in left)
        say(f"left out: {counted(count, 'image')} of {' and '.join(left)}, which neither trains nor tests")
    train = train / first if parts else train
    settings = ["DATASETS.NAME", "imagefolder", "DATASETS.ROOT", str(train.parent), "DATASETS.TRAIN", train.name]
    return [*settings, *(("DATASETS.TEST", test) if args.split is None else ("DATASETS.SPLIT", str(args.split)))]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("command", choices=("features", *EVALUATIONS))
    add("--config", required=True, help="YAML file, see configs/lowshot and configs/smoke")
    add("--weights", default="", help="checkpoint, run folder, hf:org/name, timm:NAME, random-of:CKPT, …")
    add("--network", choices=("teacher", "student"), help="network of the checkpoint")
    add("--train", metavar="FOLDER", help="your own images, a folder a class (or train/ and val/)")
    add("--val", metavar="FOLDER", help="what tests, a folder a class (instead of --train's val/); or:")
    add("--split", type=float, metavar="FRACTION", help="fraction of --train's images that train")
    add("--family", help="kind of a foreign checkpoint, if it is not recognised")
    add("--arch", metavar="TEXT", help="architecture, where it cannot be inferred, or of scratch: timm:NAME")
    add("--features", metavar="TRAIN.npz", default="", help="features made elsewhere, with labels")
    add("--test-features", metavar="TEST.npz", default="")
    add("--results", type=own_file, metavar="FILE", help="default: OUTPUT_DIR/results.jsonl")
    add("--verify", action="store_true",
        help="read every image file to know it in the cache by content (default: by path, size and time)")  # fmt: skip
    add("--forbid-overlap", action="store_true",
        help="refuse test images that are, byte for byte, among the training images (default: a warning)")  # fmt: skip
    add("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
