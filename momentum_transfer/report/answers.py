"""The first answers of the page: each checkpoint against each baseline, and which cheap measure predicts a costly one.

A checkpoint's verdicts are counted by the rule of ``verdicts.comparison``: as a sentence, for the terminal and for
readers, and as the numbers of the page's bar. Measures are compared by rank correlation over checkpoints.
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from momentum_transfer.report import tables
from momentum_transfer.report.aggregate import Measure, Results
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.summary import mean_ranks, mixed, ranking
from momentum_transfer.report.tables import CellView, RowView, TableView
from momentum_transfer.verdicts.corrections import BETTER, NOT_COMPARED, NOT_SIGNIFICANT, ONE_TRIAL, WORSE, points
from momentum_transfer.verdicts.ranking import FEWEST_CHECKPOINTS, Agreement, agreement

#: Baselines of the sentences, in this order, and what they are called there.
_KINDS = {
    "baseline": "the baseline",
    "random": "random weights",
    "pixels": "raw pixels",
    "supervised": "supervised weights",
    "none": "no weights",
}

#: The parts of a bar from left to right, with their words.
_PARTS = {"up-clear": BETTER, "even": NOT_SIGNIFICANT, "down-clear": WORSE, "none": ONE_TRIAL, "other": NOT_COMPARED}

#: Families that train for GPU hours; a pair of one of these and another kind comes first.
_COSTLY = ("coco", "lvis", "voc", "semantic", "finetune", "fixmatch")

#: Sentences, above which only those against the first baseline are shown; measures that are compared with each other.
_SENTENCES, _MEASURES = 6, 12


@dataclass(frozen=True)
class Balance:
    """A checkpoint against a baseline: measures by word, and the least, the median and the largest difference."""

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
        better, *others = _PARTS.items()
        equal = [("even", word) for word in self.counts if word not in _PARTS.values()]  # within a margin
        return tuple((kind, word, self.counts[word]) for kind, word in (better, *equal, *others) if self.counts[word])


def balances(comparisons: Comparisons) -> list[Balance]:
    """The counts behind the sentences of ``sentences``, for the same pairs, where they have a measure in common."""
    found = []
    for name, base, called in _pairs(comparisons.results)[:_SENTENCES]:
        words = comparisons.words(name, base)
        if values := [change.value for measure in words if (change := comparisons.of(measure, name, base))]:
            spread = min(values), statistics.median(values), max(values)
            found.append(Balance(name, base, called, Counter(words.values()), *spread))
    return found


def sentences(comparisons: Comparisons) -> list[str]:
    """One sentence for every checkpoint that is evaluated and every baseline there is, the best one first."""
    results = comparisons.results
    found = []
    if results.baseline("random") is None and results.baseline("baseline") is None:
        found.append(
            "No baseline: none of the checkpoints is of METHOD random or named random…, so there is nothing to say "
            "what transfers; --baseline NAME takes one of these."
        )
    found += _best(results)
    pairs = _pairs(results)
    found += [_sentence(comparisons, *pair) for pair in pairs[:_SENTENCES]]
    if len(pairs) > _SENTENCES:
        found.append(f"{len(pairs) - _SENTENCES} more checkpoints are in the tables.")
    return found


def _pairs(results: Results) -> list[tuple[str, str, str]]:
    """(checkpoint, baseline, what that is called); where they are too many, against the first kind of baseline only."""
    pairs = tables.compared(results, _KINDS)
    if len(pairs) > _SENTENCES:
        pairs = [pair for pair in pairs if pair[1] == pairs[0][1]]
    pairs = sorted(pairs, key=lambda pair: results.checkpoints.index(pair[0]))
    return [(name, base, _KINDS[results.kinds[base]]) for name, base in pairs]


def _best(results: Results) -> list[str]:
    """Of several checkpoints the one with the best mean rank over the tasks, and whether ranks differ significantly."""
    ranks = {name: rank for name, rank in mean_ranks(results).items() if name in tables.evaluated(results)}
    if len(ranks) < 3:
        return []
    best = min(ranks, key=lambda name: ranks[name][0])
    rank, measures = ranks[best]
    said = mixed(results, [one for one in results.headlines() if best in results.cells[one]])
    sentence = f"Best mean rank: {best} ({rank:.1f} of {len(results.checkpoints)}, over {measures} measures{said})"
    if (found := ranking(results)) is None:
        return [f"{sentence}."]
    differ = "differ" if found.p <= 0.05 else "do not differ significantly"
    return [
        f"{sentence}; ranks {differ} (Friedman p = {found.p:.2g}), and two that are closer than "
        f"{found.critical_difference:.1f} do not (Nemenyi)."
    ]


def _sentence(comparisons: Comparisons, name: str, base: str, called: str) -> str:
    words = comparisons.words(name, base)
    if not words:
        return f"{name} and {base} ({called}) have no measure in common."
    counts, total, about = Counter(words.values()), len(words), comparisons.subject(name, base)
    parts: list[str] = []
    for word in (BETTER, WORSE, *sorted(set(counts) - set(_PARTS.values())), NOT_SIGNIFICANT):  # equal within …
        if counts[word]:
            count = f"all {total}" if counts[word] == total > 1 else f"{counts[word]} of {total}"
            parts.append(f"{word} on {count} measure{'s' * (total > 1)}" if not parts else f"{word} on {counts[word]}")
    hidden = [change.detectable for measure, word in words.items() if word == NOT_SIGNIFICANT
              and (change := comparisons.of(measure, name, base)) and change.detectable]  # fmt: skip
    rest = [f"{points(max(hidden))} points would have been seen on each"] if hidden else []
    rest += [f"{counts[word]} with {word}" for word in (ONE_TRIAL, NOT_COMPARED) if counts[word]]
    if not parts:
        return f"Against {base} ({called}) {name} has no verdict: {' and '.join(rest)}."
    beside = f" ({', '.join(rest)})" if rest else ""
    return f"Against {base} ({called}) {name} is {', '.join(parts)}{beside}; about {about}."


@dataclass(frozen=True)
class Pair:
    """Two measures by their labels (the cheap one first, where the other is costly), and how they agree."""

    first: str
    second: str
    mixed: bool
    found: Agreement


def measure_pairs(results: Results) -> list[Pair]:
    """Every pair of headline measures that at least five checkpoints have; cheap against costly first, then by τ."""
    wide = [m for m in tables.headline_order(results) if len(results.cells[m]) >= FEWEST_CHECKPOINTS]
    labels = tables.short_labels(tables.one_of_each_family_first(wide)[:_MEASURES])
    pairs = []
    for one, other in itertools.combinations(labels, 2):
        names = [name for name in results.checkpoints if name in results.cells[one] and name in results.cells[other]]
        if len(names) < FEWEST_CHECKPOINTS:
            continue
        first, second = (other, one) if _costly(one) and not _costly(other) else (one, other)
        scores = [np.array([results.cells[m][name].mean for name in names]) for m in (first, second)]
        found = agreement(scores[0], scores[1])
        if found.tau == found.tau:  # a measure on which all are equal orders nothing
            pairs.append(Pair(labels[first], labels[second], _costly(first) != _costly(second), found))
    return sorted(pairs, key=lambda pair: (not pair.mixed, -pair.found.tau))


def agreement_table(pairs: Sequence[Pair]) -> TableView | None:
    """All pairs; None if there are too few checkpoints."""
    if not pairs:
        return None
    rows = []
    for pair in pairs:
        found = pair.found
        correlations = (found.tau, found.tau_interval), (found.rho, found.rho_interval)
        cells = (*(tables.with_interval(*each, digits=2) for each in correlations), CellView(str(found.n)))
        note = "cheap → costly" if pair.mixed else ""
        rows.append(RowView(f"{pair.first} → {pair.second}", "ours", cells, note=note))
    caption = (
        "Rank correlation of two tasks over checkpoints, with 95 % bootstrap intervals over checkpoints in brackets."
    )
    columns = ("Kendall's τ_b", "Spearman's ρ", "checkpoints")
    return TableView("Which measure predicts which", caption, "pair of measures", columns, tuple(rows))


def _costly(measure: Measure) -> bool:
    return measure.family in _COSTLY
