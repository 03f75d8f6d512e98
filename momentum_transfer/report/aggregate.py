"""Aggregates records: one row a measure, one column a checkpoint, mean and standard deviation over trials.

The standard deviation is that of the sample (divided by n−1) over the trials of one cell: samples of the labelled
examples for low-shot tasks, repetitions with another seed for training ones. It is not the error of the mean.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import weights_name
from momentum_transfer.report import notices as notice

#: The metric that stands for a task in the summary: the first of these that the task has.
MAIN_METRICS = ("AP", "mIoU", "top1", "mAP", "AP50")

#: Metrics that describe a run rather than score it; they are shown, but never ranked.
DESCRIPTIVE = (
    "cost", "loss", "seconds", "lr",
    "rankme", "effective_rank", "uniformity", "alignment", "dead_features", "norm_mean", "norm_std",
    "target_noise",
)  # fmt: skip

#: Tasks whose records describe weights (``tools/compare.py``): drawn over stages or layers, never ranked.
ANALYSES = ("cka", "weight_norm")

#: Kinds of baselines, in the order of their columns: "baseline" is the one that was named to the report, the others are
#: known by the method in the checkpoint's metadata, else by the beginning of its name.
BASELINES = ("baseline", "supervised", "random", "pixels", "none")

Record = Mapping[str, Any]


class Measure(NamedTuple):
    """What a number measures. Numbers of different measures are never averaged or subtracted."""

    task: str
    metric: str
    dataset: str
    protocol: str
    engine: str

    @property
    def family(self) -> str:
        """The part of the task before ``/``."""
        return self.task.split("/")[0]

    @property
    def label(self) -> str:
        """``svm/k=4 top1``."""
        return f"{self.task} {self.metric}"


@dataclass(frozen=True)
class Cell:
    """The trials of one measure for one checkpoint; values in percent, keyed by trial number.

    ``configs`` are the hashes of their settings; ``seeds`` and ``items`` (where the outcomes per test item are) are by
    trial, as far as records have them.
    """

    values: Mapping[int, float]
    configs: frozenset[str] = frozenset()
    seeds: Mapping[int, int] = field(default_factory=dict)
    items: Mapping[int, Record] = field(default_factory=dict)

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
    """All cells, and what was set aside.

    ``unlike`` are the checkpoints with other settings than the rest of a measure, ``kinds`` which of `BASELINES` each
    checkpoint is ("" for one that is evaluated), ``data`` counts of the test ``images`` and ``classes``,
    ``descriptive`` the metrics that are never compared.
    """

    checkpoints: list[str]
    cells: dict[Measure, dict[str, Cell]]
    records: dict[str, list[Record]]
    notices: list[str]
    unlike: dict[Measure, frozenset[str]]
    kinds: dict[str, str]
    data: dict[Measure, Record]
    descriptive: Sequence[str] = DESCRIPTIVE

    def baseline(self, kind: str) -> str | None:
        """The first checkpoint of that kind."""
        return next((name for name in self.checkpoints if self.kinds[name] == kind), None)

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


def _kind(name: str, records: Sequence[Record]) -> str:
    """By the method that the checkpoint's own metadata names, else by its name."""
    if methods := {str(record["checkpoint"].get("method") or "") for record in records} - {""}:
        return next((kind for kind in BASELINES[1:] if kind in methods), "")
    return next((kind for kind in BASELINES[1:] if name.lower().startswith(kind)), "")


def _kinds(records: Mapping[str, Sequence[Record]], named: str) -> dict[str, str]:
    if named and named not in records:
        raise InputError(
            f"expected a checkpoint of {', '.join(records)} as --baseline, found {named}; name one of them"
        )
    kinds = {name: "baseline" if name == named else _kind(name, own) for name, own in records.items()}
    if named and all(kinds.values()):  # where baselines are all there is, they are compared with the named one
        kinds = {name: kind if kind == "baseline" else "" for name, kind in kinds.items()}
    return kinds


