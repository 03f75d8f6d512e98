"""Which weights to start from: compare candidates on your own data, under a budget in minutes.

    python tools/choose.py --weights A.pth B.pth outputs/mine --train IMAGES --split 0.8 --minutes 60
    python tools/choose.py --weights A.pth hf:org/name --train IMAGES/train --val IMAGES/val --minutes 20
    python tools/choose.py --weights *.pth --train IMAGES --split 0.8 --screen                 (rank in two minutes)
    python tools/choose.py --weights *.pth --train IMAGES --split 0.8 --screen --minutes 60    (then halve and train)

Detection sets (COCO, VOC or YOLO form): kNN and SVM on crops of the labelled boxes, a detector on the frozen backbone,
then fine-tuned detectors. Classification sets (a folder for each class): kNN, SVM, a linear classifier, then
fine-tuning. A random start of the same architecture runs beside. --screen ranks by closed-form measures of frozen
features, without training; with --minutes the better half goes on after each stage. The plan comes first, estimated
from sizes; the same command resumes a stopped choice. One page recommends, or says that no difference is significant.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import resamples, run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, table
from momentum_transfer.core.run_lock import alone
from momentum_transfer.core.shipped import workplace


def main(args: argparse.Namespace) -> None:
    _check_numbers(args)
    say(f"choosing between {', '.join(args.weights)} on {args.train}")
    from momentum_transfer.suites.choose import candidates as reading  # here, because torch takes seconds
    from momentum_transfer.suites.choose import run
    from momentum_transfer.suites.choose import screen as screening
    from momentum_transfer.suites.choose.recommend import write_page
    from momentum_transfer.suites.choose.stages import Question

    out = Path(os.path.abspath(args.out))
    trains = not args.probes_only and (args.minutes is not None or not args.screen)
    alone_screen = args.screen and not (trains or args.probes_only)
    with alone(out):
        data, sample = _open(args, out), None
        if args.screen:
            take = screening.sample_of_boxes if data.side else screening.sample_of_files
            sample = take(data.parts["train"], args.seed)
        some, detectors = () if args.screen else data.some, bool(data.side) and trains
        found, size, left_out = reading.read_candidates(args.weights, args.image_size, some, detectors=detectors,
                                                        same_size=not alone_screen)  # fmt: skip
        question = Question(
            out, candidates=found, image_size=size, minutes=args.minutes or (60.0 if trains else 1e6), seed=args.seed,
            trials=args.trials, workers=args.workers, engine=args.engine, overrides=tuple(args.overrides),
            screened=args.screen, trains=trains, **data.question,
        )  # fmt: skip
        before, screen, last = 0.0, None, None
        if sample is not None:
            side = args.image_size or screening.SIDE["regions" if data.side else "images"]
            before = run.screen_seconds(question, len(sample.images), side)
            say(
                f"ranking {len(found)} candidates by {len(sample.images)} images without training: about {before:.0f} s"
            )
        if not alone_screen:
            question = run.as_begun(question)
            first = run.estimated(question, data.tested, data.side, data.batch)
            progress = run.Progress(question, run.make_plan(question, first, before))
            progress.show()
            say("the times are estimated from sizes, and measured as it goes; finished parts are left out")
        if args.dry_run:
            return
        os.chdir(workplace())  # where the commands run
        if not alone_screen:
            run.keep_question(question)
        if sample is not None:
            rank = partial(screening.screen, found, sample, args.image_size, args.measure, args.seed)
            screen = rank() if alone_screen else run.kept_screen(question, rank, args.measure)
            table(f"{question.title}: ranked by {screen.measure}", *screen.table())
            left_out += screen.left_out
        if not alone_screen:
            if data.side:
                reading.cut(data.parts, out, args.seed)
            last = progress.run(list(screen.ranks) if screen is not None else None)
        page, sentences = write_page(question, ["tools/choose.py", *sys.argv[1:]], args.resamples, left_out,
                                     screen=screen, last=last)  # fmt: skip
    for sentence in sentences:
        say(sentence)
    say(f"wrote {page}" + ("" if alone_screen else f"; the records of all stages are in {question.results}"))


def _check_numbers(args: argparse.Namespace) -> None:
    """InputError for minutes and trials that no choice can have."""
    if args.minutes is not None and not args.minutes > 0:
        raise InputError(f"expected --minutes above 0, found {args.minutes:g}")
    if args.trials < 1:
        raise InputError(f"expected --trials of at least 1, found {args.trials}")
    if args.probes_only and args.minutes is not None:
        raise InputError("expected --probes-only or --minutes, found both; nothing is trained under --probes-only")


def _open(args: argparse.Namespace, out: Path) -> Any:
    """The opened set of --train and --val, in whichever form."""
    from momentum_transfer.images.class_folders import is_class_folders
    from momentum_transfer.suites.choose.candidates import open_classes, open_detection

    train, val = Path(args.train).expanduser(), Path(args.val).expanduser() if args.val else None
    for path in filter(None, (train, val)):
        if not path.exists():
            raise InputError(f"expected images at {path}, found nothing there; check --train and --val")
    if not is_class_folders(train):
        if train.is_dir() and not any(path.suffix.lower() in (".json", ".xml", ".txt") for path in train.rglob("*")):
            raise InputError(f"expected boxes (COCO, VOC, YOLO), or folders of two classes or more, in {train}, found "
                             "neither")  # fmt: skip
        return open_detection(args.train, args.val, args.split, title=args.title, images=args.images, seed=args.seed,
                              out=out, overrides=args.overrides)  # fmt: skip
    if args.overrides:
        raise InputError(f"expected KEY VALUE with boxes only, found {args.overrides[0]}; leave it out")
    return open_classes(train, val, args.split, title=args.title, seed=args.seed, out=out)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", nargs="+", required=True, metavar="CKPT", help="checkpoints, run folders, hf:org/name")
    add("--train", required=True, metavar="FOLDER_OR_FILE", help="COCO, VOC or YOLO form, or class folders")
    add("--val", metavar="FOLDER_OR_FILE", help="what tests; or:")
    add("--split", type=float, metavar="FRACTION", help="fraction of --train's images that train")
    add("--images", metavar="DIR", help="where the images of --train lie, if not beside the labels")
    add("--title", default="", metavar="NAME", help="name of the set in tables (default: the folder's)")
    add("--minutes", type=float, help="for everything together (default: 60; none for --screen alone)")
    add("--screen", action="store_true", help="rank without training; with --minutes the better half goes on")
    add("--measure", default="", metavar="NAME", help="of --screen, that ranks (default: the first of the table)")
    add("--probes-only", action="store_true", help="kNN, SVM and linear classifier, no other training")
    add("--trials", type=int, default=1, help="seeds of every training (default: %(default)s)")
    add("--out", default="outputs/choose", metavar="DIR", help="default: %(default)s")
    add("--image-size", type=int, metavar="PX", help="of the features' images (default: 224, or timm's)")
    add("--engine", choices=("auto", "detectron2", "torchvision"), default="auto", help="of the detectors")
    add("--workers", type=int, default=2, help="processes that read images (default: %(default)s)")
    add("--seed", type=int, default=0, help="of split, samples and trainings (default: %(default)s)")
    add("--resamples", type=resamples, default=1000, help="of the test images (default: %(default)s)")
    add("--dry-run", action="store_true", help="print the plan, and stop")
    add("overrides", nargs="*", metavar="KEY VALUE", help="settings of the detectors")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
