"""Fine-tuning and prediction by Detectron2 itself: the Engine protocol over the rest of this folder."""

import functools
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch import nn

from momentum_transfer.core.devices import runs_on_cpu
from momentum_transfer.core.distributed import barrier, process_group, rank, world_size
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import ProgressLine, say
from momentum_transfer.transfer.config import changed, synchronises_on_cpu, task_name
from momentum_transfer.transfer.data.semantic_datasets import label_file
from momentum_transfer.transfer.detectron2_engine.backbones import SMALL
from momentum_transfer.transfer.detectron2_engine.data import (
    ENGINE,
    dataset_dicts,
    detectron2_config,
    image_dict,
    register_data,
    test_mapper,
)
from momentum_transfer.transfer.detectron2_engine.few_labels import as_detections
from momentum_transfer.transfer.detectron2_engine.models import build_model, load_initial
from momentum_transfer.transfer.detectron2_engine.train import train
from momentum_transfer.transfer.experiment import Experiment, Finetuned
from momentum_transfer.transfer.initial_weights import InitialWeights
from momentum_transfer.transfer.predictions import Predictions, Score, iou_types, results_path
from momentum_transfer.transfer.torchvision_engine.capabilities import unsupported as not_torchvisions
from momentum_transfer.transfer.torchvision_engine.detection_run import result_entries, write_entries
from momentum_transfer.transfer.torchvision_engine.engine import training_loader
from momentum_transfer.transfer.torchvision_engine.semantic_run import images_of, write_labels
from momentum_transfer.transfer.torchvision_engine.structures import Detections


class Detectron2Engine:
    """Fine-tuning and prediction by Detectron2 itself; see ``experiment.Engine``."""

    name = ENGINE

    def unsupported(self, cfg: CfgNode) -> str | None:
        """Why Detectron2 cannot run the config here, or None."""
        segments, amp = task_name(cfg) == "segmentation", cfg.SOLVER.AMP
        small = cfg.MODEL.RESNETS.DEPTH in SMALL and not cfg.MODEL.BACKBONE.ARCH
        if importlib.util.find_spec("detectron2") is None:
            return "Detectron2 is not installed"
        if _on_samples(cfg) and (reason := not_torchvisions(cfg)):
            return f"with few labels or shots its data is the torchvision engine's, which cannot: {reason}"
        if cfg.SEMI.TEACHER and cfg.TEST.EVAL_PERIOD:
            return "it scores a mean teacher at the end only; set TEST.EVAL_PERIOD 0"
        if segments and cfg.MODEL.SEM_SEG_HEAD.NAME == "LinearHead":
            return "the linear segmentation probe is this project's own"
        if cfg.MODEL.BACKBONE.TRAINABLE != "all":
            return "MODEL.BACKBONE.TRAINABLE is the torchvision engine's; set ENGINE torchvision"
        if segments and small:
            return "Detectron2's DeepLab needs a ResNet of bottlenecks, MODEL.RESNETS.DEPTH 50 or more"
        if synchronises_on_cpu(cfg):
            return "SyncBN over several processes needs GPUs; use BN, or one process"
        if runs_on_cpu(cfg.MODEL.DEVICE) and amp.ENABLED:
            return "Detectron2 refuses mixed precision on a CPU"
        if amp.ENABLED and amp.PRECISION != "float16":
            return "Detectron2's configuration knows float16 only; set SOLVER.AMP.PRECISION float16"
        return None

    def finetune(
        self, experiment: Experiment, seed: int, out_dir: Path, *, resume: bool = False, score: Score | None = None
    ) -> Finetuned:
        """Train by Detectron2's DefaultTrainer. Leaves ``model_final.pth`` and its own logs."""
        cfg, task, out_dir = experiment.cfg, experiment.task, Path(out_dir)
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
        d2_cfg = detectron2_config(cfg, seed=seed, out_dir=out_dir)
        with process_group(torch.device(d2_cfg.MODEL.DEVICE)):
            register_data(cfg, task, out_dir)
            if world_size() > 1:
                from detectron2.utils import comm

                comm.create_local_process_group(int(os.environ["LOCAL_WORLD_SIZE"]))
            evaluate = None
            if score is not None and cfg.TEST.EVAL_PERIOD > 0:

                def evaluate(model: nn.Module) -> float:
                    return score(_predict(d2_cfg, model, task.test[0], out_dir / "validation"))

            batches = functools.partial(training_loader, cfg, task, seed) if _on_samples(cfg) else None
            return train(d2_cfg, experiment.initial, final, resume, evaluate, batches)

    def predict(self, experiment: Experiment, out_dir: Path) -> list[Predictions]:
        """Predict. Leaves ``results_<dataset>.json``."""
        d2_cfg, model = _trained(experiment.cfg, experiment.initial, Path(out_dir))
        with process_group(torch.device(d2_cfg.MODEL.DEVICE)):
            return [_predict(d2_cfg, model, data, Path(out_dir)) for data in experiment.task.test]

    def predictor(self, cfg: CfgNode, detector: InitialWeights) -> "Detectron2Predictor":
        """A detector for images in memory."""
        return Detectron2Predictor(*_trained(cfg, detector, Path(cfg.OUTPUT_DIR)))


