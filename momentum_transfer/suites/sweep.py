"""The pretrainings of a suite, whose checkpoints its tasks evaluate, and the plots over their settings.

    pretrain:
      config: configs/smoke/momentum2_digits.yaml
      grid: {NORM.TEACHER: [BN, MomentumBN], NORM.GROUP_SIZE: [8, 16]}   # every combination
      variants: {slow: {SOLVER.STEPS: 100}, moco: {config: other.yaml}} # each with every combination
      seeds: [0, 1, 2]
      settings: {DATA.WORKERS: 2}                                   # of all runs
      exports: {every: 50, last: 300}                               # epochs: each is a checkpoint of its own

A run is named by its variant, the grid's values and the seed: ``slow-BN-8_seed0``. A variant may have its own config,
and a preset of the suite for its tasks. Plots show a measure over a setting, over another measure, or while training:

    plots:
      - {title: "Images per BN", y: svm/k=16 top1, x: NORM.GROUP_SIZE, by: NORM.TEACHER, log: true}
      - {title: "Linear and long-tailed accuracy", y: finetune top1, x: linear top1, by: METHOD.NAME}
      - {title: "kNN while training", curve: knn_top1, by: variant}

``y`` and ``x`` name a measure as ``TASK METRIC``, or ``TASK METRIC @ PLACE`` where several data sets or protocols have
it: PLACE is the name of one. ``x`` and ``by`` name a setting of the sweep, or ``variant``. ``curve`` is a key of the
runs' metrics.jsonl over ``x``: step or seconds. A measure over another gets a regression line for each ``by``.
"""

import itertools
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.suites.schema import LONGEST_NAME, MOST_TASKS, Cpus, Hours, Minutes, Nodes, check_name, checked

#: The keys of a variant that are no settings: its own config file, and a preset of the suite for its tasks.
_CONFIG, PRESET = "config", "preset"
#: Stands for the epoch of a checkpoint taken on the way where a plot may name a setting.
EPOCH = "EPOCH"
#: Settings of one variant, by dotted key.
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Pretraining:
    """One run of a sweep."""

    name: str  # of the run and of its checkpoint in results
    variant: str  # without variants the grid's values
    settings: Settings  # of the grid and the variant, without SEED
    seed: int
    command: tuple[str, ...]  # after ``python``, without OUTPUT_DIR
    preset: str = ""  # of the variant; "" where it names none


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pretrainings of a suite; the keys from ``gpu_hours`` on are those of one run."""

    config: str = ""
    grid: dict[str, Annotated[list[Any], msgspec.Meta(min_length=1)]] = {}
    variants: dict[str, dict[str, Any]] = {}
    seeds: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)] = (0,)
    settings: dict[str, Any] = {}
    exports: dict[str, int | float] = {}
    command: str = "tools/pretrain.py"
    gpu_hours: Hours = 0.0
    distributed: bool = False
    cpus: Cpus = 8
    minutes: Minutes = 2880
    nodes: Nodes = 1

    def count(self) -> int:
        """Number of checkpoints that the sweep makes."""
        runs = math.prod(map(len, self.grid.values())) * max(1, len(self.variants)) * len(self.seeds)
        return runs * (round(self.exports["last"] / self.exports["every"]) if self.exports else 1)

    def runs(self) -> list[Pretraining]:
        """Every variant with every seed, the seeds of a variant together."""
        found: dict[str, Pretraining] = {}
        variants = self.variants or {"": {}}
        for (variant, own), (place, grid), seed in itertools.product(variants.items(), self._places(), self.seeds):
            settings = {key: value for key, value in {**own, **grid}.items() if key not in (_CONFIG, PRESET)}
            words = {**self.settings, **settings, "SEED": seed}
            words |= {"RUN.EXPORT_EVERY": self.exports["every"]} if self.exports else {}
            overrides = [word for key, value in words.items() for word in (key, _word(value))]
            config = str(own.get(_CONFIG, self.config))
            command = (*shlex.split(self.command), "--config", config, "--resume", *overrides)
            name = "-".join(part for part in (variant, place) if part) + f"_seed{seed}"
            if len(name.encode()) > LONGEST_NAME - 20:  # an epoch may follow
                raise InputError(f"the run {name[:60]}… has a name that is too long; name runs by variants")
            if name in found:
                raise InputError(f"two runs are called {name}; name them by variants instead of grid")
            found[name] = Pretraining(name, variant or place, settings, seed, command, own.get(PRESET, ""))
        return list(found.values())

    def checkpoints(self, run: Pretraining, folder: Path) -> dict[str, tuple[Path, Settings]]:
        """Checkpoints of a run in ``folder``: name in results -> weights, and settings that plots may ask for."""
        if not self.exports:
            return {run.name: (folder, run.settings)}
        every, last = self.exports["every"], self.exports["last"]
        epochs = [every * count for count in range(1, round(last / every) + 1)]
        files = {epoch: folder / "exports" / f"{run.name}_epoch{epoch:g}.safetensors" for epoch in epochs}
        return {file.stem: (file, {**run.settings, EPOCH: epoch}) for epoch, file in files.items()}

    def keys(self) -> list[str]:
        """Settings that the runs differ in."""
        own = (key for variant in self.variants.values() for key in variant if key not in (_CONFIG, PRESET))
        return list(dict.fromkeys([*self.grid, *own, "SEED", *([EPOCH] if self.exports else [])]))

    def _places(self) -> list[tuple[str, Settings]]:
        """Every combination of the grid with its name; one without name where there is no grid."""
        combinations = itertools.product(*self.grid.values())
        return [("-".join(map(_spelled, values)), dict(zip(self.grid, values, strict=True))) for values in combinations]


def _spelled(value: Any) -> str:
    """A value as a part of a file name."""
    return re.sub(r"[^\w.=]+", "_", _word(value)).strip("_") or "none"


def _word(value: Any) -> str:
    """A value as a word of a command line: YAML's true is True, a list is Python's."""
    return value if isinstance(value, str) else repr(value)


def read_sweep(entry: Any, where: str) -> Sweep:
    """The checked ``pretrain`` entry of a suite.

    InputError for an unknown key or wrong value, neither grid nor variants, a setting in both, no config, or SEED
    among the settings.
    """
    sweep = checked(entry, Sweep, where)
    grid, variants, seeds, exports = sweep.grid, sweep.variants, sweep.seeds, sweep.exports
    if not grid and not variants:
        raise InputError(f"{where}: expected a grid of settings, variants, or both; found neither")
    for name in variants:
        check_name(name, f"{where}, variants")
    if not sweep.config and not (variants and all(isinstance(one.get(_CONFIG), str) for one in variants.values())):
        raise InputError(f"{where}: expected the config of the pretrainings, or one in every variant; found none")
    if wrong := [variant[_CONFIG] for variant in variants.values() if not isinstance(variant.get(_CONFIG, ""), str)]:
        raise InputError(f"{where}: expected the config of a variant as text, found {shown(wrong[0])}; name a file")
    if len(set(seeds)) < len(seeds):
        raise InputError(f"{where}: expected each seed once, found {shown(list(seeds))}; take one out")
    if any("SEED" in some for some in (grid, *variants.values(), sweep.settings)):
        raise InputError(f"{where}: expected seeds under `seeds`, found SEED among the settings; move it")
    if no := {_CONFIG, PRESET} & grid.keys():
        raise InputError(f"{where}: expected {min(no)} under variants, found it in the grid; name a variant for each")
    if twice := grid.keys() & {key for variant in variants.values() for key in variant}:
        raise InputError(f"{where}: expected each setting in the grid or in variants, found {min(twice)} in both; "
                         "take it out of one")  # fmt: skip
    if exports and not (exports.keys() == {"every", "last"} and _whole_part(exports)):
        raise InputError(f"{where}: expected exports {{every: EPOCHS, last: EPOCHS}} where every divides last, "
                         f"found {shown(exports)}")  # fmt: skip
    if sweep.count() > MOST_TASKS:
        raise InputError(f"{where}: expected at most {MOST_TASKS} checkpoints, found {sweep.count()}; divide the sweep")
    try:
        sweep.runs()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return sweep


def _whole_part(exports: Mapping[str, float]) -> bool:
    every, last = exports["every"], exports["last"]
    return 0 < every <= last < math.inf and last / every < math.inf and abs(last / every - round(last / every)) < 1e-9


#: Stands for the name of a variant where a setting could stand.
VARIANT = "variant"
_SETTING = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)*")
#: What a curve is over.
AXES = ("step", "seconds")


class PlotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One plot, see above."""

    title: str
    y: str = ""
    x: str = ""
    by: str = ""  # "" for a single line
    curve: str = ""  # instead of y
    log: bool = False  # the axis of a setting is logarithmic


