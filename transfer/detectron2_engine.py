"""The only file that imports Detectron2, which is optional: its installation is described on its own pages.

Detectron2 is imported inside functions, so that asking whether it is there costs nothing. What its configuration cannot
express is registered once by ``_register``: small ResNets, FCOS, C4 heads with an extra norm.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from PIL import Image
from pycocotools import mask as coco_mask
from torch import Tensor, nn

from pretrain.console import ProgressLine, Stopped, StopSignal, say, stop_signals
from pretrain.distributed import any_rank, barrier, is_main, process_group, rank, world_size
from pretrain.errors import InputError
from pretrain.files import atomic_path, write_text
from transfer.annotations import DetectionData
from transfer.config import add_own_keys, synchronises_on_cpu
from transfer.datasets import get_dataset
from transfer.engine import Finetuned, Predictions, Score, results_path
from transfer.initial_weights import InitialWeights, match_backbone, match_detector, read_detector, read_initial
from transfer.label_folders import SemanticData, get_semantic_dataset, label_file, write_truth
from transfer.torchvision_engine.data import read_pictures
from transfer.torchvision_engine.masks import BitMasks
from transfer.torchvision_engine.predict import result_entries
from transfer.torchvision_engine.semantic_data import pictures_of
from transfer.torchvision_engine.structures import Detections, Sample

#: Blocks of the ResNets that Detectron2 does not build by itself.
_SMALL = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
#: Our backbone builder for each of Detectron2's names (and for FCOS, which has none there).
_PYRAMIDS = {
    "build_resnet_fpn_backbone": "",
    "build_retinanet_resnet_fpn_backbone": "res5",
    "build_fcos_resnet_fpn_backbone": "p5",
}


class Detectron2Engine:
    """Fine-tuning and prediction by Detectron2 itself."""

    name = "detectron2"

    def unsupported(self, cfg: CfgNode) -> str | None:
        """Why Detectron2 cannot run the config here, or None."""
        if importlib.util.find_spec("detectron2") is None:
            return "Detectron2 is not installed"
        if _is_semantic(cfg) and cfg.MODEL.RESNETS.DEPTH in _SMALL:
            return "Detectron2's DeepLab needs a ResNet of bottlenecks, MODEL.RESNETS.DEPTH 50 or more"
        if synchronises_on_cpu(cfg):
            return "SyncBN over several processes needs GPUs; use BN, or one process"
        if cfg.MODEL.DEVICE == "cpu" and cfg.SOLVER.AMP.ENABLED:
            return "Detectron2 refuses mixed precision on a CPU"
        if cfg.SOLVER.AMP.ENABLED and cfg.SOLVER.AMP.PRECISION != "float16":
            return "Detectron2's configuration knows float16 only; set SOLVER.AMP.PRECISION float16"
        return None

    def finetune(
        self, cfg: CfgNode, weights: str, seed: int, out_dir: Path, *, resume: bool = False, score: Score | None = None
    ) -> Finetuned:
        """Train by Detectron2's DefaultTrainer; see ``engine.Engine``. Leaves ``model_final.pth`` and its own logs."""
        out_dir = Path(out_dir)
        final = out_dir / "model_final.pth"
        if resume and final.is_file():
            say(f"{final} is finished already")
            return Finetuned(final)
        if not resume and (out_dir / "last_checkpoint").is_file():
            raise InputError(f"{out_dir} holds a training already; go on with --resume, or choose another OUTPUT_DIR")
        theirs = detectron2_config(cfg, seed=seed, out_dir=out_dir)
        initial = read_initial(weights)
        register_data(cfg, out_dir)
        with process_group(torch.device(theirs.MODEL.DEVICE)):
            if world_size() > 1:
                from detectron2.utils import comm

                comm.create_local_process_group(int(os.environ["LOCAL_WORLD_SIZE"]))
            evaluate = None
            if score is not None and cfg.TEST.EVAL_PERIOD > 0:
                folder, name = out_dir / "validation", cfg.DATASETS.TEST[0]

                def evaluate(model: nn.Module) -> float:
                    return score(_predict_one(cfg, theirs, model, name, folder))

            return _train(theirs, initial, final, resume, evaluate)

    def predict(self, cfg: CfgNode, weights: Path, out_dir: Path) -> list[Predictions]:
        """Predict; see ``engine.Engine``. Leaves ``results_<dataset>.json``."""
        theirs = detectron2_config(cfg, seed=cfg.SEED, out_dir=Path(out_dir))
        model = build_model(theirs)
        load_initial(model, InitialWeights(str(weights), detector=read_detector(weights)))
        return [_predict_one(cfg, theirs, model, name, Path(out_dir)) for name in cfg.DATASETS.TEST]


