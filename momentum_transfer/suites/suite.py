"""A suite: a list of evaluations in YAML, made into jobs for given checkpoints; each job remembers that it is done.

    name: quick
    tasks:
      - name: knn
        command: tools/lowshot.py knn --config configs/smoke/lowshot_digits.yaml --weights {weights} --results {results}
        gpu_hours: 0.01

In a command ``{weights}`` is the checkpoint, ``{converted}`` its Detectron2 weights, ``{rescaled}`` those under
NormRescale, ``{folder}`` the task's own output folder and ``{results}`` the records of the whole suite. ``needs`` names
tasks of the same checkpoint that come before. ``include`` names another suite, whose tasks come first.
A suite may make its checkpoints itself (``pretrain``: ``sweep.py``), ask for plots (``plots``: ``plots.py``), and have
words that depend on the checkpoint's paper (``presets``: ``presets.py``).
"""

import contextlib
import difflib
import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from momentum_transfer.errors import InputError
from momentum_transfer.files import sha256_of, sha256_of_text, weights_name, write_text
from momentum_transfer.hub.names import is_hub_name
from momentum_transfer.settings import config_files
from momentum_transfer.shipped import CONFIGS, find_config, tool_file, workplace
from momentum_transfer.suites.plots import PlotRequest, read_plots
from momentum_transfer.suites.presets import Presets, read_choices, read_presets, words_of
from momentum_transfer.suites.sweep import Pretraining, Sweep, describe, read_sweep

#: Weights that are no file: the raw pixels, which only the low-shot evaluations take.
PIXELS = "pixels"

#: The task that makes a checkpoint of the suite's own.
PRETRAIN = "pretrain"

_PLACES = ("weights", "converted", "rescaled", "folder", "results")


@dataclass(frozen=True)
class Task:
    """One evaluation.

    Attributes:
        command: words after ``python``, with places such as ``{weights}``.
        needs: tasks of the same checkpoint that have to end well first.
        gpu_hours: what it is expected to cost, for ``--dry-run``; measured times replace it once there are any.
        distributed: runs under torchrun where there are several GPUs.
        cpus, minutes: what a Slurm job asks for.
    """

    name: str
    command: str
    needs: tuple[str, ...] = ()
    gpu_hours: float = 0.0
    distributed: bool = False
    cpus: int = 8
    minutes: int = 720


