"""One page that answers "does it transfer?": HTML, Markdown and CSV from result records and run folders.

    python tools/report.py outputs/results.jsonl --runs outputs/momentum2_digits --out outputs/report.html

Writes the HTML page, and beside it the same tables as .md and the cells as .csv. The page needs no network.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import resamples, run_tool
from momentum_transfer.core.errors import counted
from momentum_transfer.core.log import say
from momentum_transfer.core.shipped import typed


def main(args: argparse.Namespace) -> None:
    """Read, build, write the three files."""
    say(f"reading {', '.join(args.results)}")
    from momentum_transfer.report.inputs import read_methods
    from momentum_transfer.report.page import (
        make_report,  # here, because matplotlib takes a second
        page_name,
        write_report,
    )

    out = page_name(args.out or Path(args.results[0]).parent / "report.html")
    command = typed(["tools/report.py", *sys.argv[1:]])
    methods = read_methods(args.method)
    report = make_report(
        args.results,
        args.runs,
        command=command,
        title=args.title,
        resamples=args.resamples,
        methods=methods,
        baseline=args.baseline,
    )
    write_report(report, out)
    for verdict in report.verdicts:
        say(verdict)
    if report.notices:
        say(f"{counted(len(report.notices), 'notice')} at the end of the page; the first: {report.notices[0]}")
    say(f"wrote {out} ({out.stat().st_size / 1e6:.2f} MB), and beside it {out.stem}.md and {out.stem}.csv")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("results", nargs="+", metavar="RESULTS.jsonl", help="records that the evaluating tools wrote")
    made.add_argument("--runs", nargs="*", default=[], metavar="DIR", help="OUTPUT_DIRs: curves, pictures, conversion")
    made.add_argument("--out", metavar="FILE.html", help="default: report.html beside the first results file")
    made.add_argument(
        "--resamples",
        type=resamples,
        default=1000,
        help="of the test images for intervals (default: %(default)s; 0: none)",
    )
    made.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="NAME=CKPT,CKPT",
        help="pretrainings of one method, as one column",
    )
    made.add_argument(
        "--baseline",
        default="",
        metavar="NAME",
        help="checkpoint to compare with (default: of METHOD random, or so named)",
    )
    made.add_argument("--title", default="Does it transfer?", help="heading of the page (default: %(default)s)")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
