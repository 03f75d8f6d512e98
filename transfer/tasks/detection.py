"""Detection and instance segmentation: COCO-form data sets, scored by their own rules (COCO, LVIS or VOC)."""

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.core.distributed import is_main
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say, track, warn
from momentum_transfer.images.reading import UnreadableImage, upright_size, verified_size
from momentum_transfer.transfer.config import changed
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.check_annotations import NAMED, check
from momentum_transfer.transfer.data.few_shot import FewShot, Pool, draw_of
from momentum_transfer.transfer.predictions import IouType, Predictions, iou_types
from momentum_transfer.transfer.scores import coco, coco_files, lvis, voc
from momentum_transfer.transfer.scores.coco_files import Detections, GroundTruth, load_detections, load_ground_truth
from momentum_transfer.transfer.tasks.task import Evaluation, Task, check_count

#: Image sizes of a training set are checked before the training if it has at most this many images.
FEW_IMAGES = 5000


class Detection(Task[DetectionData]):
    """Boxes, and masks where the network has them; LVIS scores at most ``detections`` of an image.

    With ``few_shot`` the sets have the classes of its stage alone, and base and novel classes have scores of their own.
    """

    name = "detection"

    def __init__(
        self, train: Sequence[DetectionData], test: Sequence[DetectionData], *, detections: int = 100,
        few_shot: FewShot | None = None
    ) -> None:  # fmt: skip
        if few_shot is not None:
            train, test = ([few_shot.of_stage(data) for data in sets] for sets in (train, test))
        super().__init__(train, test)
        self.detections, self.few_shot = detections, few_shot
        self._truths: dict[tuple[str, IouType], GroundTruth] = {}

    @cached_property
    def _pool(self) -> Pool:
        return Pool(self.train)

    def with_shots(self, draw: int | None) -> "Detection":
        """See ``Task.with_shots``."""
        if draw is None or self.few_shot is None or not self.train:
            return self
        drawn = copy.copy(self)
        drawn.train = tuple(self.few_shot.drawn(self._pool, draw))
        return drawn

    def size(self, name: str) -> dict[str, int]:
        """See ``Task.size``; also the ``objects``."""
        data = self.tested(name)
        content = data.load()
        counts = {"images": len(content["images"]), "classes": len(data.classes)}
        return {**counts, "objects": len(content["annotations"])}

    def images(self, data: DetectionData) -> list[str]:
        """See ``Task.images``."""
        return [str(data.image_path(image)) for image in sorted(data.load()["images"], key=lambda image: image["id"])]

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
                for iou_type in iou_types(cfg.MODEL.MASK_ON):  # what would be refused after the training is refused now
                    self._score(data, self._truth(data, iou_type), [], iou_type)
        _check_same_classes(sets)
        for trial in range(cfg.TRIALS):  # fewer than K objects, and wrong seed files, before the first training
            drawn = self.with_shots(draw_of(cfg, trial))
            for data in drawn.train if drawn is not self and cfg.FEW_SHOT.SEED_FILES else ():
                check(data, masks=cfg.MODEL.MASK_ON)
        for data in sets:
            count = len(data.load()["images"])
            few = data.name in scored or count <= FEW_IMAGES
            if open_images or (few and is_main()):  # a wrong size in a test set would else show after the training
                _check_images(data, whole=open_images)
            say(f"{data.name}: {counted(count, 'image')}, {counted(len(data.classes), 'class')}, checked")
        self.check_overlap(forbid=forbid_overlap)
        if self.train and changed(cfg, "SEMI"):
            from momentum_transfer.transfer.torchvision_engine.unlabelled import check_labels

            check_labels(cfg, self.train, self.test)
        for data in sets if overview and is_main() and cfg.TEST.VISUALS else ():  # last: what is refused writes nothing
            from momentum_transfer.transfer.data.overview import write_overview

            for path in write_overview(data, Path(cfg.OUTPUT_DIR) / "data", examples=cfg.TEST.VISUALS):
                say(f"overview: {path}")

    def _truth(self, data: DetectionData, iou_type: IouType) -> GroundTruth:
        key = data.name, iou_type
        if key not in self._truths:
            truth = load_ground_truth(data.annotation_file, iou_type, area=data.kind != "voc")
            if len(data.category_ids) < len(truth.categories):
                truth, _ = coco_files.of_classes(truth, load_detections([], truth, iou_type), data.category_ids)
            self._truths[key] = truth
        return self._truths[key]

    def _score(
        self, data: DetectionData, truth: GroundTruth, detections: Detections | list[Any], iou_type: IouType
    ) -> coco.CocoScores | lvis.LvisScores | voc.VocScores:
        """By the rules of the data set."""
        if data.kind == "lvis":
            return lvis.evaluate(truth, detections, iou_type, self.detections)
        if data.kind == "voc":
            return voc.evaluate(truth, detections, interpolation="area" if "2012" in data.name else "11-point")
        return coco.evaluate(truth, detections, iou_type)

    def evaluate(self, predictions: Predictions) -> Iterator[Evaluation]:
        """See ``Task.evaluate``. A mask's size is its pixels, though the file holds boxes too: Detectron2's definition
        of APs, APm and APl."""
        from momentum_transfer.transfer.error_analysis.analysis import analyse

        data = self.tested(predictions.dataset)
        for iou_type in predictions.iou_types:
            truth = self._truth(data, iou_type)
            found = load_detections(predictions.results, truth, iou_type, "mask" if iou_type == "segm" else "file")
            scores = self._score(data, truth, found, iou_type)
            errors = partial(analyse, data.kind, truth, found, iou_type, self.detections, scores.per_class)
            stage = f"/{self.few_shot.stage}" if self.few_shot and self.few_shot.stage != "all" else ""
            name = f"{data.kind}/{iou_type}{stage}"
            yield Evaluation(name, scores.metrics, scores.items, scores.per_class, errors)
            for part, names in self.few_shot.parts(data.classes).items() if self.few_shot and not stage else ():
                ids = {k for k, one in zip(data.category_ids, data.classes, strict=True) if one in names}
                scores = self._score(data, *coco_files.of_classes(truth, found, ids), iou_type)
                yield Evaluation(f"{name}/{part}", scores.metrics, scores.items, scores.per_class)

    def draw(self, predictions: Predictions, folder: Path, count: int) -> list[Path]:
        """See ``Task.draw``."""
        from momentum_transfer.transfer.visuals import draw_detections

        return draw_detections(self.tested(predictions.dataset), predictions.results, folder, count)


