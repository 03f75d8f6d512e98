"""Run one of the studies that test the papers' claims at small scale, and print the result.

    python tools/study.py --list
    python tools/study.py NAME [--dry-run] [--output DIR]      (configs/suites/study_NAME.yaml)
    python tools/study.py NAME --table [--output DIR]          (runs nothing: of the scores there, or that ship)
    python tools/study.py NAME --verify 3                      (three cells of the shipped scores again: do they agree?)
    python tools/study.py NAME --pack                          (studies/records/NAME.tar.xz of the existing scores)

A study is a suite, so it resumes, fails and reports as one (tools/evaluate.py). At its end the table of its comparisons
by the verdict rule (study.md) and its plots (plot_1.svg, …) lie beside the suite's report.html. The results are in
docs/claims.md.
"""

import argparse
import difflib
import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import at_least, run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import say, silent, table
from momentum_transfer.core.shipped import CONFIGS, started, workplace
from momentum_transfer.suites.study_entry import Study
from momentum_transfer.suites.suite import Suite, load_suite
from momentum_transfer.suites.task import PRETRAIN, Job, read_state

if TYPE_CHECKING:
    from momentum_transfer.report.study_page import Scores

_PREFIX = "study_"


def main(args: argparse.Namespace) -> None:
    if args.list:
        suites = {name: study_suite(name) for name in studies()}
        rows = [[name, suite.study.claim] for name, suite in suites.items() if suite.study]
        table("studies", ["name", "question"], rows)
        return
    if not args.name:
        raise InputError(f"expected the name of a study, one of {', '.join(studies())}, found none; see --list")
    suite = study_suite(args.name)
    output = Path(args.output).absolute() if args.output else workplace() / "outputs" / suite.name
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of every cell: bits depend on the number of threads
    if args.verify:
        places = (output.with_name(f"{output.name}_verify_{number}") for number in itertools.count(1))
        verify(suite, args.verify, next(place for place in places if not place.exists()), args.jobs)
        return
    if args.pack:
        from momentum_transfer.report.study_records import pack

        size = pack(_study(suite), _scores(suite, output), output, _archive(suite))
        say(f"wrote {_archive(suite)}, {size / 1e6:.2f} MB")
        return
    code = 0
    if not args.table:
        command = ["tools/evaluate.py", "--suite", str(suite.path), "--jobs", str(args.jobs), "--output", str(output)]
        command += ["--dry-run"] if args.dry_run else []
        with silent():  # evaluate speaks
            code = subprocess.run([sys.executable, *started(command)], cwd=workplace(), check=False).returncode
        if args.dry_run:
            raise SystemExit(code)
    answer(suite, output, ships=args.table and not args.output)
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


def answer(suite: Suite, output: Path, ships: bool = False) -> None:
    """Write the table and the plots of the scores in ``output``, and print the table.

    ``ships``: where there are none, of those that ship.
    """
    from momentum_transfer.report import study_page as page  # here, because matplotlib takes a second
    from momentum_transfer.report.plots import standalone

    study, scores = _study(suite), _scores(suite, output, ships)
    results = page.answers(study, scores)
    notices = dict.fromkeys(notice for one in results for notice in one.notices)
    said = [*page.notes(study, scores), *notices, *_unended(suite, output)]
    said += [page.in_short(study, results)] if results else []
    figures = [page.line_figure(lines, scores) for lines in study.lines]
    figures.append(page.difference_figure(results, study.claim))
    for number, figure in enumerate(figures, start=1):
        if figure.svg:
            write_text(output / f"plot_{number}.svg", standalone(figure.svg))
        else:
            say(f"{figure.title}: {figure.caption}")
    write_text(output / "study.md", f"# {study.claim}\n\n{page.table_markdown(results, said)}")
    table(study.claim, list(page.COLUMNS), [list(each.cells()) for each in results])
    for line in (page.subjects(results), *said):
        say(line)
    say(f"first minus second; wrote study.md and plot_1.svg … to {output}")


