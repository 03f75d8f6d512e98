"""Fine-tune a detector from pretrained weights and score it.

    python tools/transfer.py --config configs/smoke/mask_rcnn_digits.yaml --weights OUT.pkl [KEY VALUE …]

Weights come from tools/convert.py; `--weights random-of:OUT.pkl` starts from the same network at random (seed 0), to
compare with, and `--weights none` the whole detector of the settings, another one in every trial. With several GPUs:
`torchrun --nproc-per-node 8 tools/transfer.py …`.

A set of one's own, in COCO's JSON, VOC's XML or YOLO's text (docs/own-data.md):

    python tools/transfer.py --config transfer/own_small --weights OUT.pkl --train IMAGES --split 0.8
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say


def main(args: argparse.Namespace) -> None:
    """Merge the settings, then check the data or run the trials."""
    say(f"reading {args.config}")  # before torch is imported, which takes seconds
    from momentum_transfer.backbones.build import parse_architecture
    from momentum_transfer.transfer.own_settings import OwnSource, architecture_settings, load_for, within_minutes

    own = [("ENGINE", args.engine), ("TRIALS", args.trials)]
    overrides = [word for key, value in own if value is not None for word in (key, str(value))]
    if args.arch is not None:
        found = dict(one.words for one in architecture_settings(parse_architecture(args.arch)))
        network = {"MODEL.BACKBONE.ARCH": "", **found}  # a ResNet, too, takes the place of the config's other network
        overrides += [word for words in network.items() for word in words]
    source = OwnSource(args.train, args.val, args.split, args.title, args.images)
    cfg = load_for(args.config, [*overrides, *args.overrides], source, weights=args.weights or "", resume=args.resume)
    weights = args.weights or cfg.MODEL.WEIGHTS
    say(f"{cfg.MODEL.META_ARCHITECTURE} from {weights or 'no weights'}; output in {cfg.OUTPUT_DIR}")
    from momentum_transfer.transfer.ranges import check_settings
    from momentum_transfer.transfer.run import Request, run
    from momentum_transfer.transfer.tasks import open_task

    if args.check_data:
        check_settings(cfg)
        open_task(cfg).check(cfg, open_images=True, overview=False, forbid_overlap=args.forbid_overlap)
        return
    if weights and args.minutes is not None:
        place = (args.results or Path(cfg.OUTPUT_DIR)).parent  # of all runs whose records are read together
        cfg = within_minutes(cfg, weights, args.minutes, place, args.resume)
    if not weights:
        raise InputError("expected --weights FILE; convert a checkpoint with tools/convert.py, or give --weights none")
    run(cfg, Request(weights, args.results, args.resume, args.eval_only, args.forbid_overlap))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--config", required=True, help="Detectron2-keyed YAML, see configs/transfer and configs/smoke")
    made.add_argument(
        "--weights", help="backbone .pkl, detector .pth, hf:org/name, random-of:CKPT, or none (default: MODEL.WEIGHTS)"
    )
    made.add_argument(
        "--arch", metavar="TEXT", help="network of the backbone instead of the config's: resnet50, timm:NAME"
    )
    made.add_argument("--train", metavar="FOLDER_OR_FILE", help="a set of one's own: COCO, VOC or YOLO form")
    made.add_argument("--val", metavar="FOLDER_OR_FILE", help="what tests; or:")
    made.add_argument("--split", type=float, metavar="SHARE", help="share of --train's images that train")
    made.add_argument("--images", metavar="DIR", help="where the images of --train lie, if not beside the labels")
    made.add_argument("--title", default="", metavar="NAME", help="name of the set in tables (default: the folder's)")
    made.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="a schedule of so long; the first of several runs decides",
    )
    made.add_argument("--engine", choices=("auto", "detectron2", "torchvision"), help="default: the config's ENGINE")
    made.add_argument("--eval-only", action="store_true", help="score the detector in --weights without training")
    made.add_argument("--resume", action="store_true", help="go on with a training that was stopped")
    made.add_argument("--trials", type=int, help="how many seeds (default: the config's TRIALS)")
    made.add_argument("--results", type=Path, help="where records go (default: OUTPUT_DIR/results.jsonl)")
    made.add_argument(
        "--forbid-overlap", action="store_true",
        help="refuse test images that are, byte for byte, among the training images (default: a warning)",
    )  # fmt: skip
    made.add_argument("--check-data", action="store_true", help="only look through data and images; writes nothing")
    made.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
