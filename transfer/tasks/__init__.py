"""The task of a config, with its data sets opened."""

from collections import Counter
from pathlib import Path

from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.config import task_name
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.data.few_shot import FewShot
from momentum_transfer.transfer.data.semantic_datasets import get_semantic_dataset
from momentum_transfer.transfer.tasks.detection import Detection
from momentum_transfer.transfer.tasks.segmentation import Segmentation
from momentum_transfer.transfer.tasks.task import Task

__all__ = ["Detection", "Segmentation", "Task", "open_task"]


def open_task(cfg: CfgNode, *, training: bool = True) -> Task:
    """Open the data sets that a config names, each once, and make the task that its network is for.

    Without ``training`` the training sets need not be on disk. InputError for an unknown name or a missing file.
    """
    names = {"TRAIN": list(cfg.DATASETS.TRAIN) if training else [], "TEST": list(cfg.DATASETS.TEST)}
    for split in ("TRAIN", "TEST") if training else ("TEST",):
        if not names[split]:
            raise InputError(f"expected DATASETS.{split} to name at least one data set, found none; name one")
    root = cfg.DATASETS.ROOT or None
    every = dict.fromkeys([*names["TRAIN"], *names["TEST"]])
    if task_name(cfg) == "segmentation":
        labelled = {name: get_semantic_dataset(name, root) for name in every}
        if twice := [name for name, count in Counter(data.name for data in labelled.values()).items() if count > 1]:
            raise InputError(f"expected data sets of different names, found {twice[0]} for two; name them: "
                             "NAME=IMAGES_DIR:LABELS_DIR:CLASSES")  # fmt: skip
        train, test = ([labelled[name] for name in names[split]] for split in ("TRAIN", "TEST"))
        return Segmentation(train, test, ignore=cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE)
    opened = {name: get_dataset(name, root) for name in every}
    _check_names(list(opened.values()))
    sets = ([opened[name] for name in names[split]] for split in ("TRAIN", "TEST"))
    return Detection(*sets, detections=cfg.TEST.DETECTIONS_PER_IMAGE, few_shot=FewShot.of(cfg))


def _check_names(sets: list[DetectionData]) -> None:
    """InputError if two files would go by one name in tables and results."""
    files: dict[str, Path] = {}
    for data in sets:
        if files.setdefault(data.name, data.annotation_file) != data.annotation_file:
            raise InputError(
                f"expected data sets of different names, found {data.name} for {files[data.name]} and "
                f"{data.annotation_file}; name them: NAME=IMAGES_DIR:FILE.json"
            )
