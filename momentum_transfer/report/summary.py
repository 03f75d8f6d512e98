"""The tables of all tasks together: the summary, mean ranks and improvement, and the evidence behind every verdict."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy import stats

from momentum_transfer.report import tables
from momentum_transfer.report.aggregate import Measure, Results
from momentum_transfer.report.differences import RULE, Comparisons
from momentum_transfer.report.tables import CellView, RowView, TableView, number
from momentum_transfer.verdicts.comparison import Comparison
from momentum_transfer.verdicts.power import MOST_TRIALS, POWER, power_of
from momentum_transfer.verdicts.ranking import (
    Ranking,
    friedman,
    interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)

_HOW = (
    "A difference is in points, with its 95 % interval in brackets (for that number alone, uncorrected). Where both "
    "sides have the same trials (samples of labelled images, seeds of training) it is Student's t over the differences "
    "trial by trial, otherwise Welch's. Where records keep the outcome of every test image, the images are resampled "
    "too, with the same weights on both sides, and their variance is added; of that and the trials alone the wider "
    "interval counts. With one trial on both sides the interval is over images alone (Student's t with the bootstrap's "
    "standard error; McNemar's exact test where an image is right or wrong) and speaks of the networks as they were "
    "trained; of several against one it is over the several and the images, about the one as it stands. The "
    "spread of one checkpoint (±) is the sample standard deviation over its trials. No interval covers the seed of "
    "pretraining where a checkpoint was pretrained once."
)

#: More pairs than these are left to the detail tables.
_PAIRS = 4

#: Places of dataset, protocol and engine in a Measure.
_CONTEXT = (2, 3, 4)


def summary_table(comparisons: Comparisons) -> TableView:
    """One row a headline measure, one column a checkpoint, then the differences from random and supervised."""
    results = comparisons.results
    pairs = tables.compared(results)
    if len(pairs) > _PAIRS:
        pairs = []
    measures = tables.headline_order(results)
    counts = {cell.trials for m in measures for cell in results.cells[m].values() if cell.trials > 1}
    rows = []
    for family, same in itertools.groupby(measures, key=lambda measure: measure.family):
        rows += _summary_group(comparisons, tables.FAMILIES.get(family, family), list(same), pairs, len(counts) > 1)
    if ranks := mean_ranks(results):
        cells = [
            CellView(f"{ranks[name][0]:.1f}", note=f"over {ranks[name][1]}") if name in ranks else CellView()
            for name in results.checkpoints
        ]
        cells += [CellView()] * len(pairs)
        rows.append(RowView("mean rank", "rank", tuple(cells), note="1 is best; ties get their mean rank"))
    trials = counts.pop() if len(counts) == 1 else "n"
    caption = (
        f"The main metric of every task, in percent: mean ± sample standard deviation over {trials} trials (a number "
        "without ± is a single trial); the best in bold."
    )
    columns = (*results.checkpoints, *(f"{name} − {base}" for name, base in pairs))
    return TableView("Summary", caption, "task", columns, tuple(rows), reading=f"{RULE} {_HOW}")


def _summary_group(
    comparisons: Comparisons, title: str, measures: Sequence[Measure], pairs: Sequence[tuple[str, str]], counted: bool
) -> list[RowView]:
    """A heading with the data, protocol and engine that all rows have in common, and the rows with their own."""
    results = comparisons.results
    words = {pair: comparisons.words(*pair) for pair in pairs}
    common = [place for place in _CONTEXT if len({measure[place] for measure in measures}) == 1]
    own = [place for place in _CONTEXT if place not in common]

    def named(measure: Measure, places: Sequence[int]) -> str:
        return " · ".join(measure[place] for place in places if measure[place])

    rows = [RowView(title, "group", (), note=named(measures[0], common))]
    for measure in measures:
        views = tables.cell_views(results, measure, results.checkpoints, counted)
        views += [tables.difference_view(comparisons.of(measure, *pair), words[pair].get(measure)) for pair in pairs]
        rows.append(RowView(measure.label, "ours", tuple(views), note=named(measure, own)))
    return rows


def mean_ranks(results: Results) -> dict[str, tuple[float, int]]:
    """Mean rank (1 is best, ties get their mean) of each checkpoint over the headline measures of two or more.

    Returns:
        checkpoint to (mean rank, number of measures it was ranked on).
    """
    ranks: dict[str, list[float]] = defaultdict(list)
    for measure in results.headlines():
        cells = results.cells[measure]
        if len(cells) > 1:
            for name, rank in zip(cells, stats.rankdata([-cell.mean for cell in cells.values()]).tolist(), strict=True):
                ranks[name].append(rank)
    return {name: (statistics.fmean(found), len(found)) for name, found in ranks.items()}


def ranking(results: Results) -> Ranking | None:
    """Friedman and Nemenyi over the headline measures that all checkpoints have; None below 3 checkpoints."""
    names, measures = results.checkpoints, _complete(results)
    if len(names) < 3 or len(measures) < 2:
        return None
    return friedman(np.array([[results.cells[measure][name].mean for name in names] for measure in measures]))


def overall_table(results: Results, colours: dict[str, int]) -> TableView | None:
    """A row a checkpoint; None if fewer than two measures are of all of them."""
    names, measures = results.checkpoints, _complete(results)
    if len(names) < 2 or len(measures) < 2:
        return None
    base = results.baseline("baseline") or results.baseline("random")
    found = ranking(results)
    scores = {
        name: [np.array(list(results.cells[measure][name].values.values())) for measure in measures] for name in names
    }
    rows = []
    for index, (name, own) in enumerate(scores.items()):
        cells = [CellView(number(found.ranks[index]))] if found else []
        cells.append(tables.with_interval(interquartile_mean(own), stratified_interval(own)))
        if name == base:
            cells.append(CellView())
        elif base is not None:
            interval = stratified_interval(own, scores[base])
            chance = 100 * probability_of_improvement(own, scores[base])
            cells.append(tables.with_interval(chance, (100 * interval[0], 100 * interval[1])))
        rows.append(RowView(name, "ours", tuple(cells), colour=colours[name]))
    columns = ("mean rank",) * bool(found) + ("interquartile mean, %",)
    columns += (f"chance to beat {base}, %",) * (base is not None)
    caption = (
        f"Over the {len(measures)} headline measures that all {len(names)} checkpoints have{mixed(results, measures)}."
    )
    if found:
        caption += (
            f" Mean ranks (1 is best) closer than {found.critical_difference:.2f} do not differ significantly "
            f"(Nemenyi, 5 %); Friedman p = {found.p:.2g}."
        )
    reading = (
        "Interquartile mean: of the middle half of all trials of all tasks. Chance to beat: that a trial of the "
        "checkpoint is above one of the baseline, on a random task, ties counted half (Agarwal et al., NeurIPS 2021). "
        "In brackets 95 % intervals with trials resampled within each task: they say nothing of other tasks, and have "
        "no width where every task has one trial."
    )
    return TableView("Over all tasks", caption, "weights", columns, tuple(rows), reading=reading)


def _complete(results: Results) -> list[Measure]:
    """The headline measures that all checkpoints have."""
    return [one for one in results.headlines() if all(name in results.cells[one] for name in results.checkpoints)]


def mixed(results: Results, measures: Sequence[Measure]) -> str:
    """What to add to a sentence over measures of which some checkpoints have other settings; "" where none has."""
    count = sum(measure in results.unlike for measure in measures)
    return f", {count} of them with other settings for some (≠)" if count else ""


_EVIDENCE = (
    "Can show: the smallest true difference, in points, that this design finds in 80 % of cases (at 5 %, uncorrected). "
    "Trials to show it: how many would find the observed difference in 80 % of cases. From items: fraction of the "
    "variance that the choice of test images has, where trials have the rest."
)

_COLUMNS = ("word", "trials", "test items", "standard error", "p", "can show", "trials to show it", "from items")


def evidence_tables(comparisons: Comparisons) -> list[TableView]:
    """One table for each pair that the summary compares: what was compared, and what this design could have shown."""
    views = []
    for name, base in tables.compared(comparisons.results)[:_PAIRS]:
        words = comparisons.words(name, base)
        measures = [measure for measure in tables.headline_order(comparisons.results) if measure in words]
        rows = tuple(
            RowView(label, "fact", tuple(map(CellView, _evidence(comparisons.of(measure, name, base), words[measure]))))
            for measure, label in tables.short_labels(measures).items()
        )
        if rows:
            views.append(TableView(f"{name} − {base}: evidence and power", _EVIDENCE, "measure", _COLUMNS, rows))
    return views


def _evidence(change: Comparison | None, word: str) -> tuple[str, ...]:
    if change is None:
        return (word, *("–" for _ in _COLUMNS[1:]))
    first, second = change.n
    trials = f"{first}" if first == second else f"{first} and {second}"
    if max(change.n) < 2:
        trials += ", one trial: no verdict from trials"
    elif min(change.n) < 2:
        trials += ", the one as it stands" if change.p is not None else ", no verdict from one"
    elif change.paired:
        trials += ", in pairs"
    p = "–" if change.p is None else f"{change.p:.2g}"
    p += "" if change.exact_p is None else f" (sign flips {change.exact_p:.2g})"
    needed = "–" if change.needed is None else str(change.needed)
    if change.needed is None and min(change.n) > 1 and change.value:
        hidden = change.floor and power_of(change.value, change.floor, math.inf) < POWER
        needed = "none: the test images alone hide it" if hidden else f"more than {MOST_TRIALS}"
    return (
        word,
        trials,
        str(change.items or "–") + (f" in {change.clusters} groups" if change.clusters else ""),
        f"{change.se:.2f}" if change.se else "–",  # without any spread nothing is known of it
        p,
        "–" if change.detectable is None else number(change.detectable),
        needed,
        "–" if change.item_fraction is None else f"{100 * change.item_fraction:.0f} %",
    )
