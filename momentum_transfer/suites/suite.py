"""A suite: a list of evaluations in YAML, which ``planning.py`` turns into jobs for given checkpoints.

    name: quick
    presets:                                 # arguments that depend on the checkpoint's paper
      m2: {linear: configs/lowshot/momentum2_linear.yaml, rates: ""}      # the first: for checkpoints of no paper
      eman-byol: {linear: configs/lowshot/eman_table2_linear_100.yaml, rates: "LINEAR.LEARNING_RATES [0.2,0.4]"}
    tasks:
      - name: linear
        command: tools/lowshot.py linear --config {linear} --weights {weights} --results {results} {rates}
        gpu_hours: 0.01

In a command ``{weights}`` is the checkpoint, ``{name}`` what results call it, ``{converted}`` its Detectron2 weights,
``{rescaled}`` those under NormRescale, ``{folder}`` the task's own output folder, ``{results}`` the whole suite's
records, ``{seed}`` the seed of the suite's own pretraining (0 for other weights). ``needs`` names earlier tasks of the
same checkpoint, ``include`` another suite, whose tasks come first, and ``weights`` the checkpoints where the command
line names none.
``pretrain`` and ``plots`` are in ``sweep.py``, ``study`` in ``study_entry.py``. A checkpoint's preset is that of its
variant (``preset``), else of the method in its metadata, else of the family it was read as; ``--preset`` overrides all.
"""

import contextlib
import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import RANDOM_OF, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.shipped import CONFIGS, find_config
from momentum_transfer.suites.schema import MOST_TASKS, check_name, checked, read_entry
from momentum_transfer.suites.study_entry import Study, read_study
from momentum_transfer.suites.sweep import PRESET, PlotRequest, Sweep, read_plots, read_sweep
from momentum_transfer.suites.task import PLACES, PRETRAIN, Task, check_command, read_task

#: Preset -> place -> words.
Presets = Mapping[str, Mapping[str, str]]
_Filled = msgspec.Meta(min_length=1)
_Presets = Annotated[dict[str, Annotated[dict[str, str], _Filled]], _Filled]
#: Methods that are of one paper -> preset.
OF_METHOD = {"momentum2": "m2", "simsiam": "simsiam"}
#: Families of published files -> preset. EMAN's MoCo has MoCo's names, and RCF's files do not name their optimizer.
OF_FAMILY = {"momentum2": "m2", "rcf": "rcf-sgd", "moco": "rcf-sgd", "simsiam": "simsiam", "eman-byol": "eman-byol",
             "eman-fixmatch": "eman-moco"}  # fmt: skip


def preset_of(family: str, metadata: Mapping[str, str]) -> tuple[str, str]:
    """(preset, why) of a checkpoint by the family that read it and our pretraining's metadata; "" if of no paper."""
    method, norm, optimizer = (metadata.get(key, "") for key in ("method", "norm_teacher", "optimizer"))
    if method in OF_METHOD:
        return OF_METHOD[method], f"method {method}"
    if method in ("byol", "moco"):
        if norm == "EMAN":
            return f"eman-{method}", f"method {method} with EMAN"
        return "rcf-lars" if optimizer == "lars" else "rcf-sgd", f"method {method}, optimizer {optimizer or 'unknown'}"
    if method:
        return "", f"method {method} has none of its own"
    return OF_FAMILY.get(family, ""), f"family {family}"


def words_of(
    presets: Presets, weights: str | None, name: str, chosen: Mapping[str, str],
    read: Callable[[str], Any] | None = None,
) -> Mapping[str, str]:  # fmt: skip
    """The arguments of a checkpoint's preset, place by place; logs which preset it is and why.

    ``weights``: None if there is none to read (yet). ``chosen``: as :func:`read_choices` returns it. ``read``: what
    gives a file's ``SourceBackbone``, or raises InputError (None: ``load_backbone``).
    """
    if not presets:
        return {}
    preset, why = chosen.get(name, chosen.get("", "")), "asked for"
    if not preset:
        why = "no checkpoint to read yet"
        if weights is not None:
            from momentum_transfer.backbones.read import load_backbone  # imports torch, which takes seconds

            try:
                source = (read or load_backbone)(weights.removeprefix(RANDOM_OF))  # at random: as the checkpoint is
                preset, why = preset_of(source.family, source.metadata)
            except InputError as error:  # what cannot be read stops its own tasks, not the plan of all
                why = str(error).partition("\n")[0]
    if preset not in presets:
        preset, why = next(iter(presets)), f"{why}: the suite's first"
    say(f"{name}: preset {preset} ({why}); --preset {name}=NAME takes another")
    return presets[preset]


def read_presets(content: Any, where: str, taken: Collection[str]) -> Presets:
    """The checked ``presets`` of a suite: each fills the same places, none of which is ``taken``."""
    presets = checked(content, _Presets, f"{where}, presets")
    places = set(next(iter(presets.values())))
    for name, entry in presets.items():
        if set(entry) != places:
            found = f"{_listed(entry)} in {name}"
            raise InputError(f"{where}: expected the places {_listed(places)} in every preset, found {found}")
    if wrong := sorted(place for place in places if place in taken or not re.fullmatch(r"\w+", place)):
        found = shown(wrong[0])
        raise InputError(f"{where}: expected places of letters and _ other than {_listed(taken)}, found {found}")
    return presets


