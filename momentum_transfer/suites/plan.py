"""From a suite and checkpoints to jobs: commands with places filled, keys that change with what they stand on.

The plan of a suite as a table: what is to do, what it is expected to cost in hours and money, and its commands.

What a suite is expected to cost, by task: measured where something like it ran before, else the suite's figures.

GPU hours of a task are its hours times the GPUs that it held, all attempts together.
"""

import itertools
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from momentum_transfer.backbones.hub import is_hub_name
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, is_made, sha256_of, sha256_of_text, weights_name
from momentum_transfer.core.log import say, table
from momentum_transfer.core.records import read
from momentum_transfer.core.settings import config_files
from momentum_transfer.core.shipped import COMMAND, find_config, typed, workplace
from momentum_transfer.suites.attempt import full_command
from momentum_transfer.suites.suite import Suite, read_choices, words_of
from momentum_transfer.suites.sweep import Pretraining, Sweep
from momentum_transfer.suites.task import NO_FILES, PRETRAIN, Job, Task, fill, split

#: Word that names a config -> hashes of its file and of those it is based on.
Hashes = dict[str, list[str]]


def plan(suite: Suite, checkpoints: Sequence[str], output: str | Path, presets: Sequence[str] = ()) -> list[Job]:
    """The jobs of the suite's own pretrainings and of every checkpoint; ``NO_FILES`` have no tasks that convert.

    Args:
        presets: ``PRESET`` or ``CHECKPOINT=PRESET`` in the place of the checkpoint's own.

    Raises:
        InputError: a checkpoint or a config file is missing, two checkpoints have the same name, or there are none.
    """
    output = Path(output)
    names: dict[str, str] = {}
    jobs: list[Job] = []
    hashes: Hashes = {}  # of config files, which many jobs share
    made = _trained(suite, output, hashes)
    swept = [name for _, checkpoints_of_run in made for name in checkpoints_of_run]
    chosen = _of_arms(suite) | read_choices(presets, suite.presets, [*swept, *map(weights_name, checkpoints)])
    for pretraining, checkpoints_of_run in made:
        jobs.append(pretraining)
        for name, weights in checkpoints_of_run.items():
            names[name] = weights
            jobs += _jobs(suite, weights, name, output, chosen, hashes, pretraining)
    for weights in dict.fromkeys(checkpoints):
        name = weights_name(weights)
        if name in names:
            raise InputError(
                f"{names[name]} and {weights} are both called {name} in results; rename a folder, or link to it "
                "under another name"
            )
        names[name] = weights
        jobs += _jobs(suite, weights, name, output, chosen, hashes)
    if not jobs:
        raise InputError(f"expected --weights CHECKPOINT…: the suite {suite.name} pretrains none itself")
    return jobs


def _of_arms(suite: Suite) -> dict[str, str]:
    """Checkpoint -> the preset that its arm names."""
    if not (sweep := suite.sweep):
        return {}
    return {name: run.preset for run in sweep.runs() if run.preset for name in sweep.checkpoints(run, Path())}


def _trained(suite: Suite, output: Path, hashes: Hashes) -> list[tuple[Job, dict[str, str]]]:
    """The suite's own pretrainings, each with its checkpoints by name."""
    if not suite.sweep:
        return []
    jobs = [(run, _pretraining(suite.sweep, run, output, hashes)) for run in suite.sweep.runs()]
    return [
        (job, {name: str(made) for name, (made, _) in suite.sweep.checkpoints(run, job.folder).items()})
        for run, job in jobs
    ]


def _pretraining(sweep: Sweep, run: Pretraining, output: Path, hashes: Hashes) -> Job:
    folder = output / "pretrained" / run.name  # results call a checkpoint by its run's folder
    command = (*run.command, "OUTPUT_DIR", str(folder))
    task = Task(PRETRAIN, shlex.join(run.command), (), sweep.gpu_hours, sweep.distributed, sweep.cpus, sweep.minutes)
    key = sha256_of_text(json.dumps([command, _config_hashes(command, hashes)]))[:16]
    return Job(run.name, task, command, folder, (), key, output / "results.jsonl")


def _jobs(
    suite: Suite,
    weights: str,
    name: str,
    output: Path,
    chosen: Mapping[str, str],
    hashes: Hashes,
    pretraining: Job | None = None,
) -> list[Job]:
    """The tasks of one checkpoint; one that is still to be trained is known by its pretraining's key."""
    digest = pretraining.key if pretraining else _hash_of(weights)
    readable = pretraining is None and weights not in NO_FILES
    worded = words_of(suite.presets, weights if readable else None, name, chosen)
    made: dict[str, Job] = {}
    for task in suite.tasks:
        detector = any(place in task.command for place in ("{converted}", "{rescaled}"))
        if weights in NO_FILES and (detector or any(need not in made for need in task.needs)):
            continue
        folder = output / name / task.name
        places = {
            "weights": weights,
            "converted": str(output / name / "backbone.pkl"),  # a name that results leave out: weights_name
            "rescaled": str(output / name / "rescaled" / f"{name}_nr.pkl"),  # other weights, of another name
            "folder": str(folder),
            "results": str(output / "results.jsonl"),
        }
        command = tuple(fill(word, places) for word in split(fill(task.command, worded), task.name))
        needs = (*([pretraining] if pretraining else []), *(made[need] for need in task.needs))
        key = sha256_of_text(
            json.dumps([command, digest, _config_hashes(command, hashes), [need.key for need in needs]])
        )[:16]
        made[task.name] = Job(name, task, command, folder, needs, key, output / "results.jsonl")
    return list(made.values())


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