def _predict_one(cfg: CfgNode, theirs: Any, model: nn.Module, name: str, out_dir: Path) -> Predictions:
    """Detections (or label PNGs) of one data set."""
    path, engine = results_path(out_dir, name), Detectron2Engine.name
    if _is_semantic(cfg):
        labelled, folder = get_semantic_dataset(name, cfg.DATASETS.ROOT or None), path.with_suffix("")
        return Predictions(folder, name, ("mIoU",), engine, _predict_labels(theirs, model, labelled, folder))
    types = ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",)
    seconds = _predict(theirs, model, get_dataset(name, cfg.DATASETS.ROOT or None), path)
    return Predictions(path, name, types, engine, seconds)


def detectron2_config(cfg: CfgNode, seed: int, out_dir: Path) -> Any:
    """Detectron2's own configuration with our settings merged into it."""
    from detectron2.config import get_cfg

    theirs = add_own_keys(get_cfg())
    theirs.merge_from_other_cfg(cfg)
    theirs.OUTPUT_DIR, theirs.SEED = str(out_dir), seed
    theirs.MODEL.WEIGHTS = ""
    theirs.DATASETS.TRAIN = tuple(_name(name) for name in cfg.DATASETS.TRAIN)
    if theirs.MODEL.DEVICE == "cuda" and not torch.cuda.is_available():
        say("MODEL.DEVICE is cuda, but there is no CUDA device: running on the CPU")
        theirs.MODEL.DEVICE = "cpu"
    theirs.freeze()
    return theirs


def build_model(theirs: Any) -> nn.Module:
    """Detectron2's model of one of its configurations, on its device."""
    from detectron2.modeling import build_model as build

    _register()
    return build(theirs)


@functools.cache
def _register() -> None:
    """Tell Detectron2 what its configuration lacks; once per process."""
    from detectron2.modeling import BACKBONE_REGISTRY, META_ARCH_REGISTRY, ROI_HEADS_REGISTRY
    from detectron2.modeling.backbone import resnet
    from detectron2.modeling.roi_heads import Res5ROIHeads

    builders: dict[str, Any] = {name: functools.partial(_pyramid, source) for name, source in _PYRAMIDS.items()}
    builders["build_resnet_backbone"] = _resnet
    for name, builder in builders.items():
        # Detectron2's own builders stay what they are; these names replace them in the registry.
        BACKBONE_REGISTRY._obj_map.pop(name, None)
        BACKBONE_REGISTRY._do_register(name, builder)
    META_ARCH_REGISTRY._do_register("FCOS", _fcos)
    import detectron2.projects.deeplab  # noqa: F401, registers its backbone and head

    class PlainRes5ROIHeads(Res5ROIHeads):
        """C4 heads whose res5 may be of a small ResNet."""

        @classmethod
        def _build_res5_block(cls, cfg: Any) -> tuple[nn.Sequential, int]:
            depth = cfg.MODEL.RESNETS.DEPTH
            if depth not in _SMALL:
                return super()._build_res5_block(cfg)
            channels = cfg.MODEL.RESNETS.RES2_OUT_CHANNELS * 8
            blocks = resnet.ResNet.make_stage(
                resnet.BasicBlock, _SMALL[depth][3], stride_per_block=[2] + [1] * (_SMALL[depth][3] - 1),
                in_channels=channels // 2, out_channels=channels, norm=cfg.MODEL.RESNETS.NORM,
            )  # fmt: skip
            return nn.Sequential(*blocks), channels

    class ExtraNormRes5ROIHeads(PlainRes5ROIHeads):
        """C4 heads with a norm after res5, as MoCo introduced them."""

        @classmethod
        def _build_res5_block(cls, cfg: Any) -> tuple[nn.Sequential, int]:
            from detectron2.layers import get_norm

            res5, channels = super()._build_res5_block(cfg)
            res5.add_module("norm", get_norm(cfg.MODEL.RESNETS.NORM, channels))
            return res5, channels

    ROI_HEADS_REGISTRY._obj_map.pop("Res5ROIHeads")
    ROI_HEADS_REGISTRY._do_register("Res5ROIHeads", PlainRes5ROIHeads)
    ROI_HEADS_REGISTRY._do_register("Res5ROIHeadsExtraNorm", ExtraNormRes5ROIHeads)


