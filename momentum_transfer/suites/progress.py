"""The state of every task of a suite, from the files in its folder alone, so that ``status`` works on any machine."""

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import write_text
from momentum_transfer.core.run_lock import silence, time_there
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.suites.attempt import JOB_LOCK, last_lines, last_word
from momentum_transfer.suites.executors import submitted
from momentum_transfer.suites.planning import Expected
from momentum_transfer.suites.task import LOG, Job, read_state

#: The tasks of the last plan, in OUTPUT.
PLAN = "plan.json"
#: Seconds after which a running task whose lock is not renewed any more counts as gone; it is renewed every ten.
SILENCE = 60.0
_READERS = 16  # threads: shared file systems answer late, but many questions at once

_COUNT = re.compile(r"^(?P<what>.*?): (?P<done>\d{1,15})/(?P<total>\d{1,15}) in (?P<seconds>\d{1,15}) s")


class Planned(msgspec.Struct, frozen=True):
    """A task of a plan."""

    title: str
    weights: str
    task: str
    folder: str  # as seen from that of the plan
    needs: tuple[str, ...]  # titles
    key: str
    gpu_hours: float  # expected
    source: str


@dataclass(frozen=True)
class Standing:
    """Where a task is; ``state``: done, failed, running, silent, stopped, queued, not run or to do."""

    planned: Planned
    state: str
    seconds: float = 0.0  # of all attempts so far
    fraction: float = float("nan")  # done, 0 to 1; NaN if unknown
    left: float = float("nan")  # seconds still expected; NaN if unknown
    gpus: int = 0
    note: str = ""  # the last line of the log, or the reason

    @property
    def gpu_hours(self) -> float:
        """GPU hours used so far."""
        return self.seconds * self.gpus / 3600


def write_plan(output: Path, jobs: Sequence[Job], expected: Mapping[str, Expected]) -> None:
    """Write the plan of a suite beside its records; what was expected of a task before it first began stays."""
    before: dict[tuple[str, str], Planned] = {}
    with contextlib.suppress(InputError):
        before = {(one.title, one.key): one for one in read_plan(output)}
    tasks = [
        Planned(job.title, job.weights, job.task.name, os.path.relpath(job.folder, output),
                tuple(need.title for need in job.needs), job.key, cost.gpu_hours, cost.source)
        for job in jobs for cost in [before.get((job.title, job.key), expected[job.title])]
    ]  # fmt: skip
    write_text(output / PLAN, json.dumps({"tasks": msgspec.to_builtins(tasks)}, indent=0) + "\n")


def read_plan(output: Path) -> list[Planned]:
    """The plan that ``write_plan`` wrote; InputError if there is none, or it is damaged."""
    path = output / PLAN
    if not path.is_file():
        raise InputError(f"expected the folder of a suite, found no {path}; give the --output of an evaluate command")
    content = read_json(path, "the plan of a suite")
    try:
        return msgspec.convert(content, dict[str, list[Planned]])["tasks"]
    except (msgspec.ValidationError, KeyError) as error:
        raise InputError(f"expected the plan of a suite in {path}, found {shown(error)}; run evaluate again") from error


def standings(output: Path) -> list[Standing]:
    """The standing of every task of the plan in ``output``; InputError if that holds no plan."""
    plan, given = read_plan(output), submitted(output)
    with ThreadPoolExecutor(_READERS) as readers:
        read = list(readers.map(lambda one: _read(output / one.folder, one.key), plan))
    standings: dict[str, Standing] = {}
    for planned, (state, lines) in zip(plan, read, strict=True):
        number, key = given.get(planned.title, ("", ""))
        queued = number if key == planned.key else ""
        standings[planned.title] = _standing(planned, output / planned.folder, state, lines, standings, queued)
    return list(standings.values())


def _read(folder: Path, key: str) -> tuple[dict[str, Any], list[str]]:
    """(state, the lines at the end of the log) of a task; both empty where they are of another command."""
    state = read_state(folder, key)
    return state, last_lines(folder / LOG) if state and state.get("exit_code") != 0 else []


def _standing(
    planned: Planned, folder: Path, state: dict[str, Any], lines: list[str], earlier: dict[str, Standing], queued: str
) -> Standing:
    seconds, gpus = _number(state.get("seconds")), int(_number(state.get("gpus")))
    if "exit_code" in state:
        if state["exit_code"] == 0:
            return Standing(planned, "done", seconds, 1.0, 0.0, gpus)
        return Standing(planned, "failed", seconds, gpus=gpus, note=str(state.get("note", "")) or last_word(lines))
    if "began" in state:
        now, quiet = time_there(folder), silence(folder, folder / JOB_LOCK, folder / LOG)
        running = "running" if quiet < SILENCE else "silent"
        seconds += max(0.0, now - _number(state["began"]) - (quiet if running == "silent" else 0.0))
        return Standing(planned, running, seconds, *_fraction(lines), gpus, last_word(lines))
    blocked = [need for need in planned.needs if need in earlier and earlier[need].state in ("failed", "not run")]
    if blocked:
        return Standing(planned, "not run", seconds, gpus=gpus, note=f"{blocked[0]} did not end well")
    if "stopped" in state:
        note = f"by {state['stopped']}; it goes on from there"
        return Standing(planned, "stopped", seconds, *_fraction(lines), gpus, note)
    if queued:
        return Standing(planned, "queued", seconds, gpus=gpus, note=f"job {queued}")
    return Standing(planned, "to do", seconds, gpus=gpus)


def _fraction(lines: Sequence[str]) -> tuple[float, float]:
    """(fraction done, seconds left) by a log's last two lines of progress, at the rate between them."""
    counts = [found for line in lines if (found := _COUNT.match(line))]
    if not counts or not int(counts[-1]["total"]):
        return float("nan"), float("nan")
    last = counts[-1]
    done, total, seconds = int(last["done"]), int(last["total"]), int(last["seconds"])
    before = next((one for one in reversed(counts[:-1]) if one["what"] == last["what"]), None)
    rate = done / seconds if seconds else float("nan")
    if before and int(before["seconds"]) < seconds and int(before["done"]) < done:
        rate = (done - int(before["done"])) / (seconds - int(before["seconds"]))
    return done / total, (total - done) / rate if rate else float("nan")


def _number(value: Any) -> float:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if plain and abs(value) < 1e15 else 0.0  # False for NaN
