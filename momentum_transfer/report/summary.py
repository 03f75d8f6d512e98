"""The first table: the main metric of every task, all checkpoints side by side, and the rank over tasks.

All tasks together: mean ranks, interquartile mean, probability of improvement.

Evidence behind a verdict: numbers of trials and images, standard errors, power, sources of variance.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from momentum_transfer.report.aggregate import Measure, Results, baseline
from momentum_transfer.report.differences import RULE, Comparisons, mean_ranks
from momentum_transfer.report.tables import (
    FAMILIES,
    cell_views,
    compared,
    difference_view,
    headline_order,
    measure_label,
    short_labels,
)
from momentum_transfer.report.views import CellView, RowView, TableView, number
from momentum_transfer.verdicts.comparison import Comparison
from momentum_transfer.verdicts.ranking import (
    Ranking,
    friedman,
    interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)

HOW = (
    "A difference is in points, with its 95 % interval in brackets (for that number alone, before Holm). Where both "
    "sides share their trials (draws of labelled images, seeds of training) it is Student's t over the differences "
    "trial by trial, otherwise Welch's. Where records keep the outcome of every test image, the images are resampled "
    "too, with the same weights on both sides, and their variance is added; of that and the trials alone the wider "
    "interval counts. With one trial on both sides the interval is over images alone (Student's t with the bootstrap's "
    "standard error; McNemar's exact test where an image is right or wrong) and speaks of the networks as they were "
    "trained; of several against one it is over the several and the images, about the one as it stands. The "
    "spread of one checkpoint (±) is the sample standard deviation over its trials. No interval covers the seed of "
    "pretraining where a checkpoint was pretrained once."
)

#: More columns of differences than these are left to the detail tables.
SUMMARY_DIFFERENCES = 4

#: Places of dataset, protocol and engine in a Measure.
_CONTEXT = (2, 3, 4)


def summary_table(comparisons: Comparisons) -> TableView:
    """One row a headline measure, one column a checkpoint, then the differences from random and supervised."""
    results = comparisons.results
    pairs = compared(results)
    if len(pairs) > SUMMARY_DIFFERENCES:
        pairs = []  # the detail tables have them all
    measures = headline_order(results)
    counts = {cell.trials for m in measures for cell in results.cells[m].values() if cell.trials > 1}
    rows = []
    for family, same in itertools.groupby(measures, key=lambda measure: measure.task.split("/")[0]):
        rows += _summary_group(comparisons, FAMILIES.get(family, family), list(same), pairs, len(counts) > 1)
    ranks = mean_ranks(results)
    if ranks:
        rank_cells = [
            CellView(f"{ranks[name][0]:.1f}", note=f"over {ranks[name][1]}") if name in ranks else CellView()
            for name in results.checkpoints
        ]
        rows.append(
            RowView("mean rank", "rank", tuple(rank_cells + [CellView()] * len(pairs)), note="1 is best; ties share")
        )
    return TableView(
        "Summary",
        "The main metric of every task, in percent: mean ± sample standard deviation over "
        f"{counts.pop() if len(counts) == 1 else 'n'} trials (a number without ± is a single trial); the best in bold.",
        "task",
        (*results.checkpoints, *(f"{name} − {base}" for name, base in pairs)),
        tuple(rows),
        reading=f"{RULE} {HOW}",
    )


def _summary_group(
    comparisons: Comparisons, title: str, measures: Sequence[Measure], pairs: Sequence[tuple[str, str]], counted: bool
) -> list[RowView]:
    """A heading with the data, protocol and engine that all rows share, and the rows with what tells them apart."""
    results = comparisons.results
    words = {pair: comparisons.words(*pair) for pair in pairs}
    shared = [len({measure[place] for measure in measures}) == 1 for place in _CONTEXT]
    common = [measures[0][place] for place, same in zip(_CONTEXT, shared, strict=True) if same]
    rows = [RowView(title, "group", (), note=" · ".join(part for part in common if part))]
    for measure in measures:
        views = cell_views(results, measure, results.checkpoints, counted)
        views += [difference_view(comparisons.of(measure, *pair), words[pair].get(measure)) for pair in pairs]
        own = [measure[place] for place, same in zip(_CONTEXT, shared, strict=True) if not same]
        rows.append(
            RowView(measure_label(measure), "ours", tuple(views), note=" · ".join(part for part in own if part))
        )
    return rows


def ranking(results: Results) -> Ranking | None:
    """Friedman and Nemenyi over the headline measures that all checkpoints have; None below 3 checkpoints."""
    names, measures = results.checkpoints, _complete(results, results.checkpoints)
    if len(names) < 3 or len(measures) < 2:
        return None
    return friedman(np.array([[results.cells[measure][name].mean for name in names] for measure in measures]))


def overall_table(results: Results, colours: dict[str, int]) -> TableView | None:
    """A row a checkpoint; None where fewer than two measures are shared."""
    names = results.checkpoints
    measures = _complete(results, names)
    if len(names) < 2 or len(measures) < 2:
        return None
    base = baseline(results, "baseline") or baseline(results, "random")
    found = ranking(results)
    rows = []
    for index, name in enumerate(names):
        cells = [CellView(number(found.ranks[index]))] if found else []
        own = _scores(results, measures, name)
        cells.append(_with_interval(interquartile_mean(own), stratified_interval(own, None, "iqm")))
        if base is not None:
            cells.append(_improvement(own, _scores(results, measures, base)) if name != base else CellView())
        rows.append(RowView(name, "ours", tuple(cells), colour=colours[name]))
    columns = ("mean rank",) * bool(found) + ("interquartile mean, %",)
    columns += (f"chance to beat {base}, %",) * (base is not None)
    caption = f"Over the {len(measures)} headline measures that all {len(names)} checkpoints have."
    if found:
        caption += (
            f" Mean ranks (1 is best) closer than {found.critical_difference:.2f} are not told apart (Nemenyi, 5 %); "
            f"Friedman p = {found.p:.2g}."
        )
    return TableView(
        "Over all tasks", caption, "weights", columns, tuple(rows),
        reading="Interquartile mean: of the middle half of all trials of all tasks. Chance to beat: that a trial of "
        "the checkpoint is above one of the baseline, on a task drawn at random, ties counted half (Agarwal et al., "
        "NeurIPS 2021). In brackets 95 % intervals with trials resampled within each task: they say nothing of other "
        "tasks, and have no width where every task has one trial.",
    )  # fmt: skip


def _complete(results: Results, names: Sequence[str]) -> list[Measure]:
    return [measure for measure in results.headlines() if all(name in results.cells[measure] for name in names)]


def _scores(results: Results, measures: Sequence[Measure], name: str) -> list[np.ndarray]:
    return [np.array(list(results.cells[measure][name].values.values())) for measure in measures]


def _improvement(own: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> CellView:
    low, high = stratified_interval(own, other, "improvement")
    return _with_interval(100 * probability_of_improvement(own, other), (100 * low, 100 * high))


def _with_interval(value: float, interval: tuple[float, float]) -> CellView:
    return CellView(number(value), f"[{number(interval[0])}, {number(interval[1])}]")


#: More pairs than these nobody reads.
PAIRS = 4

CAPTION = (
    "Can show: the smallest true difference, in points, that this design finds in 80 % of cases (at 5 %, before Holm). "
    "Trials to show it: how many would find the observed difference in 80 % of cases. From items: share of the "
    "variance that the choice of test images has, where trials have the rest."
)

COLUMNS = ("word", "trials", "test items", "standard error", "p", "can show", "trials to show it", "from items")


def evidence_tables(comparisons: Comparisons) -> list[TableView]:
    """One table for each pair that the summary compares: what was judged, and what this design could have shown."""
    tables = []
    for name, base in compared(comparisons.results)[:PAIRS]:
        words = comparisons.words(name, base)
        measures = [measure for measure in headline_order(comparisons.results) if measure in words]
        rows = [
            RowView(label, "fact", _cells(comparisons.of(measure, name, base), words[measure]))
            for measure, label in short_labels(measures).items()
        ]
        if rows:
            tables.append(
                TableView(
                    f"{name} − {base}: evidence and power",
                    CAPTION,
                    "measure", COLUMNS, tuple(rows),
                )
            )  # fmt: skip
    return tables


def _cells(change: Comparison | None, word: str) -> tuple[CellView, ...]:
    if change is None:
        return (CellView(word), *(CellView() for _ in COLUMNS[1:]))
    first, second = change.n
    trials = f"{first}" if first == second else f"{first} and {second}"
    judged = ", in pairs" if change.paired else ""
    if max(change.n) < 2:
        judged = ", one trial: no verdict from trials"
    elif min(change.n) < 2:
        judged = ", the one as it stands" if change.p is not None else ", no verdict from one"
    p = "" if change.p is None else f"{change.p:.2g}"
    p += "" if change.exact_p is None else f" (sign flips {change.exact_p:.2g})"
    needed = "–"
    if change.needed is not None:
        needed = str(change.needed)
    elif min(change.n) > 1 and change.value:
        needed = "none: the test images alone hide it"
    return (
        CellView(word),
        CellView(trials + judged),
        CellView(str(change.items) if change.items else "–"),
        CellView(f"{change.se:.2f}" if change.se else "–"),  # without any spread nothing is known of it
        CellView(p or "–"),
        CellView("–" if change.detectable is None else number(change.detectable)),
        CellView(needed),
        CellView("–" if change.item_share is None else f"{100 * change.item_share:.0f} %"),
    )
