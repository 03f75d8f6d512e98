"""Notices of the page: records that mix files, settings or versions, repeat each other or have no value."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from momentum_transfer.core.errors import one_line, shown
from momentum_transfer.core.settings import differences

#: Settings that one line names.
_MOST_KEYS = 6


def mixed_files(by_checkpoint: Mapping[str, list[Mapping[str, Any]]]) -> list[str]:
    """One name, one task, several hashes: different weights are in one column."""
    notices = []
    for name, records in by_checkpoint.items():
        hashes: dict[str, set[str]] = defaultdict(set)
        for record in records:
            if sha := str(record["checkpoint"].get("sha256") or ""):
                hashes[str(record["task"]).split("/")[0]].add(sha[:12])
        notices += [
            f"{name}: the records of {task} come from {len(found)} different files ({', '.join(sorted(found))}) of the "
            "same name; their trials are averaged together"
            for task, found in hashes.items()
            if len(found) > 1
        ]
    return notices


def differing(first: str, second: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """In which settings two hashes differ, each key with both values; the hashes where ``settings`` lack one."""
    keys = list(differences(settings[first], settings[second])) if {first, second} <= settings.keys() else []
    named = [f"{one_line(key)} {shown(one)} and {shown(other)}" for key, one, other in keys[:_MOST_KEYS]]
    named += [f"{len(keys) - _MOST_KEYS} more"] * (len(keys) > _MOST_KEYS)
    return ", ".join(named) or f"config hash {first} and {second}"


def mixed_settings(
    task: str, metric: str, protocol: str, label: str, configs: Collection[str], settings: Mapping[str, Any]
) -> str:
    """One mean, several hashes of settings under one protocol's name: arguments may have overridden it."""
    first, second, *_ = sorted(configs)
    return (
        f"{task} {metric} of {label}, {protocol or 'no protocol'}: the trials come from {len(configs)} different "
        f"settings ({differing(first, second, settings)}) and are averaged together; their ± is not over trials alone"
    )


def other_settings(unlike: Mapping[Any, tuple[Collection[str], str]]) -> list[str]:
    """One line a task and protocol; ``unlike``: (task, metric, dataset, protocol, …) to checkpoints, what differs."""
    found = {(measure[0], measure[3], tuple(sorted(names)), what): None for measure, (names, what) in unlike.items()}
    return [
        f"{task}, {protocol or 'no protocol'}: {', '.join(names)} measured with other settings than the columns beside "
        f"({what}), though the protocol has the same name; marked ≠"
        for task, protocol, names, what in found
    ]


def overlapping(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Test images that are training images too, one line a task and data set: their scores are too high."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for record in records:
        count = record.get("overlap")
        if type(count) is int and count > 0:
            found[str(record["task"]).split("/")[0], str(record.get("dataset") or "this data")].add(count)
    return [
        f"{task} on {dataset}: test images that are also training images, by their bytes or features: "
        f"{' or '.join(map(str, sorted(counts)))}; they raise its scores"
        for (task, dataset), counts in found.items()
    ]


def without_value(undefined: Mapping[tuple[str, ...], Mapping[str, Sequence[int]]]) -> list[str]:
    """Metrics that the data leave undefined (no large object, no APl), one line a task: checkpoint to trials."""
    metrics: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for (task, metric, dataset, protocol, *_), columns in undefined.items():
        who = ", ".join(f"{label} (trial {', '.join(map(str, trials))})" for label, trials in columns.items())
        metrics[task, dataset, protocol, who].append(metric)
    return [
        f"{task}, {protocol or 'no protocol'}: undefined on {dataset or 'this data'}, so without a value: "
        f"{', '.join(names)} of {who}"
        for (task, dataset, protocol, who), names in metrics.items()
    ]


def mixed_versions(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for every package of which the records name several versions, with how many records have which."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    alike: dict[int, tuple[Any, int]] = {}  # records of one file have the same versions object: each is counted once
    for record in records:
        versions = record.get("versions")
        alike[id(versions)] = (versions, alike.get(id(versions), (None, 0))[1] + 1)
    for versions, count in alike.values():
        for package, version in versions.items() if isinstance(versions, Mapping) else ():
            counts[str(package)][str(version)] += count
    return [
        f"the records were made with {len(found)} versions of {package}: "
        + ", ".join(f"{version} ({count})" for version, count in sorted(found.items()))
        for package, found in counts.items()
        if len(found) > 1
    ]
