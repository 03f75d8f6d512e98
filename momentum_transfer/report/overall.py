"""All tasks together: mean ranks, interquartile mean, probability of improvement."""

from collections.abc import Sequence

import numpy as np

from momentum_transfer.report.aggregate import Measure, Results, baseline
from momentum_transfer.report.views import CellView, RowView, TableView, number
from momentum_transfer.verdicts.families import (
    Ranking,
    friedman,
    interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)


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
