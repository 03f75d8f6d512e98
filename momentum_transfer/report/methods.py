"""Several pretrainings of one method as one column: each pretraining seed is then a trial.

With one checkpoint a method, every verdict is about the checkpoint. Where a method was pretrained with several seeds
and the report is told so, a column's trials are its pretrainings (each the mean over its own trials), so intervals
cover the seed of pretraining, and verdicts are about the methods. Seeds of unlike methods have nothing in common:
Welch judges.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import weights_name
from momentum_transfer.report.aggregate import trial_of


def parse(words: Sequence[str]) -> dict[str, list[str]]:
    """``NAME=CKPT,CKPT,…`` words to checkpoints by method.

    Raises:
        InputError: a word has no such form, a method fewer than two checkpoints, or one checkpoint has two places.
    """
    methods: dict[str, list[str]] = {}
    for word in words:
        name, _, listed = word.partition("=")
        checkpoints = [weights_name(part) for part in listed.split(",") if part]
        if not name or len(checkpoints) < 2:
            raise InputError(f"expected --method NAME=CKPT,CKPT with two or more pretrainings, found {word!r}")
        methods[name] = checkpoints
    every = [checkpoint for checkpoints in methods.values() for checkpoint in checkpoints]
    if twice := next((each for each in every if every.count(each) > 1), None):
        raise InputError(f"expected each checkpoint in one method once, found {twice} more often")
    return methods


def merged(records: Sequence[Mapping[str, Any]], methods: Mapping[str, Sequence[str]]) -> list[Mapping[str, Any]]:
    """The records with those of a method's checkpoints replaced by one a pretraining: trial s is its s-th checkpoint.

    Outcomes per item stay where a pretraining has one trial.

    Raises:
        InputError: a checkpoint of a method has no record.
    """
    places = {checkpoint: (name, s) for name, listed in methods.items() for s, checkpoint in enumerate(listed)}
    groups: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = defaultdict(dict)
    kept: list[Mapping[str, Any]] = []
    found = set()
    for record in records:
        checkpoint = weights_name(str(record["checkpoint"].get("name", "")))
        if checkpoint not in places:
            kept.append(record)
            continue
        found.add(checkpoint)
        keys = ("task", "metric", "dataset", "protocol", "engine", "network")
        same = places[checkpoint], *(str(record.get(key)) for key in keys), "start_network" in record
        trial = trial_of(record)
        newest = groups[same].get(trial)
        if newest is None or str(record.get("time", "")) >= str(newest.get("time", "")):
            groups[same][trial] = record
    if missing := [checkpoint for checkpoint in places if checkpoint not in found]:
        raise InputError(f"expected records of {missing[0]}, which --method names, found none; evaluate it first")
    for ((name, place), *_), trials in groups.items():
        first = next(iter(trials.values()))
        values = [record["value"] for record in trials.values() if record["value"] is not None]
        one = {
            **first,
            "checkpoint": {"name": name, "sha256": ""},
            "trial": place,
            "seed": f"{name} {place}",  # no other method shares it
            "value": fmean(values) if values else None,
        }
        if len(trials) > 1:
            one.pop("items", None)
        kept.append(one)
    return kept
