"""Engine: the protocol of both engines for fine-tuning and prediction.

Scoring is outside both engines, so that their numbers compare like with like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.transfer.initial_weights import InitialWeights
from momentum_transfer.transfer.predictions import Predictions, Score
from momentum_transfer.transfer.tasks.task import Task
from momentum_transfer.transfer.torchvision_engine.structures import Detections


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


class Predictor(Protocol):
    """A trained network on images in memory."""

    def __call__(self, images: Sequence[np.ndarray]) -> list[Detections] | list[np.ndarray]:
        """Images uint8 [H, W, 3] in RGB, of any sizes, to what is found in each, in its own pixels.

        Returns:
            Detections (boxes, scores, classes, masks bool [D, H, W] where the network has them), best score first; or
            of semantic segmentation label maps uint8 [H, W].
        """
        ...


class Engine(Protocol):
    """One way to run the computation that a config describes."""

    name: str

    def unsupported(self, cfg: CfgNode) -> str | None:
        """Why this engine cannot run the config here, or None. No compute; asked before anything else."""
        ...

    def finetune(
        self,
        cfg: CfgNode,
        task: Task[Any],
        initial: InitialWeights,
        seed: int,
        out_dir: Path,
        *,
        resume: bool = False,
        score: Score | None = None,
    ) -> Finetuned:
        """Train a network on ``task.train`` from a backbone's (or a detector's) weights.

        With TEST.EVAL_PERIOD and ``score`` the best detector so far is kept as ``model_best.pth``.
        """
        ...

    def predict(self, cfg: CfgNode, task: Task[Any], detector: InitialWeights, out_dir: Path) -> list[Predictions]:
        """Predictions for every set of ``task.test`` by a fine-tuned detector."""
        ...

    def predictor(self, cfg: CfgNode, detector: InitialWeights) -> Predictor:
        """A fine-tuned detector that takes images in memory, for new images; it finds what ``predict`` finds."""
        ...
