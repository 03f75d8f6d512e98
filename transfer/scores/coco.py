"""COCO box and mask AP: every entry of pycocotools' precision and recall, bit for bit, many times faster.

NumPy on columns that msgspec decodes; masks overlap by pycocotools' own C code or, in large files, by compiled kernels
(numba). Other evaluators were compared (``python benchmarks/scores.py boxes``): faster-coco-eval is slower and differs
in the last bit; hotcoco and ultrafast-pycocotools are exact only for files without annotation id 0 and ``ignore``, and
to check that a file is such takes longer than it saves.

Two corners differ from pycocotools: scores are compared as 64-bit floats (there whole numbers beyond 2^53 exactly), and
boxes whose area is no float (sides of 1e-200 or 1e200) overlap nothing (there NaN counts as a match).

Refused, though the references score or misread them: results without ``bbox`` scored as boxes (pycocotools derives the
boxes from the masks), a "polygon" of four numbers, a polygon far from its image (pycocotools crashes on coordinates of
1e9), a run-length code that does not cover its image exactly, ``true`` as an id, and NaN as a score or an id. Flags
such as ``iscrowd`` are 0 or 1, or equal to these.

For an empty result list, where pycocotools crashes, precision and recall are 0 for every category that has objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores.coco_files import (
    AreaFrom,
    Detections,
    GroundTruth,
    IouType,
    load_detections,
    load_ground_truth,
)
from momentum_transfer.transfer.scores.greedy_matching import AREA_NAMES, AREAS, THRESHOLDS
from momentum_transfer.transfer.scores.precision import Inputs, Outcomes, tabulate
from momentum_transfer.verdicts.ap_metrics import coco_metrics, of_one
from momentum_transfer.verdicts.ranked import Ranked

Source = str | Path | dict[str, Any] | GroundTruth
Results = str | Path | list[dict[str, Any]] | Detections


@dataclass(frozen=True)
class CocoScores:
    """The scores and the tables behind them.

    T 10 IoU thresholds, R 101 recall levels, K categories (ascending id), A 4 area ranges (all, small, medium, large),
    M limits ``max_dets``. Entries are −1 for a category without objects that count.
    """

    metrics: dict[str, float]  # AP, AP50, AP75, APs, APm, APl, AR<limit> …, ARs, ARm, ARl in percent; NaN if undefined
    per_class: dict[str, float]  # class name → AP in percent
    per_class_by_area: dict[str, dict[str, float]]  # class name → {"APs": …, "APm": …, "APl": …}
    precision: np.ndarray  # [T, R, K, A, M]
    recall: np.ndarray  # [T, K, A, M]
    category_ids: list[Any]  # [K]
    max_dets: tuple[int, ...]  # [M]
    items: Ranked  # what became of every detection and object, by image


def evaluate(
    ground_truth: Source,
    results: Results,
    iou_type: IouType = "bbox",
    max_dets: int | Sequence[int] = (1, 10, 100),
    area_from: AreaFrom = "file",
) -> CocoScores:
    """Score detections as pycocotools does.

    Args:
        ground_truth: annotation JSON, path or loaded object; or what ``inputs`` read of it.
        results: result JSON, path or list of ``image_id``, ``category_id``, ``score``, ``bbox`` and/or
            ``segmentation``; or what ``inputs`` read of it. It is not changed.
        iou_type: ``bbox`` or ``segm``.
        max_dets: limits on detections per image and category. One number N means N and those of 1 and 10 below it; a
            sequence holds each limit once. AP takes the largest (pycocotools prints −1 for AP unless that is 100; its
            tables are the same).
        area_from: see ``coco_files.load_detections``.

    Raises:
        InputError: a file or an entry is wrong; both are named.
    """
    limits = _limits(max_dets)
    truth = load_ground_truth(ground_truth, iou_type)
    detections = load_detections(results, truth, iou_type, area_from)
    # pycocotools overwrites "ignore" by "iscrowd".
    inputs = Inputs(truth, detections, truth.crowd, truth.crowd, np.zeros(len(detections), dtype=bool))
    outcomes = Outcomes(truth, limits)
    precision, recall = tabulate(inputs, outcomes)
    names = truth.class_names()
    by_area = {f"AP{area[0]}": per_class(precision[..., k, -1], names) for k, area in enumerate(AREA_NAMES)}
    return CocoScores(
        metrics=of_one(coco_metrics(precision[None, ..., -1], recall[None], limits)),
        per_class=by_area.pop("APa"),
        per_class_by_area={name: {metric: values[name] for metric, values in by_area.items()} for name in names},
        precision=precision,
        recall=recall,
        category_ids=[category["id"] for category in truth.categories],
        max_dets=limits,
        items=outcomes.ranked("coco", THRESHOLDS, AREAS),
    )


def per_class(precision: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """AP in percent of each category from precision [T, R, K]."""
    rows = np.moveaxis(precision, -1, 0).copy().reshape(len(names), -1)  # a class's entries: all defined, or none
    values = (float(np.mean(row)) * 100 if row[0] > -1 else float("nan") for row in rows)
    return dict(zip(names, values, strict=True))


def _limits(max_dets: int | Sequence[int]) -> tuple[int, ...]:
    given = list(max_dets) if isinstance(max_dets, Sequence) else [max_dets]
    counts = [int(n) for n in given if isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n > 0]
    if not given or len(counts) < len(given):
        raise InputError(f"expected max_dets as whole numbers above 0, found {max_dets!r}")
    if len(set(counts)) < len(counts):
        raise InputError(f"expected each limit in max_dets once, found {max_dets!r}")
    if not isinstance(max_dets, Sequence):
        counts = [n for n in (1, 10) if n < counts[0]] + counts
    return tuple(sorted(counts))
