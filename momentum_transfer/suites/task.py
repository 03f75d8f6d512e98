"""A task: one evaluation of a suite, and the rules of its command."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.shipped import TOOLS, tool_file, workplace
from momentum_transfer.suites.schema import Cpus, Hours, Minutes, check_name, checked

#: Weights that are no file: the raw pixels, which only the low-shot evaluations take.
PIXELS = "pixels"

#: No weights: a network drawn at random, which evaluations that train on images take.
SCRATCH = "scratch"

#: Words for weights that are no file, so that nothing can be converted.
NO_FILES = (PIXELS, SCRATCH)

#: The task that makes a checkpoint of the suite's own.
PRETRAIN = "pretrain"

#: Places that every command may have.
PLACES = ("weights", "converted", "rescaled", "folder", "results")

#: Files of the plan beside the tasks' folders of a checkpoint.
_TAKEN = ("rescaled", "backbone.pkl")


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    needs: str | tuple[str, ...] = ()
    gpu_hours: Hours = 0.0
    distributed: bool = False
    cpus: Cpus = 8
    minutes: Minutes = 720


def read_task(entry: Any, where: str, earlier: Collection[str]) -> Task:
    """A task as it stands in a suite, checked but for its command.

    Raises:
        InputError: an unknown key, a wrong value, a name that is taken, or a need that is no earlier task.
    """
    task = checked(entry, Task, where)
    check_name(task.name, where)
    if task.name in earlier or task.name in _TAKEN:
        raise InputError(f"{where}: expected a new name, found {task.name!r}, which is taken; give it another")
    task = msgspec.structs.replace(task, needs=(task.needs,) if isinstance(task.needs, str) else task.needs)
    for need in task.needs:
        if need not in earlier:
            raise InputError(f"{where}: needs {shown(need)}, which is no task before it; put that one first")
    return task


def check_command(
    command: str, where: str, beside: Path, places: Sequence[str] = (), presets: Mapping[str, Mapping[str, str]] = {}
) -> None:
    """A command begins with a tool, or a script beside the suite, and its places are known.

    Args:
        beside: folder of the suite's file. places: those that it may have. presets: words for some of them.

    Raises:
        InputError: no words, unbalanced quotes, an unknown place, or a script that is elsewhere or not there.
    """
    for place in re.findall(r"{(\w*)}", command):
        if place not in places:
            raise InputError(f"{where}: unknown place {{{place}}}; expected one of {', '.join(places) or 'none'}")
    words = split(command, where)
    for name, preset in presets.items():
        split(fill(command, preset), f"{where}, preset {name}")
    if not words:
        raise InputError(f"{where}: expected a command such as tools/lowshot.py knn …, found none; write one")
    try:
        script = tool_file(words[0]).resolve()
        there = script.is_file()
    except (OSError, RuntimeError):  # a name that is too long, a loop of links
        there = False
    if not there:
        raise InputError(f"{where}: the command begins with {shown(words[0])}, which is no file of this repository")
    roots = (TOOLS.resolve(), workplace().resolve(), beside.resolve())
    if script.suffix != ".py" or not any(script.is_relative_to(root) for root in roots):
        raise InputError(
            f"{where}: expected a command that begins with a Python script of this repository, or one in the suite's "
            f"own folder, found {shown(words[0])}; copy the script beside the suite"
        )


def split(command: str, where: str) -> list[str]:
    """The words of a command line.

    Raises:
        InputError: a quotation that does not end.
    """
    try:
        return shlex.split(command)
    except ValueError as error:
        raise InputError(f"{where}: expected a command line, found {shown(command)}: {error}; close it") from error


def fill(word: str, places: Mapping[str, str]) -> str:
    """The word with its places filled; those of other mappings stay."""
    return re.sub(r"{(\w+)}", lambda found: places.get(found.group(1), found.group(0)), word)
