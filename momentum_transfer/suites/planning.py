"""From a suite and checkpoints to jobs, what they are expected to cost, and the plan as a table.

A job's key changes with its command, weights and config files. GPU hours of a task are its hours times the GPUs that it
held, all attempts together.
"""

import contextlib
import difflib
import fnmatch
import itertools
import json
import math
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, given_name, is_hub_name, is_made, sha256_of, sha256_of_text
from momentum_transfer.core.log import say, table
from momentum_transfer.core.loggers import read as read_metrics
from momentum_transfer.core.records import read
from momentum_transfer.core.settings import config_files
from momentum_transfer.core.shipped import COMMAND, find_config, typed, workplace
from momentum_transfer.core.untrusted import read_mapping
from momentum_transfer.suites.attempt import full_command
from momentum_transfer.suites.suite import Suite, read_choices, words_of
from momentum_transfer.suites.sweep import Pretraining, Sweep
from momentum_transfer.suites.task import NO_FILES, PRETRAIN, Job, Task, fill, read_state, split

#: How a command names another pretraining of its suite: {folder}/../../pretrained/NAME.
_PRETRAINED = re.compile(r"\.\./pretrained/([\w.=-]+)")


def select(tasks: Sequence[Task], wanted: Sequence[str] = (), skipped: Sequence[str] = ()) -> tuple[Task, ...]:
    """The tasks that a pattern of ``wanted`` names (``eman_*``; all without one) and those that they need, less those
    of ``skipped`` and those that need these; logs both. InputError for a pattern that names none, or if none is left.
    """
    names = [task.name for task in tasks]
    out = _matching(skipped, names, "--skip")
    asked = _matching(wanted, names, "--tasks") if wanted else set(names)
    for task in tasks:  # needs come before
        if not out.isdisjoint(task.needs):
            out.add(task.name)
    kept = asked - out
    for task in reversed(tasks):
        if task.name in kept:
            kept.update(task.needs)
    if wanted and (added := [name for name in names if name in kept - asked]):
        say(f"taken too, because others need them: {', '.join(added)}")
    if skipped and (gone := [name for name in names if name in out]):
        say(f"left out, with those that need them: {', '.join(gone)}")
    if not kept:
        raise InputError(f"expected --tasks and --skip to leave a task, found none of {', '.join(names)} left")
    return tuple(task for task in tasks if task.name in kept)


def _matching(patterns: Sequence[str], names: Sequence[str], option: str) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        if not (new := fnmatch.filter(names, pattern)):
            near = ", ".join(difflib.get_close_matches(pattern.strip("*?"), names, n=3, cutoff=0))
            raise InputError(f"expected {option} of the suite's tasks, found {pattern!r}; the nearest names are {near}")
        found.update(new)
    return found


def plan(
    suite: Suite, checkpoints: Sequence[str], output: str | Path, presets: Sequence[str] = (),
    read: Callable[[str], Any] | None = None,
) -> list[Job]:  # fmt: skip
    """The jobs of the suite's own pretrainings and of every checkpoint; ``NO_FILES`` have no tasks that convert.

    ``presets``: ``PRESET`` or ``CHECKPOINT=PRESET`` instead of the checkpoint's own. ``read``: see ``words_of``.
    InputError if a checkpoint or a config file is missing, two checkpoints have the same name, or there are none.
    """
    planner = _Planner(suite, Path(output), read)
    own = []  # the suite's pretrainings, each with its checkpoints: name -> weights
    if sweep := suite.sweep:
        for run in sweep.runs():
            job = planner.pretraining(sweep, run)
            files = {name: str(file) for name, (file, _) in sweep.checkpoints(run, job.folder).items()}
            own.append((run, job, files))
            planner.chosen |= dict.fromkeys(files, run.preset) if run.preset else {}
    names = [name for _, _, files in own for name in files]
    called = {weights: given_name(weights, workplace()) for weights in checkpoints}
    planner.chosen |= read_choices(presets, suite.presets, [*names, *called.values()])
    jobs: list[Job] = []
    known: dict[str, str] = {}
    for run, job, files in own:
        jobs.append(job)
        known |= files
        for name, weights in files.items():
            for one in planner.jobs(weights, name, job, run.seed):
                jobs += [*(need for need in one.needs if need.task.name == PRETRAIN), one]  # of runs that come later
    for weights, name in called.items():
        if name in known:
            raise InputError(f"{known[name]} and {weights} are both called {name} in results; rename a folder, or link "
                             "to it under another name")  # fmt: skip
        known[name] = weights
        jobs += planner.jobs(weights, name)
    jobs = list({job.title: job for job in jobs}.values())
    if not jobs:
        raise InputError(f"expected --weights CHECKPOINT…: the suite {suite.name} pretrains none itself")
    return jobs


