"""A study: a suite that asks one question, and says which of its scores answer it.

    study:
      claim: Does EMAN's teacher give better pseudo-labels than one with BN?
      compare:
        - {name: pseudo-labels, y: fixmatch/4% pseudo_top1, first: {protocol: eman-1x}, second: {protocol: ema-bn-1x},
           expected: better}
      lines:
        - {title: Noise, x: [8, 16], axis: images a batch, label: "%", log: true,
           of: {BN: {y: "noise/n={x}/alpha=1 distance"}, EMAN: {y: noise/EMAN distance}}}

``compare`` lists differences, first minus second, which are tested together; ``lines`` plots one value for each x,
where ``{x}`` stands for it (as a number: ``[x]``). A selection of scores gives ``y``, TASK METRIC, and any of
``protocol``, ``dataset``, ``network``, ``checkpoint``, ``variant`` and settings of the suite's pretrainings. Scores are
paired by the seed of the pretraining; where the checkpoint has a ``*`` by what that stands for; else by trial.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.suites.schema import checked
from momentum_transfer.suites.sweep import VARIANT, is_setting

#: What a selection may say besides settings of the sweep.
KEYS = ("y", "protocol", "dataset", "network", "checkpoint", VARIANT)

Selection = Mapping[str, Any]


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First minus second; ``expected`` was written down before the run, ``margin`` (points) where that is "equal"."""

    name: str
    first: dict[str, Any]
    second: dict[str, Any]
    y: str = ""
    expected: str = ""
    margin: float | None = None

    def sides(self) -> tuple[Selection, Selection]:
        """Both selections, whole."""
        shared = {"y": self.y} if self.y else {}
        return {**shared, **self.first}, {**shared, **self.second}


class Lines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One plot: a line a label of ``of``, a point an ``x``; ``axis`` and ``label`` name the axes."""

    title: str
    x: list[float | int]
    of: dict[str, dict[str, Any]]
    axis: str = ""
    label: str = ""
    log: bool = False

    def at(self, label: str, x: float) -> Selection:
        """The selection of a line's point."""
        return {
            key: value.replace("{x}", f"{x:g}") if isinstance(value, str) else (x if value == ["x"] else value)
            for key, value in self.of[label].items()
        }


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The question and what answers it."""

    claim: str
    compare: list[Difference] = []
    lines: list[Lines] = []


def read_study(entry: Any, where: str, settings: Mapping[str, Any]) -> Study:
    """The checked study of a suite; ``settings`` are those that its pretrainings differ in.

    InputError for an unknown key or setting, a selection without a measure, or nothing to compare.
    """
    study = checked(entry, Study, where)
    if not study.compare:
        raise InputError(f"{where}: expected at least one comparison under compare, found none; see configs/suites")
    names = [difference.name for difference in study.compare]
    if len(set(names)) < len(names):
        raise InputError(f"{where}: expected comparisons of different names, found {shown(names)}; rename one")
    for difference in study.compare:
        if difference.margin is not None and not 0 < difference.margin < math.inf:
            raise InputError(f"{where}, {difference.name}: expected a margin above 0 points, found {difference.margin}")
        for selection in difference.sides():
            _check(selection, f"{where}, {difference.name}", settings)
    for lines in study.lines:
        if not lines.x or not lines.of:
            raise InputError(f"{where}, {lines.title}: expected at least one x and one line under of, found none")
        for label in lines.of:
            _check(lines.at(label, lines.x[0]), f"{where}, {lines.title}", settings)
    return study


def _check(selection: Selection, where: str, settings: Mapping[str, Any]) -> None:
    y = selection.get("y", "")
    if not isinstance(y, str) or len(y.split()) != 2:
        raise InputError(f"{where}: expected y as TASK METRIC, such as svm/k=16 top1, found {shown(y)}")
    for key, value in selection.items():
        if key in KEYS and not isinstance(value, str):
            raise InputError(f"{where}: expected {key} as text, found {shown(value)}; put it in quotes")
        if key not in KEYS and not (is_setting(key) and key in settings):
            known = ", ".join([*KEYS, *settings])
            raise InputError(f"{where}: expected keys of {known}, found {shown(key)}; correct it")
    if selection.get("checkpoint", "").count("*") > 1:
        raise InputError(f"{where}: expected at most one * in checkpoint, found {shown(selection['checkpoint'])}")
