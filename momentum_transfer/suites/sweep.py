"""Pretrainings of a suite: a grid of settings and seeds, each run a checkpoint that the suite's tasks then evaluate.

    pretrain:
      config: configs/smoke/momentum2_digits.yaml
      grid: {NORM.TEACHER: [BN, MomentumBN], NORM.GROUP: [8, 16]}   # every combination
      arms: {slow: {SOLVER.STEPS: 100}, moco: {config: other.yaml}} # each with every combination
      seeds: [0, 1, 2]
      settings: {DATA.WORKERS: 2}                                   # of all runs
      exports: {every: 50, last: 300}                               # epochs: each is a checkpoint of its own

A run is called by its arm, the grid's values and the seed: ``slow-BN-8_seed0``. An arm may have a config of its own.
"""

import itertools
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from momentum_transfer.errors import InputError

#: The key of an arm that is no setting: its own config file.
CONFIG = "config"
#: Stands for the epoch of a checkpoint taken on the way where a plot may name a setting.
EPOCH = "EPOCH"

#: Settings of one arm, by dotted key.
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Pretraining:
    """One run of a sweep.

    Attributes:
        name: of the run and of its checkpoint in results.
        arm: its arm; without arms the grid's values.
        settings: what the grid or the arm sets; ``seed`` is SEED.
        command: words after ``python``, without OUTPUT_DIR.
    """

    name: str
    arm: str
    settings: Settings
    seed: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """The pretrainings of a suite; ``gpu_hours``, ``distributed``, ``cpus`` and ``minutes`` are those of one run."""

    config: str
    grid: Mapping[str, list[Any]]
    arms: Mapping[str, Settings]
    seeds: tuple[int, ...]
    settings: Settings
    exports: Mapping[str, float] = field(default_factory=dict)
    command: str = "tools/pretrain.py"
    gpu_hours: float = 0.0
    distributed: bool = False
    cpus: int = 8
    minutes: int = 2880

    def runs(self) -> list[Pretraining]:
        """Every arm with every seed, the seeds of an arm together."""
        found: dict[str, Pretraining] = {}
        arms = self.arms or {"": {}}
        for (arm, own), (place, grid), seed in itertools.product(arms.items(), self._places(), self.seeds):
            settings = {key: value for key, value in {**own, **grid}.items() if key != CONFIG}
            words = {**self.settings, **settings, "SEED": seed}
            words |= {"RUN.EXPORT_EVERY": self.exports["every"]} if self.exports else {}
            overrides = [word for key, value in words.items() for word in (key, _word(value))]
            config = str(own.get(CONFIG, self.config))
            command = (*shlex.split(self.command), "--config", config, "--resume", *overrides)
            name = "-".join(part for part in (arm, place) if part) + f"_seed{seed}"
            if name in found:
                raise InputError(f"two runs are called {name}; name them by arms in the place of grid")
            found[name] = Pretraining(name, arm or place, settings, seed, command)
        return list(found.values())

    def checkpoints(self, run: Pretraining, folder: Path) -> dict[str, tuple[Path, Settings]]:
        """What of a run in ``folder`` is evaluated: name in results -> weights, and settings that plots may ask for."""
        if not self.exports:
            return {run.name: (folder, run.settings)}
        every, last = self.exports["every"], self.exports["last"]
        epochs = [every * count for count in range(1, round(last / every) + 1)]
        files = {epoch: folder / "exports" / f"{run.name}_epoch{epoch:g}.safetensors" for epoch in epochs}
        return {file.stem: (file, {**run.settings, EPOCH: epoch}) for epoch, file in files.items()}

    def keys(self) -> list[str]:
        """Settings that tell the runs apart."""
        own = (key for arm in self.arms.values() for key in arm if key != CONFIG)
        return list(dict.fromkeys([*self.grid, *own, "SEED", *([EPOCH] if self.exports else [])]))

    def _places(self) -> list[tuple[str, Settings]]:
        """Every combination of the grid with its name; one without name where there is no grid."""
        combinations = itertools.product(*self.grid.values())
        return [
            ("-".join(_spelled(value) for value in values), dict(zip(self.grid, values, strict=True)))
            for values in combinations
        ]


