"""Before a suite starts: each checkpoint is read once and held against every command of the plan; all refusals at once.

A tool's ``refusals(args, shared)`` checks its command line by the functions that its run calls.
"""

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import RANDOM_OF, is_hub_name, is_made
from momentum_transfer.core.log import say, speaking, table, warn
from momentum_transfer.core.shipped import TOOLS, tool_file
from momentum_transfer.suites.task import NO_FILES, Job

#: What is asked of the machine that runs a task, which with Slurm is another one than plans it.
_OF_THE_MACHINE = ("engine", "data", "disk")


@dataclass
class Shared:
    """What the commands of a plan have in common."""

    data: dict[str, Any] = field(default_factory=dict)  # opened data sets by their settings
    space: dict[tuple[Path, str], int] = field(default_factory=dict)  # folder and what is kept there -> bytes
    needs: tuple[Job, ...] = ()  # of the command at hand, which may make its weights
    unread: list[str] = field(default_factory=list)  # reasons why its weights could not be read
    _made: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    _known: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def make(self, out: str, weights: str, **options: Any) -> None:
        """Note that a command writes ``out``, to be read as ``weights`` with ``options`` of ``load_backbone``."""
        self._made[out] = weights, options

    def read(self, weights: str, reader: Callable[..., Any] | None = None, **options: Any) -> Any:
        """As ``backbone``; None for weights that are no file, not made yet, or that cannot be read (see ``unread``)."""
        if weights in self._made:
            weights, options = self._made[weights]
            reader = None
        file = weights.removeprefix(RANDOM_OF)
        later = self.needs and not is_made(file) and not is_hub_name(file) and not Path(file).exists()
        if later or weights in ("", *NO_FILES) or weights.startswith("module:"):  # the user's code, which its task runs
            return None
        try:
            return self.backbone(weights, reader, **options)
        except InputError as error:
            if not Path(file).is_dir() or all(need.done() for need in self.needs):  # else stopped before a checkpoint
                self.unread.append(str(error))
            return None

    def backbone(self, weights: str, reader: Callable[..., Any] | None = None, **options: Any) -> Any:
        """What ``reader`` (None: ``load_backbone``) gives for weights, a backbone's tensors without their values."""
        from momentum_transfer.backbones.read import load_backbone
        from momentum_transfer.backbones.source import SourceBackbone

        options = {key: value for key, value in options.items() if value}
        key = (weights, getattr(reader, "__name__", ""), str(options))
        if (found := self._known.get(key)) is None:
            try:
                found = (reader or load_backbone)(weights, **options)
                if isinstance(found, SourceBackbone):  # a plan of a hundred checkpoints fits into memory
                    found = dataclasses.replace(found, state={k: v.to("meta") for k, v in found.state.items()})
            except InputError as error:
                found = error
            self._known[key] = found
        if isinstance(found, InputError):
            raise found
        return found


#: (what, reason) -> the jobs that it keeps from running.
Refusals = dict[tuple[str, str], list[Job]]


def preflight(jobs: Sequence[Job], tools: Mapping[str, Any], shared: Shared) -> Refusals:
    """Check every command that is not done; those of other scripts than ``tools``, modules by name, are passed over."""
    began, found, checked = time.monotonic(), Refusals(), 0
    for job in jobs:
        script = tool_file(job.command[0])
        tool = tools.get(script.stem) if script.parent == TOOLS else None
        if tool is None or (job.done() and script.stem != "convert"):
            continue
        checked += 1
        with speaking(quiet=True):
            for what, reason in _of(job, tool, shared):
                found.setdefault((what, reason), []).append(job)
    for place, size in _disks(shared.space).items():
        if size > (free := shutil.disk_usage(place).free):
            sizes = f"{size / 2**30:.1f} GiB free at {place} for checkpoints and features, found {free / 2**30:.1f}"
            reason = f"expected {sizes}; free some, or choose another --output or FEATURES.CACHE"
            found["disk", reason] = [job for job in jobs if not job.done()]
    say(f"looked through {counted(checked, 'command')} of {len(jobs)} in {time.monotonic() - began:.1f} s")
    return found


def _disks(space: Mapping[tuple[Path, str], int]) -> dict[Path, int]:
    """A folder on each disk -> the bytes that are kept on it."""
    disks: dict[int, tuple[Path, int]] = {}
    for (folder, _), size in space.items():
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        place, before = disks.get(there.stat().st_dev, (there, 0))
        disks[there.stat().st_dev] = place, before + size
    return dict(disks.values())


def _of(job: Job, tool: Any, shared: Shared) -> Iterator[tuple[str, str]]:
    shared.unread, shared.needs = [], job.needs
    parser = tool.parser()
    parser.error = partial(_refuse, job)
    try:
        yield from tool.refusals(parser.parse_intermixed_args(list(job.command[1:])), shared)
    except InputError as error:
        yield "settings", str(error)
    yield from (("weights", reason) for reason in shared.unread)


def _refuse(job: Job, message: str) -> NoReturn:
    raise InputError(f"{message}; correct the command of {job.task.name}")


def refuse(found: Refusals, *, elsewhere: bool) -> None:
    """Show all refusals; InputError if there are any but, where tasks run elsewhere, of this machine."""
    if not found:
        return
    rows = []
    for (what, reason), jobs in found.items():
        tasks = ", ".join(dict.fromkeys(job.task.name for job in jobs))
        rows.append([reason, what, tasks, ", ".join(dict.fromkeys(job.weights for job in jobs))])
    table("refused before anything starts", ["reason", "about", "tasks", "checkpoints"], rows)
    fatal = [jobs for (what, _), jobs in found.items() if not (elsewhere and what in _OF_THE_MACHINE)]
    if not fatal:
        warn(f"refused here for {', '.join(sorted({what for what, _ in found}))}; tasks run elsewhere and go on")
        return
    names = list(dict.fromkeys(job.task.name for jobs in fatal for job in jobs))
    raise InputError(
        f"expected a plan whose every task can run, found {counted(len(names), 'task')} refused (the table above); "
        f"correct them, or leave them out: --skip {' '.join(names)}"
    )
