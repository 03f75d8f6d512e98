"""Which weights should I start from? Candidates compared on data of one's own, under a budget in minutes.

    python tools/choose.py --weights A.pth B.pth outputs/mine --train IMAGES --split 0.8 --minutes 60
    python tools/choose.py --weights A.pth hf:org/name --train IMAGES/train --val IMAGES/val --minutes 20

Detection sets (COCO, VOC or YOLO form): kNN and SVM on crops of the labelled boxes, a detector on the frozen backbone,
then fine-tuned detectors. Classification sets (a folder for each class): kNN, SVM, a linear classifier, then
fine-tuning. A random start of the same architecture runs beside. The plan and its times are said before it starts;
a stopped choice goes on when the same command is given again. One page recommends, or says that nothing is told apart.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import resamples, run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say, table
from momentum_transfer.core.run_lock import alone
from momentum_transfer.core.shipped import workplace

if TYPE_CHECKING:
    from momentum_transfer.suites.choose.stages import Question


def main(args: argparse.Namespace) -> None:
    """Open the data, read the candidates, time, say the plan, run it, and write the page."""
    if not args.minutes > 0:
        raise InputError(f"expected --minutes above 0, found {args.minutes:g}")
    if args.trials < 1:
        raise InputError(f"expected --trials of at least 1, found {args.trials}")
    say(f"choosing between {', '.join(args.weights)} on {args.train}")
    from momentum_transfer.suites.chain import run_chain
    from momentum_transfer.suites.choose.candidates import read_candidates  # here, because torch takes seconds
    from momentum_transfer.suites.choose.recommend import write_page
    from momentum_transfer.suites.choose.run import keep_question, make_plan
    from momentum_transfer.suites.choose.stages import Question, image_steps, rows, training_steps

    out = Path(os.path.abspath(args.out))
    candidates, sources, size, left_out = read_candidates(args.weights, args.image_size)
    with alone(out):
        empty = Question(out, "", "", (), size, candidates, args.minutes, args.trials, args.seed, args.workers)
        asked, tested = open_data(args, empty)
        asked = keep_question(asked)
        os.chdir(workplace())  # where the commands run
        plan = make_plan(asked, sources, tested)
        shown = rows(asked, plan)
        table(f"plan for {asked.title}", ("stage", "what", "runs", "minutes"), shown)
        say(f"about {sum(float(row[-1]) for row in shown):.0f} minutes in all; what is done already is left out")
        if args.dry_run:
            return
        run_chain([*image_steps(asked), *training_steps(asked, plan)], out / "done.json", 1)
        page, choice = write_page(asked, ["tools/choose.py", *sys.argv[1:]], args.resamples, left_out)
    for sentence in (*choice.sentences, *left_out):
        say(sentence)
    say(f"wrote {page}; the records of all stages are in {asked.results}")


def open_data(args: argparse.Namespace, asked: "Question") -> tuple["Question", int]:
    """The question with its data, and the number of test images of one class."""
    from momentum_transfer.images.class_folders import is_class_folders, open_class_folders, title_of, write_list
    from momentum_transfer.suites.choose.stages import CLASSIFICATION, DETECTION

    train, val = Path(args.train).expanduser(), Path(args.val).expanduser() if args.val else None
    for path in filter(None, (train, val)):
        if not path.exists():
            raise InputError(f"expected images at {path}, found nothing there; check --train and --val")
    if not is_class_folders(train):
        from momentum_transfer.suites.choose.candidates import open_detection

        found = open_detection(args.train, args.val, args.split, title=args.title, images=args.images,
                               seed=args.seed, out=asked.out, overrides=args.overrides)  # fmt: skip
        made = replace(asked, kind=DETECTION, title=found.title, counts=found.counts, settings=found.settings,
                       longest=found.longest, engine=args.engine, overrides=tuple(args.overrides))  # fmt: skip
        return made, found.tested
    if args.overrides:
        raise InputError(f"expected KEY VALUE with boxes only, found {args.overrides[0]}; leave it out")
    parts = open_class_folders(train, val, args.split, args.seed)
    for name, part in zip(("train", "val"), parts, strict=True):
        write_list(asked.out / "images" / f"{name}.txt", part)
        say(f"{name}: {counted(len(part), 'image')}, {counted(len(part.classes), 'class')}")
    made = replace(asked, kind=CLASSIFICATION, title=args.title or title_of(train), counts=tuple(parts[0].counts()))
    return made, len(parts[1])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--weights", nargs="+", required=True, metavar="CKPT", help="checkpoints, run folders, hf:org/name"
    )
    made.add_argument(
        "--train", required=True, metavar="FOLDER_OR_FILE", help="COCO, VOC or YOLO form, or class folders"
    )
    made.add_argument("--val", metavar="FOLDER_OR_FILE", help="what tests; or:")
    made.add_argument("--split", type=float, metavar="SHARE", help="share of --train's images that train")
    made.add_argument("--images", metavar="DIR", help="where the images of --train lie, if not beside the labels")
    made.add_argument("--title", default="", metavar="NAME", help="name of the set in tables (default: the folder's)")
    made.add_argument("--minutes", type=float, default=60.0, help="for all trainings together (default: %(default)g)")
    made.add_argument("--trials", type=int, default=1, help="seeds of every training (default: %(default)s)")
    made.add_argument("--out", default="outputs/choose", metavar="DIR", help="default: %(default)s")
    made.add_argument("--image-size", type=int, metavar="PX", help="of the features' images (default: 224, or timm's)")
    made.add_argument(
        "--engine", choices=("auto", "detectron2", "torchvision"), default="auto", help="of the detectors"
    )
    made.add_argument("--workers", type=int, default=2, help="processes that read images (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of split, draws and trainings (default: %(default)s)")
    made.add_argument("--resamples", type=resamples, default=1000, help="of the test images (default: %(default)s)")
    made.add_argument("--dry-run", action="store_true", help="time, say the plan, and stop")
    made.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings of the detectors")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