def _resnet(cfg: Any, input_shape: Any) -> nn.Module:
    """A ResNet of any depth that we have; Detectron2 itself builds 50 and deeper."""
    from detectron2.modeling.backbone import resnet

    settings = cfg.MODEL.RESNETS
    if settings.DEPTH not in _SMALL:
        return resnet.build_resnet_backbone(cfg, input_shape)
    stem = resnet.BasicStem(input_shape.channels, settings.STEM_OUT_CHANNELS, norm=settings.NORM)
    stages, inputs, outputs = [], settings.STEM_OUT_CHANNELS, settings.RES2_OUT_CHANNELS
    for index, blocks in enumerate(_SMALL[settings.DEPTH]):
        strides = [1 if index == 0 else 2] + [1] * (blocks - 1)
        stages.append(
            resnet.ResNet.make_stage(
                resnet.BasicBlock, blocks, stride_per_block=strides, in_channels=inputs, out_channels=outputs,
                norm=settings.NORM,
            )
        )  # fmt: skip
        inputs, outputs = outputs, outputs * 2
    return resnet.ResNet(stem, stages, out_features=settings.OUT_FEATURES, freeze_at=cfg.MODEL.BACKBONE.FREEZE_AT)


def _pyramid(source: str, cfg: Any, input_shape: Any) -> nn.Module:
    """FPN on such a ResNet; ``source``: what P6 and P7 are convolved from, or "" for Mask R-CNN's pooled P6."""
    from detectron2.modeling.backbone import FPN
    from detectron2.modeling.backbone.fpn import LastLevelMaxPool, LastLevelP6P7

    bottom_up, settings = _resnet(cfg, input_shape), cfg.MODEL.FPN
    top: nn.Module = LastLevelMaxPool()
    if source:
        inputs = bottom_up.output_shape()["res5"].channels if source == "res5" else settings.OUT_CHANNELS  # type: ignore[operator]
        top = LastLevelP6P7(inputs, settings.OUT_CHANNELS, source)
    return FPN(bottom_up, settings.IN_FEATURES, settings.OUT_CHANNELS, norm=settings.NORM, top_block=top)