def is_setting(word: str) -> bool:
    """Whether a word names a setting (or the variant) rather than a measure."""
    return word == VARIANT or bool(_SETTING.fullmatch(word))


def read_plots(entries: list[Any], where: str, known: Mapping[str, Any]) -> tuple[PlotRequest, ...]:
    """The checked plots of a suite; ``known`` are the settings that its pretrainings differ in.

    InputError for an unknown key or setting, a measure without metric, or neither y nor curve.
    """
    return tuple(_read_plot(entry, f"{where}, plot {number}", known) for number, entry in enumerate(entries, start=1))


def _read_plot(entry: Any, where: str, known: Mapping[str, Any]) -> PlotRequest:
    plot = checked(entry, PlotRequest, where)
    if bool(plot.y) == bool(plot.curve):
        raise InputError(f"{where}: expected either y, a measure, or curve, a key of metrics.jsonl")
    if plot.curve and plot.x not in ("", *AXES):
        raise InputError(f"{where}: expected x of a curve as {' or '.join(AXES)}, found {plot.x!r}")
    if not plot.curve:
        _check_measure(plot.y, "y", where)
        if not is_setting(plot.x):
            _check_measure(plot.x, "x", where)
    for key in ("x", "by"):
        word = getattr(plot, key)
        if is_setting(word) and word != VARIANT and word not in known:
            settings = ", ".join(known) or "the suite has none"
            raise InputError(f"{where}: expected {key} as variant or a setting that the pretrainings differ in "
                             f"({settings}), found {word!r}")  # fmt: skip
    return plot


def _check_measure(word: str, key: str, where: str) -> None:
    measure, _, dataset = word.partition("@")
    if len(measure.split()) != 2 or ("@" in word and not dataset.strip()):
        raise InputError(f"{where}: expected {key} as TASK METRIC [@ DATASET or PROTOCOL], such as svm/k=16 top1, "
                         f"found {word!r}")  # fmt: skip
