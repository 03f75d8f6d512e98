"""The answer for each checkpoint: on how many measures it is ahead of each baseline, and how clearly.

Told twice: as a sentence, for the terminal and for readers, and as the counts that the page draws as a bar.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from momentum_transfer.report.aggregate import Results, baseline
from momentum_transfer.report.differences import Difference, difference, mean_ranks
from momentum_transfer.report.tables import NOT_COMPARED

#: Baselines of the sentences, in this order, and what they are called there.
KINDS = {"random": "random weights", "pixels": "raw pixels", "supervised": "supervised weights", "none": "no weights"}

#: More sentences than these nobody reads; then only those against the first baseline are told.
SENTENCES = 6


@dataclass(frozen=True)
class Balance:
    """A checkpoint against a baseline: numbers of measures by the sign and clearness of their difference.

    ``low``, ``middle`` and ``high`` are the smallest, the median and the largest difference, in points.
    """

    name: str
    base: str
    called: str
    clearly_ahead: int
    ahead: int
    level: int
    behind: int
    clearly_behind: int
    low: float
    middle: float
    high: float

    @property
    def total(self) -> int:
        return self.clearly_ahead + self.ahead + self.level + self.behind + self.clearly_behind

    @property
    def parts(self) -> tuple[tuple[str, str, int], ...]:
        """(kind, words, count) of the bar's parts that are not empty, from left to right."""
        parts = (
            ("up-clear", "clearly ahead", self.clearly_ahead),
            ("up-slight", "ahead, not clearly", self.ahead),
            ("even", "level", self.level),
            ("down-slight", "behind, not clearly", self.behind),
            ("down-clear", "clearly behind", self.clearly_behind),
        )
        return tuple(part for part in parts if part[2])


def balances(results: Results) -> list[Balance]:
    """The counts behind the sentences of ``verdicts``, for the same pairs, where they have a measure in common."""
    found = []
    for name, base, called in _pairs(results)[:SENTENCES]:
        if changes := _changes(results, name, base):
            clear = [change.mean for change in changes if change.clear]
            rest = [change.mean for change in changes if not change.clear]
            means = [change.mean for change in changes]
            found.append(
                Balance(
                    name, base, called,
                    clearly_ahead=sum(mean > 0 for mean in clear), ahead=sum(mean > 0 for mean in rest),
                    level=sum(mean == 0 for mean in means),
                    behind=sum(mean < 0 for mean in rest), clearly_behind=sum(mean < 0 for mean in clear),
                    low=min(means), middle=statistics.median(means), high=max(means),
                )
            )  # fmt: skip
    return found


def verdicts(results: Results) -> list[str]:
    """One sentence for every checkpoint that is to be judged and every baseline there is, the best one first."""
    told = []
    if baseline(results, "random") is None:
        told.append("No baseline: none of the checkpoints is named random…, so there is nothing to say what transfers.")
    told += _best(results, _judged(results))
    pairs = _pairs(results)
    told += [_sentence(results, *pair) for pair in pairs[:SENTENCES]]
    if len(pairs) > SENTENCES:
        told.append(f"{len(pairs) - SENTENCES} more checkpoints are in the tables.")
    return told


def _judged(results: Results) -> list[str]:
    return [name for name in results.checkpoints if not name.lower().startswith(NOT_COMPARED)]


def _pairs(results: Results) -> list[tuple[str, str, str]]:
    """(checkpoint, baseline, what that is called); where they are too many, against the first kind of baseline only."""
    bases = {kind: name for kind in KINDS if (name := baseline(results, kind))}
    pairs = [(name, kind) for name in _judged(results) for kind in bases if name != bases[kind]]
    if len(pairs) > SENTENCES:
        pairs = [(name, kind) for name, kind in pairs if kind == next(iter(bases))]
    return [(name, bases[kind], KINDS[kind]) for name, kind in pairs]


def _changes(results: Results, name: str, base: str) -> list[Difference]:
    columns = [results.cells[measure] for measure in results.headlines()]
    return [difference(cells[name], cells[base]) for cells in columns if name in cells and base in cells]


def _best(results: Results, judged: Sequence[str]) -> list[str]:
    """Where several checkpoints are judged: which has the best mean rank over the tasks."""
    ranks = {name: rank for name, rank in mean_ranks(results).items() if name in judged}
    if len(ranks) < 3:
        return []
    best = min(ranks, key=lambda name: ranks[name][0])
    return [
        f"Best mean rank: {best} ({ranks[best][0]:.1f} of {len(results.checkpoints)}, over {ranks[best][1]} measures)."
    ]


def _sentence(results: Results, name: str, base: str, called: str) -> str:
    changes = _changes(results, name, base)
    subject = f"{name} and {base} ({called})"
    if not changes:
        return f"{subject} have no measure in common."
    parts = [
        _part("ahead", [change for change in changes if change.mean > 0], len(changes)),
        _part("behind", [change for change in changes if change.mean < 0], len(changes)),
    ]
    told = ", and ".join(part for part in parts if part) or "level with it on all measures"
    return f"Against {base} ({called}) {name} is {told}."


def _part(word: str, changes: Sequence[Difference], total: int) -> str:
    """``ahead on 7 of 9 measures (5 of them clearly)``, or nothing where there are none."""
    if not changes:
        return ""
    count = f"all {total}" if len(changes) == total else f"{len(changes)} of {total}"
    measures = "measure" if total == 1 else "measures"
    clear = sum(change.clear for change in changes)
    how = f" ({clear} of them clearly)" if clear else ""
    return f"{word} on {count} {measures}{how}"