def _on_samples(cfg: CfgNode) -> bool:
    """Whether a training is on the torchvision engine's batches: with few labels or shots."""
    return changed(cfg, "SEMI") or cfg.FEW_SHOT.STAGE != "base"


def _trained(cfg: CfgNode, detector: InitialWeights, out_dir: Path) -> tuple[Any, nn.Module]:
    d2_cfg = detectron2_config(cfg, seed=cfg.SEED, out_dir=out_dir)
    model = build_model(d2_cfg)
    load_initial(model, detector)
    return d2_cfg, model


def _predict(d2_cfg: Any, model: nn.Module, data: Any, out_dir: Path) -> Predictions:
    """Detections (or label PNGs) of one data set, through Detectron2's data path at test."""
    path = results_path(out_dir, data.name)
    if task_name(d2_cfg) == "segmentation":
        path = path.with_suffix("")

        def write(given: dict[str, Any], found: dict[str, Any]) -> None:
            write_labels(found["sem_seg"].argmax(dim=0), label_file(path, given["image_id"]))

        seconds = _predict_each(d2_cfg, model, [image_dict(image) for image in images_of(data)], write)
        barrier()
        return Predictions(path, data.name, (), ENGINE, seconds)
    entries: list[dict[str, Any]] = []

    def keep(given: dict[str, Any], found: dict[str, Any]) -> None:
        entries.extend(result_entries(given["image_id"], as_detections(found["instances"]), data.category_ids))

    seconds = _predict_each(d2_cfg, model, dataset_dicts(data), keep)
    write_entries(entries, path)
    return Predictions(path, data.name, iou_types(d2_cfg.MODEL.MASK_ON), ENGINE, seconds)


def _predict_each(
    d2_cfg: Any, model: nn.Module, images: Sequence[dict[str, Any]], handle: Callable[[dict[str, Any], Any], None]
) -> float:
    """Predict one image at a time and hand on what is found in each; seconds per image. The processes split them."""
    mapper, mine = test_mapper(d2_cfg), images[rank() :: world_size()]
    model.eval()
    begun = time.monotonic()
    with torch.no_grad(), ProgressLine("predict", len(mine)) as progress:
        for image in mine:
            handle(image, model([mapper(image)])[0])
            progress.advance()
    return (time.monotonic() - begun) / max(len(mine), 1)


class Detectron2Predictor:
    """Images to what is found in them, by Detectron2's data path at test; see ``experiment.Predictor``."""

    def __init__(self, d2_cfg: Any, model: nn.Module) -> None:
        from detectron2.data import transforms as T

        self.model, self.format = model.eval(), d2_cfg.INPUT.FORMAT
        shortest = d2_cfg.INPUT.MIN_SIZE_TEST
        self.resizing = T.ResizeShortestEdge([shortest, shortest], d2_cfg.INPUT.MAX_SIZE_TEST)

    def __call__(self, images: Sequence[np.ndarray]) -> list[Detections] | list[np.ndarray]:
        with torch.no_grad():  # one at a time: Detectron2 would pad them to the largest
            found = [self.model([self._given(image)])[0] for image in images]
        if found and "sem_seg" in found[0]:
            return [one["sem_seg"].argmax(dim=0).cpu().numpy().astype(np.uint8) for one in found]
        return [as_detections(one["instances"]) for one in found]

    def _given(self, image: np.ndarray) -> dict[str, Any]:
        pixels = image[:, :, ::-1] if self.format == "BGR" else image
        resized = self.resizing.get_transform(pixels).apply_image(pixels)
        tensor = torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1)))
        return {"image": tensor, "height": image.shape[0], "width": image.shape[1]}