@dataclass(frozen=True)
class Job:
    """One task for one checkpoint. ``key`` changes with the command, the weights and the config files."""

    weights: str
    task: Task
    command: tuple[str, ...]
    folder: Path
    needs: tuple["Job", ...]
    key: str
    results: Path

    @property
    def title(self) -> str:
        return f"{self.weights}: {self.task.name}"

    @property
    def log(self) -> Path:
        """Where all output of the task goes."""
        return self.folder / "log.txt"

    def state(self) -> dict[str, Any]:
        """What the last attempt left: ``key``, ``exit_code`` and ``seconds`` once it ended; empty before the first."""
        try:
            content = json.loads((self.folder / "suite_state.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return {}
        return content if isinstance(content, dict) else {}

    def remember(self, **state: Any) -> None:
        """Note the state of this attempt, atomically."""
        write_text(self.folder / "suite_state.json", json.dumps({"key": self.key, **state}, indent=1) + "\n")

    def done(self) -> bool:
        """Ended well before, with the same command, weights and config files, and its records still there."""
        state = self.state()
        made = self.results.is_file() or "{results}" not in self.task.command
        return made and state.get("key") == self.key and state.get("exit_code") == 0


@dataclass(frozen=True)
class Suite:
    """A named list of tasks, in an order in which needs come first."""

    name: str
    tasks: tuple[Task, ...]
    path: Path = field(default=Path())
    sweep: Sweep | None = None
    plots: tuple[PlotRequest, ...] = ()
    presets: Presets = field(default_factory=dict)

    def write_description(self, output: str | Path) -> None:
        """Write ``suite.json`` beside the records: what each pretraining was and which plots the report draws."""
        if self.sweep or self.plots:
            content = {"runs": describe(self.sweep) if self.sweep else {}, "plots": [p.as_dict() for p in self.plots]}
            write_text(Path(output) / "suite.json", json.dumps(content, indent=1) + "\n")


def load_suite(path: str | Path) -> Suite:
    """Read and check a suite.

    Raises:
        InputError: no such file, an unknown key, a need that is no earlier task, an unknown place in a command.
    """
    path = _suite_file(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    entries = content.get("tasks", [] if "include" in content else None) if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(entries, list) or not (entries or "include" in content):
        raise InputError(f"{path}: expected a name and a list of tasks; see configs/suites/smoke.yaml")
    presets = read_presets(content["presets"], str(path), _PLACES) if "presets" in content else {}
    known = (*_PLACES, *next(iter(presets.values()), ()))
    tasks = list(_included(content.get("include"), path))
    for number, entry in enumerate(entries, start=1):
        tasks.append(_task(entry, f"{path}, task {number}", {task.name for task in tasks}, known))
    sweep = read_sweep(content["pretrain"], f"{path}, pretrain") if "pretrain" in content else None
    if any(task.name == PRETRAIN for task in tasks) and sweep:
        raise InputError(f"{path}: expected tasks of other names beside pretrain, found a task called {PRETRAIN}")
    plots = read_plots(content.get("plots", []), str(path), dict.fromkeys(sweep.keys() if sweep else ()))
    return Suite(str(content.get("name", path.stem)), tuple(tasks), path, sweep, plots, presets)


def _included(name: Any, path: Path) -> tuple[Task, ...]:
    if name is None:
        return ()
    if not isinstance(name, str):
        raise InputError(f"{path}: expected include as the name of a suite, found {name!r}")
    other = _suite_file(name)
    if other.resolve() == path.resolve() or "include:" in other.read_text(encoding="utf-8"):
        raise InputError(f"{path}: expected include of a suite that includes none itself, found {name}")
    return load_suite(other).tasks


def _suite_file(name: str | Path) -> Path:
    """The file of a suite: a path, or the name of one that ships, with or without ``suites/``.

    Raises:
        InputError: neither is there; the nearest names of those that ship and of the folder meant are listed.
    """
    for spelling in (name, Path("suites", name)):
        with contextlib.suppress(InputError):
            return find_config(spelling)
    path = Path(name).expanduser()
    known = {file.stem: file.stem for file in sorted((CONFIGS / "suites").glob("*.yaml"))}
    known |= {file.stem: str(path.parent / file.name) for file in sorted(path.parent.glob("*.y*ml"))}
    near = [known[stem] for stem in difflib.get_close_matches(path.stem, known, n=3, cutoff=0)]
    raise InputError(f"suite not found: {name}; the nearest names are {', '.join(near)}")


def _task(entry: Any, where: str, earlier: set[str], places: Sequence[str]) -> Task:
    known = [f.name for f in fields(Task)]
    if not isinstance(entry, dict) or not {"name", "command"} <= entry.keys():
        raise InputError(f"{where}: expected at least name and command, found {entry!r}")
    for key in entry:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            raise InputError(f"{where}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    needs = entry.get("needs", [])
    task = Task(**{**entry, "needs": tuple([needs] if isinstance(needs, str) else needs)})
    if not re.fullmatch(r"[\w.=-]+", str(task.name)) or task.name in earlier:
        raise InputError(f"{where}: expected a new name of letters, digits and . = - _, found {task.name!r}")
    for need in task.needs:
        if need not in earlier:
            raise InputError(f"{where}: needs {need!r}, which is no task before it")
    for place in re.findall(r"{(\w*)}", task.command):
        if place not in places:
            raise InputError(f"{where}: unknown place {{{place}}}; expected one of {', '.join(places)}")
    script = shlex.split(task.command)[0]
    if not tool_file(script).is_file():
        raise InputError(f"{where}: the command begins with {script}, which is no file of this repository")
    return task


def plan(suite: Suite, checkpoints: Sequence[str], output: str | Path, presets: Sequence[str] = ()) -> list[Job]:
    """The jobs of the suite's own pretrainings and of every checkpoint; tasks that raw pixels cannot do are left out.

    Args:
        presets: ``PRESET`` or ``CHECKPOINT=PRESET`` in the place of the checkpoint's own.

    Raises:
        InputError: a checkpoint or a config file is missing, two checkpoints have the same name, or there are none.
    """
    output = Path(output)
    names: dict[str, str] = {}
    jobs: list[Job] = []
    made = _trained(suite, output)
    swept = [name for _, checkpoints_of_run in made for name in checkpoints_of_run]
    chosen = read_choices(presets, suite.presets, [*swept, *map(weights_name, checkpoints)])
    for pretraining, checkpoints_of_run in made:
        jobs.append(pretraining)
        for name, weights in checkpoints_of_run.items():
            names[name] = weights
            jobs += _jobs(suite, weights, name, output, chosen, pretraining)
    for weights in dict.fromkeys(checkpoints):
        name = weights_name(weights)
        if name in names:
            raise InputError(
                f"{names[name]} and {weights} are both called {name} in results; rename a folder, or link to it "
                "under another name"
            )
        names[name] = weights
        jobs += _jobs(suite, weights, name, output, chosen)
    if not jobs:
        raise InputError(f"expected --weights CHECKPOINT…: the suite {suite.name} pretrains none itself")
    return jobs


def _trained(suite: Suite, output: Path) -> list[tuple[Job, dict[str, str]]]:
    """The suite's own pretrainings, each with its checkpoints by name."""
    if not suite.sweep:
        return []
    jobs = [(run, _pretraining(suite.sweep, run, output)) for run in suite.sweep.runs()]
    return [
        (job, {name: str(made) for name, (made, _) in suite.sweep.checkpoints(run, job.folder).items()})
        for run, job in jobs
    ]


def _pretraining(sweep: Sweep, run: Pretraining, output: Path) -> Job:
    folder = output / "pretrained" / run.name  # results call a checkpoint by its run's folder
    command = (*run.command, "OUTPUT_DIR", str(folder))
    task = Task(PRETRAIN, shlex.join(run.command), (), sweep.gpu_hours, sweep.distributed, sweep.cpus, sweep.minutes)
    key = sha256_of_text(json.dumps([command, _config_hashes(command)]))[:16]
    return Job(run.name, task, command, folder, (), key, output / "results.jsonl")


def _jobs(
    suite: Suite,
    weights: str,
    name: str,
    output: Path,
    chosen: Mapping[str, str],
    pretraining: Job | None = None,
) -> list[Job]:
    """The tasks of one checkpoint; one that is still to be trained is known by its pretraining's key."""
    digest = pretraining.key if pretraining else _hash_of(weights)
    readable = pretraining is None and weights != PIXELS
    worded = words_of(suite.presets, weights if readable else None, name, chosen)
    made: dict[str, Job] = {}
    for task in suite.tasks:
        detector = any(place in task.command for place in ("{converted}", "{rescaled}"))
        if weights == PIXELS and (detector or any(need not in made for need in task.needs)):
            continue
        folder = output / name / task.name
        places = {
            "weights": weights,
            "converted": str(output / name / "backbone.pkl"),  # a name that results leave out: weights_name
            "rescaled": str(output / name / "rescaled" / f"{name}_nr.pkl"),  # other weights, of another name
            "folder": str(folder),
            "results": str(output / "results.jsonl"),
        }
        command = tuple(_fill(word, places) for word in shlex.split(_fill(task.command, worded)))
        needs = (*([pretraining] if pretraining else []), *(made[need] for need in task.needs))
        key = sha256_of_text(json.dumps([command, digest, _config_hashes(command), [need.key for need in needs]]))[:16]
        made[task.name] = Job(name, task, command, folder, needs, key, output / "results.jsonl")
    return list(made.values())


def _fill(word: str, places: Mapping[str, str]) -> str:
    """The word with its places filled; those of other mappings stay."""
    return re.sub(r"{(\w+)}", lambda found: places.get(found.group(1), found.group(0)), word)


def _hash_of(weights: str) -> str:
    if weights == PIXELS:
        return PIXELS
    file = Path(weights)
    if file.is_dir() or is_hub_name(weights):
        from momentum_transfer.backbones.read import checkpoint_file  # imports torch, which takes seconds

        file = checkpoint_file(weights)
    if not file.is_file():
        raise InputError(f"checkpoint not found: {file}; expected a file, a run folder, or {PIXELS}")
    return sha256_of(file)


def _config_hashes(command: Sequence[str]) -> dict[str, list[str]]:
    """Hashes of every config that a command names, and of the files it is based on."""
    named = {word for before, word in itertools.pairwise(command) if before == "--config"}
    named |= {word for word in command if word.endswith((".yaml", ".yml"))}
    hashes: dict[str, list[str]] = {}
    for word in sorted(named):
        try:
            hashes[word] = [sha256_of(file) for file in config_files(find_config(word, beside=workplace()))]
        except InputError as error:
            raise InputError(f"{error}; the suite's command is `{shlex.join(command)}`") from error
    return hashes