def aggregate(records: Sequence[Record], baseline: str = "") -> Results:
    """Group records into cells.

    Of duplicates (the same measure, checkpoint and trial) the newest counts.

    Args:
        baseline: the checkpoint to compare with, whatever it is; "": those that are known by method or name.
    """
    labels = _column_labels(records)
    groups: dict[Measure, dict[str, dict[int, list[Record]]]] = {}
    by_checkpoint: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        label = labels[_identity(record)]
        by_checkpoint[label].append(record)
        if record["task"] not in ANALYSES:
            trials = groups.setdefault(_measure(record), {}).setdefault(label, {})
            trials.setdefault(trial_of(record), []).append(record)
    settings = _settings(records)
    notices = notice.mixed_files(by_checkpoint)
    undefined: dict[tuple[str, ...], dict[str, list[int]]] = defaultdict(dict)
    cells: dict[Measure, dict[str, Cell]] = {}
    for measure, columns in groups.items():
        for label, trials in columns.items():
            newest = {trial: max(reversed(same), key=time_of) for trial, same in sorted(trials.items())}
            values = {trial: _finite(record["value"]) for trial, record in newest.items()}
            configs = {str(record.get("config") or "") for record in newest.values()} - {""}
            if len(configs) > 1:
                about = measure.task, measure.metric, measure.protocol, label
                notices.append(notice.mixed_settings(*about, configs, settings))
            if finite := {trial: value for trial, value in values.items() if value is not None}:
                kept = {trial: newest[trial] for trial in finite}
                seeds = {trial: record["seed"] for trial, record in kept.items() if record.get("seed") is not None}
                items = {t: record["items"] for t, record in kept.items() if isinstance(record.get("items"), Mapping)}
                cells.setdefault(measure, {})[label] = Cell(finite, frozenset(configs), seeds, items)
            if len(finite) < len(values):
                undefined[measure][label] = [trial for trial, value in values.items() if value is None]
    kinds = _kinds(by_checkpoint, baseline)
    order = sorted(by_checkpoint, key=lambda name: (BASELINES.index(kinds[name]) + 1 if kinds[name] else 0, name))
    unlike = {measure: found for measure, row in cells.items() if (found := _unlike(row, order))}
    differing = {measure: (names, _differing(cells[measure], names, settings)) for measure, names in unlike.items()}
    notices += [
        *notice.overlapping(records),
        *notice.other_settings(differing),
        *_repeats(groups),
        *notice.without_value(undefined),
        *notice.mixed_versions(records),
    ]
    return Results(order, cells, {name: by_checkpoint[name] for name in order}, notices, unlike, kinds, _data(records))


def _data(records: Sequence[Record]) -> dict[Measure, Record]:
    """What records say of the test images, by measure; nothing where they differ, because no row is of both."""
    found: dict[Measure, Record] = {}
    for record in records:
        data = record.get("data")
        counts = data if isinstance(data, Mapping) else {}
        measure = _measure(record)
        found[measure] = counts if found.setdefault(measure, counts) == counts else {}
    return found


def check_settings_agree(records: Sequence[Record]) -> None:
    """InputError if a measure has other settings in one ``file`` of the records than in another; both are named.

    Within one results file other settings are shown beside each other and marked; untrusted files are not merged.
    """
    if len({record.get("file", "") for record in records}) < 2:
        return
    seen: dict[Measure, dict[str, tuple[str, str]]] = {}
    for record in records:
        config = str(record.get("config") or "")
        if record["task"] in ANALYSES or not config:
            continue
        measure, file, name = _measure(record), str(record.get("file", "")), _identity(record)[0]
        known = seen.setdefault(measure, {})
        known.setdefault(file, (config, name))
        for other, (settings, other_name) in known.items():
            if other != file and settings != config:
                raise InputError(
                    f"expected one protocol in a row, found {measure.label} ({measure.protocol or 'no protocol'}) of "
                    f"{other_name} in {other} and of {name} in {file} with other settings: "
                    f"{notice.differing(settings, config, _settings(records))}; evaluate both alike, or give them "
                    "protocols of other names, or make two reports"
                )


def _unlike(row: Mapping[str, Cell], order: Sequence[str]) -> frozenset[str]:
    """Checkpoints whose settings hashes are not the most common ones in the row; in a tie the last baseline's count.

    Arguments may have changed a protocol's settings for one checkpoint only.
    """
    known = {name: row[name].configs for name in reversed(order) if name in row and row[name].configs}
    if len(set(known.values())) < 2:
        return frozenset()
    usual, _ = Counter(known.values()).most_common(1)[0]
    return frozenset(name for name, configs in known.items() if configs != usual)