@dataclass
class _Planner:
    """Makes the jobs of a suite; ``chosen``: checkpoint -> preset; ``hashes``: of config files, hashed once for all."""

    suite: Suite
    output: Path
    read: Callable[[str], Any] | None = None
    chosen: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, list[str]] = field(default_factory=dict)
    pretrained: dict[str, Job] = field(default_factory=dict)

    def pretraining(self, sweep: Sweep, run: Pretraining) -> Job:
        folder = self.output / "pretrained" / run.name  # results name a checkpoint by it
        command = (*run.command, "OUTPUT_DIR", str(folder))
        task = Task(PRETRAIN, shlex.join(run.command), (), sweep.gpu_hours, sweep.distributed, sweep.cpus,
                    sweep.minutes, sweep.nodes)  # fmt: skip
        key = sha256_of_text(json.dumps([command, self._config_hashes(command)]))[:16]
        job = self.pretrained[run.name] = Job(run.name, task, command, folder, (), key, self.output / "results.jsonl")
        return job

    def jobs(self, weights: str, name: str, pretraining: Job | None = None, seed: int = 0) -> list[Job]:
        """The tasks of one checkpoint; one that is still to be trained is known by its pretraining's key and seed."""
        digest = pretraining.key if pretraining else _hash_of(weights)
        readable = pretraining is None and weights not in NO_FILES
        preset = words_of(self.suite.presets, weights if readable else None, name, self.chosen, self.read)
        jobs: dict[str, Job] = {}
        for task in self.suite.tasks:
            converts = any(place in task.command for place in ("{converted}", "{rescaled}"))
            if weights in NO_FILES and (converts or not jobs.keys() >= set(task.needs)):
                continue
            folder, results = self.output / name / task.name, self.output / "results.jsonl"
            places = {
                "weights": weights, "name": name, "folder": str(folder), "results": str(results), "seed": str(seed),
                "converted": str(self.output / name / "backbone.pkl"),  # a name that results leave out: weights_name
                "rescaled": str(self.output / name / "rescaled" / f"{name}_nr.pkl"),  # other weights, of another name
            }  # fmt: skip
            command = tuple(fill(word, places) for word in split(fill(task.command, preset), task.name))
            others = [self.pretrained.get(found) for found in _PRETRAINED.findall(" ".join(command))]
            before = dict.fromkeys((pretraining, *others, *(jobs[need] for need in task.needs)))
            needs = tuple(job for job in before if job is not None)
            parts = [command, digest, self._config_hashes(command), [need.key for need in needs]]
            key = sha256_of_text(json.dumps(parts))[:16]
            jobs[task.name] = Job(name, task, command, folder, needs, key, results)
        return list(jobs.values())

    def _config_hashes(self, command: Sequence[str]) -> dict[str, list[str]]:
        """Word that names a config -> hashes of its file and of those it is based on."""
        named = {word for before, word in itertools.pairwise(command) if before == "--config"}
        named |= {word for word in command if word.endswith((".yaml", ".yml"))}
        for word in named - self.hashes.keys():
            try:
                files = config_files(find_config(word, beside=workplace()))
                self.hashes[word] = [sha256_of(file) for file in files]
            except InputError as error:
                raise InputError(f"{error}; the suite's command is `{shlex.join(command)}`") from error
        return {word: self.hashes[word] for word in sorted(named)}


