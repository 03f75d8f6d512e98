"""A suite of tasks that count, with a record each, for the comparison of engines."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

#: Keys of a record that may differ between engines.
OWN = ("time", "hours", "gpu_hours", "versions")


def counting_suite(folder: Path, tasks: int, count: int, **changes: Any) -> Path:
    """The file of a suite whose second half of tasks each need one of the first; each counts, ten a second."""
    made = [
        {"name": f"task{index}", "cpus": 1, **changes}
        | {"command": f"tests/cluster/counting_task.py {{folder}} {{results}} {{weights}} task{index} {count}"}
        | ({"needs": f"task{index - tasks // 2}"} if index >= tasks // 2 > 0 else {})
        for index in range(tasks)
    ]
    path = folder / "counting.yaml"
    path.write_text(yaml.safe_dump({"name": "counting", "tasks": made}), encoding="utf-8")
    return path


def records_of(output: Path) -> list[Mapping[str, Any]]:
    """The records of a suite in the order of their tasks, without what may differ."""
    lines = [json.loads(line) for line in (output / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [{key: value for key, value in line.items() if key not in OWN} for line in lines]
    return sorted(kept, key=lambda record: str(record["task"]))


def counts(output: Path, task: str) -> list[int]:
    """What a task counted, in the order it did."""
    return [int(line.split()[1]) for line in (output / "pixels" / task / "trace").read_text().splitlines()]
