"""Fine-tune a detector from pretrained weights and score it.

    python tools/transfer.py --config configs/smoke/mask_rcnn_digits.yaml --weights OUT.pkl [KEY VALUE …]

Weights come from tools/convert.py; `--weights random-of:OUT.pkl` starts from the same network at random (seed 0), for
comparison, and `--weights none` the whole detector of the settings, another one in every trial. With several GPUs:
`torchrun --nproc-per-node 8 tools/transfer.py …`.

Your own set, in COCO's JSON, VOC's XML or YOLO's text (docs/tutorial.md):

    python tools/transfer.py --config transfer/own_small --weights OUT.pkl --train IMAGES --split 0.8

With `--unlabelled FOLDER` a teacher labels more images for it (docs/how-to/few-labels.md).
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import own_file, run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say


def main(args: argparse.Namespace) -> None:
    say(f"reading {args.config}")  # before torch is imported, which takes seconds
    cfg, opened = _settings(args)
    weights = args.weights or cfg.MODEL.WEIGHTS
    say(f"{cfg.MODEL.META_ARCHITECTURE} from {weights or 'no weights'}; output in {cfg.OUTPUT_DIR}")
    if args.check_data:  # without the networks, whose imports take longer than some hundred images
        from momentum_transfer.transfer.config import check_settings
        from momentum_transfer.transfer.tasks import open_task

        check_settings(cfg)
        task = opened.task or open_task(cfg)
        task.check(cfg, open_images=True, overview=False, forbid_overlap=args.forbid_overlap)
        return
    if not weights:
        raise InputError("expected --weights FILE; convert a checkpoint with tools/convert.py, or give --weights none")
    from momentum_transfer.transfer.run import run

    run(cfg, _request(args, weights), opened)


def _request(args: argparse.Namespace, weights: str) -> Any:
    from momentum_transfer.transfer.run import Request

    return Request(weights, args.results, args.resume, args.eval_only, args.forbid_overlap, args.minutes)


def _settings(args: argparse.Namespace, source: Any = None) -> tuple[Any, Any]:
    """Settings and what was opened to find them; ``source``: the weights, where they were read."""
    from momentum_transfer.transfer.config import SETTINGS
    from momentum_transfer.transfer.own_settings import OwnSource, architecture_settings, load_for

    options = [("ENGINE", args.engine), ("TRIALS", args.trials)]
    overrides = [word for key, value in options if value is not None for word in (key, str(value))]
    if args.arch is not None:
        from momentum_transfer.backbones.build import parse_architecture

        overrides += ["MODEL.BACKBONE.ARCH", ""]  # a ResNet, too, replaces the config's other network
        overrides += [word for one in architecture_settings(parse_architecture(args.arch)) for word in one.words]
    own = OwnSource(args.train, args.val, args.split, args.title, args.images)
    novel = list(args.novel or ())
    end = next((place for place, word in enumerate(novel) if word in SETTINGS), len(novel))  # the settings after it
    overrides += ["FEW_SHOT.NOVEL", repr(novel[:end])] if novel else []
    if args.unlabelled is not None:
        overrides += ["SEMI.TEACHER", "True", "SEMI.UNLABELLED", str(args.unlabelled)]
    overrides += [*novel[end:], *args.overrides]
    given = {"weights": args.weights or "", "resume": args.resume, "eval_only": args.eval_only, "read": source}
    return load_for(args.config, overrides, own, **given)


def refusals(args: argparse.Namespace, shared: Any) -> Iterator[tuple[str, str]]:
    """(what, reason) of all that ``main`` would refuse before it trains; ``shared``: see `suites.preflight`."""
    from momentum_transfer.transfer.initial_weights import read_source
    from momentum_transfer.transfer.run import refusals as of_run

    source = shared.read(args.weights or "", read_source)
    if source is None:
        args.weights = ""
    cfg, _ = _settings(args, source)
    yield from of_run(cfg, _request(args, args.weights or cfg.MODEL.WEIGHTS), source, shared.data, shared.space)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config", required=True, help="Detectron2-keyed YAML, see configs/transfer and configs/smoke")
    weights = "backbone .pkl, detector .pth or its run's folder, hf:org/name, random-of:CKPT, or none"
    add("--weights", help=f"{weights} (default: MODEL.WEIGHTS)")
    add("--arch", metavar="TEXT", help="network of the backbone instead of the config's: resnet50, timm:NAME")
    add("--train", metavar="FOLDER_OR_FILE", help="your own set: COCO, VOC or YOLO form")
    add("--val", metavar="FOLDER_OR_FILE", help="the images that test; or:")
    add("--split", type=float, metavar="FRACTION", help="fraction of --train's images that train")
    add("--images", metavar="DIR", help="where the images of --train lie, if not beside the labels")
    add("--unlabelled", type=Path, metavar="FOLDER", help="images without labels, which a mean teacher labels (SEMI.…)")
    add("--title", default="", metavar="NAME", help="name of the set in tables (default: the folder's)")
    add("--novel", nargs="+", metavar="CLASS", help="novel classes, as FEW_SHOT.NOVEL (docs/how-to/few-shot.md)")
    add("--minutes", type=float, metavar="M", help="a schedule of so long; the first of several runs decides")
    add("--engine", choices=("auto", "detectron2", "torchvision"), help="default: the config's ENGINE")
    add("--eval-only", action="store_true", help="score the detector in --weights, in another OUTPUT_DIR than its own")
    add("--resume", action="store_true", help="go on with a training that was stopped")
    add("--trials", type=int, help="how many seeds (default: the config's TRIALS)")
    add("--results", type=own_file, help="where records go (default: OUTPUT_DIR/results.jsonl)")
    add("--forbid-overlap", action="store_true",
        help="refuse test images that are, byte for byte, among the training images (default: a warning)")  # fmt: skip
    add("--check-data", action="store_true", help="only look through data and images; writes nothing")
    add("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
