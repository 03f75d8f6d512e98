"""Attacks on annotation files, result files and lines of results."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from momentum_transfer.report.page import make_report, render_html, render_markdown
from momentum_transfer.transfer import config
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.scores import coco, lvis, voc
from momentum_transfer.transfer.tasks.detection import Detection
from tests.attacks.outcome import DONE, LINE, NASTY, outcome_of

SQUARE = np.zeros((40, 60), np.uint8)
SQUARE[10:20, 5:25] = 1
_CODE = coco_mask.encode(np.asfortranarray(SQUARE))
RLE = {"size": [40, 60], "counts": _CODE["counts"].decode()}
OBJECT = {"image_id": 1, "category_id": 1, "bbox": [5, 10, 20, 10], "iscrowd": 0, "area": 200.0}
GOOD: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "1.png", "height": 40, "width": 60, "neg_category_ids": [],
                "not_exhaustive_category_ids": []}],
    "categories": [{"id": 1, "name": "square", "frequency": "f", "image_count": 1, "instance_count": 2}],
    "annotations": [
        {"id": 1, **OBJECT, "segmentation": [[5, 10, 25, 10, 25, 20, 5, 20]]},
        {"id": 2, **OBJECT, "segmentation": RLE},
    ],
}  # fmt: skip
DETECTIONS = [{"image_id": 1, "category_id": 1, "bbox": [5, 10, 20, 10], "segmentation": RLE, "score": 0.5}] * 2
RECORD = {"task": "knn/k=20", "metric": "top1", "value": 50.0, "checkpoint": {"name": "m2", "sha256": "a"}, "trial": 0,
          "seed": 1, "protocol": "p", "network": "teacher", "dataset": "digits", "config": "c", "engine": "e",
          "versions": {"torch": "2"}, "time": "2026-11-22", "command": "x",
          "items": {"file": "a", "sha256": "b"}, "overlap": 3}  # fmt: skip

#: Where a value is put (a share of all places), and the value; a second place is often left alone.
CHANGES = st.lists(st.tuples(st.floats(0, 0.999), NASTY | st.just("DELETE")), min_size=1, max_size=2)


def changed(tree: Any, changes: list[tuple[float, Any]]) -> Any:
    """A copy with values in other places."""
    tree = copy.deepcopy(tree)
    for where, value in changes:
        places = list(_places(tree))
        if not places:
            break
        parent, key = places[int(where * len(places))]
        if value == "DELETE" and isinstance(parent, dict):
            del parent[key]
        else:
            parent[key] = copy.deepcopy(value)
    return tree


def _places(node: Any) -> Any:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(pairs):
        yield node, key
        yield from _places(value)


class Annotations:
    """A folder with an image, in which annotation and result files are tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        PIL.Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(folder / "1.png")
        root = Path(__file__).resolve().parents[2]
        words = ["OUTPUT_DIR", str(folder / "out"), "MODEL.ROI_HEADS.NUM_CLASSES", "1"]
        self.cfg = config.load(str(root / "configs/smoke/mask_rcnn_digits.yaml"), words)

    def ground_truth(self, changes: list[tuple[float, Any]]) -> str:
        """Checked, then scored by all rules: what scoring refuses the check refuses."""
        file = self.folder / "truth.json"
        file.write_text(json.dumps(changed(GOOD, changes)))

        def check() -> None:
            data = get_dataset(f"{self.folder}:{file}")
            Detection([data], [data]).check(self.cfg, open_images=True)

        checked = outcome_of(check)
        scored = [outcome_of(lambda kind=kind: coco.evaluate(str(file), [], kind)) for kind in ("bbox", "segm")]
        for end in (checked, *scored):
            if end not in (DONE, LINE):
                return end
        return "silently wrong: checked, but not scorable" if checked == DONE and LINE in scored else checked

    def detections(self, changes: list[tuple[float, Any]]) -> str:
        """Scored by every rule."""
        (self.folder / "good.json").write_text(json.dumps(GOOD))
        file = self.folder / "found.json"
        file.write_text(json.dumps(changed([dict(entry) for entry in DETECTIONS], changes)))
        truth = str(self.folder / "good.json")
        ends = [outcome_of(lambda: coco.evaluate(truth, str(file))),
                outcome_of(lambda: coco.evaluate(truth, str(file), "segm")),
                outcome_of(lambda: lvis.evaluate(truth, str(file))),
                outcome_of(lambda: voc.evaluate(truth, str(file)))]  # fmt: skip
        return next((end for end in ends if end not in (DONE, LINE)), LINE if LINE in ends else DONE)

    def records(self, changes: list[tuple[float, Any]]) -> str:
        """Made into a page beside a good one."""
        file = self.folder / "results.jsonl"
        other = json.dumps({**RECORD, "value": 40.0, "trial": 1, "items": None})
        file.write_text(f"{json.dumps(changed(RECORD, changes))}\n{other}\n")

        def report() -> None:
            made = make_report([file])
            (self.folder / "page.html").write_text(render_html(made), encoding="utf-8")
            text = render_markdown(made)
            (self.folder / "page.md").write_text(text, encoding="utf-8")
            if "<script" in text:
                raise AssertionError("markup")

        return outcome_of(report)
