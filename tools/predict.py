"""Find objects in new images with a fine-tuned detector: no annotations, nothing is scored.

    python tools/predict.py --detector OUTPUT_DIR photos/ --out predictions
    python tools/predict.py --detector OUTPUT_DIR one.jpg two.png frames/ --out predictions --threshold 0.7

Writes predictions.json (COCO results), images.json (the ids they use), visuals/ (annotated images), counts.csv and
counts_by_image.csv; of a segmenter labels/ (a class for every pixel). Run it again to resume, or to add images.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import at_least, number_in, run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say


def main(args: argparse.Namespace) -> None:
    say(f"loading {args.detector}")
    from momentum_transfer.transfer.detector_run import load_run  # here, because torch takes seconds
    from momentum_transfer.transfer.prediction.predict_images import Options, ids_of, predict

    ids = ids_of(args.ids) if args.ids else None
    run = load_run(args.detector, engine=args.engine or "", device=args.device)
    say(f"{run.cfg.MODEL.META_ARCHITECTURE} of {run.classes.title or run.weights.parent}, "
        f"{counted(len(run.classes.names), 'class')}, engine {run.engine.name}")  # fmt: skip
    if run.task == "segmentation" and args.threshold is not None:
        raise InputError("expected no --threshold with a segmenter, which gives every pixel a class; leave it out")
    options = Options(args.threshold, args.batch_size, not args.no_visuals, args.skip_unreadable, ids)
    for path in predict(run, args.images, args.out, options):
        say(f"wrote {path}")
    if not args.no_visuals:
        say(f"visualizations are in {args.out / 'visuals'}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="image files, folders of them, or of video frames")
    add("--detector", required=True, metavar="RUN", help="OUTPUT_DIR of transfer, or a model_*.pth in it")
    add("--out", required=True, type=Path, metavar="DIR", help="where results go")
    add("--threshold", type=number_in(0, 1, "a score from 0 to 1"), metavar="SCORE",
                      help="leave out detections of a lower score (default: the JSON keeps all that the detector "
                      "gives; images and counts begin at 0.5)")  # fmt: skip
    add("--batch-size", type=at_least(1), default=1, help="images of one size at once (default: %(default)s)")
    add("--ids", metavar="FILE.json", help="take the images' ids from this COCO JSON, so that `score` "
                      "can compare")  # fmt: skip
    add("--no-visuals", action="store_true", help="write no annotated images")
    add("--skip-unreadable", action="store_true", help="leave out images that cannot be read")
    add("--engine", choices=("detectron2", "torchvision"), help="default: the one that trained it")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
