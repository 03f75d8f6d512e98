"""Verdict for each checkpoint: on how many measures it is ahead of each baseline, by the rule of ``differences``.

Told twice: as a sentence, for the terminal and for readers, and as the counts that the page draws as a bar.

Rank correlations of every pair of tasks over checkpoints: which cheap measure predicts a costly one.
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from momentum_transfer.report.aggregate import Measure, Results, baseline
from momentum_transfer.report.differences import AHEAD, BEHIND, LEVEL, NOT_COMPARED, ONE_TRIAL, Comparisons, mean_ranks
from momentum_transfer.report.summary import ranking
from momentum_transfer.report.tables import BASELINES_ONLY, headline_order, one_of_each_family_first, short_labels
from momentum_transfer.report.views import CellView, RowView, TableView
from momentum_transfer.verdicts.ranking import FEWEST_CHECKPOINTS, Agreement, agreement

#: Baselines of the sentences, in this order, and what they are called there.
KINDS = {
    "baseline": "the baseline",
    "random": "random weights",
    "pixels": "raw pixels",
    "supervised": "supervised weights",
    "none": "no weights",
}

#: More sentences than these nobody reads; then only those against the first baseline are told.
SENTENCES = 6

#: The parts of a bar from left to right, with their words.
_PARTS = {"up-clear": AHEAD, "even": LEVEL, "down-clear": BEHIND, "none": ONE_TRIAL, "other": NOT_COMPARED}


@dataclass(frozen=True)
class Balance:
    """A checkpoint against a baseline: numbers of measures by word.

    ``low``, ``middle`` and ``high`` are the smallest, the median and the largest difference, in points.
    """

    name: str
    base: str
    called: str
    counts: Counter[str]
    low: float
    middle: float
    high: float

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def parts(self) -> tuple[tuple[str, str, int], ...]:
        """(kind, words, count) of the bar's parts that are not empty, from left to right."""
        return tuple((kind, word, self.counts[word]) for kind, word in _PARTS.items() if self.counts[word])


def balances(comparisons: Comparisons) -> list[Balance]:
    """The counts behind the sentences of ``verdicts``, for the same pairs, where they have a measure in common."""
    found = []
    for name, base, called in _pairs(comparisons.results)[:SENTENCES]:
        words = comparisons.words(name, base)
        changes = [change for measure in words if (change := comparisons.of(measure, name, base))]
        if changes:
            means = [change.value for change in changes]
            found.append(
                Balance(
                    name, base, called, Counter(words.values()),
                    low=min(means), middle=statistics.median(means), high=max(means),
                )
            )  # fmt: skip
    return found


def verdicts(comparisons: Comparisons) -> list[str]:
    """One sentence for every checkpoint that is to be judged and every baseline there is, the best one first."""
    results = comparisons.results
    told = []
    if baseline(results, "random") is None and baseline(results, "baseline") is None:
        told.append(
            "No baseline: none of the checkpoints is of METHOD random or named random…, so there is nothing to say "
            "what transfers; --baseline NAME takes one of these."
        )
    told += _best(results, _judged(results))
    pairs = _pairs(results)
    told += [_sentence(comparisons, *pair) for pair in pairs[:SENTENCES]]
    if len(pairs) > SENTENCES:
        told.append(f"{len(pairs) - SENTENCES} more checkpoints are in the tables.")
    return told


def _judged(results: Results) -> list[str]:
    return [name for name in results.checkpoints if results.kind(name) not in BASELINES_ONLY]


def _pairs(results: Results) -> list[tuple[str, str, str]]:
    """(checkpoint, baseline, what that is called); where they are too many, against the first kind of baseline only."""
    bases = {kind: name for kind in KINDS if (name := baseline(results, kind))}
    pairs = [(name, kind) for name in _judged(results) for kind in bases if name != bases[kind]]
    if len(pairs) > SENTENCES:
        pairs = [(name, kind) for name, kind in pairs if kind == next(iter(bases))]
    return [(name, bases[kind], KINDS[kind]) for name, kind in pairs]


def _best(results: Results, judged: Sequence[str]) -> list[str]:
    """Where several checkpoints are judged: which has the best mean rank over the tasks, and whether ranks tell."""
    ranks = {name: rank for name, rank in mean_ranks(results).items() if name in judged}
    if len(ranks) < 3:
        return []
    best = min(ranks, key=lambda name: ranks[name][0])
    told = (
        f"Best mean rank: {best} ({ranks[best][0]:.1f} of {len(results.checkpoints)}, over {ranks[best][1]} measures)"
    )
    found = ranking(results)
    if found is None:
        return [f"{told}."]
    sure = "ranks differ" if found.p <= 0.05 else "ranks are not told apart"
    return [
        f"{told}; {sure} (Friedman p = {found.p:.2g}), and two checkpoints closer than {found.critical_difference:.1f} "
        "are not told apart (Nemenyi)."
    ]


def _sentence(comparisons: Comparisons, name: str, base: str, called: str) -> str:
    words = comparisons.words(name, base)
    if not words:
        return f"{name} and {base} ({called}) have no measure in common."
    counts, total = Counter(words.values()), len(words)
    measures = "measure" if total == 1 else "measures"
    parts: list[str] = []
    for word in (AHEAD, BEHIND, LEVEL):
        if counts[word]:
            count = f"all {total}" if counts[word] == total > 1 else f"{counts[word]} of {total}"
            parts.append(f"{word} on {count} {measures}" if not parts else f"{word} on {counts[word]}")
    told = ", ".join(parts)
    left = [f"{counts[word]} with {word}" for word in (ONE_TRIAL, NOT_COMPARED) if counts[word]]
    if not parts:
        return f"Against {base} ({called}) {name} has no verdict: {' and '.join(left)}."
    return f"Against {base} ({called}) {name} is {told}{f' ({chr(44).join(left)})' if left else ''}."


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
