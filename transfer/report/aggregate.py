"""Records to numbers: one row a measure, one column a checkpoint, mean and standard deviation over trials.

The standard deviation is that of the sample (divided by n−1) over the trials of one cell: draws of the labelled
examples for low-shot tasks, repetitions with another seed for training ones. It is not the error of the mean.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pretrain.files import weights_name
from transfer.report.analyses import is_analysis
from transfer.report.notices import Repeats, mixed_files, mixed_settings, mixed_versions, without_value

#: The metric that stands for a task in the summary: the first of these that the task has.
MAIN_METRICS = ("AP", "mIoU", "top1", "mAP", "AP50")

#: Metrics that describe a run rather than score it; they are shown, but never ranked.
DESCRIPTIVE = ("cost", "loss", "seconds", "lr")

#: A checkpoint whose name begins so is a baseline, in the order in which the columns stand.
BASELINES = ("supervised", "random", "pixels", "none")


class Measure(NamedTuple):
    """What a number measures. Numbers of different measures are never averaged or subtracted."""

    task: str
    metric: str
    dataset: str
    protocol: str
    engine: str


@dataclass(frozen=True)
class Cell:
    """The trials of one measure for one checkpoint; values in percent, keyed by trial number."""

    values: Mapping[int, float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values.values())

    @property
    def std(self) -> float | None:
        """Sample standard deviation over the trials; None for a single one."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    @property
    def trials(self) -> int:
        return len(self.values)


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


@dataclass
class Results:
    """All cells, with what had to be set aside on the way."""

    checkpoints: list[str]
    cells: dict[Measure, dict[str, Cell]]
    records: dict[str, list[Mapping[str, Any]]]
    notices: list[str] = field(default_factory=list)

    def tasks(self) -> dict[str, list[Measure]]:
        """Measures by family of task (the part before ``/``), in the order of the records."""
        families: dict[str, list[Measure]] = defaultdict(list)
        for measure in self.cells:
            families[measure.task.split("/")[0]].append(measure)
        return dict(families)

    def headlines(self) -> list[Measure]:
        """One measure for each (task, dataset, protocol, engine): its main metric."""
        chosen: dict[tuple[str, ...], Measure] = {}
        for measure in self.cells:
            if measure.metric not in MAIN_METRICS:
                continue
            place = (measure.task, measure.dataset, measure.protocol, measure.engine)
            best = chosen.get(place)
            if best is None or MAIN_METRICS.index(measure.metric) < MAIN_METRICS.index(best.metric):
                chosen[place] = measure
        return list(chosen.values())


def is_baseline(name: str) -> bool:
    """Whether a checkpoint is there to be compared with: its name begins with random, supervised or pixels."""
    return name.lower().startswith(BASELINES)


def baseline(results: Results, kind: str) -> str | None:
    """The first checkpoint whose name begins with ``kind``."""
    return next((name for name in results.checkpoints if name.lower().startswith(kind)), None)


def aggregate(records: Sequence[Mapping[str, Any]]) -> Results:
    """Group records into cells.

    Duplicates (the same measure, checkpoint and trial) with one value count once; with different values the newest
    counts. Both, records without a value, and trials of different settings in one mean are told in ``notices``.
    """
    labels = _column_labels(records)
    groups: dict[Measure, dict[str, dict[int, list[Mapping[str, Any]]]]] = {}
    by_checkpoint: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        label = labels[_identity(record)]
        by_checkpoint[label].append(record)
        if is_analysis(record):
            continue
        trials = groups.setdefault(_measure(record), {}).setdefault(label, {})
        trials.setdefault(_trial(record), []).append(record)
    notices: list[str] = mixed_files(by_checkpoint)
    repeats = Repeats()
    undefined: dict[Measure, dict[str, list[int]]] = defaultdict(dict)
    cells: dict[Measure, dict[str, Cell]] = {}
    for measure, columns in groups.items():
        for label, trials in columns.items():
            values = _values(measure, label, trials, repeats)
            configs = {str(_newest(same).get("config") or "") for same in trials.values()} - {""}
            if len(configs) > 1:
                notices.append(mixed_settings(measure.task, measure.metric, measure.protocol, label, configs))
            finite = {trial: value for trial, value in values.items() if value is not None}
            if finite:
                cells.setdefault(measure, {})[label] = Cell(finite)
            if len(finite) < len(values):
                undefined[measure][label] = [trial for trial, value in values.items() if value is None]
    notices += [*repeats.notices(), *without_value(undefined.items()), *mixed_versions(records)]
    order = sorted(by_checkpoint, key=_column_order)
    return Results(order, cells, {name: by_checkpoint[name] for name in order}, notices)


def _values(
    measure: Measure, label: str, trials: Mapping[int, list[Mapping[str, Any]]], repeats: Repeats
) -> dict[int, float | None]:
    """The value that counts for each trial; None where it is no finite number."""
    values: dict[int, float | None] = {}
    for trial, same in sorted(trials.items()):
        newest = _newest(same)
        if len(same) > 1 and len({record["value"] for record in same}) == 1:
            repeats.agreeing[measure.task, label] += len(same) - 1
        elif len(same) > 1:
            listed = ", ".join("none" if (v := _finite(r["value"])) is None else f"{v:.4g}" for r in same[:8])
            repeats.differing.append(
                f"{measure.task} {measure.metric} of {label}, trial {trial}: {len(same)} records ({listed}); "
                "the newest counts"
            )
        values[trial] = _finite(newest["value"])
    return values


def _newest(same: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(same, key=lambda record: str(record.get("time", "")))


def _finite(value: float | int | None) -> float | None:
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:  # JSON knows integers of any size
        return None
    return number if math.isfinite(number) else None


def _measure(record: Mapping[str, Any]) -> Measure:
    dataset, protocol, engine = (str(record.get(key) or "") for key in ("dataset", "protocol", "engine"))
    return Measure(str(record["task"]), str(record["metric"]), dataset, protocol, engine)


def _trial(record: Mapping[str, Any]) -> int:
    try:
        return int(record.get("trial") or 0)
    except (TypeError, ValueError):
        return 0


def _identity(record: Mapping[str, Any]) -> tuple[str, str]:
    checkpoint = record["checkpoint"]
    name = weights_name(str(checkpoint.get("name") or str(checkpoint.get("sha256") or "unnamed")[:12]))
    return name, str(record.get("network") or "")


def _column_labels(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Checkpoint and network to column heading; the network is told only where a name was measured with several."""
    networks: dict[str, set[str]] = defaultdict(set)
    for record in records:
        name, network = _identity(record)
        networks[name].add(network)
    return {
        (name, network): f"{name} ({network})" if network and len(found - {""}) > 1 else name
        for name, found in networks.items()
        for network in found
    }


def _column_order(name: str) -> tuple[int, str]:
    kinds = [index for index, kind in enumerate(BASELINES, start=1) if name.lower().startswith(kind)]
    return (kinds[0] if kinds else 0, name)


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
