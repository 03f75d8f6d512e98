"""Keeps the best detector of a training by its score on the first test set, every TEST.EVAL_PERIOD iterations.

BN uses its running statistics here; exact ones are computed at the end of the training only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from momentum_transfer.core.distributed import barrier, is_main
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import say
from momentum_transfer.transfer.predictions import Predictions, Score
from momentum_transfer.transfer.torchvision_engine import training_state
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.training_state import Position

NAME = "model_best.pth"


class BestKeeper:
    """Scores the detector and keeps ``model_best.pth`` with ``model_best.json`` (score, iteration, last one seen).

    Args:
        predict: detections of the first test set in a folder.
        score: a number from them, higher is better.
    """

    def __init__(self, detector: Detector, predict: Callable[[Path], Predictions], score: Score, out_dir: Path) -> None:
        self.detector, self.predict, self.score, self.out_dir = detector, predict, score, out_dir
        self.note = out_dir / NAME.replace(".pth", ".json")
        known: dict[str, float] = {}
        try:
            known = json.loads(self.note.read_text(encoding="utf-8")) if self.note.is_file() else {}
            self.best = float(known.get("score", float("-inf")))
            self.iteration = int(known.get("iteration", 0))
            self.seen = int(known.get("seen", 0))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(
                f"expected {self.note} as a training wrote it, found it damaged; delete it, and the best detector is "
                "sought anew from here"
            ) from error

    def __call__(self, position: Position) -> None:
        """Score the detector as it is, in evaluation mode, and leave it in training mode."""
        predictions = self.predict(self.out_dir / "validation")
        self.detector.train()
        if is_main():
            value = self.score(predictions)
            say(f"iteration {position.step}: {predictions.dataset} {value:.2f} (best {max(value, self.best):.2f})")
            if value > self.best:
                self.best, self.iteration = value, position.step
                training_state.save_weights(self.out_dir / NAME, self.detector, position)
            note = {"score": self.best, "iteration": self.iteration, "seen": position.step}
            write_text(self.note, json.dumps(note))
        self.seen = position.step
        barrier()

    def catch_up(self, position: Position, period: int) -> None:
        """Score a resumed detector whose training was stopped or killed between its checkpoint and its evaluation."""
        if position.step % period == 0 and self.seen < position.step:
            self(position)
