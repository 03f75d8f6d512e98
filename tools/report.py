"""One page that answers "does it transfer?": HTML, Markdown and CSV from result records and run folders.

    python tools/report.py outputs/results.jsonl --runs outputs/momentum2_digits --out outputs/report.html

Writes the HTML page, and beside it the same tables as .md and the cells as .csv. The page needs no network.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import above_0, resamples, run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say
from momentum_transfer.core.shipped import typed
from momentum_transfer.core.urls import is_url, local_copy


def main(args: argparse.Namespace) -> None:
    say(f"reading {', '.join(args.results)}")
    from momentum_transfer.report.page import make_report, page_name, write_report  # here: matplotlib takes a second
    from momentum_transfer.report.read_inputs import read_methods

    if is_url(args.results[0]) and not args.out:
        raise InputError(f"expected --out FILE.html with records at a URL, found {args.results[0]} alone; add it")
    args.results = [str(local_copy(name, records=True)) if is_url(name) else name for name in args.results]
    out = page_name(args.out or Path(args.results[0]).parent / "report.html")
    report = make_report(
        args.results, args.runs, command=typed(["tools/report.py", *sys.argv[1:]]), title=args.title,
        resamples=args.resamples, methods=read_methods(args.method), baseline=args.baseline,
        margin=args.margin,
    )  # fmt: skip
    write_report(report, out)
    for verdict in report.verdicts:
        say(verdict)
    if report.notices:
        say(f"{counted(len(report.notices), 'notice')} at the end of the page; the first: {report.notices[0]}")
    say(f"wrote {out} ({out.stat().st_size / 1e6:.2f} MB), and beside it {out.stem}.md and {out.stem}.csv")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS.jsonl", help="records of evaluating tools; URLs too")
    add("--runs", nargs="*", default=[], metavar="DIR", help="OUTPUT_DIRs: curves, images, conversion")
    add("--out", metavar="FILE.html", help="default: report.html beside the first results file")
    add("--resamples", type=resamples, default=1000,
        help="of the test images for intervals (default: %(default)s; 0: none)")  # fmt: skip
    add("--method", action="append", default=[], metavar="NAME=CKPT,CKPT",
        help="pretrainings of one method, as one column")  # fmt: skip
    add("--baseline", default="", metavar="NAME",
        help="checkpoint to compare with (default: of METHOD random, or so named)")  # fmt: skip
    add("--margin", type=above_0, metavar="POINTS", help="says what is equal within it")
    add("--title", default="Does it transfer?", help="heading of the page (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
