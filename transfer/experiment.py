"""An experiment: settings with their data opened and their weights read. Nothing later looks a name up again."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.transfer.initial_weights import InitialWeights
from momentum_transfer.transfer.tasks.task import Task


@dataclass(frozen=True)
class Experiment:
    """What an engine trains or predicts with.

    task: with its data sets opened. initial: the weights to start from; for predictions those of a trained detector.
    """

    cfg: CfgNode = field(repr=False)
    task: Task[Any] = field(repr=False)
    initial: InitialWeights


@dataclass(frozen=True)
class Finetuned:
    """What a fine-tuning leaves.

    weights: the detector, Detectron2's names. loaded, new: names of its tensors that came from the given weights, and
    of those that were initialised. seconds_per_step: mean over the training, NaN if nothing was left to do.
    """

    weights: Path
    loaded: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    seconds_per_step: float = float("nan")
