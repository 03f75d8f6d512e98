"""Figures of a training: one JSON object a line in ``metrics.jsonl``, and the boards.

``step`` is the number of steps that are done, in every loop.

Boards that a training's figures go to beside its ``metrics.jsonl``: TensorBoard, and Weights & Biases where asked.

TensorBoard writes ``tensorboard/`` in the run's folder wherever it is installed (extra ``tensorboard``). Weights &
Biases (extra ``wandb``) is asked for by its own environment variable ``WANDB_PROJECT``; its other variables hold too,
such as ``WANDB_MODE=offline``. A training that is resumed goes on in the same run of both.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError, extra
from momentum_transfer.core.files import append_whole, naming, write_text
from momentum_transfer.core.untrusted import read_mapping

#: Environment variable that asks for Weights & Biases.
PROJECT = "WANDB_PROJECT"
#: Keeps the run's identifier, so that a resumed training goes on in it.
_RUN = "wandb_run.txt"


class Board(Protocol):
    """A place for figures."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures after ``step`` steps."""

    def close(self) -> None:
        """Send or write what is left."""


def boards(folder: str | Path, first_step: int = 0) -> list[Board]:
    """The boards of a run, opened; call it in the first process only.

    Args:
        folder: the run's output folder. first_step: steps that are done already; what was shown after them is dropped.

    Raises:
        InputError: Weights & Biases is asked for and not installed, not logged in, or not reachable.
    """
    opened: list[Board] = []
    if os.environ.get(PROJECT):
        opened.append(_WeightsAndBiases(Path(folder), first_step))
    with contextlib.suppress(ImportError):
        opened.append(_TensorBoard(Path(folder), first_step))
    return opened


class _TensorBoard:
    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)  # that one too

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, folder: Path, first_step: int) -> None:
        wandb = extra("wandb", f"{PROJECT} is set")
        kept = folder / _RUN
        known = kept.read_text(encoding="utf-8").strip() if first_step and kept.is_file() else None
        try:
            self._run = wandb.init(
                project=os.environ[PROJECT], name=os.environ.get("WANDB_NAME", folder.resolve().name), dir=str(folder),
                id=known, resume="allow" if known else None, config=_settings(folder),
            )  # fmt: skip
        except wandb.errors.Error as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{PROJECT} is set, but Weights & Biases cannot be reached: {reason[:200]}; unset it, or keep the "
                "figures on this machine with WANDB_MODE=offline"
            ) from error
        # An axis of our own: W&B's step may only grow, and a resumed training takes steps again.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        write_text(kept, f"{self._run.id}\n")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({"step": step, **figures})

    def close(self) -> None:
        self._run.finish()


def _settings(folder: Path) -> dict[str, Any]:
    """What the run's ``config.yaml`` says, where there is one."""
    try:
        return read_mapping(folder / "config.yaml")
    except InputError:
        return {}


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
