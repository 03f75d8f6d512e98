"""The verdict of a choice and its page: which weights are significantly better, and whether any beats a random start.

The last stage decides: AP of the fine-tuned detectors, accuracy of the fine-tuned classifiers. Every pair of starts is
compared by the report's rule (`momentum_transfer.verdicts`) on the same test images, corrected over all
pairs, so that the best of many is not so by chance. The page is the report of all stages, headed by the recommendation.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.shipped import typed
from momentum_transfer.report.aggregate import Measure, Results, aggregate
from momentum_transfer.report.differences import RESAMPLES, Comparisons
from momentum_transfer.report.page import build, make_report, write_report
from momentum_transfer.report.read_inputs import read_records
from momentum_transfer.suites.choose.screen import Screen
from momentum_transfer.suites.choose.stages import DETECTION, Question
from momentum_transfer.verdicts.corrections import BETTER, verdicts


@dataclass(frozen=True)
class Choice:
    """The recommendation."""

    means: Mapping[str, float]  # of every start, best first
    best: tuple[str, ...]  # the candidates that no other is better than, best first
    worse: tuple[str, ...]  # the others
    helped: tuple[str, ...]  # those of ``best`` that are better than the random start of their architecture
    sentences: tuple[str, ...]  # the verdict, the recommendation first


def decide(asked: Question, records: Sequence[Mapping[str, Any]], resamples: int = RESAMPLES) -> Choice:
    """The verdict on the records of all stages, as `read_records` gives them.

    InputError where a start has no record of the stage that decides, or its outcomes per image are gone.
    """
    # Settings differ by architecture alone, because all commands follow from one question.
    results = aggregate([{**record, "config": ""} for record in records])
    measure = _deciding(asked, results)
    cells, what = results.cells[measure], f"{measure.task} {measure.metric}"
    if missing := [one.name for one in asked.everyone if one.name not in cells]:
        raise InputError(f"expected {what} of every start, found none of {missing[0]}; run it again")
    means = dict(sorted(((one.name, cells[one.name].mean) for one in asked.everyone), key=lambda pair: -pair[1]))
    comparisons, differences = Comparisons(results, resamples), {}
    for pair in itertools.combinations(means, 2):
        if (one := comparisons.of(measure, *pair)) is None or one.p is None:
            reason = next(iter(comparisons.notices), "one trial, and no outcomes per test image")
            raise InputError(f"no verdict on {what} is possible: {reason}")
        differences[pair] = one
    better = {pair for pair, (word, _) in verdicts(differences).items() if word == BETTER}
    baseline = {one.name: one.baseline for one in asked.candidates}
    ranked = [name for name in means if name in baseline]
    best = tuple(name for name in ranked if not any((other, name) in better for other in baseline))
    worse = tuple(name for name in ranked if name not in best)
    helped = tuple(name for name in best if (name, baseline[name]) in better)
    sentences = [_ranking(measure, means, best, worse)]
    for name in best:
        start = baseline[name]
        verdict = "is worse than" if (start, name) in better else "is not significantly different from"
        verdict = "is better than" if name in helped else verdict
        sentences.append(f"{name} {verdict} a random start of its architecture ({means[start]:.1f}).")
    near = {*best, *(baseline[name] for name in best)}
    sizes = [one.detectable for pair, one in differences.items() if set(pair) <= near and one.detectable is not None]
    if not any(means.values()):
        sentences.append("All scores are 0: these trainings were too short to compare; give more minutes.")
    elif sizes and (len(best) > 1 or not helped):
        sentences.append(f"A true difference of {max(sizes):.1f} points would be detected in 80 % of cases; more test "
                         "images, trials or minutes detect smaller ones.")  # fmt: skip
    return Choice(means, best, worse, helped, tuple(sentences))


def _deciding(asked: Question, results: Results) -> Measure:
    task, metric = ("coco/bbox", "AP") if asked.kind == DETECTION else ("finetune", "top1")
    found = [one for one in results.cells if (one.task, one.metric) == (task, metric) and "frozen" not in one.protocol]
    if len(found) != 1:
        raise InputError(f"expected one measure {task} {metric} in {asked.results}, found {len(found)}; run it again")
    return found[0]


def _ranking(measure: Measure, means: Mapping[str, float], best: Sequence[str], worse: Sequence[str]) -> str:
    score = {"AP": "box AP", "top1": "accuracy"}[measure.metric]

    def listed(names: Sequence[str]) -> str:
        return ", ".join(f"{name} ({means[name]:.1f})" for name in names)

    leader = best[0]
    if len(best) > 1:
        others = f", {listed(worse)} {'is' if len(worse) == 1 else 'are'} worse." if worse else "."
        return f"No significant difference in {score}: {listed(best)}; any of them will do{others}"
    if worse:
        return f"Take {leader}: its {score} of {means[leader]:.1f} is better than that of {listed(worse)}."
    return f"{leader}, the only candidate: {score} {means[leader]:.1f}."


def write_page(
    asked: Question, command: list[str], resamples: int, left_out: Sequence[str] = (), *,
    screen: Screen | None = None, last: Sequence[str] | None = None,
) -> tuple[Path, Sequence[str]]:  # fmt: skip
    """Decides where something was trained, and writes ``choice.html`` with its .md and .csv; the verdict's sentences.

    ``command``: the tool's file and arguments; ``left_out``: sentences on weights that cannot be used; ``screen``: the
    ranking before; ``last``: names of the candidates of the last stage (None: all).
    """
    trained = asked.results.is_file() and (screen is None or last is not None)  # else records of another question
    results = [asked.results] if trained else []
    said = [screen.sentence()] if screen is not None else []
    if asked.stages:
        finalists = tuple(one for one in asked.candidates if last is None or one.name in last)
        said = [*decide(replace(asked, candidates=finalists), read_records(results)[0], resamples).sentences, *said]
    runs = [folder for one in asked.everyone for stage in asked.stages
            if (folder := asked.out / one.name / stage).is_dir()]  # fmt: skip
    title = f"Which weights for {asked.title}?"
    if results:
        report = make_report(results, runs, command=typed(command), title=title, resamples=resamples)
    else:
        report = replace(build([], command=typed(command), title=title), verdicts=())
    tables = [screen.view()] if screen is not None else []
    out, sentences = asked.out / "choice.html", (*said, *left_out)
    report = replace(report, verdicts=(*sentences, *report.verdicts), overall=(*tables, *report.overall))
    write_report(report, out)
    return out, sentences
