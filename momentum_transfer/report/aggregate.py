"""Aggregates records: one row a measure, one column a checkpoint, mean and standard deviation over trials.

The standard deviation is that of the sample (divided by n−1) over the trials of one cell: draws of the labelled
examples for low-shot tasks, repetitions with another seed for training ones. It is not the error of the mean.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import weights_name
from momentum_transfer.report.analyses import is_analysis
from momentum_transfer.report.notices import (
    Repeats,
    differing,
    mixed_files,
    mixed_settings,
    mixed_versions,
    other_settings,
    overlapping,
    without_value,
)

#: The metric that stands for a task in the summary: the first of these that the task has.
MAIN_METRICS = ("AP", "mIoU", "top1", "mAP", "AP50")

#: Metrics that describe a run rather than score it; they are shown, but never ranked.
DESCRIPTIVE = (
    "cost", "loss", "seconds", "lr",
    "rankme", "effective_rank", "uniformity", "alignment", "dead_features", "norm_mean", "norm_std",
    "target_noise",
)  # fmt: skip

#: Kinds of baselines, in the order in which the columns stand: "baseline" is the one that was named to the report, the
#: others are told by the method in the checkpoint's metadata, else by the beginning of its name.
BASELINES = ("baseline", "supervised", "random", "pixels", "none")


class Measure(NamedTuple):
    """What a number measures. Numbers of different measures are never averaged or subtracted."""

    task: str
    metric: str
    dataset: str
    protocol: str
    engine: str


@dataclass(frozen=True)
class Cell:
    """The trials of one measure for one checkpoint; values in percent, keyed by trial number.

    ``configs`` are the hashes of the settings they were measured with; ``seeds`` and ``items`` are, by trial, its seed
    and where its outcomes per test item are, as far as records say.
    """

    values: Mapping[int, float]
    configs: frozenset[str] = frozenset()
    seeds: Mapping[int, int] = field(default_factory=dict)
    items: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def mean(self) -> float:
        return statistics.fmean(self.values.values())

    @cached_property
    def std(self) -> float | None:
        """Sample standard deviation over the trials; None for a single one."""
        if len(self.values) < 2:
            return None
        # statistics.stdev adds fractions, which for a hundred thousand cells takes most of a minute.
        try:
            squares = math.fsum((value - self.mean) ** 2 for value in self.values.values())
        except OverflowError:  # values beyond 1e154
            return math.inf
        return math.sqrt(squares / (len(self.values) - 1))

    @property
    def trials(self) -> int:
        return len(self.values)


@dataclass
class Results:
    """All cells, with what had to be set aside on the way.

    ``unlike`` are the checkpoints whose settings are not those of the others in a measure, ``kinds`` the baselines
    among the checkpoints, ``data`` what records say of the images that test: counts of ``images`` and ``classes``.
    """

    checkpoints: list[str]
    cells: dict[Measure, dict[str, Cell]]
    records: dict[str, list[Mapping[str, Any]]]
    notices: list[str] = field(default_factory=list)
    unlike: dict[Measure, frozenset[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    data: dict[Measure, Mapping[str, Any]] = field(default_factory=dict)

    def kind(self, name: str) -> str:
        """Which of `BASELINES` a checkpoint is; "" for one that is to be judged."""
        return self.kinds.get(name, _kind_by_name(name))

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


def _kind_by_name(name: str) -> str:
    return next((kind for kind in BASELINES[1:] if name.lower().startswith(kind)), "")


def _kinds(records: Mapping[str, Sequence[Mapping[str, Any]]], named: str) -> dict[str, str]:
    """Kind of each column: by the method that the checkpoint's own metadata names, else by its name."""
    if named and named not in records:
        raise InputError(
            f"expected a checkpoint of {', '.join(records)} as --baseline, found {named}; name one of them"
        )
    found = {}
    for name, own in records.items():
        methods = {str(record["checkpoint"].get("method") or "") for record in own} - {""}
        told = next((kind for kind in BASELINES[1:] if kind in methods), "") if methods else _kind_by_name(name)
        found[name] = "baseline" if name == named else told
    if named and all(found.values()):  # where baselines are all there is, they are what is compared with the named one
        found = {name: kind if kind == "baseline" else "" for name, kind in found.items()}
    return found


def baseline(results: Results, kind: str) -> str | None:
    """The first checkpoint of that kind."""
    return next((name for name in results.checkpoints if results.kind(name) == kind), None)


