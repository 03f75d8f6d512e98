"""Task: what a network is trained and scored for, with its opened data sets."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.core.distributed import is_main
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.images.content import report_overlap, shared_files
from momentum_transfer.images.groups import image_groups
from momentum_transfer.transfer.config import num_classes
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.semantic_datasets import SemanticData
from momentum_transfer.transfer.predictions import Predictions
from momentum_transfer.verdicts.outcomes import Outcomes

Data = TypeVar("Data", bound=DetectionData | SemanticData)


@dataclass(frozen=True)
class Evaluation:
    """What predictions of one kind (boxes, masks, label maps) are worth.

    Attributes:
        task: what records call it, ``coco/bbox``.
        metrics: in percent. outcomes: of every image. per_class: class name → AP (or IoU) in percent.
        errors: the error analysis of the inputs that were parsed for the scores; None of label maps.
    """

    task: str
    metrics: Mapping[str, float]
    outcomes: Outcomes
    per_class: Mapping[str, float]
    errors: Callable[[], dict[str, Any]] | None = None


class Task(ABC, Generic[Data]):
    """A task: its data, checked, scored and drawn.

    Attributes:
        name: "detection" or "segmentation"; engines choose their parts by it.
        train, test: opened data sets; ``train`` is empty where nothing is to be trained.
        groups: test set -> [images] the groups of its images, None without, once ``check`` has read them.
        overlap: test set -> its images that also train, once ``check`` has counted them.
    """

    name: ClassVar[str]

    def __init__(self, train: Sequence[Data], test: Sequence[Data]) -> None:
        self.train: tuple[Data, ...] = tuple(train)
        self.test: tuple[Data, ...] = tuple(test)
        self.groups: dict[str, np.ndarray | None] = {}
        self.overlap: dict[str, int] = {}

    def sets(self) -> list[Data]:
        """Every data set once."""
        return list({data.name: data for data in (*self.train, *self.test)}.values())

    def tested(self, name: str) -> Data:
        """The test set of that name."""
        return next(data for data in self.test if data.name == name)

    def with_shots(self, draw: int | None) -> "Task[Data]":
        """The task with the training objects of one draw of a few-shot protocol; itself where there is none."""
        return self

    @abstractmethod
    def size(self, name: str) -> dict[str, int]:
        """Numbers of ``images`` and ``classes`` of the test set of that name, for records."""

    @abstractmethod
    def images(self, data: Data) -> list[str]:
        """Image files of a data set, in the order of the outcomes of its images."""

    def check_overlap(self, *, forbid: bool = False) -> None:
        """Count and report the test images that are byte for byte training images; InputError with ``forbid``.

        Groups of the test images are read here, before a training: ``image_groups``.
        """
        train = [file for data in self.train for file in self.images(data)]
        self.groups = {data.name: image_groups(self.images(data)) for data in self.test}
        for data in self.test if train and is_main() else ():
            found = shared_files(train, self.images(data))
            self.overlap[data.name] = report_overlap(found, where=data.name, forbid=forbid)

    @abstractmethod
    def check(
        self, cfg: CfgNode, *, open_images: bool = False, overview: bool = True, forbid_overlap: bool = False
    ) -> None:
        """Check every data set: warn of what a training can bear, InputError for the rest.

        Args:
            open_images: also open every image and compare its size with the annotations'; takes some milliseconds an
                image, so that training compares the sizes in headers, and those of a large training set not at all.
            overview: class counts and example images go to OUTPUT_DIR/data; without it nothing is written.
            forbid_overlap: see ``check_overlap``.
        """

    @abstractmethod
    def evaluate(self, predictions: Predictions) -> Iterator[Evaluation]:
        """Score predictions, one kind after another. Ground truth is parsed once, each kind's predictions once."""

    @abstractmethod
    def draw(self, predictions: Predictions, folder: Path, count: int) -> list[Path]:
        """Draw predictions on images of their data set; returns the files written."""


def check_count(cfg: CfgNode, data: DetectionData | SemanticData) -> None:
    """InputError if a network has another number of classes than its data."""
    key, count = num_classes(cfg)
    if count != len(data.classes):
        found = len(data.classes)
        raise InputError(f"{key} is {count}, but {data.name} has {counted(found, 'class')}; set {key} {found}")
