"""From a suite and checkpoints to jobs: commands with places filled, keys that change with what they stand on."""

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from momentum_transfer.backbones.hub_names import is_hub_name
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, is_made, sha256_of, sha256_of_text, weights_name
from momentum_transfer.core.settings import config_files
from momentum_transfer.core.shipped import find_config, workplace
from momentum_transfer.suites.job import Job
from momentum_transfer.suites.presets import read_choices, words_of
from momentum_transfer.suites.suite import Suite
from momentum_transfer.suites.sweep import Pretraining, Sweep
from momentum_transfer.suites.task import NO_FILES, PRETRAIN, Task, fill, split

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
