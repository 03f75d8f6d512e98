"""The only file that imports Detectron2, which is optional: its installation is described on its own pages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fvcore.common.config import CfgNode

from pretrain.errors import InputError
from transfer.engine import Finetuned, Predictions


class Detectron2Engine:
    """Fine-tuning and prediction by Detectron2 itself."""

    name = "detectron2"

    def unsupported(self, cfg: CfgNode) -> str | None:
        """Why Detectron2 cannot run the config here, or None."""
        if importlib.util.find_spec("detectron2") is None:
            return "Detectron2 is not installed"
        return "this version runs Detectron2 configs in the torchvision engine only"

    def finetune(self, cfg: CfgNode, weights: str, seed: int, out_dir: Path, *, resume: bool = False) -> Finetuned:
        raise InputError(f"the detectron2 engine cannot run this config: {self.unsupported(cfg)}")

    def predict(self, cfg: CfgNode, weights: Path, out_dir: Path) -> list[Predictions]:
        raise InputError(f"the detectron2 engine cannot run this config: {self.unsupported(cfg)}")