def _check_same_classes(sets: Sequence[DetectionData]) -> None:
    """Class k is the same thing in every set; otherwise a score would compare cats with dogs."""
    first = sets[0]
    for data in sets[1:]:
        if data.classes != first.classes:
            pairs = enumerate(zip(first.classes, data.classes, strict=True))
            place = next(k for k, pair in pairs if pair[0] != pair[1])
            raise InputError(
                f"expected the classes of {first.name} in {data.name} too, found {data.classes[place]!r} instead "
                f"of {first.classes[place]!r}; give both the same categories"
            )


def _check_images(data: DetectionData, whole: bool) -> None:
    """InputError naming the first images that cannot be opened or differ in size from their annotations.

    Without ``whole`` only headers are read.
    """
    bad = []
    for image in track(data.load()["images"], f"{data.name}: images"):
        path = data.image_path(image)
        try:
            if whole:
                verified_size(path)
            width, height = upright_size(path)
        except UnreadableImage as error:
            bad.append(str(error))
            continue
        if (width, height) != (image["width"], image["height"]):
            bad.append(f"{path} is {width}×{height}, not {image['width']}×{image['height']}")
    if bad:
        more = ", …" if len(bad) > NAMED else ""
        raise InputError(f"{counted(len(bad), 'unusable image')} of {data.name}: {'; '.join(bad[:NAMED])}{more}")