def _fcos(cfg: Any) -> nn.Module:
    """Detectron2's FCOS from MODEL.FCOS; Detectron2 itself reaches it from Python configs only."""
    from detectron2.modeling import build_backbone
    from detectron2.modeling.meta_arch.fcos import FCOS, FCOSHead

    settings, backbone = cfg.MODEL.FCOS, build_backbone(cfg)
    shapes = [backbone.output_shape()[name] for name in settings.IN_FEATURES]
    head = FCOSHead(
        input_shape=shapes,
        num_classes=settings.NUM_CLASSES,
        conv_dims=[shapes[0].channels] * settings.NUM_CONVS,
        norm=settings.NORM,
        prior_prob=settings.PRIOR_PROB,
    )
    return FCOS(
        backbone=backbone,
        head=head,
        head_in_features=settings.IN_FEATURES,
        num_classes=settings.NUM_CLASSES,
        center_sampling_radius=settings.CENTER_SAMPLING_RADIUS,
        focal_loss_alpha=settings.FOCAL_LOSS_ALPHA,
        focal_loss_gamma=settings.FOCAL_LOSS_GAMMA,
        test_score_thresh=settings.SCORE_THRESH_TEST,
        test_topk_candidates=settings.TOPK_CANDIDATES_TEST,
        test_nms_thresh=settings.NMS_THRESH_TEST,
        max_detections_per_image=cfg.TEST.DETECTIONS_PER_IMAGE,
        pixel_mean=cfg.MODEL.PIXEL_MEAN,
        pixel_std=cfg.MODEL.PIXEL_STD,
    ).to(cfg.MODEL.DEVICE)


def _is_semantic(cfg: CfgNode) -> bool:
    return cfg.MODEL.META_ARCHITECTURE == "SemanticSegmentor"


def register_data(cfg: CfgNode, out_dir: Path) -> None:
    """Make the config's training sets known to Detectron2, under the names that ``_name`` gives them.

    Label images are written to ``out_dir`` as Detectron2 wants them: classes as pixel values.
    """
    from detectron2.data import DatasetCatalog, MetadataCatalog

    for name in dict.fromkeys(cfg.DATASETS.TRAIN):
        if _is_semantic(cfg):
            labelled, folder = get_semantic_dataset(name, cfg.DATASETS.ROOT or None), out_dir / f"labels_{name}"
            if is_main():
                write_truth(labelled, folder)
            if _name(name) in DatasetCatalog:
                DatasetCatalog.remove(_name(name))
            DatasetCatalog.register(_name(name), functools.partial(_label_dicts, labelled, folder))
        elif _name(name) not in DatasetCatalog:
            data = get_dataset(name, cfg.DATASETS.ROOT or None)
            DatasetCatalog.register(_name(name), functools.partial(_dataset_dicts, data))
            MetadataCatalog.get(_name(name)).set(thing_classes=list(data.classes))


def _name(dataset: str) -> str:
    """Detectron2 has data sets of the same names with paths of its own."""
    return f"momentum-transfer/{dataset}"


def _dataset_dicts(data: DetectionData) -> list[dict[str, Any]]:
    from detectron2.structures import BoxMode

    found = []
    for picture in read_pictures(data).pictures:
        annotations = [
            {"bbox": list(a.box), "bbox_mode": BoxMode.XYXY_ABS, "category_id": a.category, "iscrowd": int(a.crowd)}
            | ({"segmentation": _compressed(a.segmentation)} if a.segmentation is not None else {})
            for a in picture.annotations
        ]
        size = {"height": picture.height, "width": picture.width}
        found.append({"file_name": str(picture.file), "image_id": picture.image_id, "annotations": annotations, **size})
    return found


def _label_dicts(data: SemanticData, folder: Path) -> list[dict[str, Any]]:
    return [
        {"file_name": str(picture.file), "image_id": picture.image_id, "height": picture.height,
         "width": picture.width, "sem_seg_file_name": str(label_file(folder, picture.image_id))}
        for picture in pictures_of(data)
    ]  # fmt: skip


def _compressed(segmentation: Any) -> Any:
    """Detectron2 reads polygons and compressed run lengths."""
    if isinstance(segmentation, dict) and isinstance(segmentation["counts"], list):
        return coco_mask.frPyObjects(segmentation, *segmentation["size"])
    return segmentation


Evaluate = Callable[[nn.Module], float]


