"""Fine-tuning and prediction by Detectron2 itself: the Engine protocol over the rest of this folder."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch import nn

from momentum_transfer.core.devices import runs_on_cpu
from momentum_transfer.core.distributed import process_group, world_size
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.transfer.config import synchronises_on_cpu, task_name
from momentum_transfer.transfer.detectron2_engine.backbones import SMALL
from momentum_transfer.transfer.detectron2_engine.data import ENGINE, detectron2_config, register_data
from momentum_transfer.transfer.detectron2_engine.models import build_model, load_initial
from momentum_transfer.transfer.detectron2_engine.predict import Detectron2Predictor, predict
from momentum_transfer.transfer.detectron2_engine.train import train
from momentum_transfer.transfer.engine import Finetuned
from momentum_transfer.transfer.initial_weights import InitialWeights
from momentum_transfer.transfer.predictions import Predictions, Score
from momentum_transfer.transfer.tasks.task import Task


class Detectron2Engine:
    """Fine-tuning and prediction by Detectron2 itself."""

    name = ENGINE

    def unsupported(self, cfg: CfgNode) -> str | None:
        """Why Detectron2 cannot run the config here, or None."""
        if importlib.util.find_spec("detectron2") is None:
            return "Detectron2 is not installed"
        if task_name(cfg) == "segmentation" and cfg.MODEL.SEM_SEG_HEAD.NAME == "LinearHead":
            return "the linear segmentation probe is this project's own"
        if task_name(cfg) == "segmentation" and cfg.MODEL.RESNETS.DEPTH in SMALL and not cfg.MODEL.BACKBONE.ARCH:
            return "Detectron2's DeepLab needs a ResNet of bottlenecks, MODEL.RESNETS.DEPTH 50 or more"
        if synchronises_on_cpu(cfg):
            return "SyncBN over several processes needs GPUs; use BN, or one process"
        if runs_on_cpu(cfg.MODEL.DEVICE) and cfg.SOLVER.AMP.ENABLED:
            return "Detectron2 refuses mixed precision on a CPU"
        if cfg.SOLVER.AMP.ENABLED and cfg.SOLVER.AMP.PRECISION != "float16":
            return "Detectron2's configuration knows float16 only; set SOLVER.AMP.PRECISION float16"
        return None

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
        """Train by Detectron2's DefaultTrainer; see ``engine.Engine``. Leaves ``model_final.pth`` and its own logs."""
        out_dir = Path(out_dir)
        final = out_dir / "model_final.pth"
        if resume and final.is_file():
            say(f"{final} is finished already")
            return Finetuned(final)
        if not resume and (out_dir / "last_checkpoint").is_file():
            raise InputError(f"{out_dir} holds a training already; go on with --resume, or choose another OUTPUT_DIR")
        if (out_dir / "checkpoints" / "last").is_file():
            raise InputError(
                f"expected no training or one of Detectron2 in {out_dir}, found one of the torchvision engine; resume "
                "with ENGINE torchvision, or choose another OUTPUT_DIR"
            )
        theirs = detectron2_config(cfg, seed=seed, out_dir=out_dir)
        with process_group(torch.device(theirs.MODEL.DEVICE)):
            register_data(cfg, task, out_dir)
            if world_size() > 1:
                from detectron2.utils import comm

                comm.create_local_process_group(int(os.environ["LOCAL_WORLD_SIZE"]))
            evaluate = None
            if score is not None and cfg.TEST.EVAL_PERIOD > 0:
                folder, first = out_dir / "validation", task.test[0]

                def evaluate(model: nn.Module) -> float:
                    return score(predict(cfg, theirs, model, first, folder))

            return train(theirs, initial, final, resume, evaluate)

    def predict(self, cfg: CfgNode, task: Task[Any], detector: InitialWeights, out_dir: Path) -> list[Predictions]:
        """Predict; see ``engine.Engine``. Leaves ``results_<dataset>.json``."""
        theirs = detectron2_config(cfg, seed=cfg.SEED, out_dir=Path(out_dir))
        model = build_model(theirs)
        load_initial(model, detector)
        with process_group(torch.device(theirs.MODEL.DEVICE)):
            return [predict(cfg, theirs, model, data, Path(out_dir)) for data in task.test]

    def predictor(self, cfg: CfgNode, detector: InitialWeights) -> Detectron2Predictor:
        """A detector for images in memory; see ``engine.Engine``."""
        theirs = detectron2_config(cfg, seed=cfg.SEED, out_dir=Path(cfg.OUTPUT_DIR))
        model = build_model(theirs)
        load_initial(model, detector)
        return Detectron2Predictor(theirs, model)
