"""F1 of one image: closed forms, crowds, categories; best and worst images; what is drawn where, in which colour."""

import colorsys
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFont

from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.visuals import (
    _best_and_worst,
    _drawn_from,
    _image_f1,
    _readable_on,
    beside,
    colour_of,
    draw,
    draw_detections,
    tinted,
)


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
        ([{**box(0), "bbox": [0, 0, 20, 10]}], [box(0)], 1.0),  # IoU exactly 0.5
        ([{**box(0), "bbox": [0, 0, 21, 10]}], [box(0)], 0.0),
        ([box(50), box(0, iscrowd=1)], [box(50), box(5)], 1.0),  # half of it in the crowd
        ([box(50), box(0, iscrowd=1)], [box(50), box(6)], 2 / 3),
        ([box(0), box(2)], [box(1.5, score=0.8), box(0.5)], 1.0),  # each takes the nearest that is free
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
    [
        ([0.9, 0.6, 0.2], 3, 0.5),
        ([0.9, 0.3, 0.2, 0.1], 3, 0.2),
        ([0.3], 3, 0.3),
        ([], 3, 0.5),
        ([0.4, 0.3], 0, 0.5),
        ([0.5, 0.1], 2, 0.5),
        ([0.6, 0.2, 0.1], 3, 0.1),
        ([0.9, 0.8, 0.7], 7, 0.5),
    ],
)
def test_what_an_unsure_detector_is_surest_of_is_drawn(scores: list[float], objects: int, least: float):
    assert _drawn_from(scores, objects) == least


GREY = (90, 90, 90)


def is_near(image: Image.Image, place: tuple[int, int], colour: tuple[int, ...]) -> bool:
    return bool(np.abs(np.array(image.getpixel(place)) - np.array(colour)).max() <= 2)


@pytest.mark.parametrize(
    ("size", "drawn"),
    [
        ((300, 260), (300, 260)),
        ((256, 999), (256, 999)),
        ((255, 300), (510, 600)),
        ((100, 300), (300, 900)),
        ((40, 30), (360, 270)),
        ((10, 1000), (40, 4000)),  # no side above 4096
        ((5000, 20), (5000, 20)),
    ],
)
def test_small_images_are_enlarged_by_a_whole_number(size: tuple[int, int], drawn: tuple[int, int]):
    assert draw(Image.new("RGB", size, GREY), [], {}).size == drawn


@pytest.mark.parametrize(("size", "width"), [((300, 260), 2), ((1000, 1200), 4)])
def test_a_box_is_drawn_on_its_pixels(size: tuple[int, int], width: int):
    entry = {"bbox": [100, 120, 80, 50], "category_id": 3}
    picture = np.asarray(draw(Image.new("RGB", size, GREY), [entry], {3: "a"}))
    coloured = (picture == colour_of(3)).all(axis=2)
    rows, columns = np.nonzero(coloured[120:].any(axis=1))[0] + 120, np.nonzero(coloured[160:].any(axis=0))[0]
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (120, 170, 100, 180)
    assert coloured[160, 100:181].sum() == 2 * width
    assert (picture[160, 100 + width : 181 - width] == GREY).all()
    label = ImageFont.load_default(size=14 if width == 2 else 29).getbbox("a")  # side / 18, 24 + side / 200 at most
    above = np.nonzero(coloured[:119].any(axis=1))[0]
    assert abs(above.max() - above.min() + 1 - (label[3] - label[1] + 1)) <= 2
    assert above.max() <= 119


def test_boxes_grow_with_a_small_image_and_labels_stay_in_it():
    entries = [{"bbox": [30, 0, 9, 20], "category_id": 1, "score": 0.5}]
    picture = np.asarray(draw(Image.new("RGB", (40, 30), GREY), entries, {1: "a very long name"}))  # 9 times
    coloured = (picture == colour_of(1)).all(axis=2)
    assert coloured[100].nonzero()[0].tolist() == [270, 271, 350, 351]
    assert coloured[:, 340].nonzero()[0].max() == 180
    label = coloured[4].nonzero()[0]
    assert 200 < label.min() < 230  # the text is 150 pixels long: it ends with the image


def test_a_label_names_the_class_and_the_score_of_a_detection():
    """The longer the text, the longer its field."""

    def width(entry: dict, name: str) -> int:
        picture = np.asarray(draw(Image.new("RGB", (400, 300), GREY), [{"bbox": [9, 99, 9, 9], **entry}], {1: name}))
        coloured = (picture == colour_of(1)).all(axis=2)[:97].any(axis=0).nonzero()[0]
        return int(coloured.max() - coloured.min())

    font = ImageFont.load_default(size=16)
    for entry, text in (({}, "cat"), ({"score": 0.876}, "cat 0.88")):
        assert abs(width({"category_id": 1, **entry}, "cat") - font.getlength(text)) <= 4


