"""Rank correlations of every pair of tasks over checkpoints: which cheap measure predicts a costly one."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from momentum_transfer.report.aggregate import Measure, Results
from momentum_transfer.report.tables import headline_order, one_of_each_family_first, short_labels
from momentum_transfer.report.views import CellView, RowView, TableView
from momentum_transfer.verdicts.correlation import FEWEST_CHECKPOINTS, Agreement, agreement

#: Families that train for GPU hours; a pair of one of these and another kind comes first.
COSTLY = ("coco", "lvis", "voc", "semantic", "finetune", "fixmatch")

#: Measures that are compared with each other; each pair costs time, and room on the page.
MEASURES = 12


@dataclass(frozen=True)
class Pair:
    """Two measures by their labels (the cheap one first, where the other is costly), and how they agree."""

    first: str
    second: str
    mixed: bool
    found: Agreement


def pairs(results: Results) -> list[Pair]:
    """Every pair of headline measures that at least five checkpoints have; cheap against costly first, then by τ."""
    wide = [m for m in headline_order(results) if len(results.cells[m]) >= FEWEST_CHECKPOINTS]
    labels = short_labels(one_of_each_family_first(wide)[:MEASURES])
    made = []
    for one, other in itertools.combinations(labels, 2):
        names = [name for name in results.checkpoints if name in results.cells[one] and name in results.cells[other]]
        if len(names) < FEWEST_CHECKPOINTS:
            continue
        first, second = (other, one) if _costly(one) and not _costly(other) else (one, other)
        ours, theirs = (np.array([results.cells[m][name].mean for name in names]) for m in (first, second))
        found = agreement(ours, theirs)
        if found.tau == found.tau:  # a measure on which all are equal orders nothing
            made.append(Pair(labels[first], labels[second], _costly(first) != _costly(second), found))
    return sorted(made, key=lambda pair: (not pair.mixed, -pair.found.tau))


def agreement_table(made: Sequence[Pair]) -> TableView | None:
    """All pairs; None where there are too few checkpoints."""
    if not made:
        return None
    rows = [
        RowView(
            f"{pair.first} → {pair.second}", "ours",
            (
                _cell(pair.found.tau, pair.found.tau_interval), _cell(pair.found.rho, pair.found.rho_interval),
                CellView(str(pair.found.n)),
            ),
            note="cheap → costly" if pair.mixed else "",
        )
        for pair in made
    ]  # fmt: skip
    return TableView(
        "Which measure predicts which",
        "Rank correlation of two tasks over checkpoints, with 95 % bootstrap intervals over checkpoints in brackets.",
        "pair of measures",
        ("Kendall's τ_b", "Spearman's ρ", "checkpoints"),
        tuple(rows),
    )


def _costly(measure: Measure) -> bool:
    return measure.task.split("/")[0] in COSTLY


def _cell(value: float, interval: tuple[float, float]) -> CellView:
    return CellView(_signed(value), f"[{_signed(interval[0])}, {_signed(interval[1])}]")


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
