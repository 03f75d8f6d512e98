"""The page of a choice: the report of all stages, with the recommendation as its first verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from momentum_transfer.core.shipped import typed
from momentum_transfer.report.page import make_report, read_records
from momentum_transfer.report.write import write_report
from momentum_transfer.suites.choose.plan import Question
from momentum_transfer.suites.choose.recommend import Choice, decide


def write_page(
    asked: Question, command: list[str], resamples: int, left_out: Sequence[str] = ()
) -> tuple[Path, Choice]:
    """Decide, and write ``choice.html`` with its .md and .csv.

    Args:
        command: the tool's file and its arguments, for the page.
        left_out: sentences on weights that were to be compared too, but cannot be read.

    Raises:
        InputError: a start has no record of the stage that decides.
    """
    choice = decide(asked, read_records([asked.results])[0], resamples)
    runs = [folder for one in asked.everyone for stage in asked.stages
            if (folder := asked.out / one.name / stage).is_dir()]  # fmt: skip
    report = make_report(
        [asked.results], runs, command=typed(command), title=f"Which weights for {asked.title}?", resamples=resamples
    )
    out = asked.out / "choice.html"
    write_report(replace(report, verdicts=(*choice.sentences, *left_out, *report.verdicts)), out)
    return out, choice
