"""The first table: the main metric of every task, all checkpoints side by side, and the rank over tasks."""

import itertools
from collections.abc import Sequence

from momentum_transfer.report.aggregate import Measure
from momentum_transfer.report.differences import RULE, Comparisons, mean_ranks
from momentum_transfer.report.tables import (
    FAMILIES,
    cell_views,
    compared,
    difference_view,
    headline_order,
    measure_label,
)
from momentum_transfer.report.views import CellView, RowView, TableView

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