def read_choices(choices: Sequence[str], presets: Presets, checkpoints: Collection[str]) -> dict[str, str]:
    """``PRESET`` (for all) or ``CHECKPOINT=PRESET`` -> preset by checkpoint, "" standing for all."""
    chosen: dict[str, str] = {}
    for choice in choices:
        name, _, preset = choice.rpartition("=")
        if not presets:
            raise InputError(f"expected no --preset for a suite without presets, found {choice}; leave it out")
        if preset not in presets:
            raise InputError(f"expected --preset of {', '.join(presets)}, found {preset!r}")
        if name and name not in checkpoints:
            raise InputError(f"expected --preset CHECKPOINT={preset} of {', '.join(checkpoints)}, found {name!r}")
        chosen[name] = preset
    return chosen


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


@dataclass(frozen=True)
class Suite:
    """A named list of tasks, in an order in which needs come first."""

    name: str
    tasks: tuple[Task, ...]
    path: Path = field(default=Path())
    sweep: Sweep | None = None
    plots: tuple[PlotRequest, ...] = ()
    presets: Presets = field(default_factory=dict)
    weights: tuple[str, ...] = ()
    study: Study | None = None

    def runs(self) -> dict[str, dict[str, Any]]:
        """Checkpoint of a pretraining -> its variant, settings and seed, as plots need them."""
        if (sweep := self.sweep) is None:
            return {}
        return {
            name: {"variant": run.variant, "settings": dict(settings), "seed": run.seed}
            for run in sweep.runs()
            for name, (_, settings) in {run.name: (None, run.settings), **sweep.checkpoints(run, Path())}.items()
        }

    def write_description(self, output: str | Path) -> None:
        """Write ``suite.json`` beside the records: what each pretraining was and which plots the report shows."""
        if self.sweep or self.plots:
            content = {"runs": self.runs(), "plots": msgspec.to_builtins(self.plots)}
            write_text(Path(output) / "suite.json", json.dumps(content, indent=1) + "\n")


def load_suite(path: str | Path) -> Suite:
    """Read and check a suite; InputError names what is wrong with its file, keys, needs, places or scripts."""
    path = _suite_file(path)
    entry = read_entry(path)
    name = entry.name if entry.name is not None else path.stem
    check_name(name, f"{path}, name")
    presets = read_presets(entry.presets, str(path), PLACES) if entry.presets is not None else {}
    tasks = _tasks_of(path, (*PLACES, *next(iter(presets.values()), ())), presets)
    sweep = None
    if entry.pretrain is not None:
        sweep = read_sweep(entry.pretrain, f"{path}, pretrain")
        check_command(sweep.command, f"{path}, pretrain", path.parent)
        asked = [variant[PRESET] for variant in sweep.variants.values() if PRESET in variant]
        if wrong := [preset for preset in asked if preset not in list(presets)]:
            known = ", ".join(presets) or "none"
            raise InputError(f"{path}: expected a variant's preset among presets ({known}), found {shown(wrong[0])}")
        if any(task.name == PRETRAIN for task in tasks):
            raise InputError(f"{path}: expected tasks of other names beside pretrain, found a task called {PRETRAIN}")
        if (count := sweep.count() * (len(tasks) + 1)) > MOST_TASKS:
            raise InputError(f"{path}: expected at most {MOST_TASKS} tasks of a plan, found {count}; divide the suite")
    settings = dict.fromkeys(sweep.keys() if sweep else ())
    plots = read_plots(entry.plots, str(path), settings)
    study = read_study(entry.study, f"{path}, study", settings) if entry.study is not None else None
    return Suite(name, tuple(tasks), path, sweep, plots, presets, tuple(entry.weights), study)


def _tasks_of(path: Path, places: tuple[str, ...], presets: Presets, above: Path | None = None) -> list[Task]:
    """The tasks of a suite's file, after those that it includes; ``above``: the suite that includes this one."""
    entry = read_entry(path)
    tasks: list[Task] = []
    if entry.include is not None:
        other = _suite_file(entry.include)
        if above is not None or other.resolve() == path.resolve():
            raise InputError(f"{above or path}: expected include of a suite that includes none itself, "
                             f"found {path if above else other}; copy its tasks")  # fmt: skip
        tasks = _tasks_of(other, places, presets, above=path)
    for number, content in enumerate(entry.tasks or (), start=1):
        where = f"{path}, task {number}"
        task = read_task(content, where, {task.name for task in tasks})
        check_command(task.command, where, path.parent, places, presets)
        tasks.append(task)
    return tasks


def _suite_file(name: str | Path) -> Path:
    """The file of a suite by path, or by the name of one that ships; InputError lists the nearest names."""
    try:
        for spelling in (name, Path("suites", name)):
            with contextlib.suppress(InputError):
                if (file := find_config(spelling)).is_file():  # and no variant of a config
                    return file
        path = Path(name).expanduser()
        known = {file.stem: file.stem for file in sorted((CONFIGS / "suites").glob("*.yaml"))}
        known |= {file.stem: str(path.parent / file.name) for file in sorted(path.parent.glob("*.y*ml"))}
    except (OSError, ValueError, RuntimeError) as error:  # too long, NUL, ~NOBODY
        detail = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"expected the name of a suite, found {str(name)[:80]!r}: {detail}") from error
    near = [known[stem] for stem in difflib.get_close_matches(path.stem, known, n=3, cutoff=0)]
    raise InputError(f"suite not found: {name}; the nearest names are {', '.join(near)}")
