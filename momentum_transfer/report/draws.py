"""Draws of few-shot objects: their scores with the spread over draws and over seeds apart, and one trial a draw."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from scipy import stats

from momentum_transfer.core.errors import counted
from momentum_transfer.report.aggregate import Record, checkpoint_of, current_trials, trial_of
from momentum_transfer.report.tables import CellView, RowView, TableView, number, with_interval

#: Draws below which a mean is said to be of few: TFA's own scores are of 30 (arXiv 2003.06957, section 4).
FEW_DRAWS = 30


def by_draw(records: Sequence[Record]) -> list[Record]:
    """The records with one trial a draw: the mean over its seeds, which are not independent."""
    others = [record for record in records if type(record.get("draw")) is not int or record["value"] is None]
    merged: list[Record] = []
    for draws in _grouped(records).values():
        for draw, same in draws.items():
            one: dict[str, Any] = {**same[0], "trial": draw, "seed": draw}
            if len(same) > 1:
                one["value"] = statistics.fmean(record["value"] for record in same)
                one.pop("items", None)
            merged.append(one)
    return others + merged


def _grouped(records: Sequence[Record]) -> dict[tuple[str, ...], dict[int, list[Record]]]:
    """What ``current_trials`` leaves of every draw by measure and checkpoint; those without a value are left out."""
    groups: dict[tuple[tuple[str, ...], int], list[Record]] = defaultdict(list)
    for record in records:
        if type(record.get("draw")) is int and record["value"] is not None:
            checkpoint = checkpoint_of(record)
            about = ("task", "metric", "dataset", "protocol", "engine", "network", "shots")
            group = (*(str(record.get(key) or "") for key in about), checkpoint)
            groups[group, record["draw"]].append(record)
    found: dict[tuple[str, ...], dict[int, list[Record]]] = defaultdict(dict)
    for (group, draw), same in sorted(groups.items(), key=lambda item: item[0]):
        found[group][draw] = sorted(current_trials(same), key=trial_of)
    return found


def draw_tables(records: Sequence[Record]) -> list[TableView]:
    """Main metrics of few-shot records: the mean over draws with its 95 % t interval, and both spreads."""
    rows, fewest = [], FEW_DRAWS
    for (task, metric, *context, shots, checkpoint), draws in _grouped(records).items():
        if metric not in ("AP", "AP50"):
            continue
        values = [[record["value"] for record in same] for same in draws.values()]
        means, seeds = [statistics.fmean(same) for same in values], sorted({len(same) for same in values})
        free, mean = sum(map(len, values)) - len(values), statistics.fmean(means)
        squares = sum((value - statistics.fmean(same)) ** 2 for same in values for value in same)
        first, over_draws = CellView(number(mean)), CellView()
        if len(means) > 1:
            spread = statistics.stdev(means)
            half = float(stats.t.ppf(0.975, len(means) - 1)) * spread / math.sqrt(len(means))
            first, over_draws = with_interval(mean, (mean - half, mean + half)), CellView(f"± {number(spread)}")
        over_seeds = CellView(f"± {number(math.sqrt(squares / free))}") if free else CellView()
        counts = (str(len(means)), " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))))
        note = " · ".join(filter(None, (*context, f"{shots or '?'} shots")))
        cells = (first, over_draws, over_seeds, *map(CellView, counts))
        rows.append(RowView(f"{task} {metric}, {checkpoint}", "ours", cells, note=note))
        fewest = min(fewest, len(means))
    few = f"Scores vary much with the draw: {counted(fewest, 'draw')} here, TFA takes {FEW_DRAWS}."
    columns = ("mean [95 %]", "over draws", "over seeds of a draw", "draws", "seeds a draw")
    caption = (
        "Mean over draws with its 95 % t interval; standard deviations of the draws' means, and over a draw's seeds."
    )
    notes = (few,) if fewest < FEW_DRAWS else ()
    return [TableView("Draws and seeds", caption, "measure", columns, tuple(rows), notes=notes)] if rows else []
