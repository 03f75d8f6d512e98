"""Differences between checkpoints: intervals, the words by rule, mean ranks."""

import bisect
import functools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from momentum_transfer.core import records
from momentum_transfer.core.errors import InputError
from momentum_transfer.report.aggregate import DESCRIPTIVE, Cell, Measure, Results
from momentum_transfer.verdicts import bootstrap
from momentum_transfer.verdicts.comparison import Comparison, ItemEvidence, compare
from momentum_transfer.verdicts.outcomes import Outcomes, PerItem, check_paired, replicates
from momentum_transfer.verdicts.ranking import holm

AHEAD, BEHIND, LEVEL = "ahead", "behind", "not told apart"
ONE_TRIAL, NOT_COMPARED = "one trial: no verdict", "other settings: not compared"

#: Level of the words.
ALPHA = 0.05

#: Resamples of the test items.
RESAMPLES = 1000

RULE = (
    "Ahead or behind: a difference that chance alone, over trials and test images, would give in less than 5 % of "
    "cases, after Holm's correction over the headline measures."
)

ABOUT = (
    "Where a checkpoint was pretrained once, this is about the checkpoint, not about its method: another seed of "
    "pretraining would give another one."
)


def about(methods: Mapping[str, Sequence[str]]) -> str:
    """What verdicts are about; ``methods``: those whose trials are pretrainings, with their checkpoints."""
    if not methods:
        return ABOUT
    listed = ", ".join(f"{name} ({len(checkpoints)} pretrainings)" for name, checkpoints in methods.items())
    return f"Trials are pretrainings, so that verdicts are about methods, for {listed}. {ABOUT}"


@dataclass
class Comparisons:
    """Differences of any two checkpoints in any measure, each worked out once.

    Attributes:
        resamples: of the test items; 0 leaves them out.
        notices: why outcomes that records name could not be used.
    """

    results: Results
    resamples: int = RESAMPLES
    notices: list[str] = field(default_factory=list)
    _made: dict[tuple[Measure, str, str], Comparison | None] = field(default_factory=dict)
    _replicates: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    _outcomes: dict[str, Outcomes] = field(default_factory=dict)

    def of(self, measure: Measure, name: str, base: str) -> Comparison | None:
        """``name`` minus ``base``, in points; None where one of them was not measured, or not in the same way."""
        key = measure, name, base
        if key not in self._made:
            cells = self.results.cells[measure]
            both = name in cells and base in cells and measure.metric not in DESCRIPTIVE
            alike = both and self.alike(measure, name, base)
            self._made[key] = self._compare(measure, name, base) if alike else None
        return self._made[key]

    def alike(self, measure: Measure, name: str, base: str) -> bool:
        """Whether the two were measured with the same settings, as far as records say."""
        first, second = (self.results.cells[measure][each].configs for each in (name, base))
        return not first or not second or first == second

    def words(self, name: str, base: str) -> dict[Measure, str]:
        """Headline measure to its word, for all that both checkpoints have."""
        words: dict[Measure, str] = {}
        judged: dict[Measure, Comparison] = {}
        for measure in self.results.headlines():
            cells = self.results.cells[measure]
            if name not in cells or base not in cells:
                continue
            found = self.of(measure, name, base)
            if found is None:
                words[measure] = NOT_COMPARED
            elif found.p is None:
                words[measure] = ONE_TRIAL
            else:
                words[measure], judged[measure] = LEVEL, found
        adjusted = holm([found.p for found in judged.values() if found.p is not None])
        for (measure, found), p in zip(judged.items(), adjusted, strict=True):
            if p <= ALPHA and found.value:
                words[measure] = AHEAD if found.value > 0 else BEHIND
        return words

    def _compare(self, measure: Measure, name: str, base: str) -> Comparison:
        first, second = (self.results.cells[measure][each] for each in (name, base))
        shared = not first.seeds or not second.seeds or first.seeds == second.seeds
        return compare(first.values, second.values, shared, self._evidence(measure, name, base, first, second))

    def _evidence(self, measure: Measure, name: str, base: str, first: Cell, second: Cell) -> ItemEvidence | None:
        whole = all(set(cell.items) == set(cell.values) for cell in (first, second))
        if not self.resamples or not whole:
            return None
        try:
            outcomes = [[self._read(cell.items[t]) for t in sorted(cell.items)] for cell in (first, second)]
            for each in (*outcomes[0][1:], *outcomes[1]):
                check_paired(outcomes[0][0], each, (f"{measure.task} of {name}", f"{measure.task} of {base}"))
        except InputError as error:
            if str(error) not in self.notices:
                self.notices.append(str(error))
            return None
        sides = [np.mean([self._resampled(cell.items[t])[measure.metric] for t in sorted(cell.items)], axis=0)
                 for cell in (first, second)
                 if all(measure.metric in self._resampled(cell.items[t]) for t in cell.items)]  # fmt: skip
        if len(sides) < 2:
            return None
        hits = [side[0].values[measure.metric] for side in outcomes if isinstance(side[0], PerItem)]
        single = len(first.values) == len(second.values) == 1 and len(hits) == 2 and hits[0].dtype == bool
        b = self.resamples
        return ItemEvidence(
            outcomes[0][0].images, sides[0][:b], sides[1][:b], sides[0][b:], sides[1][b:],
            hits=(hits[0], hits[1]) if single else None,
        )  # fmt: skip

    def _read(self, reference: Mapping[str, Any]) -> Outcomes:
        key = str(reference.get("sha256"))
        if key not in self._outcomes:
            self._outcomes[key] = records.read_items(reference.get("folder", "."), reference)
        return self._outcomes[key]

    def _resampled(self, reference: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Replicates of every metric of an items file, then its values with groups of items left out."""
        key = str(reference.get("sha256"))
        if key not in self._replicates:
            outcomes = self._read(reference)
            self._replicates[key] = replicates(outcomes, _weights(outcomes.images, self.resamples))
        return self._replicates[key]


@functools.lru_cache(maxsize=2)  # the next file is mostly of the same test set
def _weights(images: int, resamples: int) -> np.ndarray:
    """[resamples + groups, images] of the bootstrap, then of the jackknife; read-only, because it is shared."""
    weights = np.concatenate(
        [bootstrap.multinomial_weights(images, resamples), bootstrap.jackknife_weights(images)], axis=0
    )
    weights.setflags(write=False)
    return weights


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
        ordered = sorted(means.values())
        for name, mean in means.items():
            first, after = bisect.bisect_left(ordered, mean), bisect.bisect_right(ordered, mean)
            ranks[name].append(len(ordered) - after + (after - first + 1) / 2)
    return {name: (statistics.fmean(found), len(found)) for name, found in ranks.items()}
