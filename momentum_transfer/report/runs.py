"""What the report reads from run folders beside the records: training curves, pictures, conversion reports.

A run folder is what a tool wrote as OUTPUT_DIR. Only its own few known files are read, at most three levels down, so
that pointing the report at a folder full of checkpoints costs nothing.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, counted, one_line
from momentum_transfer.core.records import content_is_text

#: A folder with one of these is a run that has nothing to show, and no mistake.
_RUN_SIGNS = ("checkpoints", "backbone.safetensors", "results.jsonl")

#: What is read from a run folder, and files of which there may be several.
_SHOWN = ("metrics.jsonl", "visuals", "suite_state.json")

_PATTERNS = ("conversion*.json", "errors_*.json")

#: Levels below a run folder in which its sub-runs (a detector's, say) are looked for.
DEPTH = 3


@dataclass(frozen=True)
class Curve:
    """One training curve: ``values[i]`` at ``steps[i]``."""

    run: str
    key: str
    steps: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def checkpoint(self) -> str:
        """The run folder's own name, without the task and the trial in it."""
        return self.run.split("/")[0]


@dataclass(frozen=True)
class Picture:
    """One picture of a ``visuals`` folder; the same ``place`` and ``name`` in several runs is the same scene."""

    run: str
    place: str
    name: str
    path: Path


@dataclass(frozen=True)
class Analysis:
    """The errors that a detector made (``transfer/error_analysis``); ``name`` is the data set and what overlaps are of.

    The same ``place`` and ``name`` in several runs is the same detector on the same data.
    """

    run: str
    place: str
    name: str
    content: Mapping[str, Any]


@dataclass
class RunFiles:
    """Everything found in the run folders.

    ``unfinished`` tells which tasks of a suite failed or have not ended; ``notices`` what was broken or missing.
    """

    curves: list[Curve] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    conversions: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[Analysis] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def read_runs(folders: Sequence[str | Path]) -> RunFiles:
    """Read all run folders; a folder that does not exist is an InputError, a damaged file in one is a notice."""
    found = RunFiles()
    sources: dict[tuple[str, str], Path] = {}
    for folder in dict.fromkeys(map(Path, folders)):
        if not folder.is_dir():
            raise InputError(f"run folder not found: {folder}; expected the OUTPUT_DIR of a tool")
        name = Path(os.path.abspath(folder)).name  # of a link, not of what it links to
        before = _size(found)
        places = _places(folder)
        for place in places:
            inside = place.relative_to(folder).as_posix()
            shown = any((place / name).exists() for name in _SHOWN)
            if not shown and not any(next(place.glob(pattern), None) for pattern in _PATTERNS):
                continue
            first = sources.setdefault((name, inside), place)
            if first == place:
                _read_place(place, name, inside, found)
            else:
                found.notices.append(f"{place}: left out, because {first} stands for {name} on this page")
        after = _size(found)
        told = any((folder / name).exists() for name in _RUN_SIGNS)
        if before == after and not (told or any((place / "suite_state.json").exists() for place in places)):
            found.notices.append(f"{folder}: no metrics.jsonl, visuals/*.png or conversion report in this run folder")
    return found


def _size(found: RunFiles) -> tuple[int, ...]:
    return len(found.curves), len(found.pictures), len(found.conversions), len(found.errors)


def _places(folder: Path) -> list[Path]:
    places, level = [folder], [folder]
    for _ in range(DEPTH):
        level = sorted(
            child
            for parent in level
            for child in parent.iterdir()
            if child.is_dir() and not child.name.startswith(".") and child.name not in ("visuals", "checkpoints")
        )
        places += level
    return places


def _read_place(place: Path, run: str, inside: str, found: RunFiles) -> None:
    name = run if inside == "." else f"{run}/{inside}"
    state = place / "suite_state.json"
    if state.is_file():
        found.unfinished += _unfinished(name, _read_json(state, found.notices))
    metrics = place / "metrics.jsonl"
    if metrics.is_file():
        found.curves += _curves(metrics, name, found.notices)
    visuals = place / "visuals"
    if visuals.is_dir():
        pictures = sorted(path for path in visuals.iterdir() if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
        found.pictures += [Picture(run, inside, path.stem, path) for path in pictures]
        if not pictures:
            found.notices.append(f"{visuals}: holds no picture")
    for path in sorted(place.glob("conversion*.json")):
        found.conversions[name] = _read_json(path, found.notices)
    for path in sorted(place.glob("errors_*.json")):
        if content := _read_json(path, found.notices):
            found.errors.append(Analysis(run, inside, path.stem.removeprefix("errors_"), content))


def _unfinished(name: str, state: Mapping[str, Any]) -> list[str]:
    """A line for a task of ``tools/evaluate.py`` that did not end well."""
    if "key" not in state or state.get("exit_code") == 0:
        return []
    if "exit_code" not in state:
        return [f"{name} has not ended: what it would measure is missing, or of an earlier run"]
    why = state.get("note") or f"exit code {state['exit_code']}"
    return [f"{name} failed, so that what it would measure is missing, or of an earlier run ({why})"]


def _read_json(path: Path, notices: list[str]) -> dict[str, Any]:
    """The object in a JSON file; one that holds something else is an empty object and told."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content_is_text(content)
    except (OSError, ValueError, RecursionError) as error:
        notices.append(f"{path}: not JSON ({one_line(error)})")
        return {}
    if not isinstance(content, dict):
        notices.append(f"{path}: expected an object, found {type(content).__name__}")
        return {}
    return content


def _curves(path: Path, run: str, notices: list[str]) -> list[Curve]:
    """Of pretraining the loss, the embedding's spread and the learning rate; of what is trained on top its loss; of
    both the accuracies that were taken on the way, and the seconds of a step."""
    rows: dict[float, dict[str, Any]] = {}
    broken = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            if "\\u" in line:
                content_is_text(row)
            # A resumed run repeats the steps after its checkpoint: the later line is the one that counts. Accuracies on
            # the way have lines of their own, beside the loss of the same step.
            rows.setdefault(float(row.get("step", row.get("iteration", len(rows)))), {}).update(row)
        except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):
            broken += bool(line.strip())
    if broken:
        notices.append(f"{path}: {counted(broken, 'broken line')} left out of the training curve")
    keys = {key for row in rows.values() for key in row}
    pretraining = "embedding_std" in keys or not any(key.startswith(("loss_", "total_loss")) for key in keys)
    total = "total_loss" if "total_loss" in keys else "loss"  # Detectron2's name of it
    wanted = {key: key for key in ("loss", "embedding_std", "lr")} if pretraining else {total: "task_loss"}
    wanted |= {key: key for key in sorted(keys) if key == "seconds" or key.endswith("top1")}
    curves = []
    for key, name in wanted.items():
        points = [(step, row[key]) for step, row in sorted(rows.items()) if _finite(row.get(key))]
        if len(points) > 1:
            steps, values = zip(*points, strict=True)
            curves.append(Curve(run, name, steps, tuple(float(value) for value in values)))
    return curves


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False
