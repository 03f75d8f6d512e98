"""Datasets are found by name in Detectron2's layout, or by path."""

import json
from pathlib import Path

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data import detection_datasets
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.predictions import Predictions
from momentum_transfer.transfer.tasks import Detection


def write_coco(file: Path, *, file_name: str = "1.jpg") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "images": [{"id": 1, "file_name": file_name, "height": 4, "width": 6}],
        "annotations": [],
        "categories": [{"id": 7, "name": "dog"}, {"id": 2, "name": "cat"}],
    }
    file.write_text(json.dumps(content))
    return file


def test_classes_are_in_the_order_of_their_ids(tmp_path: Path):
    write_coco(tmp_path / "coco/annotations/instances_val2017.json")
    (tmp_path / "coco/val2017").mkdir()
    data = get_dataset("coco_2017_val", tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.category_ids == (2, 7)
    assert data.kind == "coco"
    assert data.image_path(data.load()["images"][0]) == tmp_path / "coco/val2017/1.jpg"


def test_root_falls_back_to_detectron2s_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_coco(tmp_path / "coco/annotations/instances_train2017.json")
    (tmp_path / "coco/train2017").mkdir()
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    assert get_dataset("coco_2017_train").images_dir == tmp_path / "coco/train2017"
    monkeypatch.delenv("DETECTRON2_DATASETS")
    assert detection_datasets.datasets_root(None) == Path("datasets")


def test_lvis_names_its_pictures_by_url_or_by_coco_2014s_names(tmp_path: Path):
    write_coco(tmp_path / "lvis/lvis_v1_val.json")
    write_coco(tmp_path / "lvis/lvis_v0.5_val.json")
    (tmp_path / "coco/val2017").mkdir(parents=True)
    one = get_dataset("lvis_v1_val", tmp_path)
    url = {"id": 1, "coco_url": "http://images.cocodataset.org/train2017/000000000009.jpg"}
    assert one.image_path(url) == tmp_path / "coco/train2017/000000000009.jpg"
    half = get_dataset("lvis_v0.5_val", tmp_path)
    assert half.kind == one.kind == "lvis"
    assert half.image_path({"file_name": "COCO_val2014_000000000042.jpg"}) == tmp_path / "coco/val2017/000000000042.jpg"


def test_missing_things_are_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"digit_scenes_train.*coco_2017_train.*found 'coco'"):
        get_dataset("coco")
    with pytest.raises(InputError, match="no such folder"):
        get_dataset("coco_2017_val", tmp_path)
    (tmp_path / "coco/val2017").mkdir(parents=True)
    with pytest.raises(InputError, match=r"instances_val2017\.json, found none"):
        get_dataset("coco_2017_val", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected annotations as JSON in .*it cannot be read"),
        ("[]", "a list 'images'"),
        ('{"images": [], "annotations": []}', "a list 'categories'"),
        ('{"images": [{"file_name": "x"}], "annotations": [], "categories": []}', "integer id in 'images'"),
        ('{"images": [], "annotations": [], "categories": []}', "named categories"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1}]}', "named categories"),
    ],
)
def test_other_json_is_refused(text: str, message: str, tmp_path: Path):
    (tmp_path / "own.json").write_text(text)
    with pytest.raises(InputError, match=message):
        get_dataset(f"{tmp_path}:{tmp_path / 'own.json'}")


def test_an_opened_set_is_read_once_and_a_changed_file_when_it_is_opened_again(tmp_path: Path):
    file = write_coco(tmp_path / "own.json")
    data = get_dataset(f"{tmp_path}:{file}")
    before = data.load()
    write_coco(file, file_name="another.jpg")
    assert data.load() is before
    assert get_dataset(f"{tmp_path}:{file}").load()["images"][0]["file_name"] == "another.jpg"


def test_a_file_in_lvis_form_is_scored_as_lvis_api_scores_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    images = [{"id": k, "file_name": f"{k}.jpg", "height": 40, "width": 60, "neg_category_ids": [],
               "not_exhaustive_category_ids": []} for k in (1, 2)]  # fmt: skip
    box = {"category_id": 1, "bbox": [4, 4, 20, 20], "area": 400, "iscrowd": 0, "segmentation": []}
    content = {
        "images": images,
        "annotations": [{"id": 1, "image_id": 1, **box}, {"id": 2, "image_id": 2, **box, "category_id": 2}],
        "categories": [{"id": k, "name": name, "frequency": "f"} for k, name in ((1, "cat"), (2, "dog"))],
    }
    # the cat found in image 2, where nobody looked for cats, is no false positive by LVIS' rules
    boxes = [(1, 1, 0.8), (2, 2, 0.8), (2, 1, 0.9)]
    found = [{"image_id": i, "category_id": k, "bbox": box["bbox"], "score": score} for i, k, score in boxes]
    (tmp_path / "results.json").write_text(json.dumps(found))

    def scored() -> tuple[str, float]:
        (tmp_path / "own.json").write_text(json.dumps(content))
        data = get_dataset(f"own={tmp_path}:{tmp_path / 'own.json'}")
        predictions = Predictions(tmp_path / "results.json", "own", ("bbox",), "torchvision")
        (one,) = Detection([], [data]).evaluate(predictions)
        return one.task, round(one.metrics["AP"], 6)

    assert scored() == ("lvis/bbox", 100.0)
    monkeypatch.setattr(np, "float", float, raising=False)  # lvis 0.5.3 uses a name that numpy 2 removed
    lvis = pytest.importorskip("lvis")
    truth = lvis.LVIS(str(tmp_path / "own.json"))
    evaluation = lvis.LVISEval(truth, lvis.LVISResults(truth, found), "bbox")
    evaluation.run()
    assert evaluation.get_results()["AP"] == pytest.approx(1.0)
    for image in images:
        del image["neg_category_ids"], image["not_exhaustive_category_ids"]
    assert scored() == ("coco/bbox", 75.0)  # here it is, before the cat


@pytest.mark.parametrize("lost", ["neg_category_ids", "not_exhaustive_category_ids", "frequency"])
def test_half_of_lvis_form_is_refused(lost: str, tmp_path: Path):
    content = json.loads(write_coco(tmp_path / "own.json").read_text())
    content["images"].append({"id": 2, "file_name": "2.jpg", "height": 4, "width": 6})
    for image in content["images"]:
        image.update(neg_category_ids=[2], not_exhaustive_category_ids=[])
    for category in content["categories"]:
        category["frequency"] = "c"
    (tmp_path / "own.json").write_text(json.dumps(content))
    assert get_dataset(f"{tmp_path}:{tmp_path / 'own.json'}").kind == "lvis"
    content["categories" if lost == "frequency" else "images"][1].pop(lost)
    (tmp_path / "own.json").write_text(json.dumps(content))
    with pytest.raises(
        InputError, match=r"frequency of every category in .*own\.json, as LVIS has them, found only some"
    ):
        get_dataset(f"{tmp_path}:{tmp_path / 'own.json'}")
