"""Datasets are found by name in Detectron2's layout, or by path."""

import json
from pathlib import Path

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data import detection_datasets
from momentum_transfer.transfer.data.detection_datasets import get_dataset


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
