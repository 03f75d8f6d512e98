"""A study: a suite that asks one question, and says which of its scores answer it.

    study:
      claim: Does EMAN's teacher give better pseudo-labels than one with BN?
      compare:
        - {name: pseudo-labels, y: fixmatch/4% pseudo_top1, first: {protocol: eman-1x}, second: {protocol: ema-bn-1x},
           expected: better}
      lines:
        - {title: Noise, x: [8, 16], axis: images a batch, label: "%", log: true,
           of: {BN: {y: "noise/n={x}/alpha=1 distance"}, EMAN: {y: noise/EMAN distance}}}

``compare`` lists differences, first minus second; ``lines`` plots one value for each x, where ``{x}`` stands for it (as
a number: ``[x]``). A selection of scores gives ``y``, TASK METRIC, and any of ``protocol``, ``dataset``, ``network``,
``checkpoint``, ``variant`` and settings of the suite's pretrainings. Scores are paired by the seed of the pretraining;
where the checkpoint has a ``*`` by what that stands for; else by trial.

What a study says before its run, so that it can fail:

      compare:
        - {name: n = 16, …, primary: true, expected: better, margin: 2}    # Holm is over these; the rest is descriptive
      seeds: 8                                                            # pairs of a primary comparison
      trends:                                                             # slope of first − second over x, seed by seed
        - {name: gain, y: svm/k=16 top1, x: [16, 32], log: true, first: {variant: "a{x}"}, second: {variant: "b{x}"}}
      checks:                                                             # did the runs do what the study is about?
        - {name: plateau left, curve: loss, step: 500, below: 1.5, least: 6}
        - {name: norms grown, y: weights norm, first: {variant: lars}, second: {variant: sgd}, above: 5}
      orders:                                                             # which measures order all checkpoints as y?
        - {name: accuracy, y: finetune/10% top1, of: [screen/digits logme, screen/digits knn], least: 0.4}

A run that fails a check of a ``curve`` is left out, and its pair with it. There is no verdict if fewer than ``least``
pairs remain; ``least: 0`` means all ``seeds``. A check of ``y`` is of the mean over seeds of ``first``. With a
``second`` it is of the ratio of the two means. A measure of ``orders`` is useful if the whole interval of Kendall's τ
is above ``least``.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.suites.schema import checked
from momentum_transfer.suites.sweep import VARIANT, is_setting

#: What a primary comparison may expect, a margin beside it.
DIRECTIONS = ("better", "worse", "equal")
#: What a selection may say besides settings of the sweep.
KEYS = ("y", "protocol", "dataset", "network", "checkpoint", VARIANT)

Selection = Mapping[str, Any]


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First minus second; ``expected`` and ``margin`` (points that count as no difference) are set before the run."""

    name: str
    first: dict[str, Any]
    second: dict[str, Any]
    y: str = ""
    expected: str = ""
    margin: Annotated[float, msgspec.Meta(gt=0, lt=1e6)] | None = None
    primary: bool = False

    def sides(self) -> tuple[Selection, Selection]:
        """Both selections, whole."""
        return _whole(self.y, self.first), _whole(self.y, self.second)