def aggregate(records: Sequence[Mapping[str, Any]], baseline: str = "") -> Results:
    """Group records into cells.

    Args:
        baseline: the checkpoint to compare with, whatever it is; "": those that are told by method or name.

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
        trials.setdefault(trial_of(record), []).append(record)
    settings = _settings(records)
    notices: list[str] = mixed_files(by_checkpoint)
    repeats = Repeats()
    undefined: dict[Measure, dict[str, list[int]]] = defaultdict(dict)
    cells: dict[Measure, dict[str, Cell]] = {}
    for measure, columns in groups.items():
        for label, trials in columns.items():
            values = _values(measure, label, trials, repeats)
            configs = {str(_newest(same).get("config") or "") for same in trials.values()} - {""}
            if len(configs) > 1:
                about = measure.task, measure.metric, measure.protocol, label
                notices.append(mixed_settings(*about, configs, settings))
            finite = {trial: value for trial, value in values.items() if value is not None}
            if finite:
                newest = {trial: _newest(trials[trial]) for trial in finite}
                seeds = {trial: record["seed"] for trial, record in newest.items() if record.get("seed") is not None}
                kept = {t: record["items"] for t, record in newest.items() if isinstance(record.get("items"), Mapping)}
                cells.setdefault(measure, {})[label] = Cell(finite, frozenset(configs), seeds, kept)
            if len(finite) < len(values):
                undefined[measure][label] = [trial for trial, value in values.items() if value is None]
    kinds = _kinds(by_checkpoint, baseline)
    order = sorted(by_checkpoint, key=lambda name: _column_order(name, kinds[name]))
    unlike = {measure: found for measure, row in cells.items() if (found := _unlike(row, order))}
    notices += [
        *overlapping(records),
        *other_settings(
            {measure: (names, _differing(cells[measure], names, settings)) for measure, names in unlike.items()}
        ),
        *repeats.notices(),
        *without_value(undefined.items()),
        *mixed_versions(records),
    ]
    return Results(order, cells, {name: by_checkpoint[name] for name in order}, notices, unlike, kinds, _data(records))


def _data(records: Sequence[Mapping[str, Any]]) -> dict[Measure, Mapping[str, Any]]:
    """What records say of the images that test, by measure; of unlike ones nothing, because no row is of both."""
    found: dict[Measure, Mapping[str, Any]] = {}
    for record in records:
        said = record.get("data")
        counts = said if isinstance(said, Mapping) else {}
        measure = _measure(record)
        found[measure] = counts if found.setdefault(measure, counts) == counts else {}
    return found


def check_strangers(records: Sequence[Mapping[str, Any]]) -> None:
    """Refuse records of several files that would share a row though they were measured in unlike ways.

    Within one results file other settings are shown beside each other and marked; files of strangers are not merged.

    Args:
        records: with the key ``file``, where each was read.

    Raises:
        InputError: one measure has other settings in one file than in another; both are named.
    """
    seen: dict[Measure, dict[str, tuple[str, str]]] = {}
    kept = _settings(records)
    if len({record.get("file", "") for record in records}) < 2:
        return
    for record in records:
        config = str(record.get("config") or "")
        if is_analysis(record) or not config:
            continue
        measure, file = _measure(record), str(record.get("file", ""))
        known = seen.setdefault(measure, {})
        known.setdefault(file, (config, _identity(record)[0]))
        for other, (settings, name) in known.items():
            if other != file and settings != config:
                raise InputError(
                    f"expected one protocol in a row, found {measure.task} {measure.metric} "
                    f"({measure.protocol or 'no protocol'}) of {name} in {other} and of {_identity(record)[0]} in "
                    f"{file} with other settings: {differing(settings, config, kept)}; evaluate both alike, or give "
                    "them protocols of other names, or make two reports"
                )


def _unlike(row: Mapping[str, Cell], order: Sequence[str]) -> frozenset[str]:
    """Checkpoints of a row that were measured with other settings than most of it (of equals, than the last baseline).

    A protocol's name says not all: KEY VALUE words may have changed its settings for one checkpoint only.
    """
    told = {name: row[name].configs for name in reversed(order) if name in row and row[name].configs}
    if len(set(told.values())) < 2:
        return frozenset()
    usual, _ = Counter(told.values()).most_common(1)[0]
    return frozenset(name for name, configs in told.items() if configs != usual)


def _settings(records: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Settings by their hash, of records that have them."""
    return {str(record.get("config")): record["settings"] for record in records if record.get("settings")}


def _differing(row: Mapping[str, Cell], unlike: frozenset[str], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """What differs between the first of the checkpoints ``unlike`` the others of a row, and those."""
    odd, usual = (next(cell.configs for name, cell in row.items() if cell.configs and (name in unlike) == side)
                  for side in (True, False))  # fmt: skip
    return differing(min(odd - usual or odd), min(usual - odd or usual), settings)


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
    metric, network = record["metric"], record.get("network")
    if "start_network" in record and network != "student":  # beside the student of FixMatch, which is the result
        metric = f"{metric} ({network})"
    said = record["task"], metric, *(record.get(key) or "" for key in ("dataset", "protocol", "engine"))
    return Measure(*map(str, said))


def trial_of(record: Mapping[str, Any]) -> int:
    """Which repetition a record is; 0 where it does not say."""
    try:
        return int(record.get("trial") or 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _identity(record: Mapping[str, Any]) -> tuple[str, str]:
    checkpoint = record["checkpoint"]
    name = weights_name(str(checkpoint.get("name") or str(checkpoint.get("sha256") or "unnamed")[:12]))
    return name, str(record.get("start_network", record.get("network")) or "")


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


def _column_order(name: str, kind: str) -> tuple[int, str]:
    return (BASELINES.index(kind) + 1 if kind else 0, name)
