"""Figures of a training: one JSON object a line in ``metrics.jsonl``, and the boards.

``step`` is the number of steps that are done, in every loop.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any

from momentum_transfer.core import distributed
from momentum_transfer.core.boards import Board, boards
from momentum_transfer.core.files import append_whole, naming, write_text


class Metrics:
    """Appends figures; only the first process writes.

    Args:
        folder: the run's OUTPUT_DIR.
        first_step: lines of later steps, left by a run that was killed after its last checkpoint, are removed.
    """

    def __init__(self, folder: str | Path, first_step: int = 0) -> None:
        self.path = Path(folder) / "metrics.jsonl"
        self._stream: Any = None
        self._boards: list[Board] = []
        if not distributed.is_main():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in read(self.path, before=first_step)))
        self._stream = open(self.path, "ab", buffering=0)  # noqa: SIM115  closed by __exit__
        with naming(self.path.parent):
            self._boards = boards(folder, first_step)

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Writes the figures after ``step`` steps as one whole line; NaN and infinities, which JSON lacks, as null.

        Raises:
            OSError: no space; no part of the line stays.
        """
        if self._stream is None:
            return
        line = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        append_whole(self._stream, (json.dumps({"step": step, **line}) + "\n").encode(), self.path)
        with naming(self.path.parent):
            for board in self._boards:
                board.write(step, figures)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
        # What ended the block is what is to be told, not that the boards cannot write their rest to the same full disk.
        with contextlib.suppress(OSError) if error is not None else naming(self.path.parent):
            for board in self._boards:
                board.close()


def read(path: str | Path, before: int | None = None) -> list[dict[str, Any]]:
    """The whole lines of a metrics file, of steps up to ``before`` if given; a cut last line is left out."""
    lines = []
    for text in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # ValueError: no JSON, or a number of 5000 digits
            continue
        step = line.get("step", 0) if isinstance(line, dict) else None
        if isinstance(step, (int, float)) and (before is None or step <= before):
            lines.append(line)
    return lines
