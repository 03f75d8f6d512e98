"""Semantic segmentation: images with a class per pixel, scored by mIoU."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from fvcore.common.config import CfgNode
from numpy.typing import NDArray

from momentum_transfer.core.distributed import is_main
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say, warn
from momentum_transfer.transfer.data.semantic_datasets import IGNORE, SemanticData, write_truth
from momentum_transfer.transfer.predictions import Predictions
from momentum_transfer.transfer.scores import semantic
from momentum_transfer.transfer.tasks.task import Evaluation, Task, check_count

if TYPE_CHECKING:
    from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage


class Segmentation(Task[SemanticData]):
    """A class per pixel; pixels with the label ``ignore`` do not count."""

    name = "segmentation"

    def __init__(self, train: Sequence[SemanticData], test: Sequence[SemanticData], *, ignore: int = 255) -> None:
        super().__init__(train, test)
        self.ignore = ignore

    def size(self, name: str) -> dict[str, int]:
        """See ``Task.size``."""
        data = self.tested(name)
        return {"images": len(data.pairs), "classes": len(data.classes)}

    def images(self, data: SemanticData) -> list[str]:
        """See ``Task.images``."""
        return [str(image) for image, _ in data.pairs]

    def check(
        self, cfg: CfgNode, *, open_images: bool = False, overview: bool = True, forbid_overlap: bool = False
    ) -> None:
        """See ``Task.check``; label files are all read, images are opened for their size in any case."""
        counts = []
        for data in self.sets():
            check_count(cfg, data)
            pixels = self._read_labels(cfg, data)
            counts.append(pixels[:, : len(data.classes)])
            if not counts[-1].any():
                raise InputError(f"every pixel of {data.name} is labelled to be ignored; nothing is left to learn")
            labelled = np.flatnonzero(counts[-1].any(axis=0))
            if len(labelled) < 2:  # test images may well show one class
                beside = f" beside those that are ignored ({IGNORE})" if pixels[:, IGNORE].any() else ""
                found = f"found only label {labelled[0]}{beside}"
                message = f"expected pixels of two classes or more in {data.name}, {found}"
                if self._roles(data)[0]:
                    raise InputError(f"{message}; label the others, a foreground as 1")
                warn(message)
            say(f"{data.name}: {counted(len(data.pairs), 'image')}, {counted(len(data.classes), 'class')}, checked")
        self.check_overlap(forbid=forbid_overlap)
        if overview and is_main() and cfg.TEST.VISUALS:  # last: what is refused writes nothing
            from momentum_transfer.transfer.data.overview import write_label_overview

            for data, pixels in zip(self.sets(), counts, strict=True):
                for path in write_label_overview(data, pixels, Path(cfg.OUTPUT_DIR) / "data", cfg.TEST.VISUALS):
                    say(f"overview: {path}")

    def holds_crops(self, cfg: CfgNode) -> bool:
        """Whether images have room for the config's training crops, and test images for whole ones; see `check`."""
        from momentum_transfer.transfer.torchvision_engine.semantic_run import images_of

        if not cfg.INPUT.CROP.ENABLED:
            return True
        try:
            for data, trained, tested in ((data, *self._roles(data)) for data in self.sets()):
                for image in images_of(data):
                    _check_crop(cfg, image, trained, tested)
        except InputError:
            return False
        return True

    def _roles(self, data: SemanticData) -> tuple[bool, bool]:
        """Whether a set trains, and whether it tests."""
        trained, tested = (any(other.name == data.name for other in sets) for sets in (self.train, self.test))
        return trained, tested

    def _read_labels(self, cfg: CfgNode, data: SemanticData) -> NDArray[np.int64]:
        """Pixels of each value in each image, [images, 256]; InputError names a bad label file."""
        from momentum_transfer.transfer.torchvision_engine.semantic_run import images_of

        counts = np.zeros((len(data.pairs), 256), dtype=np.int64)
        trained, tested = self._roles(data)
        for index, image in enumerate(images_of(data)):
            labels = data.labels(index)
            if labels.shape != (image.height, image.width):
                raise InputError(
                    f"expected labels of {image.width}×{image.height} pixels as {image.file} has, found "
                    f"{labels.shape[1]}×{labels.shape[0]} in {data.pairs[index][1]}"
                )
            counts[index] = np.bincount(labels.ravel(), minlength=256)
            if cfg.INPUT.CROP.ENABLED:
                _check_crop(cfg, image, trained, tested)
        return counts

    def evaluate(self, predictions: Predictions) -> Iterator[Evaluation]:
        """See ``Task.evaluate``."""
        data = self.tested(predictions.dataset)
        truth = predictions.results.with_name(predictions.results.name.replace("results_", "truth_", 1))
        write_truth(data, truth)
        found = semantic.evaluate(truth, predictions.results, data.classes, self.ignore)
        yield Evaluation("semantic", found.metrics, found.items, found.per_class)

    def draw(self, predictions: Predictions, folder: Path, count: int) -> list[Path]:
        """See ``Task.draw``."""
        from momentum_transfer.transfer.data.overview import draw_label_predictions

        return draw_label_predictions(self.tested(predictions.dataset), predictions.results, folder, count)


def _check_crop(cfg: CfgNode, image: "AnnotatedImage", trained: bool, tested: bool) -> None:
    """DeepLab pools over windows of a crop's size: crops must fit into images, and test images hold whole ones."""
    from momentum_transfer.transfer.torchvision_engine.data import output_size

    i, stride = cfg.INPUT, cfg.MODEL.SEM_SEG_HEAD.COMMON_STRIDE
    if trained:
        size = output_size(image.height, image.width, min(i.MIN_SIZE_TRAIN), i.MAX_SIZE_TRAIN)
        if any(side < crop for side, crop in zip(size, i.CROP.SIZE, strict=True)):
            raise InputError(
                f"INPUT.CROP.SIZE {list(i.CROP.SIZE)} does not fit into {image.file} resized to {list(size)}; raise "
                "INPUT.MIN_SIZE_TRAIN, or lower the crop"
            )
    if tested and cfg.MODEL.SEM_SEG_HEAD.NAME == "DeepLabV3Head":
        size = output_size(image.height, image.width, i.MIN_SIZE_TEST, i.MAX_SIZE_TEST)
        if any(-(-side // stride) % (crop // stride) for side, crop in zip(size, i.CROP.SIZE, strict=True)):
            raise InputError(
                f"{image.file} resized to {list(size)} is no multiple of INPUT.CROP.SIZE {list(i.CROP.SIZE)}, over "
                "which DeepLab pools; choose INPUT.MIN_SIZE_TEST so, or set INPUT.CROP.ENABLED False"
            )