def _hash_of(weights: str) -> str:
    if weights in NO_FILES:
        return weights
    if weights.startswith(RANDOM_OF):
        like = weights.removeprefix(RANDOM_OF)
        if like in NO_FILES or like.startswith(RANDOM_OF):
            raise InputError(f"expected {RANDOM_OF}CHECKPOINT, found {weights}; name a checkpoint behind it")
        return sha256_of_text(RANDOM_OF + _hash_of(like))
    if is_made(weights):
        return sha256_of_text(weights)
    file = Path(weights)
    if file.is_dir() or is_hub_name(weights):
        from momentum_transfer.backbones.read import checkpoint_file  # imports torch, which takes seconds

        file = checkpoint_file(weights)
    if not file.is_file():
        raise InputError(f"checkpoint not found: {file}; expected a file, a run folder, or {' or '.join(NO_FILES)}")
    return sha256_of(file)


@dataclass(frozen=True)
class Expected:
    """GPU hours and hours still to be spent on one task, and where they come from; hours NaN where unknown."""

    gpu_hours: float
    hours: float
    source: str


def expected(
    jobs: Sequence[Job], gpus: int, measured: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, Expected]:
    """What each job, by title, is expected to cost, from ``read_measured``'s hours and ``gpus`` for distributed tasks.

    A job that is done costs nothing more; one that ended well under other settings, or whose task ended well for
    another checkpoint of this suite, costs what that did (the median of several); else the iterations of its config at
    the step that a training with the same configs, ended or not, had on this machine; else what records elsewhere show
    for a task with the same configs; else what the suite says.
    """
    own = {job.title: _measured_in(read_state(job.folder)) for job in jobs}
    of_task: dict[str, list[tuple[float, float]]] = {}
    for job in jobs:
        if (cost := own[job.title]) is not None:
            of_task.setdefault(job.task.name, []).append(cost)
    costs, steps = {}, _by_steps(jobs)
    for job in jobs:
        elsewhere = (measured or {}).get(_configs_of(job.command))
        if job.done():
            cost, source = (0.0, 0.0), ""
        elif (cost := own[job.title]) is not None:
            source = "measured"
        elif others := of_task.get(job.task.name):
            cost, source = _medians(others), "measured, others"
        elif step := steps.get(_configs_of(job.command)):
            cost, source = step, "measured step"
        elif elsewhere is not None:
            cost, source = elsewhere, "records"
        elif gpu_hours := job.task.gpu_hours:
            cost, source = (gpu_hours, gpu_hours / max(1, job.gpus(gpus))), "suite"
        else:
            cost, source = (0.0, float("nan")), ""
        costs[job.title] = Expected(*cost, source)
    return costs


