"""LVIS AP (v0.5 and v1) with its federated rules: every entry of lvis-api's precision and recall, bit for bit.

What differs from COCO (Gupta et al., "LVIS", arXiv:1908.03195, section 3; lvis-api's ``LVISEval``):

- 300 detections per image over all classes, not 100 per image and class;
- a detection counts only if its category is annotated in the image or listed as absent from it (``neg_category_ids``);
- it is no false positive if the category is not exhaustively annotated there (``not_exhaustive_category_ids``);
- no crowds; objects and detections whose area is 0, negative or infinite are left out;
- AP also for rare, common and frequent categories.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores.coco import Results, Source, per_class
from momentum_transfer.transfer.scores.coco_files import (
    AreaFrom,
    Detections,
    GroundTruth,
    IouType,
    load_detections,
    load_ground_truth,
)
from momentum_transfer.transfer.scores.greedy_matching import AREAS, THRESHOLDS
from momentum_transfer.transfer.scores.precision import Inputs, Outcomes, tabulate
from momentum_transfer.verdicts.ap_metrics import lvis_metrics, of_one
from momentum_transfer.verdicts.ranked import Ranked

_FREQUENCIES = ("r", "c", "f")


@dataclass(frozen=True)
class LvisScores:
    """The scores and the tables behind them, as in ``CocoScores``."""

    metrics: dict[str, float]  # AP, AP50, AP75, APs/m/l, APr/c/f, AR<max_dets>, ARs/m/l in percent; NaN if undefined
    per_class: dict[str, float]  # class name → AP in percent
    precision: np.ndarray  # [T, R, K, A]
    recall: np.ndarray  # [T, K, A]
    category_ids: list[Any]  # [K]
    items: Ranked  # what became of every detection and object, by image


def evaluate(
    ground_truth: Source,
    results: Results,
    iou_type: IouType = "bbox",
    max_dets: int = 300,
    area_from: AreaFrom = "file",
) -> LvisScores:
    """Score detections as lvis-api does.

    Args:
        ground_truth: LVIS annotation JSON, path or loaded object: COCO's form, with ``neg_category_ids`` and
            ``not_exhaustive_category_ids`` per image and ``frequency`` (r, c, f) per category.
        results: result JSON, path or list. It is not changed.
        max_dets: detections kept per image over all classes, by score; −1 keeps all.
        iou_type, area_from: as for ``coco.evaluate``.

    Raises:
        InputError: a file or an entry is wrong; both are named.
    """
    inputs, groups = read_inputs(ground_truth, results, iou_type, max_dets, area_from)
    truth, detections = inputs.truth, inputs.detections
    outcomes = Outcomes(truth, (max(1, len(detections)),))  # the limit per image has been applied
    precision, recall = (table[..., 0] for table in tabulate(inputs, outcomes))
    return LvisScores(
        metrics=of_one(lvis_metrics(precision[None], recall[None, ..., None], (max_dets,), groups)),
        per_class=per_class(precision[..., 0], truth.class_names()),
        precision=precision,
        recall=recall,
        category_ids=[category["id"] for category in truth.categories],
        items=replace(outcomes.ranked("lvis", THRESHOLDS, AREAS, groups), limits=(int(max_dets),)),
    )


def read_inputs(
    ground_truth: Source, results: Results, iou_type: IouType, max_dets: int, area_from: AreaFrom
) -> tuple[Inputs, dict[str, list[int]]]:
    """Objects and the detections that count, with their flags; and the categories of each frequency."""
    if isinstance(max_dets, bool) or not isinstance(max_dets, (int, np.integer)) or max_dets == 0 or max_dets < -1:
        raise InputError(f"expected max_dets as a whole number above 0, or -1 for no limit, found {max_dets!r}")
    truth = load_ground_truth(ground_truth, iou_type)
    groups = _frequency_groups(truth)
    absent = _listed(truth, "neg_category_ids")
    incomplete = _listed(truth, "not_exhaustive_category_ids")
    truth = truth.take(np.flatnonzero(_finite(truth.area)))
    detections = load_detections(results, truth, iou_type, area_from)
    detections = detections.take(_verified(detections, _top_of_image(detections, max_dets), truth, absent))
    exempt = np.isin(_keys(detections.image, detections.category, truth), incomplete)
    crowd = np.zeros(len(truth), dtype=bool)
    return Inputs(truth, detections, crowd, truth.ignore, exempt), groups


def _finite(area: np.ndarray) -> np.ndarray:
    return (area > 0) & (area < np.inf)


def _keys(image: np.ndarray, category: np.ndarray, truth: GroundTruth) -> np.ndarray:
    return image.astype(np.int64) * len(truth.categories) + category


def _listed(truth: GroundTruth, field: str) -> np.ndarray:
    """(image, category) keys of the categories in a list that every image has."""
    keys: list[int] = []
    known = truth.category_index
    for position, image in enumerate(truth.images):
        listed = image.get(field)
        if not isinstance(listed, list):
            raise InputError(
                f"{truth.where}: image {image['id']!r} has no list {field}; LVIS ground truth needs it for every image "
                "(is this a COCO file? then score with coco)"
            )
        found = {known.get(category) for category in listed if not isinstance(category, (list, dict))}
        # Ids outside the file's categories name nothing that could be detected.
        keys += [position * len(known) + place for place in found if place is not None]
    return np.array(keys, dtype=np.int64)


def _frequency_groups(truth: GroundTruth) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {frequency: [] for frequency in _FREQUENCIES}
    for position, category in enumerate(truth.categories):
        if category.get("frequency") not in _FREQUENCIES:
            raise InputError(
                f"{truth.where}: category {category['id']!r} has the frequency {category.get('frequency')!r}; expected "
                "r, c or f (is this a COCO file? then score with coco)"
            )
        groups[category["frequency"]].append(position)
    return groups


def _top_of_image(detections: Detections, max_dets: int) -> np.ndarray:
    """Positions, in file order, of the ``max_dets`` best of every image; the first in the file among equals."""
    if max_dets < 0 or not len(detections) or np.bincount(detections.image).max() <= max_dets:
        return np.arange(len(detections))
    order = np.lexsort((-detections.score, detections.image))
    image = detections.image[order]
    rank = np.arange(len(image)) - np.searchsorted(image, image, side="left")
    return np.sort(order[rank < max_dets])


def _verified(detections: Detections, which: np.ndarray, truth: GroundTruth, absent: np.ndarray) -> np.ndarray:
    """Those positions of ``which`` whose category was looked for in the image."""
    known = np.concatenate((_keys(truth.image, truth.category, truth), absent))
    verified = np.isin(_keys(detections.image[which], detections.category[which], truth), known)
    return which[verified & _finite(detections.area[which])]
