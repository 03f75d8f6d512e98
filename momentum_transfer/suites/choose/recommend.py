"""The verdict of a choice: which weights are ahead, which are not told apart, and whether any beats a random start.

The last stage decides: AP of the fine-tuned detectors, accuracy of the fine-tuned classifiers. Every pair of starts is
compared by the report's rule (`momentum_transfer.verdicts`): the same test images, resampled, or McNemar's test on
them; with several trials, trials too; Holm's correction over all pairs, so that the best of many is not so by chance.

The page of a choice: the report of all stages, with the recommendation as its first verdict.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.shipped import typed
from momentum_transfer.report.aggregate import Measure, Results, aggregate
from momentum_transfer.report.differences import RESAMPLES, Comparisons
from momentum_transfer.report.inputs import read_records
from momentum_transfer.report.page import make_report, write_report
from momentum_transfer.suites.choose.stages import Question
from momentum_transfer.verdicts.comparison import ALPHA, Comparison, holm


@dataclass(frozen=True)
class Choice:
    """What is recommended.

    Attributes:
        measure: that decided. means: of every start, best first.
        best: the candidates that no other is ahead of, best first. behind: the others.
        helped: of ``best``, those that are ahead of the random start of their architecture.
        sentences: the verdict in words, the recommendation first.
    """

    measure: Measure
    means: Mapping[str, float]
    best: tuple[str, ...]
    behind: tuple[str, ...]
    helped: tuple[str, ...]
    sentences: tuple[str, ...]


def decide(asked: Question, records: Sequence[Mapping[str, Any]], resamples: int = RESAMPLES) -> Choice:
    """The verdict on the records of all stages.

    Args:
        records: as `report.inputs.read_records` gives them: with the folders of their outcomes per image.

    Raises:
        InputError: a start has no record of the stage that decides, or its outcomes per image are gone.
    """
    # Settings differ by architecture, and by nothing else: all commands were made of one question.
    results = aggregate([{**record, "config": ""} for record in records])
    measure = _deciding(asked, results)
    cells = results.cells[measure]
    missing = [one.name for one in asked.everyone if one.name not in cells]
    if missing:
        raise InputError(
            f"expected {measure.task} {measure.metric} of every start, found none of {missing[0]}; run it again"
        )
    means = dict(sorted(((one.name, cells[one.name].mean) for one in asked.everyone), key=lambda pair: -pair[1]))
    comparisons = Comparisons(results, resamples)
    found, ahead = _pairs(comparisons, measure, list(means))
    if len(found) < len(means) * (len(means) - 1) // 2:
        reason = next(iter(comparisons.notices), "one trial, and no outcomes per test image")
        raise InputError(f"no verdict on {measure.task} {measure.metric} is possible: {reason}")
    names = {one.name for one in asked.candidates}
    ranked = [name for name in means if name in names]
    best = tuple(name for name in ranked if not any((other, name) in ahead for other in names))
    behind = tuple(name for name in ranked if name not in best)
    baseline = {one.name: one.baseline for one in asked.candidates}
    helped = tuple(name for name in best if (name, baseline[name]) in ahead)
    told = _sentences(measure, means, best, behind, baseline, ahead)
    if not any(means.values()):
        told.append(
            "Nothing right was found by any of them: these trainings were too short to compare; give more minutes."
        )
    elif len(best) > 1 or len(best) != len(helped):
        told += _detectable(best, baseline, found)
    return Choice(measure, means, best, behind, helped, tuple(told))


def _deciding(asked: Question, results: Results) -> Measure:
    wanted = ("coco/bbox", "AP") if asked.kind == "detection" else ("finetune", "top1")
    found = [one for one in results.cells if (one.task, one.metric) == wanted and "frozen" not in one.protocol]
    if len(found) != 1:
        raise InputError(
            f"expected one measure {' '.join(wanted)} in {asked.results}, found {len(found)}; run it again"
        )
    return found[0]


def _pairs(
    comparisons: Comparisons, measure: Measure, names: Sequence[str]
) -> tuple[dict[tuple[str, str], Comparison], set[tuple[str, str]]]:
    """Differences of all pairs (the better first), and the pairs of which the first is ahead, after Holm."""
    found = {}
    for first, second in itertools.combinations(names, 2):
        if (one := comparisons.of(measure, first, second)) is not None and one.p is not None:
            found[first, second] = one
    adjusted = holm([one.p for one in found.values() if one.p is not None])
    ahead = {pair for (pair, one), p in zip(found.items(), adjusted, strict=True) if p <= ALPHA and one.value > 0}
    return found, ahead


def _sentences(
    measure: Measure,
    means: Mapping[str, float],
    best: Sequence[str],
    behind: Sequence[str],
    baseline: Mapping[str, str],
    ahead: Collection[tuple[str, str]],
) -> list[str]:
    words = {"AP": "box AP", "top1": "accuracy"}[measure.metric]

    def told(names: Sequence[str]) -> str:
        return ", ".join(f"{name} ({means[name]:.1f})" for name in names)

    leader = best[0]
    if len(best) > 1:
        first = f"Not told apart in {words}: {told(best)}; any of them will do"
        first += f", {told(behind)} {'is' if len(behind) == 1 else 'are'} behind." if behind else "."
    elif behind:
        first = f"Take {leader}: its {words} of {means[leader]:.1f} is ahead of {told(behind)}."
    else:
        first = f"{leader}, the only candidate: {words} {means[leader]:.1f}."
    sentences = [first]
    for name in best:
        start = baseline[name]
        if (name, start) in ahead:
            word = "is ahead of"
        elif (start, name) in ahead:
            word = "is behind"
        else:
            word = "is not told apart from"
        sentences.append(f"{name} {word} a random start of its architecture ({means[start]:.1f}).")
    return sentences


def _detectable(
    best: Sequence[str], baseline: Mapping[str, str], found: Mapping[tuple[str, str], Comparison]
) -> list[str]:
    """How large a difference would have to be for these test images and trials to show it."""
    near = {*best, *(baseline[name] for name in best)}
    sizes = [one.detectable for pair, one in found.items() if set(pair) <= near and one.detectable is not None]
    if not sizes:
        return []
    return [f"A true difference of {max(sizes):.1f} points would be seen in 80 % of cases: more test images, trials or "
            "minutes see smaller ones."]  # fmt: skip


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
