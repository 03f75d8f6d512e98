"""Boards that a training's figures go to beside its ``metrics.jsonl``: TensorBoard, and Weights & Biases where asked.

TensorBoard writes ``tensorboard/`` in the run's folder wherever it is installed (extra ``tensorboard``). Weights &
Biases (extra ``wandb``) is asked for by its own environment variable ``WANDB_PROJECT``; its other variables hold too,
such as ``WANDB_MODE=offline``. A training that is resumed goes on in the same run of both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.extras import extra
from momentum_transfer.core.files import write_text
from momentum_transfer.core.yaml_files import read_mapping

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