def _settings(records: Sequence[Record]) -> dict[str, Record]:
    """Settings by their hash, of records that have them."""
    return {str(record.get("config")): record["settings"] for record in records if record.get("settings")}


def _differing(row: Mapping[str, Cell], unlike: frozenset[str], settings: Mapping[str, Record]) -> str:
    """The settings in which the first checkpoint of ``unlike`` differs from the rest of the row, as text."""
    odd, usual = (next(cell.configs for name, cell in row.items() if cell.configs and (name in unlike) == side)
                  for side in (True, False))  # fmt: skip
    return notice.differing(min(odd - usual or odd), min(usual - odd or usual), settings)


def _repeats(groups: Mapping[Measure, Mapping[str, Mapping[int, Sequence[Record]]]]) -> list[str]:
    """Repeated records of a measure, checkpoint and trial: a line where they differ, else one line a task."""
    agreeing: Counter[tuple[str, str]] = Counter()
    notices = []
    for measure, columns in groups.items():
        for label, trials in columns.items():
            for trial, same in sorted(trials.items()):
                if len(same) > 1 and len({record["value"] for record in same}) == 1:
                    agreeing[measure.task, label] += len(same) - 1
                elif len(same) > 1:
                    values = (_finite(record["value"]) for record in same[:8])
                    listed = ", ".join("none" if value is None else f"{value:.4g}" for value in values)
                    what = f"{measure.label} of {label}, trial {trial}: {len(same)} records ({listed})"
                    notices.append(f"{what}; the newest counts")
    return notices + [
        f"{task} of {label}: {counted(count, 'record')} repeated with the same value; each counts once"
        for (task, label), count in agreeing.items()
    ]


def current_trials(records: Sequence[Record]) -> list[Record]:
    """Of one score's records the newest of each trial: of the weights scored last, and of each seed's last settings.

    Settings that a later record of the same trial replaced do not count in other trials either: they are left over from
    a run of more trials.
    """
    order = sorted(records, key=time_of)
    own = [one for one in order if one["checkpoint"].get("sha256") == order[-1]["checkpoint"].get("sha256")]
    last = {trial_of(one): one.get("config") for one in own}
    replaced = {one.get("config") for one in own if one.get("config") != last[trial_of(one)]} - {own[-1].get("config")}
    left = [one for one in own if one.get("config") not in replaced]
    settings = {one.get("seed"): one.get("config") for one in left}
    return [*{trial_of(one): one for one in left if one.get("config") == settings[one.get("seed")]}.values()]


def time_of(record: Record) -> str:
    """When a record was written; ISO 8601 sorts as text."""
    return str(record.get("time", ""))


def _finite(value: float | int | None) -> float | None:
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:  # JSON knows integers of any size
        return None
    return number if math.isfinite(number) else None


def _measure(record: Record) -> Measure:
    metric, network = record["metric"], record.get("network")
    if "start_network" in record and network != "student":  # beside the student of FixMatch, which is the result
        metric = f"{metric} ({network})"
    context = (record.get(key) or "" for key in ("dataset", "protocol", "engine"))
    return Measure(*map(str, (record["task"], metric, *context)))


def checkpoint_of(record: Record) -> str:
    """What a record calls its checkpoint; "" where it has no name."""
    return weights_name(str(record["checkpoint"].get("name", "")))


def trial_of(record: Record) -> int:
    """Which repetition a record is; 0 where it has no number."""
    try:
        return int(record.get("trial") or 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _identity(record: Record) -> tuple[str, str]:
    checkpoint = record["checkpoint"]
    name = weights_name(str(checkpoint.get("name") or str(checkpoint.get("sha256") or "unnamed")[:12]))
    return name, str(record.get("start_network", record.get("network")) or "")


def _column_labels(records: Sequence[Record]) -> dict[tuple[str, str], str]:
    """Checkpoint and network to column heading, with the network only where a name was measured with several."""
    networks: dict[str, set[str]] = defaultdict(set)
    for record in records:
        name, network = _identity(record)
        networks[name].add(network)
    return {
        (name, network): f"{name} ({network})" if network and len(found - {""}) > 1 else name
        for name, found in networks.items()
        for network in found
    }
