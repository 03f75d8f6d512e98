"""What an engine gets, does and returns: an experiment, the protocol of both engines, and a finished fine-tuning.

An experiment is settings with their data opened and their weights read; nothing later looks a name up again. Scoring is
outside both engines, so that their numbers compare like with like.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.transfer.initial_weights import InitialWeights
from momentum_transfer.transfer.predictions import Predictions, Score
from momentum_transfer.transfer.tasks.task import Task
from momentum_transfer.transfer.torchvision_engine.structures import Detections


@dataclass(frozen=True)
class Experiment:
    """What an engine trains or predicts with."""

    cfg: CfgNode = field(repr=False)
    task: Task[Any] = field(repr=False)  # with its data sets opened
    initial: InitialWeights  # the weights to start from; for predictions those of a trained detector


@dataclass(frozen=True)
class Finetuned:
    """What a fine-tuning leaves."""

    weights: Path  # the detector, Detectron2's names
    loaded: tuple[str, ...] = ()  # names of its tensors that came from the given weights
    new: tuple[str, ...] = ()  # names of those that were initialised
    seconds_per_step: float = float("nan")  # mean over the training, NaN if nothing was left to do


class Predictor(Protocol):
    """A trained network on images in memory."""

    def __call__(self, images: Sequence[np.ndarray]) -> list[Detections] | list[np.ndarray]:
        """Images uint8 [H, W, 3] in RGB, of any sizes, to what is found in each, in its own pixels.

        Returns:
            Detections (boxes, scores, classes, masks bool [D, H, W] where the network has them), best score first; or
            label maps uint8 [H, W] of semantic segmentation.
        """
        ...


class Engine(Protocol):
    """One way to run the computation that a config describes."""

    name: str

    def unsupported(self, cfg: CfgNode) -> str | None:
        """Why this engine cannot run the config here, or None. No compute; asked before anything else."""
        ...

    def finetune(
        self, experiment: Experiment, seed: int, out_dir: Path, *, resume: bool = False, score: Score | None = None
    ) -> Finetuned:
        """Train a network on the task's training sets from a backbone's (or a detector's) weights.

        With TEST.EVAL_PERIOD and ``score`` the best detector so far is kept as ``model_best.pth``.
        """
        ...

    def predict(self, experiment: Experiment, out_dir: Path) -> list[Predictions]:
        """Predictions for every test set of the task by a trained detector, ``experiment.initial``."""
        ...

    def predictor(self, cfg: CfgNode, detector: InitialWeights) -> Predictor:
        """A trained detector for images in memory; it finds what ``predict`` finds."""
        ...
