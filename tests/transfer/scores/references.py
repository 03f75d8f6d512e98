"""The public evaluators, run as their authors meant, on copies of the inputs (they change what they are given)."""

import contextlib
import copy
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def pycocotools_eval(
    truth: Any, results: Any, iou_type: str, max_dets: Sequence[int] = (1, 10, 100), categories: Sequence[Any] = ()
) -> COCOeval:
    with contextlib.redirect_stdout(io.StringIO()):
        ground_truth = COCO()
        ground_truth.dataset = copy.deepcopy(truth)
        ground_truth.createIndex()
        evaluation = COCOeval(ground_truth, ground_truth.loadRes(copy.deepcopy(results)), iou_type)
        evaluation.params.maxDets = list(max_dets)
        evaluation.params.catIds = sorted(categories) or evaluation.params.catIds
        evaluation.evaluate()
        evaluation.accumulate()
        if len(max_dets) == 3:
            evaluation.summarize()
    return evaluation


def lvis_eval(folder: Path, truth: Any, results: Any, iou_type: str, max_dets: int = 300) -> Any:
    """lvis-api on NumPy 2: its last release (0.5.3) uses ``np.float``, which is gone; it was Python's float."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "float", float, raising=False)
        from lvis import LVIS, LVISEval, LVISResults

        logging.getLogger("lvis").setLevel(logging.CRITICAL)
        file = folder / "lvis.json"
        file.write_text(json.dumps(truth))
        ground_truth = LVIS(str(file))
        detections = LVISResults(ground_truth, copy.deepcopy(results), max_dets=max_dets)
        evaluation = LVISEval(ground_truth, detections, iou_type)
        evaluation.params.max_dets = max_dets
        evaluation.run()
    return evaluation


def largest_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """0.0 exactly when every entry is the same number (there are no NaN in either)."""
    assert ours.shape == theirs.shape
    assert not np.isnan(ours).any()
    return float(np.abs(ours - theirs).max())
