"""One task for one checkpoint, and what its folder remembers of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentum_transfer.files import write_text
from momentum_transfer.suites.task import Task


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
