"""A task, one evaluation of a suite, and a job, that task for one checkpoint with the state that its folder keeps."""

import contextlib
import json
import os
import re
import shlex
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import write_text
from momentum_transfer.core.run_lock import time_there
from momentum_transfer.core.shipped import TOOLS, tool_file, workplace
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.suites.schema import Cpus, Hours, Minutes, Nodes, check_name, checked

#: Weights that are no file, so that nothing can be converted: the raw pixels, for low-shot evaluations alone, and a
#: randomly initialised network, for evaluations that train on images.
NO_FILES = ("pixels", "scratch")
#: The task that makes a checkpoint of the suite's own.
PRETRAIN = "pretrain"
#: Places that every command may have.
PLACES = ("weights", "name", "converted", "rescaled", "folder", "results", "seed")
#: Files of the plan beside the tasks' folders of a checkpoint.
_TAKEN = ("rescaled", "backbone.pkl")


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One evaluation; ``cpus`` (of a node), ``minutes`` and ``nodes`` are for engines such as Slurm."""

    name: str
    command: str  # after ``python``, with places such as ``{weights}``
    needs: str | tuple[str, ...] = ()  # tasks of the same checkpoint that have to end well first
    gpu_hours: Hours = 0.0  # expected, until measured times replace it
    distributed: bool = False  # runs under torchrun where there are several GPUs
    cpus: Cpus = 8
    minutes: Minutes = 720
    nodes: Nodes = 1  # of a distributed task; this machine runs it on one


def read_task(entry: Any, where: str, earlier: Collection[str]) -> Task:
    """A suite's entry as a task, checked but for its command; InputError with ``where`` for what is wrong."""
    task = checked(entry, Task, where)
    check_name(task.name, where)
    if task.name in earlier or task.name in _TAKEN:
        raise InputError(f"{where}: expected a new name, found {task.name!r}, which is taken; give it another")
    task = msgspec.structs.replace(task, needs=(task.needs,) if isinstance(task.needs, str) else task.needs)
    if task.nodes > 1 and not task.distributed:
        raise InputError(f"{where}: expected one node, found nodes: {task.nodes} without distributed: true; add that")
    for need in task.needs:
        if need not in earlier:
            raise InputError(f"{where}: needs {shown(need)}, which is no task before it; put that one first")
    return task


def check_command(
    command: str, where: str, beside: Path, places: Sequence[str] = (), presets: Mapping[str, Mapping[str, str]] = {}
) -> None:
    """Raises InputError unless a command begins with a tool, or a script beside the suite, and its places are known.

    ``beside``: folder of the suite's file. ``places``: those that it may have. ``presets``: values of some of them.
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
        raise InputError(f"{where}: expected a command that begins with a Python script of this repository or of the "
                         f"suite's folder, found {shown(words[0])}; copy the script beside the suite")  # fmt: skip


def split(command: str, where: str) -> list[str]:
    """The words of a command line; InputError for a quotation that does not end."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise InputError(f"{where}: expected a command line, found {shown(command)}: {error}; close it") from error


def fill(word: str, places: Mapping[str, str]) -> str:
    """The word with its places filled; those of other mappings stay."""
    return re.sub(r"{(\w+)}", lambda found: places.get(found.group(1), found.group(0)), word)


#: In a job's folder: the state of its attempts, and all their output.
STATE, LOG = "suite_state.json", "log.txt"


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
        return self.folder / LOG

    def gpus(self, available: int) -> int:
        """GPUs that the task takes of those that a node (or this machine) has."""
        return available if self.task.distributed else min(available, 1)

    def state(self) -> dict[str, Any]:
        """State of the attempts under this ``key``; empty before the first.

        ``began`` (seconds since 1970 by the file server's clock), ``host``, ``slurm_job``, ``rendezvous`` of a task on
        several nodes: of the attempt that runs or was killed. ``exit_code`` once it ended by itself, ``stopped`` where
        a signal ended it. ``seconds`` of all ``attempts``, ``gpus`` of each.
        """
        return read_state(self.folder, self.key)

    def _write_state(self, seconds: float, **state: Any) -> None:
        content = {"key": self.key, "seconds": round(seconds, 1), **state}
        write_text(self.folder / STATE, json.dumps(content, indent=1) + "\n")

    def begin(self, gpus: int, **more: str) -> float:
        """Note that an attempt begins now, and ``more`` of it; returns the seconds that earlier ones took."""
        before, seconds = self._before()
        here = {"began": round(time_there(self.folder), 1), "host": socket.gethostname(), "slurm_job": _slurm_job_id()}
        self._write_state(seconds, **here, gpus=gpus, attempts=before.get("attempts", 0) + 1, **more)
        return seconds

    def end(self, seconds: float, **how: Any) -> None:
        """Note how the attempt ended: ``exit_code=…`` or ``stopped=…``, and ``note=…``, after all attempts' seconds."""
        before = self.state()
        kept = {key: before[key] for key in ("gpus", "attempts", "host", "slurm_job") if key in before}
        self._write_state(seconds, **kept, **how)

    def forget_end(self) -> None:
        """Forget an earlier end, before another attempt can have its own; the seconds stay."""
        before, seconds = self._before()
        if before.keys() & {"exit_code", "stopped"}:
            self._write_state(seconds, attempts=before.get("attempts", 1))

    def _before(self) -> tuple[dict[str, Any], float]:
        """The state, and its seconds with those of a killed attempt until its log's last line."""
        before = self.state()
        seconds = float(before.get("seconds", 0))
        if "began" in before:
            with contextlib.suppress(OSError):
                seconds += max(0.0, self.log.stat().st_mtime - before["began"])
        return before, seconds

    def ended(self) -> bool:
        """Whether an attempt ended by itself, well or not."""
        return "exit_code" in self.state()

    def done(self) -> bool:
        """Ended well before, with the same command, weights and config files, and its records still there."""
        there = "{results}" not in self.task.command or self.results.is_file()
        return there and self.state().get("exit_code") == 0


def read_state(folder: Path, key: str | None = None) -> dict[str, Any]:
    """The state in a job's folder; empty where there is none, none that can be read, or that of another ``key``."""
    try:
        content = read_json(folder / STATE, "the state of a task")
    except InputError:
        return {}
    return content if isinstance(content, dict) and key in (None, content.get("key")) else {}


def _slurm_job_id() -> str:
    """The Slurm job that this process runs in, ``12`` or ``12_3`` of an array; "" outside Slurm."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if array else os.environ.get("SLURM_JOB_ID", "")
