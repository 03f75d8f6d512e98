"""F1 of one image: closed forms, crowds, categories; best and worst images of a small data set."""

import json
from pathlib import Path

import pytest
from PIL import Image

from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.visuals import _best_and_worst, _drawn_from, _image_f1, draw_detections


def box(x: float, category: int = 1, score: float = 0.9, **more) -> dict:
    return {"bbox": [x, 0.0, 10.0, 10.0], "category_id": category, "score": score, **more}


@pytest.mark.parametrize(
    ("truth", "detections", "f1"),
    [
        ([box(0), box(50)], [box(0), box(50)], 1.0),
        ([box(0), box(50)], [box(0)], 2 / 3),
        ([box(0)], [box(0), box(50)], 2 / 3),
        ([box(0)], [box(0), box(1, score=0.8)], 2 / 3),  # the second box on one object is a miss
        ([box(0)], [box(0, category=2)], 0.0),
        ([box(0)], [box(4)], 0.0),  # IoU 6 / 14
        ([box(0)], [box(3)], 1.0),  # IoU 7 / 13
        ([box(0)], [], 0.0),
        ([], [box(0)], 0.0),
        ([], [], 1.0),
        ([box(0, iscrowd=1)], [box(0), box(2)], 1.0),  # neither way
        ([box(0), box(100, difficult=1)], [box(0), box(100)], 1.0),
    ],
)
def test_f1_equals_the_closed_form(truth, detections, f1):
    assert _image_f1(truth, detections) == pytest.approx(f1)


def test_the_order_of_detections_does_not_matter():
    truth = [box(0), box(6), box(50, category=2)]
    detections = [box(1, score=0.7), box(5, score=0.9), box(50, category=2, score=0.5), box(80, score=0.6)]
    assert _image_f1(truth, detections) == _image_f1(truth[::-1], detections[::-1])


def dataset(tmp_path: Path, kind: str = "coco") -> DetectionData:
    images = [{"id": i, "file_name": f"{i}.png", "neg_category_ids": [2] if i == 1 else []} for i in range(1, 5)]
    annotations = [{**box(0), "image_id": i, "id": i} for i in (1, 2, 3)]
    annotations.append({**box(50), "image_id": 3, "id": 9})
    path = tmp_path / f"{kind}.json"
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "a"}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return DetectionData("test", tmp_path, path, ("a", "b", "c"), (1, 2, 3), kind, content)


def test_best_and_worst_prefer_images_with_more_objects_and_skip_empty_ones(tmp_path: Path):
    detections = {1: [box(0)], 2: [box(70)], 3: [box(0), box(50)], 4: []}
    best, worst = _best_and_worst(dataset(tmp_path), detections, 2)
    assert best == [3, 1]
    assert worst == [2, 3]


def test_in_lvis_only_verified_categories_count(tmp_path: Path):
    unverified = {1: [box(0), box(20, category=3)], 2: [box(0), box(20, category=3)], 3: []}
    assert _best_and_worst(dataset(tmp_path, "lvis"), unverified, 1)[0] == [1]  # as good as without category 3
    denied = {1: [box(0), box(20, category=2)], 2: [box(0), box(20, category=3)], 3: []}
    assert _best_and_worst(dataset(tmp_path, "lvis"), denied, 1)[0] == [2]
    assert _best_and_worst(dataset(tmp_path, "coco"), denied, 2)[0] == [1, 2]


def test_pictures_are_the_same_scenes_for_all_and_this_detectors_best_and_worst(tmp_path: Path):
    data = dataset(tmp_path)
    for image in data.load()["images"]:
        Image.new("RGB", (80, 40), "gray").save(tmp_path / image["file_name"])
    found = [{**box(0), "image_id": 1}, {**box(70), "image_id": 2}, {**box(0, score=0.3), "image_id": 3}]
    results, folder = tmp_path / "results.json", tmp_path / "visuals"
    results.write_text(json.dumps(found), encoding="utf-8")
    names = [path.name for path in draw_detections(data, results, folder, 2)]
    assert names == ["2.png", "4.png", "best_1.png", "worst_3.png"]  # two of four at random, always the same
    results.write_text(json.dumps(found[1:]), encoding="utf-8")
    draw_detections(data, results, folder, 2)  # another run: its best is another image, the old one goes
    assert {path.name for path in folder.iterdir()} == {"2.png", "4.png", "best_3.png", "worst_1.png"}


@pytest.mark.parametrize(
    ("scores", "objects", "least"),
    [([0.9, 0.6, 0.2], 3, 0.5), ([0.9, 0.3, 0.2, 0.1], 3, 0.2), ([0.3], 3, 0.3), ([], 3, 0.5), ([0.4, 0.3], 0, 0.5)],
)
def test_what_an_unsure_detector_is_surest_of_is_drawn(scores: list[float], objects: int, least: float):
    assert _drawn_from(scores, objects) == least
