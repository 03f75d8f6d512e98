"""What the report reads: records, run folders (training curves, images, conversion reports), and a suite's plots.

A run folder is what a tool wrote as OUTPUT_DIR. Only its own few known files are read, at most three levels down, so
that pointing the report at a folder full of checkpoints costs nothing.
"""

import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from momentum_transfer.core import records as records_file
from momentum_transfer.core.errors import InputError, counted, one_line
from momentum_transfer.core.files import weights_name
from momentum_transfer.core.records import content_is_text
from momentum_transfer.core.settings import kept
from momentum_transfer.report.aggregate import Record, checkpoint_of, current_trials
from momentum_transfer.suites.sweep import PlotRequest

#: Files of a run folder: of a run without curves or images, and those that are read.
_RUN_SIGNS = ("checkpoints", "backbone.safetensors", "results.jsonl")
#: How a detector's teacher labels, in its metrics.jsonl.
_TEACHER = ("pseudo_precision", "pseudo_recall", "pseudo_boxes")
_STATE, _METRICS, _VISUALS = "suite_state.json", "metrics.jsonl", "visuals"
_PATTERNS = ("conversion*.json", "errors_*.json")

#: Levels below a run folder in which its sub-runs (a detector's, say) are looked for.
_DEPTH = 3


def read_records(paths: Sequence[str | Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Records of all files, each file once, and what is wrong with their lines; InputError without any record.

    A record gets its ``file``, its items' ``folder``, and under ``settings`` those that its hash names.
    """
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    for path in dict.fromkeys(Path(path).resolve() for path in paths):
        found, wrong = records_file.read(path)
        settings: dict[str, dict[str, Any] | None] = {}
        for config in {str(record.get("config")) for record in found}:
            try:
                settings[config] = kept(path.parent, config)
            except InputError as error:
                wrong.append(str(error))
        for record in found:
            record["file"] = str(path)
            record["settings"] = settings.get(str(record.get("config")))
            if isinstance(record.get("items"), dict):
                record["items"]["folder"] = str(path.parent)
        records += found
        problems += wrong
    if not records:
        first = f"; the first of {len(problems)} unreadable lines: {problems[0]}" if problems else ""
        raise InputError(
            f"no record in {', '.join(map(str, paths))}{first}; run an evaluating tool with --results and this file"
        )
    return records, problems


def read_methods(arguments: Sequence[str]) -> dict[str, list[str]]:
    """``NAME=CKPT,CKPT,…`` to checkpoints by method; InputError for another form, or a checkpoint in two places."""
    methods: dict[str, list[str]] = {}
    for argument in arguments:
        name, _, listed = argument.partition("=")
        checkpoints = [weights_name(part) for part in listed.split(",") if part]
        if not name or len(checkpoints) < 2:
            raise InputError(f"expected --method NAME=CKPT,CKPT with two or more pretrainings, found {argument!r}")
        if name in methods:
            raise InputError(f"expected each --method once, found {name} twice")
        methods[name] = checkpoints
    every = [checkpoint for checkpoints in methods.values() for checkpoint in checkpoints]
    if twice := next((each for each in every if every.count(each) > 1), None):
        raise InputError(f"expected each checkpoint in one method once, found {twice} more often")
    return methods


def merge_methods(records: Sequence[Record], methods: Mapping[str, Sequence[str]]) -> list[Record]:
    """Several pretrainings of one method as one column: trial s is the mean over the trials of its s-th checkpoint.

    So intervals cover the seed of pretraining, and verdicts are about methods, by Welch's t: seeds of two methods have
    nothing in common. Outcomes per item stay where a pretraining has one trial. Of a pretraining that was trained or
    evaluated again what ``current_trials`` leaves counts.
    """
    places = {checkpoint: (name, s) for name, listed in methods.items() for s, checkpoint in enumerate(listed)}
    groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    others: list[Record] = []
    for record in records:
        place = places.get(checkpoint_of(record))
        if place is None:
            others.append(record)
            continue
        keys = ("task", "metric", "dataset", "protocol", "engine", "network")
        same = place, *(str(record.get(key)) for key in keys), "start_network" in record
        groups[same].append(record)
    if taken := {checkpoint_of(record) for record in others} & methods.keys():
        raise InputError(f"expected --method of another name than checkpoints have, found {min(taken)}; rename it")
    found = {place for place, *_ in groups}
    if missing := [checkpoint for checkpoint, place in places.items() if place not in found]:
        raise InputError(f"expected records of {missing[0]}, which --method names, found none; evaluate it first")
    merged: list[Record] = []
    for ((name, place), *_), group in groups.items():
        trials = current_trials(group)
        values = [record["value"] for record in trials if record["value"] is not None]
        one = {
            **trials[0],
            "config": " ".join(sorted({str(record.get("config") or "") for record in trials})),  # several are not one
            "checkpoint": {"name": name, "sha256": ""},
            "trial": place,
            "seed": f"{name} {place}",  # no other method has it
            "value": fmean(values) if values else None,
        }
        if len(trials) > 1:
            one.pop("items", None)
        merged.append(one)
    return others + merged


def read_suites(results: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The ``suite.json`` beside each results file, where there is one; InputError if it is damaged."""
    found = []
    for path in dict.fromkeys(Path(file).parent / "suite.json" for file in results):
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found.append({"runs": dict(content["runs"]), "plots": [PlotRequest(**plot) for plot in content["plots"]]})
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"expected what a suite's runner wrote in {path}, found other content; run the suite again"
            ) from error
    return found


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
class Example:
    """One image of a ``visuals`` folder; the same ``place`` and ``name`` in several runs is the same scene."""

    run: str
    place: str
    name: str
    path: Path


@dataclass(frozen=True)
class Analysis:
    """The errors of the detector ``place`` (``transfer/error_analysis``) on ``name``: a data set, boxes or masks."""

    run: str
    place: str
    name: str
    content: Mapping[str, Any]


@dataclass
class RunFiles:
    """Everything found in the run folders.

    ``unfinished`` are the tasks of a suite that failed or have not ended; ``notices`` what was broken or missing.
    """

    curves: list[Curve] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    conversions: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[Analysis] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def _size(self) -> int:
        return len(self.curves) + len(self.examples) + len(self.conversions) + len(self.errors)


def read_runs(folders: Sequence[str | Path]) -> RunFiles:
    """Read all run folders; a folder that does not exist is an InputError, a damaged file in one is a notice."""
    found = RunFiles()
    sources: dict[tuple[str, str], Path] = {}
    for folder in dict.fromkeys(map(Path, folders)):
        if not folder.is_dir():
            raise InputError(f"run folder not found: {folder}; expected the OUTPUT_DIR of a tool")
        name = Path(os.path.abspath(folder)).name  # of a link, not of what it links to
        before, places = found._size(), _places(folder)
        for place in places:
            shown = any((place / file).exists() for file in (_METRICS, _VISUALS, _STATE))
            if not shown and not any(next(place.glob(pattern), None) for pattern in _PATTERNS):
                continue
            inside = place.relative_to(folder).as_posix()
            first = sources.setdefault((name, inside), place)
            if first == place:
                _read_place(place, name, inside, found)
            else:
                found.notices.append(f"{place}: left out, because {first} stands for {name} on this page")
        is_run = any((folder / file).exists() for file in _RUN_SIGNS) or any((p / _STATE).exists() for p in places)
        if found._size() == before and not is_run:
            found.notices.append(f"{folder}: no metrics.jsonl, visuals/*.png or conversion report in this run folder")
    return found


def _places(folder: Path) -> list[Path]:
    places, level = [folder], [folder]
    for _ in range(_DEPTH):
        level = sorted(
            child
            for parent in level
            for child in parent.iterdir()
            if child.is_dir() and not child.name.startswith(".") and child.name not in (_VISUALS, "checkpoints")
        )
        places += level
    return places


def _read_place(place: Path, run: str, inside: str, found: RunFiles) -> None:
    name = run if inside == "." else f"{run}/{inside}"
    if (state := place / _STATE).is_file():
        found.unfinished += _unfinished(name, _read_json(state, found.notices))
    if (metrics := place / _METRICS).is_file():
        found.curves += _curves(metrics, name, found.notices)
    if (visuals := place / _VISUALS).is_dir():
        images = sorted(path for path in visuals.iterdir() if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
        found.examples += [Example(run, inside, path.stem, path) for path in images]
        if not images:
            found.notices.append(f"{visuals}: holds no image")
    for path in sorted(place.glob(_PATTERNS[0])):
        found.conversions[name] = _read_json(path, found.notices)
    for path in sorted(place.glob(_PATTERNS[1])):
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
    """The object in a JSON file; empty, with a notice, where it holds something else."""
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
    """Of pretraining the loss, the embedding's spread and the learning rate; of what is trained on top its loss, and
    how right a teacher's labels are; of both the accuracies that were taken on the way, and the seconds of a step."""
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
    names = {key: key for key in ("loss", "embedding_std", "lr")} if pretraining else {total: "task_loss"}
    names |= {key: key for key in sorted(keys) if key == "seconds" or key.endswith("top1") or key in _TEACHER}
    curves = []
    for key, name in names.items():
        points = [(step, row[key]) for step, row in sorted(rows.items()) if _is_finite(row.get(key))]
        if len(points) > 1:
            steps, values = zip(*points, strict=True)
            curves.append(Curve(run, name, steps, tuple(float(value) for value in values)))
    return curves


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False