def _train(theirs: Any, initial: InitialWeights, final: Path, resume: bool, evaluate: Evaluate | None) -> Finetuned:
    """Train by DefaultTrainer from ``initial``; stop at a signal with a checkpoint written.

    ``evaluate`` scores the model every TEST.EVAL_PERIOD iterations; the best one is kept as ``model_best.pth``.
    """
    from detectron2.engine import defaults, hooks
    from detectron2.utils.env import seed_all_rng

    _register()
    if theirs.MODEL.DEVICE == "cpu":  # on a CPU DDP takes no device ids, but Detectron2 always gives some
        defaults.create_ddp_model = functools.partial(_create_ddp_model(), device_ids=None)
    seed_all_rng(theirs.SEED + rank())
    with stop_signals() as stop:
        trainer = _trainer_class(evaluate)(theirs)
        loaded, new = load_initial(_plain(trainer.model), initial)
        trainer.resume_or_load(resume=resume)
        if evaluate is not None and is_main():
            period = theirs.TEST.EVAL_PERIOD
            trainer.register_hooks([hooks.BestCheckpointer(period, trainer.checkpointer, "score", "max", "model_best")])
        trainer.register_hooks([_stop_hook(stop, torch.device(theirs.MODEL.DEVICE))])
        begun, first = time.monotonic(), trainer.start_iter
        trainer.train()
    barrier()
    seconds = (time.monotonic() - begun) / max(theirs.SOLVER.MAX_ITER - first, 1)
    return Finetuned(final, tuple(loaded), tuple(new), seconds)


def _trainer_class(evaluate: Evaluate | None) -> Any:
    """DefaultTrainer that leaves scoring to this project and reads label images as DeepLab's own trainer does."""
    from detectron2.engine import DefaultTrainer
    from detectron2.projects.deeplab import build_lr_scheduler

    class Trainer(DefaultTrainer):
        @classmethod
        def test(cls, cfg: Any, model: nn.Module, evaluators: Any = None) -> dict[str, Any]:
            if evaluate is None:
                return {}
            value = evaluate(_plain(model))
            model.train()
            return {"score": value}

        @classmethod
        def build_train_loader(cls, cfg: Any) -> Any:
            return _semantic_loader(cfg) if _is_semantic(cfg) else super().build_train_loader(cfg)

        @classmethod
        def build_lr_scheduler(cls, cfg: Any, optimizer: torch.optim.Optimizer) -> Any:
            return build_lr_scheduler(cfg, optimizer)

    return Trainer


def _stop_hook(stop: StopSignal, device: torch.device) -> Any:
    """Leaves the loop after the step in which a signal came, with a checkpoint written."""
    from detectron2.engine import HookBase

    class StopHook(HookBase):
        def after_step(self) -> None:
            if any_rank(bool(stop), device):
                done = self.trainer.iter + 1
                if is_main():
                    self.trainer.checkpointer.save(f"model_{done - 1:07d}", iteration=done - 1)
                message = f"stopped after iteration {done}; go on with the same command and --resume"
                raise Stopped(message, stop.exit_code)

    return StopHook()


@functools.cache
def _create_ddp_model() -> Any:
    from detectron2.engine import defaults

    return defaults.create_ddp_model


