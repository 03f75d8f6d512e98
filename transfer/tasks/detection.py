"""Detection and instance segmentation: COCO-form data sets, scored by their own rules (COCO, LVIS or VOC)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.core.distributed import is_main
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say, track, warn
from momentum_transfer.images.reading import UnreadableImage, verified_size
from momentum_transfer.transfer.data.annotations import DetectionData, file_stem
from momentum_transfer.transfer.data.check_annotations import NAMED, check
from momentum_transfer.transfer.data.overview import write_overview
from momentum_transfer.transfer.error_analysis.analysis import analyse
from momentum_transfer.transfer.predictions import IouType, Predictions
from momentum_transfer.transfer.scores import coco, lvis, voc
from momentum_transfer.transfer.tasks.task import Task, check_count
from momentum_transfer.transfer.visuals import draw_detections
from momentum_transfer.verdicts.outcomes import Outcomes


class Detection(Task[DetectionData]):
    """Boxes, and masks where the network has them.

    Args:
        detections: how many an image may have, as LVIS scores them (TEST.DETECTIONS_PER_IMAGE).
    """

    name = "detection"

    def __init__(self, train: Sequence[DetectionData], test: Sequence[DetectionData], *, detections: int = 100) -> None:
        super().__init__(train, test)
        self.detections = detections

    def size(self, name: str) -> dict[str, int]:
        """See ``Task.size``; also the ``objects``."""
        data = self.tested(name)
        content = data.load()
        counts = {"images": len(content["images"]), "classes": len(data.classes)}
        return {**counts, "objects": len(content["annotations"])}

    def images(self, data: DetectionData) -> list[str]:
        """See ``Task.images``."""
        return [str(data.image_path(image)) for image in data.load()["images"]]

    def check(
        self, cfg: CfgNode, *, open_images: bool = False, overview: bool = True, forbid_overlap: bool = False
    ) -> None:
        """See ``Task.check``."""
        sets, scored = self.sets(), {data.name for data in self.test}
        for data in self.test:
            if not data.load()["annotations"]:
                raise InputError(
                    f"expected annotations to score against in {data.annotation_file}, found images only; to find "
                    "objects in new images use tools/predict.py --detector RUN IMAGES --out DIR"
                )
        for data in sets:
            check_count(cfg, data)
            for problem in check(data, masks=cfg.MODEL.MASK_ON, scored=data.name in scored):
                warn(f"{data.name}: {problem}")
            if data.name in scored:
                self._check_scorable(data, ("bbox", "segm") if cfg.MODEL.MASK_ON else ("bbox",))
            if open_images:
                _open_images(data)
            images = counted(len(data.load()["images"]), "image")
            say(f"{data.name}: {images}, {counted(len(data.classes), 'class')}, checked")
        _check_same_classes(sets)
        self.check_overlap(forbid=forbid_overlap)
        for data in sets if overview and is_main() and cfg.TEST.VISUALS else ():  # last: what is refused writes nothing
            for path in write_overview(data, Path(cfg.OUTPUT_DIR) / "data", examples=cfg.TEST.VISUALS):
                say(f"overview: {path}")

    def _check_scorable(self, data: DetectionData, iou_types: Sequence[IouType]) -> None:
        """Score no detections at all: what scoring would refuse after the training, it refuses before it."""
        truth = str(data.annotation_file)
        for iou_type in iou_types:
            if data.kind == "lvis":
                lvis.evaluate(truth, [], iou_type, self.detections)
            elif data.kind == "voc":
                voc.evaluate(truth, [])
            else:
                coco.evaluate(truth, [], iou_type)

    def scores(self, predictions: Predictions) -> Iterator[tuple[str, dict[str, float], Outcomes]]:
        """See ``Task.scores``."""
        data = self.tested(predictions.dataset)
        for iou_type in predictions.iou_types:
            scores = self._evaluate(data, predictions, iou_type)
            yield f"{data.kind}/{iou_type}", scores.metrics, scores.items

    def analyses(self, predictions: Predictions) -> Iterator[tuple[str, dict[str, Any]]]:
        """See ``Task.analyses``; each class has its AP beside what IoU 0.5 tells."""
        data = self.tested(predictions.dataset)
        for iou_type in predictions.iou_types:
            per_class = self._evaluate(data, predictions, iou_type).per_class
            found = analyse(data.kind, data.annotation_file, predictions.results, iou_type, self.detections, per_class)
            yield f"{file_stem(data.name)}_{iou_type}", found

    def _evaluate(
        self, data: DetectionData, predictions: Predictions, iou_type: IouType
    ) -> coco.CocoScores | lvis.LvisScores | voc.VocScores:
        """By the rules of the data set. A mask's size is its pixels, though the file holds boxes too: Detectron2's
        definition of APs, APm and APl."""
        truth, found = str(data.annotation_file), str(predictions.results)
        if data.kind == "lvis":
            return lvis.evaluate(truth, found, iou_type, self.detections, area_from="mask")
        if data.kind == "voc":
            return voc.evaluate(truth, found, interpolation="area" if "2012" in data.name else "11-point")
        return coco.evaluate(truth, found, iou_type, area_from="mask")

    def draw(self, predictions: Predictions, folder: Path, count: int) -> list[Path]:
        """See ``Task.draw``."""
        return draw_detections(self.tested(predictions.dataset), predictions.results, folder, count)


def _check_same_classes(sets: Sequence[DetectionData]) -> None:
    """Class k is the same thing in every set; otherwise a score would compare cats with dogs."""
    first = sets[0]
    for data in sets[1:]:
        if data.classes != first.classes:
            pairs = enumerate(zip(first.classes, data.classes, strict=True))
            place = next(k for k, pair in pairs if pair[0] != pair[1])
            raise InputError(
                f"expected the classes of {first.name} in {data.name} too, found {data.classes[place]!r} in the place "
                f"of {first.classes[place]!r}; give both the same categories"
            )


def _open_images(data: DetectionData) -> None:
    """InputError with the first images that cannot be opened or have another size than the annotations say."""
    bad = []
    for image in track(data.load()["images"], f"{data.name}: images"):
        path = data.image_path(image)
        try:
            width, height = verified_size(path)
        except UnreadableImage as error:
            bad.append(str(error))
            continue
        # An image may be stored turned, with an EXIF note; both orders are one size here.
        if sorted((width, height)) != sorted((image["width"], image["height"])):
            bad.append(f"{path} is {width}×{height}, not {image['width']}×{image['height']}")
    if bad:
        more = ", …" if len(bad) > NAMED else ""
        raise InputError(f"{counted(len(bad), 'unusable image')} of {data.name}: {'; '.join(bad[:NAMED])}{more}")
