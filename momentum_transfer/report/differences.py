"""Checkpoints against each other: differences with their spread, and mean ranks."""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

from momentum_transfer.report.aggregate import Cell, Results


@dataclass(frozen=True)
class Difference:
    """How far a checkpoint is from a baseline.

    ``std`` is that of the differences trial by trial where both sides have the same trials (``paired``); without
    pairs it is √(s² + t²), and None where a side has one trial only. ``spread`` is the larger of the two sides' own
    standard deviations over trials.
    """

    mean: float
    std: float | None
    paired: bool
    spread: float | None

    @property
    def clear(self) -> bool:
        """Larger than twice the spread over trials of either side; a single trial never shows that."""
        return self.spread is not None and abs(self.mean) > 2 * self.spread


def difference(cell: Cell, base: Cell) -> Difference:
    """``cell`` minus ``base``, in points."""
    if cell.std is None or base.std is None:
        return Difference(cell.mean - base.mean, None, paired=False, spread=None)
    spread = max(cell.std, base.std)
    if set(cell.values) == set(base.values):
        pairs = [cell.values[trial] - base.values[trial] for trial in cell.values]
        return Difference(statistics.fmean(pairs), statistics.stdev(pairs), paired=True, spread=spread)
    return Difference(cell.mean - base.mean, math.hypot(cell.std, base.std), paired=False, spread=spread)


def mean_ranks(results: Results) -> dict[str, tuple[float, int]]:
    """Mean rank (1 is best, ties share) of each checkpoint over the headline measures that have at least two.

    Returns:
        checkpoint to (mean rank, number of measures it was ranked on).
    """
    ranks: dict[str, list[float]] = defaultdict(list)
    for measure in results.headlines():
        means = {name: cell.mean for name, cell in results.cells[measure].items()}
        if len(means) < 2:
            continue
        for name, mean in means.items():
            above = sum(other > mean for other in means.values())
            ties = sum(other == mean for other in means.values())
            ranks[name].append(above + (ties + 1) / 2)
    return {name: (statistics.fmean(found), len(found)) for name, found in ranks.items()}