def _medians(costs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(gpu_hours for gpu_hours, _ in costs), median(hours for _, hours in costs)


def _measured_in(state: Mapping[str, Any]) -> tuple[float, float] | None:
    """(GPU hours, hours) of a task that ended well."""
    if state.get("exit_code") != 0 or not isinstance(state.get("seconds"), (int, float)):
        return None
    hours = state["seconds"] / 3600
    return hours * int(state.get("gpus", 0) or 0), hours


def _by_steps(jobs: Sequence[Job]) -> dict[str, tuple[float, float]]:
    """Configs of a command -> (GPU hours, hours) of its iterations, by the median step of trainings on this machine."""
    found: dict[str, list[tuple[float, float]]] = {}
    for job in jobs:
        state = read_state(job.folder)
        for file in job.folder.glob("**/metrics.jsonl") if state.get("host") == socket.gethostname() else ():
            with contextlib.suppress(InputError, LookupError, TypeError, ValueError):  # it has no seconds yet, or never
                hours = _hours_by_step(read_metrics(file), read_mapping(file.with_name("config.yaml")))
                found.setdefault(_configs_of(job.command), []).append((hours * int(state.get("gpus", 0)), hours))
    return {configs: _medians(costs) for configs, costs in found.items()}


def _hours_by_step(lines: Sequence[Mapping[str, Any]], cfg: Mapping[str, Any]) -> float:
    """Hours of all iterations of a detector's or a pretraining's settings at the median of the logged steps."""
    timed = [line for line in lines if "seconds" in line]
    seconds, solver, last = median(line["seconds"] for line in timed), cfg["SOLVER"], timed[-1]
    if "MAX_ITER" in solver:
        return seconds * solver["MAX_ITER"] * cfg["TRIALS"] / 3600
    return seconds * (solver["STEPS"] or solver["EPOCHS"] * last["step"] / last["epoch"]) / 3600


def _configs_of(command: Iterable[str]) -> str:
    """What a command's cost depends on: its tool, evaluation and configs, not its weights and folders."""
    tool, *words = command
    evaluation = [word for word in words[:1] if not word.startswith("-")]
    configs = [word for before, word in zip(["", *words], words, strict=False)
               if before == "--config" or word.endswith((".yaml", ".yml"))]  # fmt: skip
    return " ".join([Path(tool).stem, *evaluation, *configs])


def read_measured(paths: Sequence[str | Path]) -> dict[str, tuple[float, float]]:
    """Configs of a command -> (GPU hours, hours), the median over the commands whose records the files hold.

    The cost of a command is the highest of its records', each of which holds the hours until it was written. InputError
    if a file is missing, or none of the records has hours.
    """
    spent: dict[str, tuple[float, float]] = {}
    for path in paths:
        for record in read(path)[0]:
            gpu_hours, hours, command = (record.get(key) for key in ("gpu_hours", "hours", "command"))
            if isinstance(gpu_hours, (int, float)) and isinstance(hours, (int, float)) and isinstance(command, str):
                before = spent.get(command, (0.0, 0.0))
                spent[command] = (max(before[0], gpu_hours), max(before[1], hours))
    if not spent:
        listed = ", ".join(map(str, paths))
        raise InputError(f"expected records with gpu_hours and hours in {listed}, found none; leave --measured out")
    grouped: dict[str, list[tuple[float, float]]] = {}
    for command, cost in spent.items():
        try:
            words = [word for word in shlex.split(command) if word not in ("python", COMMAND)]
        except ValueError:
            continue
        if words:
            grouped.setdefault(_configs_of(words), []).append(cost)
    return {configs: _medians(costs) for configs, costs in grouped.items()}


#: Jobs that are listed one by one; of more, a line a task and its first command.
LISTED = 200


def show_plan(jobs: Sequence[Job], expected: Mapping[str, Expected], gpus: int, price: float | None) -> None:
    """Every job with its state, expected cost and command; of long plans a line for each task's jobs together.

    ``price`` of a GPU hour, in any currency; None shows no money.
    """
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        key = job.title if len(jobs) <= LISTED else f"{job.task.name}, {job.task.gpu_hours}"
        groups.setdefault(key, []).append(job)
    columns = ["task", "state", "GPU hours", "hours", *(["cost"] if price is not None else []), "from", "after"]
    table("plan", columns, [_row(group, expected, price) for group in groups.values()])
    for group in groups.values():
        first = group[0]
        more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
        say(f"{first.title}{more}")
        say(f"  $ {typed(full_command(first, gpus)[1:])}")
    total = sum(one.gpu_hours for one in expected.values())
    left = [job for job in jobs if not job.done()]
    unknown = sum(not expected[job.title].source for job in left)
    wall = f", {total / gpus:.1f} hours on {gpus} GPUs" if gpus > 1 else ""
    money = f", cost {total * price:.2f}" if price is not None else ""
    missing = f"; {unknown} of them have no known hours" if unknown else ""
    say(f"{len(left)} of {len(jobs)} tasks to do, {total:.1f} GPU hours expected{wall}{money}; "
        f"the suite's header says where the hours come from{missing}")  # fmt: skip


def _row(group: Sequence[Job], expected: Mapping[str, Expected], price: float | None) -> list[str]:
    costs = [expected[job.title] for job in group]
    gpu_hours = sum(one.gpu_hours for one in costs)
    hours = [one.hours for one in costs if not math.isnan(one.hours)]
    done = sum(job.done() for job in group)
    state = ("done" if done else "to do") if len(group) == 1 else f"{len(group) - done} of {len(group)} to do"
    sources = ", ".join(dict.fromkeys(one.source for one in costs if one.source))
    known = done or sources  # a task of unknown hours is not shown as free
    money = [f"{gpu_hours * price:.2f}" if known else ""] if price is not None else []
    name = group[0].title if len(group) == 1 else group[0].task.name
    return [name, state, f"{gpu_hours:.2f}" if known else "", f"{sum(hours):.2f}" if hours else "", *money, sources,
            " ".join(group[0].task.needs)]  # fmt: skip
