"""One task for one checkpoint, and what its folder remembers of it."""

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.text_files import read_json
from momentum_transfer.suites.task import Task

#: What a job's folder remembers of its attempts.
STATE = "suite_state.json"

#: All output of a job, in its folder.
LOG = "log.txt"


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
        """What the attempts left, all under one ``key``; empty before the first.

        ``began`` (seconds since 1970), ``host``, ``slurm_job``: of the attempt that runs, or was killed; ``exit_code``
        once it ended by itself, ``stopped`` where a signal ended it, which is no end; ``seconds`` of all attempts
        together, ``gpus`` of each, ``attempts`` how many.
        """
        return read_state(self.folder)

    def remember(self, **state: Any) -> None:
        """Note the state, atomically."""
        write_text(self.folder / STATE, json.dumps({"key": self.key, **state}, indent=1) + "\n")

    def begin(self, gpus: int) -> float:
        """Note that an attempt begins here and now; returns the seconds that earlier ones took."""
        before, seconds = self._before()
        self.remember(
            **{"began": round(time.time(), 1), "host": socket.gethostname(), "slurm_job": slurm_job_id()},
            **{"seconds": round(seconds, 1), "gpus": gpus, "attempts": before.get("attempts", 0) + 1},
        )
        return seconds

    def end(self, seconds: float, **how: Any) -> None:
        """Note how the attempt ended: ``exit_code=…`` or ``stopped=…``, and ``note=…``, after all attempts' seconds."""
        before = self.state()
        kept = {key: before[key] for key in ("gpus", "attempts", "host", "slurm_job") if key in before}
        self.remember(**kept, seconds=round(seconds, 1), **how)

    def forget_end(self) -> None:
        """Forget an earlier end, before another attempt can have its own; the seconds stay."""
        before, seconds = self._before()
        if "exit_code" in before or "stopped" in before:
            self.remember(seconds=round(seconds, 1), attempts=before.get("attempts", 1))

    def _before(self) -> tuple[dict[str, Any], float]:
        """The state under this key, and its seconds with those of a killed attempt until its last word in the log."""
        before = self.state()
        if before.get("key") != self.key:
            return {}, 0.0
        seconds = float(before.get("seconds", 0))
        if "began" in before:
            with contextlib.suppress(OSError):
                seconds += max(0.0, self.log.stat().st_mtime - before["began"])
        return before, seconds

    def done(self) -> bool:
        """Ended well before, with the same command, weights and config files, and its records still there."""
        state = self.state()
        if state.get("key") != self.key or state.get("exit_code") != 0:
            return False
        return "{results}" not in self.task.command or self.results.is_file()


def read_state(folder: Path) -> dict[str, Any]:
    """The state that a job's folder remembers; empty where there is none, or none that can be read."""
    try:
        content = read_json(folder / STATE, "the state of a task")
    except InputError:
        return {}
    return content if isinstance(content, dict) else {}


def slurm_job_id() -> str:
    """The Slurm job that this process runs in, ``12`` or ``12_3`` of an array; "" outside Slurm."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if array else os.environ.get("SLURM_JOB_ID", "")
