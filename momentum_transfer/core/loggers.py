"""The metrics of a training: one JSON object a line in ``metrics.jsonl``, TensorBoard, and Weights & Biases if asked.

TensorBoard writes ``tensorboard/`` in the run's folder wherever it is installed (extra ``tensorboard``). Weights &
Biases (extra ``wandb``) is switched on by its environment variable ``WANDB_PROJECT``; its others hold too, such as
``WANDB_MODE=offline``. A resumed training continues the same run of both. ``step`` is the number of steps done.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError, extra, one_line
from momentum_transfer.core.files import append_whole, naming, write_text
from momentum_transfer.core.untrusted import read_mapping

#: Environment variable that switches Weights & Biases on.
_PROJECT = "WANDB_PROJECT"
#: Holds the identifier of the W&B run, so that a resumed training continues it.
_RUN = "wandb_run.txt"


class _TensorBoard:
    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)  # that one too

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, folder: Path, first_step: int) -> None:
        wandb = extra("wandb", f"{_PROJECT} is set")
        kept = folder / _RUN
        known = kept.read_text(encoding="utf-8").strip() if first_step and kept.is_file() else None
        try:
            self._run = wandb.init(
                project=os.environ[_PROJECT], name=os.environ.get("WANDB_NAME", folder.resolve().name), dir=str(folder),
                id=known, resume="allow" if known else None, config=_settings(folder),
            )  # fmt: skip
        except wandb.errors.Error as error:
            raise InputError(
                f"{_PROJECT} is set, but Weights & Biases cannot be reached: {one_line(error, 200)}; unset it, or keep "
                "the metrics on this machine with WANDB_MODE=offline"
            ) from error
        # A separate axis: W&B's own step may only grow, and a resumed training repeats steps.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        write_text(kept, f"{self._run.id}\n")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        self._run.finish()


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return read_mapping(folder / "config.yaml")
    except InputError:
        return {}


Logger = _TensorBoard | _WeightsAndBiases
"""Receives metrics by ``write(step, metrics)``; ``close()`` writes what is left."""


def open_loggers(folder: str | Path, first_step: int = 0) -> list[Logger]:
    """The loggers of a run in ``folder``, for rank 0 only; what was logged after ``first_step`` is dropped.

    Raises InputError if Weights & Biases is asked for and not installed, not logged in, or not reachable.
    """
    opened: list[Logger] = []
    if os.environ.get(_PROJECT):
        opened.append(_WeightsAndBiases(Path(folder), first_step))
    with contextlib.suppress(ImportError):
        opened.append(_TensorBoard(Path(folder), first_step))
    return opened


class Metrics:
    """Writes metrics to ``folder`` and the loggers, on rank 0 only; lines after ``first_step`` are removed."""

    def __init__(self, folder: str | Path, first_step: int = 0) -> None:
        self.path = Path(folder) / "metrics.jsonl"
        self._stream: Any = None
        self._loggers: list[Logger] = []
        if not distributed.is_main():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in read(self.path, before=first_step)))
        self._stream = open(self.path, "ab", buffering=0)  # noqa: SIM115  closed by __exit__
        with naming(self.path.parent):
            self._loggers = open_loggers(folder, first_step)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Write the metrics after ``step`` steps as one whole line or none (OSError), NaN and infinities as null."""
        if self._stream is None:
            return
        line = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        append_whole(self._stream, (json.dumps({"step": step, **line}) + "\n").encode(), self.path)
        with naming(self.path.parent):
            for logger in self._loggers:
                logger.write(step, metrics)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._stream is not None:
            self._stream.close()
        # Report what ended the block, not that the loggers meet the same full disk.
        with contextlib.suppress(OSError) if error is not None else naming(self.path.parent):
            for logger in self._loggers:
                logger.close()


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
