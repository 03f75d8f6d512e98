"""Predictions: a file of detections, or a folder of label PNGs, as engines write it and tasks score it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from momentum_transfer.transfer.data.annotations import file_stem

#: What an overlap is measured of: boxes or masks.
IouType = Literal["bbox", "segm"]


def iou_types(masks: bool) -> tuple[IouType, ...]:
    """What of a detector's predictions can be scored: boxes, and masks where it has them."""
    return ("bbox", "segm") if masks else ("bbox",)


@dataclass(frozen=True)
class Predictions:
    """Detections of a data set, as a file.

    results: a COCO result JSON (image_id, category_id, bbox, score, segmentation as RLE), or a folder of label PNGs
    for semantic segmentation.
    """

    results: Path
    dataset: str  # its name
    iou_types: tuple[IouType, ...]  # what can be scored of boxes; none of label PNGs
    engine: str  # which one predicted
    seconds_per_image: float = float("nan")


#: A number from predictions, higher is better: what "best" means. Given from outside, because engines do not score.
Score = Callable[[Predictions], float]


def results_path(out_dir: str | Path, dataset: str) -> Path:
    """Where an engine writes a data set's detections."""
    return Path(out_dir) / f"results_{file_stem(dataset)}.json"
