"""Is B better than A? A verdict on anybody's predictions, outcomes per image or results files, and a gate for CI.

    python tools/verdict.py instances_val2017.json a.json b.json                    COCO, LVIS or VOC results
    python tools/verdict.py gtFine/val a_labels/ b_labels/ --groups cities.csv      folders of label PNGs
    python tools/verdict.py --outcomes a.csv b.csv --require "accuracy >= -0.5"     a row an image, from any tool
    python tools/verdict.py a/results.jsonl b/results.jsonl                         records of one checkpoint each

Every file is compared with the first, item by item; greater is better, differences are in points (percent where values
are from 0 to 1). Exit code 0: every requirement is met, or there is none; 1: one is not; 2: wrong input.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import above_0, at_least, run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import say, table, warn

#: Options that go to the score as they are.
_SCORE = ("iou_type", "max_dets", "interpolation", "ignore_label")


def main(args: argparse.Namespace) -> None:
    records = all(Path(file).suffix == ".jsonl" for file in args.files)
    given = [*args.files, *args.outcomes]
    if bool(args.files) == bool(args.outcomes) or len(given) < (2 if records else 3):
        what = "expected GT A B, two results files (.jsonl) or --outcomes A.csv B.csv"
        raise InputError(f"{what}, found {' '.join(given) or 'none'}")
    truth, files = (None, given) if records else (given[0], given[1:])
    _check_written(args, [file for file in (truth, *files, args.groups) if file])
    say(f"comparing {', '.join(files[1:])} with {files[0]}")
    from momentum_transfer.report.file_verdict import verdict  # here: scipy takes most of a second
    from momentum_transfer.report.read_inputs import read_methods

    score = {name: value for name in _SCORE if (value := getattr(args, name)) is not None}
    found = verdict(*files, ground_truth=truth, kind=args.kind, groups=args.groups, margin=args.margin,
                    require=args.require, measure=args.measure, methods=read_methods(args.method),
                    resamples=args.resamples, seed=args.seed, **score)  # fmt: skip
    view = found.table()
    rows = [[row.label, *(cell.text for cell in row.cells)] for row in view.rows]
    table(view.title, (view.first, *view.columns), rows)
    for notice in found.notices:
        warn(notice)
    for line in found.sentences:
        say(line)
    for each in found.gate:
        (say if each.met else warn)(each.line)
    for out, text in ((args.json, found.as_json), (args.html, found.as_html)):
        if out:
            write_text(out, text())
    if not found.met:
        raise SystemExit(1)


def _check_written(args: argparse.Namespace, inputs: list[str]) -> None:
    """InputError, before any compute, where an output would lie on or in an input."""
    outs = [out.resolve() for out in (args.json, args.html) if out]
    for out in outs:
        held = [file for file in inputs if Path(file).resolve() in (out, *out.parents)]
        if held or out.is_dir() or outs.count(out) > 1:
            raise InputError(f"expected --json and --html as files of their own, found {out}; choose another name")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="ground truth and two or more predictions; or results files (.jsonl)")
    add("--outcomes", nargs="+", default=[], metavar="CSV", help="instead: image ids, and values or hits by measure")
    add("--require", action="append", default=[], metavar="RULE",
                     help='"AP >= -0.5" or "AP > 0": the 95%% interval lies there; may be repeated')  # fmt: skip
    add("--measure", action="append", default=[], metavar="NAME", help="compare this one; repeatable (default: all)")
    add("--method", action="append", default=[], metavar="NAME=CKPT,CKPT",
                    help="results files: pretrainings of one method")  # fmt: skip
    add("--groups", metavar="CSV", help="images and their films, patients or sites, which are resampled whole")
    add("--margin", type=above_0, metavar="POINTS", help="says what is equal within it")
    add("--json", type=Path, metavar="FILE", help="all numbers")
    add("--html", type=Path, metavar="FILE", help="one page")
    add("--kind", choices=("coco", "lvis", "voc", "semantic"), help="of ground truth (default: found from it)")
    add("--iou-type", choices=("bbox", "segm"), help="coco and lvis: boxes (default) or masks")
    add("--max-dets", type=int, help="coco: per image and class (100); lvis: per image (300)")
    add("--interpolation", choices=("11-point", "area"), help="voc: 11-point (default) for 2007, area for 2010 on")
    add("--ignore-label", type=int, help="semantic: label that is left out (255)")
    add("--resamples", type=at_least(100), default=1000, help="of the images (default: %(default)s)")
    add("--seed", type=at_least(0), default=0, help="of the resamples (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
