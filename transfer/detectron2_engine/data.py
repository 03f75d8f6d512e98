"""Our settings and data sets in Detectron2's form, and its data paths for training and test."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from pycocotools import mask as coco_mask

from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.distributed import barrier, is_main
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.samplers import leave_signals_to_the_loop
from momentum_transfer.images.reading import read_rgb, stored_values
from momentum_transfer.transfer.config import add_own_keys, task_name
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.detection_datasets import short_name
from momentum_transfer.transfer.data.semantic_datasets import SemanticData, label_file, write_truth
from momentum_transfer.transfer.tasks.task import Task
from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage, annotated_images, with_objects
from momentum_transfer.transfer.torchvision_engine.semantic_run import images_of

#: What ENGINE says in a configuration that this project trains; else it is Detectron2's own trainer that follows it.
ENGINE = "detectron2"


def detectron2_config(cfg: CfgNode, seed: int, out_dir: Path) -> Any:
    """Detectron2's configuration with our settings merged into it."""
    from detectron2.config import get_cfg

    d2_cfg = add_own_keys(get_cfg())
    d2_cfg.merge_from_other_cfg(cfg)
    d2_cfg.ENGINE = ENGINE
    d2_cfg.OUTPUT_DIR, d2_cfg.SEED = str(out_dir), seed
    d2_cfg.MODEL.WEIGHTS = ""
    if cfg.SEMI.TEACHER and cfg.SEMI.RESULT == "teacher":
        d2_cfg.TEST.PRECISE_BN.ENABLED = False  # a teacher's statistics are its method's
    d2_cfg.DATASETS.TRAIN = tuple(data_name(short_name(name)) for name in cfg.DATASETS.TRAIN)
    d2_cfg.MODEL.DEVICE = str(choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE"))
    d2_cfg.freeze()
    return d2_cfg


def data_name(dataset: str) -> str:
    """A data set's name in Detectron2's catalogue, which has sets of the same names with paths of its own."""
    return f"momentum-transfer/{dataset}"


def register_data(cfg: CfgNode, task: Task[Any], out_dir: Path) -> None:
    """Make a task's training sets known to Detectron2, under the names that ``data_name`` gives them.

    Label images are written to ``out_dir`` in Detectron2's form: classes as pixel values. Call it within the process
    group: the other processes wait for the files of rank 0.
    """
    from detectron2.data import DatasetCatalog, MetadataCatalog

    segments = task.name == "segmentation"
    for data in {data.name: data for data in task.train}.values():
        name = data_name(data.name)
        if name in DatasetCatalog:  # an earlier run's, perhaps of files that have changed
            DatasetCatalog.remove(name)
            MetadataCatalog.pop(name, None)
        DatasetCatalog.register(name, _segmentation(data, out_dir) if segments else _detection(cfg, data))
        MetadataCatalog.get(name).set(**{"stuff_classes" if segments else "thing_classes": list(data.classes)})
    barrier()


def _detection(cfg: CfgNode, data: DetectionData) -> Callable[[], list[dict[str, Any]]]:
    if cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS and not with_objects(annotated_images(data)):
        raise InputError(f"no image with objects in {data.name}; nothing can be trained")
    return functools.partial(dataset_dicts, data)


def _segmentation(data: SemanticData, out_dir: Path) -> Callable[[], list[dict[str, Any]]]:
    folder = out_dir / f"labels_{data.name}"
    if is_main():
        write_truth(data, folder)
    return functools.partial(_label_dicts, data, folder)


def dataset_dicts(data: DetectionData) -> list[dict[str, Any]]:
    """A data set's images and objects in Detectron2's form."""
    from detectron2.structures import BoxMode

    found = []
    for image in annotated_images(data):
        annotations = [
            {"bbox": list(a.box), "bbox_mode": BoxMode.XYXY_ABS, "category_id": a.category, "iscrowd": int(a.crowd)}
            | ({"segmentation": _compressed(a.segmentation)} if a.segmentation is not None else {})
            for a in image.annotations
        ]
        found.append({**image_dict(image), "annotations": annotations})
    return found


def image_dict(image: AnnotatedImage) -> dict[str, Any]:
    """An image's file, id and size in Detectron2's form."""
    size = {"height": image.height, "width": image.width}
    return {"file_name": str(image.file), "image_id": image.image_id, **size}


def _label_dicts(data: SemanticData, folder: Path) -> list[dict[str, Any]]:
    labels = "sem_seg_file_name"
    return [{**image_dict(one), labels: str(label_file(folder, one.image_id))} for one in images_of(data)]


def _compressed(segmentation: Any) -> Any:
    """Detectron2 reads polygons and compressed run lengths."""
    if isinstance(segmentation, dict) and isinstance(segmentation["counts"], list):
        return coco_mask.frPyObjects(segmentation, *segmentation["size"])
    return segmentation


@contextlib.contextmanager
def _our_reader() -> Iterator[None]:
    """Images by the project's one reader: Detectron2's knows no 16 bits, no transparency, and names no file."""
    from detectron2.data import detection_utils

    original = detection_utils.read_image

    def read(file_name: str, format: str | None = None) -> Any:
        if format not in ("RGB", "BGR"):  # label images
            return stored_values(file_name)[:, :, None]
        pixels = np.asarray(read_rgb(file_name))
        return pixels[:, :, ::-1] if format == "BGR" else pixels

    detection_utils.read_image = read
    try:
        yield
    finally:
        detection_utils.read_image = original


class NamingMapper:
    """Detectron2's mapper, except that an unreadable image is named in an InputError.

    In a worker process it leaves signals to the loop; Detectron2's loader takes no function of ours for its workers.
    """

    def __init__(self, mapper: Any) -> None:
        self.mapper = mapper
        self.settled = False

    def __call__(self, image: dict[str, Any]) -> dict[str, Any] | None:
        from detectron2.data.detection_utils import SizeMismatchError

        if not self.settled and torch.utils.data.get_worker_info() is not None:
            leave_signals_to_the_loop()
        self.settled = True
        try:
            with _our_reader():
                return self.mapper(image)
        except (OSError, SizeMismatchError) as error:
            raise InputError(f"cannot read the image {image['file_name']}: {error}; repair or remove it") from error


def training_loader(d2_cfg: Any) -> Any:
    """Endless batches: Detectron2's own path, or that of its DeepLab project (resize, crop, flip)."""
    from detectron2.data import DatasetMapper, build_detection_train_loader

    options = {"augmentations": _crops(d2_cfg)} if task_name(d2_cfg) == "segmentation" else {}
    mapper = NamingMapper(DatasetMapper(d2_cfg, is_train=True, **options))
    return build_detection_train_loader(d2_cfg, mapper=mapper)


def _crops(d2_cfg: Any) -> list[Any]:
    from detectron2.data import transforms as T

    i = d2_cfg.INPUT
    steps: list[Any] = [T.ResizeShortestEdge(i.MIN_SIZE_TRAIN, i.MAX_SIZE_TRAIN, i.MIN_SIZE_TRAIN_SAMPLING)]
    if i.CROP.ENABLED:
        ignore = d2_cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE
        steps.append(
            T.RandomCrop_CategoryAreaConstraint(i.CROP.TYPE, i.CROP.SIZE, i.CROP.SINGLE_CATEGORY_MAX_AREA, ignore)
        )
    if i.RANDOM_FLIP == "horizontal":
        steps.append(T.RandomFlip())
    return steps


def test_mapper(d2_cfg: Any) -> NamingMapper:
    """Detectron2's data path at test."""
    from detectron2.data import DatasetMapper

    d2_cfg = d2_cfg.clone()
    d2_cfg.defrost()
    d2_cfg.INPUT.CROP.ENABLED = False  # Detectron2's mapper warns of it at test
    return NamingMapper(DatasetMapper(d2_cfg, is_train=False))