def _spelled(value: Any) -> str:
    """A value as a part of a file name."""
    return re.sub(r"[^\w.=]+", "_", _word(value)).strip("_") or "none"


def _word(value: Any) -> str:
    """A value as a word of a command line: YAML's true is True, a list is Python's."""
    return value if isinstance(value, str) else repr(value)


def read_sweep(entry: Any, where: str) -> Sweep:
    """The sweep of a suite's ``pretrain`` entry, checked.

    Raises:
        InputError: an unknown key, neither grid nor arms, no config, an empty list, seeds that are no whole numbers.
    """
    known = [known.name for known in fields(Sweep)]
    if not isinstance(entry, dict) or not isinstance(entry.get("config", ""), str):
        raise InputError(f"{where}: expected a mapping with the config of the pretrainings, found {entry!r}")
    if unknown := [key for key in entry if key not in known]:
        raise InputError(f"{where}: unknown key {unknown[0]!r}; expected some of {', '.join(known)}")
    grid, arms, seeds = entry.get("grid", {}), entry.get("arms", {}), entry.get("seeds", [0])
    if not grid and not arms:
        raise InputError(f"{where}: expected a grid of settings, arms, or both; found neither")
    if not isinstance(grid, dict) or not all(isinstance(values, list) and values for values in grid.values()):
        raise InputError(f"{where}: expected grid as a mapping of keys to lists of values, found {grid!r}")
    if not isinstance(arms, dict) or not all(_is_arm(name, arm) for name, arm in arms.items()):
        raise InputError(
            f"{where}: expected arms as a mapping of names (letters, digits and . = - _) to settings, found {arms!r}"
        )
    if "config" not in entry and not (arms and all(isinstance(arm.get(CONFIG), str) for arm in arms.values())):
        raise InputError(f"{where}: expected the config of the pretrainings, or one in every arm; found none")
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise InputError(f"{where}: expected seeds as a list of whole numbers from 0, found {seeds!r}")
    if len(set(seeds)) < len(seeds):
        raise InputError(f"{where}: expected each seed once, found {seeds!r}")
    if any("SEED" in some for some in (grid, *arms.values(), entry.get("settings") or ())):
        raise InputError(f"{where}: expected seeds under `seeds`, found SEED among the settings; move it")
    exports = entry.get("exports", {})
    if exports and not (isinstance(exports, dict) and exports.keys() == {"every", "last"} and _whole_part(exports)):
        raise InputError(
            f"{where}: expected exports as {{every: EPOCHS, last: EPOCHS}}, of which one divides the other, found "
            f"{exports!r}"
        )
    settings = entry.get("settings", {})
    if not isinstance(settings, dict):
        raise InputError(f"{where}: expected settings as a mapping of keys to values, found {settings!r}")
    given = {"config": "", **entry, "grid": grid, "arms": arms, "seeds": tuple(seeds), "settings": settings}
    sweep = Sweep(**given)
    try:
        sweep.runs()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return sweep


def _whole_part(exports: Mapping[str, Any]) -> bool:
    every, last = exports["every"], exports["last"]
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (every, last))
    return numbers and 0 < every <= last < math.inf and abs(last / every - round(last / every)) < 1e-9


def _is_arm(name: Any, arm: Any) -> bool:
    return isinstance(name, str) and bool(re.fullmatch(r"[\w.=-]+", name)) and isinstance(arm, dict)


def describe(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Checkpoint -> its run's arm, settings and seed, as plots need them."""
    return {
        name: {"arm": run.arm, "settings": dict(settings), "seed": run.seed}
        for run in sweep.runs()
        for name, (_, settings) in {run.name: (None, run.settings), **sweep.checkpoints(run, Path())}.items()
    }
