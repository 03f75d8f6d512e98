"""What the reader must know where one number of the page stands on records that do not quite belong together."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any


def mixed_files(by_checkpoint: Mapping[str, list[Mapping[str, Any]]]) -> list[str]:
    """One name, one task, several hashes: different weights share a column, which the reader must know."""
    notices = []
    for name, records in by_checkpoint.items():
        hashes: dict[str, set[str]] = defaultdict(set)
        for record in records:
            sha = str(record["checkpoint"].get("sha256") or "")
            if sha:
                hashes[str(record["task"]).split("/")[0]].add(sha[:12])
        for task, found in hashes.items():
            if len(found) > 1:
                notices.append(
                    f"{name}: the records of {task} come from {len(found)} different files "
                    f"({', '.join(sorted(found))}) of the same name; their trials are averaged together"
                )
    return notices


def mixed_settings(task: str, metric: str, protocol: str, label: str, configs: Collection[str]) -> str:
    """One mean, several hashes of settings: a protocol's name says not all, for KEY VALUE words may override it."""
    return (
        f"{task} {metric} of {label}, {protocol or 'no protocol'}: the trials come from {len(configs)} different "
        f"settings ({', '.join(sorted(configs))}) and are averaged together; their ± is not over trials alone"
    )
