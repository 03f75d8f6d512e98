"""Differences between any two checkpoints: intervals from trials and test items, and the words of the rule."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from momentum_transfer.core import records
from momentum_transfer.core.errors import InputError
from momentum_transfer.report import tables
from momentum_transfer.report.aggregate import BASELINES, Cell, Measure, Results
from momentum_transfer.verdicts.comparison import Comparison, ItemEvidence, compare
from momentum_transfer.verdicts.corrections import verdicts
from momentum_transfer.verdicts.outcomes import Outcomes, PerItem, check_paired, item_weights, replicates

#: Resamples of the test items.
RESAMPLES = 1000

RULE = (
    "Better or worse: a difference that chance alone, over trials and test images, would give in less than 5 % of "
    "cases, after the correction over all headline measures and baselines of the page."
)

_ABOUT = (
    "Where a checkpoint was trained once, this is about the checkpoint, not about its method: another seed of the "
    "training would give another one."
)


def about(methods: Mapping[str, Sequence[str]]) -> str:
    """What verdicts are about; ``methods``: those whose trials are pretrainings, with their checkpoints."""
    if not methods:
        return _ABOUT
    listed = ", ".join(f"{name} ({len(checkpoints)} pretrainings)" for name, checkpoints in methods.items())
    return f"Trials are pretrainings, so that verdicts are about methods, for {listed}. {_ABOUT}"


@dataclass
class Comparisons:
    """Differences of any two checkpoints in any measure, each worked out once.

    Attributes:
        resamples: of the test items; 0 leaves them out.
        methods: those whose trials are pretrainings, with their checkpoints.
        notices: why outcomes that records name could not be used (also in ``faults``), or do not tell much.
        seed: of the resamples. outcomes: what was read, by the hash that records name it by.
        margin: points within which the page's words call a difference none.
    """

    results: Results
    resamples: int = RESAMPLES
    methods: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seed: int = 0
    outcomes: dict[str, Outcomes] = field(default_factory=dict)
    margin: float | None = None
    _comparisons: dict[tuple[Measure, str, str], Comparison | None] = field(default_factory=dict)
    _replicates: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    _words: dict[tuple[str, str], dict[Measure, str]] = field(default_factory=dict)

    def of(self, measure: Measure, name: str, base: str) -> Comparison | None:
        """``name`` minus ``base``, in points; None if one of them was not measured, or not in the same way."""
        key = measure, name, base
        if key not in self._comparisons:
            cells = self.results.cells[measure]
            comparable = name in cells and base in cells and measure.metric not in self.results.descriptive
            if comparable and cells[name].configs and cells[base].configs:
                comparable = cells[name].configs == cells[base].configs
            self._comparisons[key] = self._compare(measure, name, base) if comparable else None
        return self._comparisons[key]

    def words(self, name: str, base: str) -> dict[Measure, str]:
        """Headline measure to its word, for all that both checkpoints have.

        The correction is over all headline measures of every checkpoint against every baseline: what the page says.
        """
        if (name, base) not in self._words:
            cells, pairs = self.results.cells, tables.compared(self.results, BASELINES)
            pairs = pairs if (name, base) in pairs else [(name, base)]
            family = [(one, *pair) for pair in pairs for one in self.results.headlines()
                      if all(each in cells[one] for each in pair)]  # fmt: skip
            self._words.update({pair: {} for pair in pairs})
            for (measure, *pair), (word, _) in self.verdicts(family).items():
                self._words[pair[0], pair[1]][measure] = word
        return self._words[name, base]

    def verdicts(self, family: Sequence[tuple[Measure, str, str]]) -> dict[tuple[Measure, str, str], Any]:
        """Word and corrected p of each (measure, name, base) of a family that is read together."""
        margins = None if self.margin is None else dict.fromkeys(family, self.margin)
        return verdicts({key: self.of(*key) for key in family}, margins)

    def subject(self, name: str, base: str) -> str:
        """What a verdict on ``name`` and ``base`` is about; a pretraining counted once never reads as a method."""
        counts = [len(self.methods[each]) for each in (name, base) if each in self.methods]
        if not counts:
            return "this checkpoint"
        if len(counts) == 1:
            return f"a method, {counts[0]} pretrainings, beside one checkpoint"
        return f"methods, {' and '.join(map(str, dict.fromkeys(counts)))} pretrainings"

    def _compare(self, measure: Measure, name: str, base: str) -> Comparison:
        first, second = (self.results.cells[measure][each] for each in (name, base))
        shared = not first.seeds or not second.seeds or first.seeds == second.seeds
        names = f"{measure.task} of {name}", f"{measure.task} of {base}"
        evidence = self._evidence(measure.metric, names, (first, second))
        found = compare(first.values, second.values, shared, evidence)
        if evidence is not None and evidence.undefined:
            self._notice(f"{measure.label.strip()}: too few test images hold such an object to show how it spreads; "
                         "only trials count there")  # fmt: skip
        if found.in_few_groups:
            where = f"{measure.task}: " if measure.task else ""
            self._notice(f"{where}{found.clusters} groups of test images are few; intervals are wide, and rough")
        if found.constant:
            where = f"{measure.label.strip()}, {name} against {base}"
            every = "on every item" if found.items else "in every trial"
            self._notice(f"{where}: the same difference {every}; p = 0 says only that these do not spread")
        return found

    def _evidence(self, metric: str, names: tuple[str, str], sides: tuple[Cell, Cell]) -> ItemEvidence | None:
        if not self.resamples or not all(set(cell.items) == set(cell.values) for cell in sides):
            return None
        files = [[cell.items[trial] for trial in sorted(cell.items)] for cell in sides]
        try:
            outcomes = [[self._read(file) for file in side] for side in files]
            for each in (*outcomes[0][1:], *outcomes[1]):
                check_paired(outcomes[0][0], each, names)
        except InputError as error:
            self.faults.append(str(error))
            self._notice(str(error))
            return None
        resampled = [[self._resampled(file) for file in side] for side in files]
        if not all(metric in each for side in resampled for each in side):
            return None
        first, second = (np.mean([each[metric] for each in side], axis=0) for side in resampled)
        hits = [side[0].values[metric] for side in outcomes if len(side) == 1 and isinstance(side[0], PerItem)]
        b = self.resamples
        groups = outcomes[0][0].clusters
        return ItemEvidence(
            outcomes[0][0].images, first[:b], second[:b], first[b:], second[b:],
            hits=(hits[0], hits[1]) if groups is None and len(hits) == 2 and hits[0].dtype == bool else None,
            clusters=None if groups is None else int(groups.max()) + 1,
        )  # fmt: skip

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    def _read(self, reference: Mapping[str, Any]) -> Outcomes:
        key = str(reference.get("sha256"))
        if key not in self.outcomes:
            self.outcomes[key] = records.read_items(reference.get("folder", "."), reference)
        return self.outcomes[key]

    def _resampled(self, reference: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Replicates of every metric of an items file, then its values with groups of items left out."""
        key = str(reference.get("sha256"))
        if key not in self._replicates:
            outcomes = self._read(reference)
            clusters = None if outcomes.clusters is None else outcomes.clusters.tobytes()
            self._replicates[key] = replicates(outcomes, _weights(outcomes.images, self.resamples, clusters, self.seed))
        return self._replicates[key]


@functools.lru_cache(maxsize=2)  # the next file is mostly of the same test set
def _weights(images: int, resamples: int, clusters: bytes | None, seed: int) -> np.ndarray:
    """[resamples + blocks, images] of the bootstrap, then of the jackknife; read-only, because all callers get it."""
    groups = None if clusters is None else np.frombuffer(clusters, dtype=np.int64)
    weights = item_weights(images, resamples, seed, groups, blocks=100)
    weights.setflags(write=False)
    return weights