def test_the_best_detection_lies_on_top():
    entries = [{"bbox": [50, 50, 99, 99], "category_id": k, "score": s} for k, s in ((1, 0.9), (2, 0.6), (3, 0.7))]
    picture = draw(Image.new("RGB", (300, 260), GREY), entries, {1: "a", 2: "a", 3: "a"})
    assert is_near(picture, (50, 100), colour_of(1))


def test_masks_are_tinted_and_the_rest_is_left_alone():
    entry = {"bbox": [0, 0, 10, 10], "category_id": 1, "segmentation": [[50, 50, 150, 50, 150, 150, 50, 150]]}
    picture = draw(Image.new("RGB", (300, 260), GREY), [entry], {1: "a"})
    blend = [g + (c - g) * 110 / 255 for g, c in zip(GREY, colour_of(1), strict=True)]
    assert is_near(picture, (100, 100), tuple(blend))
    assert is_near(picture, (155, 100), GREY)
    assert is_near(picture, (100, 155), GREY)


def test_classes_have_their_colour_background_none_and_ignored_pixels_grey():
    labels = np.array([[0, 1], [2, 255]], np.uint8)
    found = np.asarray(tinted(Image.new("RGB", (2, 2), (200, 100, 50)), labels)).astype(float)
    for place, colour in (((0, 1), colour_of(1)), ((1, 0), colour_of(2)), ((1, 1), (128, 128, 128))):
        assert np.abs(found[place] - 0.4 * np.array([200, 100, 50]) - 0.6 * np.array(colour)).max() <= 1
    assert found[0, 0].tolist() == [200, 100, 50]


def test_images_stand_in_a_row_each_under_its_heading():
    row = beside(("one", Image.new("RGB", (400, 300), (255, 0, 0))), ("two", Image.new("RGB", (400, 300), (0, 0, 255))))
    points = 300 // 20
    assert row.size == (2 * 400 + 4, 300 + round(1.5 * points))
    strip = row.height - 300
    for left, colour in ((0, (255, 0, 0)), (404, (0, 0, 255))):
        assert {row.getpixel((left + x, y)) for x in (0, 399) for y in (strip, row.height - 1)} == {colour}
        heading = np.asarray(row.crop((left, 0, left + 400, strip))).min(axis=2)
        assert heading.min() < 120  # something is written
        assert (heading[:, 100:] == 255).all()  # from the left
    assert row.getpixel((402, 100)) == (255, 255, 255)
    assert beside(("a", Image.new("RGB", (1000, 800)))).size == (1000, 800 + 60)


def test_colours_are_bright_and_neighbours_far_apart():
    colours = [colorsys.rgb_to_hsv(*(value / 255 for value in colour_of(k))) for k in range(90)]
    for one, other in itertools.pairwise(colours):
        apart = abs(one[0] - other[0])
        assert min(apart, 1 - apart) == pytest.approx(0.382, abs=0.005)
        assert one[1:] == pytest.approx((0.75, 1.0), abs=0.01)
    assert colour_of(0) == (255, 63, 63)


@pytest.mark.parametrize(
    ("colour", "readable"),
    [((255, 255, 255), 0), ((0, 255, 0), 0), ((255, 0, 0), 255), ((0, 0, 255), 255), ((110, 110, 110), 255),
     ((111, 111, 111), 0), ((255, 63, 63), 0), ((255, 0, 63), 255)],
)  # fmt: skip
def test_text_is_black_on_bright_and_white_on_dark(colour: tuple[int, int, int], readable: int):
    assert _readable_on(colour) == (readable,) * 3


def test_pictures_hold_the_objects_on_the_left_and_the_detections_on_the_right(tmp_path: Path):
    data = dataset(tmp_path)
    for image in data.load()["images"]:
        Image.new("RGB", (300, 260), GREY).save(tmp_path / image["file_name"])
    found = [
        {**box(60), "bbox": [x, 100, 10, 10], "image_id": 3, "score": s} for x, s in ((20, 0.5), (60, 0.9), (120, 0.4))
    ]
    (tmp_path / "results.json").write_text(json.dumps(found), encoding="utf-8")
    drawn = draw_detections(data, tmp_path / "results.json", tmp_path / "visuals", 9)
    picture = Image.open(next(path for path in drawn if path.name == "3.png"))
    coloured = (np.asarray(picture)[picture.height - 260 :] == colour_of(1)).all(axis=2)
    assert coloured[105].nonzero()[0].tolist() == [324, 325, 333, 334, 364, 365, 373, 374]  # none below 0.5
    assert coloured[0, :300].any()  # the objects at the top
    assert not coloured[0, 300:].any()
