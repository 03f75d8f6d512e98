"""The embedded scenes, as the quickstart scores them: real handwriting, several classes an image, masks of pixels."""

import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.scores import coco, lvis
from tests.transfer.scores.references import largest_difference, lvis_eval, pycocotools_eval


def truth_and_detections(name: str, iou_type: str):
    """Every object found up to four times, moved by some pixels or of another class, as a trained detector might."""
    truth = json.loads(Path(get_dataset(name).annotation_file).read_text())
    random = np.random.default_rng(0)
    sizes = {image["id"]: (image["height"], image["width"]) for image in truth["images"]}
    categories = [category["id"] for category in truth["categories"]]
    results = []
    for annotation in truth["annotations"]:
        for _ in range(random.integers(0, 5)):
            category = annotation["category_id"] if random.random() < 0.8 else int(random.choice(categories))
            found = {"image_id": annotation["image_id"], "category_id": category, "score": round(random.random(), 2)}
            x, y, width, height = annotation["bbox"] + random.normal(0, 1.5, 4)
            if iou_type == "bbox":
                found["bbox"] = [round(value, 2) for value in (x, y, max(1, width), max(1, height))]
            else:
                mask = np.zeros(sizes[annotation["image_id"]], dtype=np.uint8, order="F")
                mask[max(0, round(y)) : round(y + height), max(0, round(x)) : round(x + width)] = 1
                code = coco_mask.encode(mask)
                found["segmentation"] = {"size": code["size"], "counts": code["counts"].decode()}
            results.append(found)
    return truth, results


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_scores_on_digit_scenes_equal_pycocotools(iou_type):
    truth, results = truth_and_detections("digit_scenes_val", iou_type)
    ours, theirs = coco.evaluate(truth, results, iou_type), pycocotools_eval(truth, results, iou_type)
    assert largest_difference(ours.precision, theirs.eval["precision"]) == 0.0
    assert largest_difference(ours.recall, theirs.eval["recall"]) == 0.0
    assert ours.metrics["AP"] > 5


@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")
@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_scores_on_long_tailed_digit_scenes_equal_lvis(iou_type, tmp_path: Path):
    truth, results = truth_and_detections("digit_scenes_lt_val", iou_type)
    ours, theirs = lvis.evaluate(truth, results, iou_type), lvis_eval(tmp_path, truth, results, iou_type)
    assert largest_difference(ours.precision, theirs.eval["precision"]) == 0.0
    assert largest_difference(ours.recall, theirs.eval["recall"]) == 0.0
    assert not any(np.isnan(ours.metrics[f"AP{frequency}"]) for frequency in "rcf")
