"""The long-tailed scenes are annotated as LVIS is, and lvis-api reads them."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from momentum_transfer.transfer.data.digit_scenes import RECIPES, ensure_scenes

SMALL_TAIL = replace(RECIPES["digit_scenes_lt"], images=(60, 12))


@pytest.fixture(scope="module")
def tail() -> dict[str, dict[str, Any]]:
    where = ensure_scenes(SMALL_TAIL) / "annotations"
    return {split: json.loads((where / f"{split}.json").read_text()) for split in ("train", "val")}


def test_long_tail_is_annotated_as_lvis_does(tail: dict[str, dict[str, Any]]):
    for data in tail.values():
        shown: dict[int, set[int]] = {image["id"]: set() for image in data["images"]}
        for annotation in data["annotations"]:
            shown[annotation["image_id"]].add(annotation["category_id"])
        for image in data["images"]:
            assert not shown[image["id"]] & set(image["neg_category_ids"])
            assert set(image["not_exhaustive_category_ids"]) <= shown[image["id"]]
        for category in data["categories"]:
            assert category["image_count"] == sum(category["id"] in found for found in shown.values())
            count = sum(annotation["category_id"] == category["id"] for annotation in data["annotations"])
            assert category["instance_count"] == count
    assert any(image["not_exhaustive_category_ids"] for image in tail["train"]["images"])


def test_frequency_is_that_of_training_and_validation_is_balanced(tail: dict[str, dict[str, Any]]):
    train, val = (tail[split]["categories"] for split in ("train", "val"))
    assert [c["frequency"] for c in train] == [c["frequency"] for c in val]
    for category in train:
        number = category["image_count"]
        assert category["frequency"] == ("r" if number <= 10 else "c" if number <= 100 else "f")
    counts = [category["instance_count"] for category in train]
    assert counts[0] > 10 * counts[6]
    assert min(category["instance_count"] for category in val) > 0


def test_lvis_api_reads_and_scores_the_long_tail(tail: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(np, "float", float, raising=False)  # lvis 0.5.3 uses a name that numpy 2 removed
    lvis = pytest.importorskip("lvis")
    file = ensure_scenes(SMALL_TAIL) / "annotations" / "val.json"
    truth = lvis.LVIS(str(file))
    perfect = [
        {"image_id": a["image_id"], "category_id": a["category_id"], "segmentation": a["segmentation"], "score": 1.0}
        for a in tail["val"]["annotations"]
    ]
    evaluation = lvis.LVISEval(truth, lvis.LVISResults(truth, perfect), "segm")
    evaluation.run()
    assert evaluation.get_results()["AP"] == pytest.approx(1.0)