def verify(suite: Suite, count: int, output: Path, jobs: int) -> None:
    """Run ``count`` random cells of the shipped scores again; exit code 1 if a score does not agree."""
    from momentum_transfer.core.records import read
    from momentum_transfer.report.study_records import RESULTS, agreement, made_alike, unpack
    from momentum_transfer.suites.attempt import alone
    from momentum_transfer.suites.local import run_local
    from momentum_transfer.suites.planning import plan

    with tempfile.TemporaryDirectory() as folder:
        unpack(_archive(suite), Path(folder))
        before = read(Path(folder) / RESULTS)[0]
        scored = {str(one["checkpoint"]["name"]) for one in before}
        wanted = cells(plan(suite, list(suite.weights), output), scored, count)
        with alone(output) as lock:
            ended = run_local(wanted, parallel=jobs, gpus=0, lock=lock)
        if not all(outcome.well for outcome in ended) or not (output / RESULTS).is_file():
            raise InputError(f"expected every cell to run, found one that failed; see the logs in {output}")
        again = read(output / RESULTS)[0]
        same = made_alike(Path(folder), before, again)
        rows = agreement(before, again, suite.runs(), same)
    title = "equal bits where versions and CPU kind are the shipped ones, else within seeds' noise"
    shown = [[name, measure, f"{was:.2f}", f"{now:.2f}", word] for name, measure, was, now, word, _ in rows]
    table(title, ["cell", "measure", "shipped", "again", "agrees"], shown)
    if not rows or not all(row[-1] for row in rows):
        raise SystemExit(1)


def cells(jobs: Sequence[Job], scored: Collection[str], count: int) -> list[Job]:
    """The jobs of ``count`` random cells that have scores, with those that they need.

    A cell is a pretraining of the suite with all its tasks, or a task of given weights. A suite whose scores have
    names of their own is taken to have all.
    """
    own = {job.weights for job in jobs if job.task.name == PRETRAIN}
    ran = {name for name in own if any(one == name or one.startswith(f"{name}_") for one in scored)} or own
    cell = {job.title: job.weights if job.weights in own else job.title for job in jobs}
    names = sorted({name for name in cell.values() if name in ran or name not in own})
    chosen = set(random.sample(names, min(count, len(names))))
    wanted = {job.title for job in jobs if cell[job.title] in chosen}
    for job in reversed(jobs):  # what they need comes before them
        if job.title in wanted:
            wanted |= {need.title for need in job.needs}
    return [job for job in jobs if job.title in wanted]


def _unended(suite: Suite, output: Path) -> list[str]:
    """What to say of tasks that began and have not ended with the suite as it is now; nothing where all have."""
    from momentum_transfer.suites.planning import plan

    jobs = plan(suite, [], output) if suite.sweep else []
    began = [job.title for job in jobs if read_state(job.folder) and not job.done()]
    if not began:
        return []
    named = ", ".join(began[:3]) + (", …" if began[3:] else "")
    says = "have not ended with the suite as it is now, and their earlier scores count"
    return [f"{len(began)} of {len(jobs)} tasks {says}: {named}"]


def _study(suite: Suite) -> Study:
    assert suite.study is not None
    return suite.study


def _archive(suite: Suite) -> Path:
    from momentum_transfer.report import study_records

    return study_records.shipped(suite.name.removeprefix(_PREFIX))


def _scores(suite: Suite, output: Path, ships: bool = False) -> "Scores":
    """The scores in ``output``; where there are none and it ``ships``, of the archive."""
    from momentum_transfer.report.read_inputs import read_records
    from momentum_transfer.report.study_page import Scores
    from momentum_transfer.report.study_records import RESULTS, curves_of, unpack

    if ships and not (output / RESULTS).is_file() and _archive(suite).is_file():
        say(f"of the scores that ship: {_archive(suite)}")
        output = output / "shipped"
        unpack(_archive(suite), output)
    records, problems = read_records([output / RESULTS])
    for problem in problems:
        say(problem)
    return Scores(records, suite.runs(), curves_of(output))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("name", nargs="?", help="of the study, or the file of a suite with a study of your own")
    add("--list", action="store_true", help="the studies and what each asks")
    add("--dry-run", action="store_true", help="print the plan with its commands and expected hours")
    add("--table", action="store_true", help="run nothing: the table of the scores in --output, or that ship")
    add("--verify", type=at_least(1, "a number of cells"), metavar="N", help="run N cells of the shipped scores again")
    add("--pack", action="store_true", help="write studies/records/NAME.tar.xz of the scores that are there")
    add("--output", metavar="DIR", help="where everything goes (default: outputs/study_NAME)")
    add("--jobs", type=int, default=1, metavar="N", help="tasks at a time (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
