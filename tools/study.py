"""Run one of the studies that test the papers' claims at small scale, and print the result.

    python tools/study.py --list
    python tools/study.py NAME [--dry-run] [--output DIR]      (configs/suites/study_NAME.yaml)
    python tools/study.py NAME --table                         (runs nothing: of the existing scores)

A study is a suite, so it resumes, fails and reports as one (tools/evaluate.py). At its end the table of its comparisons
by the verdict rule (study.md) and its plots (plot_1.svg, …) lie beside the suite's report.html. The results are in
docs/claims.md.
"""

import argparse
import difflib
import subprocess
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import say, table
from momentum_transfer.core.shipped import CONFIGS, started, workplace
from momentum_transfer.suites.suite import Suite, load_suite
from momentum_transfer.suites.sweep import describe

_PREFIX = "study_"


def main(args: argparse.Namespace) -> None:
    if args.list:
        suites = {name: study_suite(name) for name in studies()}
        table(
            "studies",
            ["name", "question"],
            [[name, suite.study.claim] for name, suite in suites.items() if suite.study],
        )
        return
    if not args.name:
        raise InputError(f"expected the name of a study, one of {', '.join(studies())}, found none; see --list")
    suite = study_suite(args.name)
    output = Path(args.output).absolute() if args.output else workplace() / "outputs" / suite.name
    code = 0
    if not args.table:
        command = ["tools/evaluate.py", "--suite", str(suite.path), "--jobs", str(args.jobs), "--output", str(output)]
        command += ["--dry-run"] if args.dry_run else []
        code = subprocess.run([sys.executable, *started(command)], cwd=workplace(), check=False).returncode
        if args.dry_run:
            raise SystemExit(code)
    answer(suite, output)
    if code:
        raise SystemExit(code)


def studies() -> list[str]:
    """Names of the studies that ship."""
    return [file.stem.removeprefix(_PREFIX) for file in sorted((CONFIGS / "suites").glob(f"{_PREFIX}*.yaml"))]


def study_suite(name: str) -> Suite:
    """The suite of a study: a name of ``studies``, or a suite's file; InputError if there is none."""
    if Path(name).suffix not in (".yaml", ".yml") and name not in studies():
        near = difflib.get_close_matches(name, studies(), n=1, cutoff=0)
        raise InputError(f"expected a study of {', '.join(studies())}, found {name}; did you mean {near[0]}?")
    suite = load_suite(name if name not in studies() else CONFIGS / "suites" / f"{_PREFIX}{name}.yaml")
    if suite.study is None:
        raise InputError(f"expected a suite with a study in {suite.path}, found none; run it by tools/evaluate.py")
    return suite


def answer(suite: Suite, output: Path) -> None:
    """Write the table and the plots of the scores in ``output``, and print the table."""
    from momentum_transfer.report.plots import standalone  # here, because matplotlib takes a second
    from momentum_transfer.report.read_inputs import read_records
    from momentum_transfer.report.study_page import (
        COLUMNS,
        answers,
        difference_figure,
        line_figure,
        subjects,
        table_markdown,
    )  # fmt: skip

    assert suite.study is not None
    records, problems = read_records([output / "results.jsonl"])
    for problem in problems:
        say(problem)
    runs = describe(suite.sweep) if suite.sweep else {}
    results = answers(suite.study, records, runs)
    figures = [line_figure(lines, records, runs) for lines in suite.study.lines]
    figures.append(difference_figure(results, suite.study.claim))
    for number, figure in enumerate(figures, start=1):
        if figure.svg:
            write_text(output / f"plot_{number}.svg", standalone(figure.svg))
        else:
            say(f"{figure.title}: {figure.caption}")
    write_text(output / "study.md", f"# {suite.study.claim}\n\n{table_markdown(results)}")
    table(suite.study.claim, list(COLUMNS), [list(each.cells()) for each in results])
    say(subjects(results))
    say(f"first minus second; wrote study.md and plot_1.svg … to {output}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("name", nargs="?", help="of the study, or the file of a suite with a study of your own")
    add("--list", action="store_true", help="the studies and what each asks")
    add("--dry-run", action="store_true", help="print the plan with its commands and expected hours")
    add("--table", action="store_true", help="run nothing: table and plots of the scores that are there")
    add("--output", metavar="DIR", help="where everything goes (default: outputs/study_NAME)")
    add("--jobs", type=int, default=1, metavar="N", help="tasks at a time (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