def _config_hashes(command: Sequence[str], known: Hashes) -> Hashes:
    """Hashes of every config that a command names, and of the files it is based on.

    Args:
        known: those of this plan so far, by the word that names them; new ones are added.
    """
    named = {word for before, word in itertools.pairwise(command) if before == "--config"}
    named |= {word for word in command if word.endswith((".yaml", ".yml"))}
    for word in named - known.keys():
        try:
            known[word] = [sha256_of(file) for file in config_files(find_config(word, beside=workplace()))]
        except InputError as error:
            raise InputError(f"{error}; the suite's command is `{shlex.join(command)}`") from error
    return {word: known[word] for word in sorted(named)}


@dataclass(frozen=True)
class Expected:
    """GPU hours and hours of one task still to be spent, and where the figures come from; hours NaN where unknown."""

    gpu_hours: float
    hours: float
    source: str


def expected(
    jobs: Sequence[Job], gpus: int, measured: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, Expected]:
    """What each job, by title, is expected to cost.

    A job that is done costs nothing more; one that ended well under other settings, or whose task ended well for
    another checkpoint of this suite, costs what that did (the median of several); else what records elsewhere tell of
    a task with the same configs; else what the suite says.

    Args:
        gpus: those of a task that is distributed.
        measured: configs of a command -> (GPU hours, hours), as :func:`read_measured` gives it.
    """
    of_task: dict[str, list[tuple[float, float]]] = {}
    states = {job.title: job.state() for job in jobs}
    done = {job.title for job in jobs if job.done()}
    for job in jobs:
        if (figure := _measured_in(states[job.title])) is not None:
            of_task.setdefault(job.task.name, []).append(figure)
    found = {}
    for job in jobs:
        own = _measured_in(states[job.title])
        others = of_task.get(job.task.name, [])
        elsewhere = (measured or {}).get(configs_of(job.command), None)
        if job.title in done:
            figure, source = (0.0, 0.0), ""
        elif own is not None:
            figure, source = own, "measured"
        elif others:
            figure, source = (median(one[0] for one in others), median(one[1] for one in others)), "measured, others"
        elif elsewhere is not None:
            figure, source = elsewhere, "records"
        else:
            hours = job.task.gpu_hours / max(1, job.gpus(gpus)) if job.task.gpu_hours else float("nan")
            figure, source = (job.task.gpu_hours, hours), "suite" if job.task.gpu_hours else ""
        found[job.title] = Expected(*figure, source)
    return found


def _measured_in(state: Mapping[str, Any]) -> tuple[float, float] | None:
    """(GPU hours, hours) of a task that ended well."""
    if state.get("exit_code") != 0 or not isinstance(state.get("seconds"), (int, float)):
        return None
    hours = state["seconds"] / 3600
    return hours * int(state.get("gpus", 0) or 0), hours


def configs_of(command: Iterable[str]) -> str:
    """What tells a command's cost: its tool, evaluation and configs, whatever the weights and folders."""
    tool, *words = command
    evaluation = [word for word in words[:1] if not word.startswith("-")]
    return " ".join([Path(tool).stem, *evaluation, *(word for word in words if word.endswith((".yaml", ".yml")))])


def read_measured(paths: Sequence[str | Path]) -> dict[str, tuple[float, float]]:
    """Configs of a command -> (GPU hours, hours), the median over the commands whose records the files hold.

    The cost of a command is the highest of its records', which tell the hours until each was written.

    Raises:
        InputError: a file is missing, or none of their records tells hours.
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
    for command, (gpu_hours, hours) in spent.items():
        try:
            words = [word for word in shlex.split(command) if word not in ("python", COMMAND)]
        except ValueError:
            continue
        if words:
            grouped.setdefault(configs_of(words), []).append((gpu_hours, hours))
    return {
        key: (median(one[0] for one in figures), median(one[1] for one in figures)) for key, figures in grouped.items()
    }


#: Jobs that stand in the table one by one; of more, a line a task and its first command.
LISTED = 200


def show_plan(jobs: Sequence[Job], expected: Mapping[str, Expected], gpus: int, price: float | None) -> None:
    """Every job with its state, expected cost and command; of long plans a line for each task's jobs together.

    Args:
        price: of a GPU hour, in any currency; None shows no money.
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
    unknown = sum(1 for job in jobs if expected[job.title].source == "" and not job.done())
    to_do = sum(not job.done() for job in jobs)
    wall = f", {total / gpus:.1f} hours on {gpus} GPUs" if gpus > 1 else ""
    money = f", cost {total * price:.2f}" if price is not None else ""
    missing = f"; {unknown} of them tell no hours" if unknown else ""
    say(f"{to_do} of {len(jobs)} tasks to do, {total:.1f} GPU hours expected{wall}{money}; "
        f"the suite's header says whence{missing}")  # fmt: skip


def _row(group: Sequence[Job], expected: Mapping[str, Expected], price: float | None) -> list[str]:
    figures = [expected[job.title] for job in group]
    gpu_hours = sum(one.gpu_hours for one in figures)
    hours = [one.hours for one in figures if not math.isnan(one.hours)]
    done = sum(job.done() for job in group)
    state = ("done" if done else "to do") if len(group) == 1 else f"{len(group) - done} of {len(group)} to do"
    sources = ", ".join(dict.fromkeys(one.source for one in figures if one.source))
    known = done or sources  # of a task that tells no hours it is not said that it costs nothing
    money = [f"{gpu_hours * price:.2f}" if known else ""] if price is not None else []
    name = group[0].title if len(group) == 1 else group[0].task.name
    return [name, state, f"{gpu_hours:.2f}" if known else "", f"{sum(hours):.2f}" if hours else "", *money, sources,
            " ".join(group[0].task.needs)]  # fmt: skip
