"""The first table: the main metric of every task, all checkpoints side by side, and the rank over tasks."""

import itertools
from collections.abc import Sequence

from momentum_transfer.report.aggregate import Measure, Results
from momentum_transfer.report.differences import mean_ranks
from momentum_transfer.report.tables import (
    FAMILIES,
    cell_views,
    change_of,
    compared,
    difference_view,
    headline_order,
    measure_label,
)
from momentum_transfer.report.views import CellView, RowView, TableView

#: More columns of differences than these are left to the detail tables.
SUMMARY_DIFFERENCES = 4

#: Places of dataset, protocol and engine in a Measure.
_CONTEXT = (2, 3, 4)


def summary_table(results: Results) -> TableView:
    """One row a headline measure, one column a checkpoint, then the differences from random and supervised."""
    pairs = compared(results)
    if len(pairs) > SUMMARY_DIFFERENCES:
        pairs = []  # the detail tables have them all
    measures = headline_order(results)
    counts = {cell.trials for m in measures for cell in results.cells[m].values() if cell.trials > 1}
    rows = []
    for family, same in itertools.groupby(measures, key=lambda measure: measure.task.split("/")[0]):
        rows += _summary_group(results, FAMILIES.get(family, family), list(same), pairs, len(counts) > 1)
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
        reading="Trials are draws of labelled images or seeds of fine-tuning; the weights are pretrained once, so no ± "
        "covers the seed of pretraining. A difference is in points; it is clear, and coloured, where it exceeds twice "
        "the larger standard deviation of its two sides (single trials have none, and are never clear); its own ± is "
        "over trials, pair by pair where both sides have the same ones.",
    )


def _summary_group(
    results: Results, title: str, measures: Sequence[Measure], pairs: Sequence[tuple[str, str]], counted: bool
) -> list[RowView]:
    """A heading with the data, protocol and engine that all rows share, and the rows with what tells them apart."""
    shared = [len({measure[place] for measure in measures}) == 1 for place in _CONTEXT]
    common = [measures[0][place] for place, same in zip(_CONTEXT, shared, strict=True) if same]
    rows = [RowView(title, "group", (), note=" · ".join(part for part in common if part))]
    for measure in measures:
        cells = results.cells[measure]
        views = cell_views(results, measure, results.checkpoints, counted)
        views += [difference_view(change_of(cells, name, base)) for name, base in pairs]
        own = [measure[place] for place, same in zip(_CONTEXT, shared, strict=True) if not same]
        rows.append(
            RowView(measure_label(measure), "ours", tuple(views), note=" · ".join(part for part in own if part))
        )
    return rows