class Trend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The slope of first − second over ``x`` (``log``: over its binary logarithm), in each seed; descriptive."""

    name: str
    x: list[float | int]
    first: dict[str, Any]
    second: dict[str, Any]
    y: str = ""
    log: bool = False
    expected: str = ""

    def at(self, x: float) -> tuple[Selection, Selection]:
        """Both selections at an ``x``."""
        return _at(_whole(self.y, self.first), x), _at(_whole(self.y, self.second), x)


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must hold for a verdict: bounds on a training's curve at a step (0: the last), or on a measure."""

    name: str
    curve: str = ""
    step: Annotated[int, msgspec.Meta(ge=0)] = 0
    least: int = 0
    y: str = ""
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    above: float = -math.inf
    below: float = math.inf

    def sides(self) -> list[Selection]:
        """The selections of a measure: first, and second where there is one."""
        return [_whole(self.y, side) for side in (self.first, self.second) if side] if not self.curve else []

    def holds(self, value: float) -> bool:
        """Whether a value is within the bounds."""
        return self.above < value < self.below


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How well measures ``of`` (TASK METRIC) order all checkpoints as ``y`` does; useful above a τ of ``least``."""

    name: str
    y: str
    of: Annotated[list[str], msgspec.Meta(min_length=1)]
    least: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    protocol: str = ""
    expected: str = ""

    def sides(self) -> list[Selection]:
        """The selections of y, then of every measure, of all checkpoints by their names."""
        about = {"protocol": self.protocol} if self.protocol else {}
        return [{"y": self.y, "checkpoint": "*", **about}, *({"y": one, "checkpoint": "*"} for one in self.of)]


def _whole(y: str, side: Selection) -> Selection:
    return {"y": y, **side} if y else side


def _at(side: Selection, x: float) -> Selection:
    return {key: value.replace("{x}", f"{x:g}") if isinstance(value, str) else (x if value == ["x"] else value)
            for key, value in side.items()}  # fmt: skip


class Lines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One plot: a line a label of ``of``, a point an ``x``; ``axis`` and ``label`` name the axes."""

    title: str
    x: Annotated[list[float | int], msgspec.Meta(min_length=1)]
    of: Annotated[dict[str, dict[str, Any]], msgspec.Meta(min_length=1)]
    axis: str = ""
    label: str = ""
    log: bool = False

    def at(self, label: str, x: float) -> Selection:
        """The selection of a line's point."""
        return _at(self.of[label], x)


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The question and what answers it."""

    claim: str
    compare: list[Difference] = []
    lines: list[Lines] = []
    seeds: int = 0
    trends: list[Trend] = []
    checks: list[Check] = []
    orders: list[Order] = []

    def primaries(self) -> list[Difference]:
        """The comparisons that are tested; all, where none is marked."""
        return [one for one in self.compare if one.primary] or self.compare

    def selections(self) -> Iterator[tuple[str, Selection]]:
        """Every selection of scores, behind the name of what makes it."""
        asking: list[Difference | Check | Order] = [*self.compare, *self.checks, *self.orders]
        for one in asking:
            yield from ((one.name, side) for side in one.sides())
        for trend in self.trends:
            yield from ((trend.name, side) for x in trend.x for side in trend.at(x))
        for lines in self.lines:
            yield from ((lines.title, lines.at(label, x)) for label in lines.of for x in lines.x)


def read_study(entry: Any, where: str, settings: Mapping[str, Any]) -> Study:
    """The checked study of a suite; ``settings`` are those that its pretrainings differ in.

    InputError for an unknown key or setting, a selection without a measure, or nothing to compare.
    """
    study = checked(entry, Study, where)
    if not study.compare and not study.orders:
        raise InputError(f"{where}: expected at least one comparison under compare, found none; see configs/suites")
    names = [difference.name for difference in study.compare]
    if len(set(names)) < len(names):
        raise InputError(f"{where}: expected comparisons of different names, found {shown(names)}; rename one")
    for one in (one for one in study.compare if one.primary):
        if one.expected not in DIRECTIONS or one.margin is None or study.seeds < 2:
            raise InputError(f"{where}, {one.name}: expected a primary comparison with expected of "
                             f"{', '.join(DIRECTIONS)}, a margin, and the seeds of the study, found "
                             f"{shown(one.expected)}, {one.margin} and {study.seeds}; say it before")  # fmt: skip
    for trend in study.trends:
        if len(set(trend.x)) < 3 or (trend.log and min(trend.x) <= 0):
            raise InputError(f"{where}, {trend.name}: expected three x or more (of log above 0), found {trend.x}")
    for check in study.checks:
        if bool(check.curve) == bool(check.first):
            raise InputError(f"{where}, {check.name}: expected either a curve and a step, or first with a y; say one")
        if math.isinf(check.above) and math.isinf(check.below):
            raise InputError(f"{where}, {check.name}: expected above, below or both, found neither; say what must hold")
    for name, selection in study.selections():
        _check(selection, f"{where}, {name}", settings)
    return study


def _check(selection: Selection, where: str, settings: Mapping[str, Any]) -> None:
    y = selection.get("y", "")
    if not isinstance(y, str) or len(y.split()) != 2:
        raise InputError(f"{where}: expected y as TASK METRIC, such as svm/k=16 top1, found {shown(y)}")
    for key, value in selection.items():
        if key in KEYS and not isinstance(value, str):
            raise InputError(f"{where}: expected {key} as text, found {shown(value)}; put it in quotes")
        if key not in KEYS and not (is_setting(key) and key in settings):
            raise InputError(
                f"{where}: expected keys of {', '.join([*KEYS, *settings])}, found {shown(key)}; correct it"
            )
    if selection.get("checkpoint", "").count("*") > 1:
        raise InputError(f"{where}: expected at most one * in checkpoint, found {shown(selection['checkpoint'])}")