def _plain(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _semantic_loader(cfg: Any) -> Any:
    """The data path of Detectron2's DeepLab project: resize, crop, flip."""
    from detectron2.data import DatasetMapper, build_detection_train_loader
    from detectron2.data import transforms as T

    i = cfg.INPUT
    steps: list[Any] = [T.ResizeShortestEdge(i.MIN_SIZE_TRAIN, i.MAX_SIZE_TRAIN, i.MIN_SIZE_TRAIN_SAMPLING)]
    if i.CROP.ENABLED:
        ignore = cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE
        steps.append(
            T.RandomCrop_CategoryAreaConstraint(i.CROP.TYPE, i.CROP.SIZE, i.CROP.SINGLE_CATEGORY_MAX_AREA, ignore)
        )
    if i.RANDOM_FLIP == "horizontal":
        steps.append(T.RandomFlip())
    return build_detection_train_loader(cfg, mapper=DatasetMapper(cfg, is_train=True, augmentations=steps))


def load_initial(model: nn.Module, initial: InitialWeights) -> tuple[list[str], list[str]]:
    """Give a fresh Detectron2 model its weights; names of what was loaded and of what stays new.

    Detectron2's own matching is left aside, because it takes what matches and only logs the rest.
    """
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    found: dict[str, Tensor] = {}
    new = list(shapes)
    if initial.detector:
        found, new = match_detector(shapes, initial.detector, initial.name), []
    elif initial.backbone:
        found, new = match_backbone(shapes, initial.backbone, initial.name)
    model.load_state_dict(found, strict=False)
    say(f"weights: {len(found)} tensors from {initial.name}; {len(new)} are new")
    return list(found), new


def _predict(theirs: Any, model: nn.Module, data: DetectionData, path: Path) -> float:
    """Write the detections of every image, one at a time, through Detectron2's test data path; seconds per image."""
    from detectron2.data import DatasetMapper

    mapper = DatasetMapper(theirs, is_train=False)
    model.eval()
    entries: list[dict[str, Any]] = []
    pictures = _dataset_dicts(data)
    begun = time.monotonic()
    with torch.no_grad(), ProgressLine("predict", len(pictures)) as progress:
        for picture in pictures:
            found = model([mapper(picture)])[0]["instances"]
            masks = found.pred_masks if found.has("pred_masks") else None
            detections = Detections(found.pred_boxes.tensor, found.scores, found.pred_classes, masks)
            entries += result_entries(picture["image_id"], detections, data.category_ids)
            progress.advance()
    write_text(path, json.dumps(entries))
    return (time.monotonic() - begun) / max(len(pictures), 1)


def _predict_labels(theirs: Any, model: nn.Module, data: SemanticData, folder: Path) -> float:
    """Write one label PNG an image to ``folder``; seconds per image."""
    from detectron2.data import DatasetMapper

    theirs = theirs.clone()
    theirs.defrost()
    theirs.INPUT.CROP.ENABLED = False  # Detectron2's mapper warns of it at test
    mapper = DatasetMapper(theirs, is_train=False)
    model.eval()
    pictures = pictures_of(data)
    begun = time.monotonic()
    with torch.no_grad(), ProgressLine("predict", len(pictures)) as progress:
        for picture in pictures:
            given = {"file_name": str(picture.file), "height": picture.height, "width": picture.width}
            labels = model([mapper(given)])[0]["sem_seg"].argmax(dim=0)
            with atomic_path(label_file(folder, picture.image_id)) as temporary:
                Image.fromarray(labels.cpu().numpy().astype("uint8")).save(temporary)
            progress.advance()
    return (time.monotonic() - begun) / max(len(pictures), 1)


def training_losses(model: nn.Module, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Losses of a Detectron2 model in training mode on the samples of the torchvision engine: for comparisons."""
    from detectron2.structures import BitMasks as TheirBitMasks
    from detectron2.structures import Boxes, Instances
    from detectron2.utils.events import EventStorage

    inputs: list[dict[str, Any]] = []
    for sample in samples:
        if sample.labels is not None:
            inputs.append({"image": sample.image, "sem_seg": sample.labels})
            continue
        if sample.target is None:
            raise ValueError("every sample needs a target")
        instances = Instances(tuple(sample.image.shape[1:]))
        instances.gt_boxes = Boxes(sample.target.boxes.clone())
        instances.gt_classes = sample.target.classes.clone()
        if isinstance(sample.target.masks, BitMasks):
            instances.gt_masks = TheirBitMasks(sample.target.masks.bitmaps)
        inputs.append({"image": sample.image, "instances": instances, "height": sample.height, "width": sample.width})
    with EventStorage():
        losses: dict[str, Tensor] = model(inputs)
    return losses
