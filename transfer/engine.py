"""What fine-tunes and predicts: the protocol that both engines keep, and the choice between them.

Scoring is outside both engines, so that their numbers compare like with like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fvcore.common.config import CfgNode

from pretrain.errors import InputError
from transfer.annotations import file_stem


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


@dataclass(frozen=True)
class Predictions:
    """Detections of a data set, as a file.

    results: a COCO result JSON (image_id, category_id, bbox, score, segmentation as RLE), or a folder of label PNGs
    for semantic segmentation. dataset: its name. iou_types: what can be scored. engine: who predicted.
    """

    results: Path
    dataset: str
    iou_types: tuple[str, ...]
    engine: str
    seconds_per_image: float = float("nan")
    notes: tuple[str, ...] = field(default=())


#: A number from predictions, higher is better: what "best" means. Given from outside, because engines do not score.
Score = Callable[[Predictions], float]


def results_path(out_dir: str | Path, dataset: str) -> Path:
    """Where an engine writes a data set's detections."""
    return Path(out_dir) / f"results_{file_stem(dataset)}.json"


class Engine(Protocol):
    """One way to run the computation that a config describes."""

    name: str

    def unsupported(self, cfg: CfgNode) -> str | None:
        """Why this engine cannot run the config here, or None. No compute; asked before anything else."""
        ...

    def finetune(
        self, cfg: CfgNode, weights: str, seed: int, out_dir: Path, *, resume: bool = False, score: Score | None = None
    ) -> Finetuned:
        """Train a detector from a backbone's (or a detector's) weights; ``none`` means random initialisation.

        With TEST.EVAL_PERIOD and ``score`` the best detector so far is kept as ``model_best.pth``.
        """
        ...

    def predict(self, cfg: CfgNode, weights: Path, out_dir: Path) -> list[Predictions]:
        """Detections of every data set in DATASETS.TEST by a fine-tuned detector."""
        ...


def choose_engine(name: str, cfg: CfgNode) -> tuple[Engine, str]:
    """The engine to use, and one sentence that says why.

    Args:
        name: ``auto``, ``detectron2`` or ``torchvision``. ``auto`` takes Detectron2 where it imports and can run the
            config, because it is the papers' own code, and torchvision otherwise.

    Raises:
        InputError: the name is unknown, or no engine that may be used can run the config.
    """
    from transfer.detectron2_engine import Detectron2Engine
    from transfer.torchvision_engine.run import TorchvisionEngine

    engines: dict[str, Engine] = {"detectron2": Detectron2Engine(), "torchvision": TorchvisionEngine()}
    if name != "auto":
        if name not in engines:
            raise InputError(f"expected an engine among auto, {', '.join(engines)}, found {name!r}")
        reason = engines[name].unsupported(cfg)
        if reason:
            raise InputError(f"the {name} engine cannot run this config: {reason}")
        return engines[name], f"engine {name}, as asked"
    reason = engines["detectron2"].unsupported(cfg)
    if reason is None:
        return engines["detectron2"], "engine detectron2: it is installed and runs this config"
    other = engines["torchvision"].unsupported(cfg)
    if other:
        raise InputError(f"no engine can run this config: detectron2: {reason}; torchvision: {other}")
    return engines["torchvision"], f"engine torchvision, because detectron2 cannot be used: {reason}"
