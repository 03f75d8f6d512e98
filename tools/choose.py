"""Which weights to start from: compare candidates on your own data, under a budget in minutes.

    python tools/choose.py --weights A.pth B.pth outputs/mine --train IMAGES --split 0.8 --minutes 60
    python tools/choose.py --weights A.pth hf:org/name --train IMAGES/train --val IMAGES/val --minutes 20

Detection sets (COCO, VOC or YOLO form): kNN and SVM on crops of the labelled boxes, a detector on the frozen backbone,
then fine-tuned detectors. Classification sets (a folder for each class): kNN, SVM, a linear classifier, then
fine-tuning. A random start of the same architecture runs beside. The plan and its times are printed first; the same
command resumes a stopped choice. One page recommends, or says that no difference is significant.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import resamples, run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say, table
from momentum_transfer.core.run_lock import alone
from momentum_transfer.core.shipped import workplace


def main(args: argparse.Namespace) -> None:
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
        question, tested = _open_data(args, empty)
        question = keep_question(question)
        os.chdir(workplace())  # where the commands run
        plan = make_plan(question, sources, tested)
        lines = rows(question, plan)
        table(f"plan for {question.title}", ("stage", "what", "runs", "minutes"), lines)
        say(f"about {sum(float(row[-1]) for row in lines):.0f} minutes in all; finished parts are left out")
        if args.dry_run:
            return
        run_chain([*image_steps(question), *training_steps(question, plan)], out / "done.json", 1)
        page, choice = write_page(question, ["tools/choose.py", *sys.argv[1:]], args.resamples, left_out)
    for sentence in (*choice.sentences, *left_out):
        say(sentence)
    say(f"wrote {page}; the records of all stages are in {question.results}")


def _open_data(args: argparse.Namespace, question: Any) -> tuple[Any, int]:
    """The ``stages.Question`` with its data, and the number of test images."""
    from momentum_transfer.images.class_folders import is_class_folders, open_class_folders, title_of, write_list
    from momentum_transfer.suites.choose.stages import CLASSIFICATION, DETECTION

    train, val = Path(args.train).expanduser(), Path(args.val).expanduser() if args.val else None
    for path in filter(None, (train, val)):
        if not path.exists():
            raise InputError(f"expected images at {path}, found nothing there; check --train and --val")
    if not is_class_folders(train):
        from momentum_transfer.suites.choose.candidates import open_detection

        data = open_detection(args.train, args.val, args.split, title=args.title, images=args.images,
                              seed=args.seed, out=question.out, overrides=args.overrides)  # fmt: skip
        question = replace(question, kind=DETECTION, title=data.title, counts=data.counts, settings=data.settings,
                           longest=data.longest, engine=args.engine, overrides=tuple(args.overrides))  # fmt: skip
        return question, data.tested
    if args.overrides:
        raise InputError(f"expected KEY VALUE with boxes only, found {args.overrides[0]}; leave it out")
    parts = open_class_folders(train, val, args.split, args.seed)
    for name, part in zip(("train", "val"), parts, strict=True):
        write_list(question.out / "images" / f"{name}.txt", part)
        say(f"{name}: {counted(len(part), 'image')}, {counted(len(part.classes), 'class')}")
    title = args.title or title_of(train)
    return replace(question, kind=CLASSIFICATION, title=title, counts=tuple(parts[0].counts())), len(parts[1])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", nargs="+", required=True, metavar="CKPT", help="checkpoints, run folders, hf:org/name")
    add("--train", required=True, metavar="FOLDER_OR_FILE", help="COCO, VOC or YOLO form, or class folders")
    add("--val", metavar="FOLDER_OR_FILE", help="what tests; or:")
    add("--split", type=float, metavar="FRACTION", help="fraction of --train's images that train")
    add("--images", metavar="DIR", help="where the images of --train lie, if not beside the labels")
    add("--title", default="", metavar="NAME", help="name of the set in tables (default: the folder's)")
    add("--minutes", type=float, default=60.0, help="for all trainings together (default: %(default)g)")
    add("--trials", type=int, default=1, help="seeds of every training (default: %(default)s)")
    add("--out", default="outputs/choose", metavar="DIR", help="default: %(default)s")
    add("--image-size", type=int, metavar="PX", help="of the features' images (default: 224, or timm's)")
    add("--engine", choices=("auto", "detectron2", "torchvision"), default="auto", help="of the detectors")
    add("--workers", type=int, default=2, help="processes that read images (default: %(default)s)")
    add("--seed", type=int, default=0, help="of split, samples and trainings (default: %(default)s)")
    add("--resamples", type=resamples, default=1000, help="of the test images (default: %(default)s)")
    add("--dry-run", action="store_true", help="time, print the plan, and stop")
    add("overrides", nargs="*", metavar="KEY VALUE", help="settings of the detectors")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
