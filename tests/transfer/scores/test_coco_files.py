import json
import re
from pathlib import Path

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import coco
from momentum_transfer.transfer.scores.coco_files import load_detections, load_ground_truth
from tests.transfer.scores.random_sets import coco_set

NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "gt.json", tmp_path / "results.json"


def scored(files: tuple[Path, Path], truth, results, iou_type="segm"):
    for file, content in zip(files, (truth, results), strict=True):
        file.write_text(json.dumps(content))
    return coco.evaluate(*files, iou_type)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("image_id", 99, r"the unknown image_id 99; expected one of the 12 image ids, such as 0, in the images of"),
        ("image_id", "7", r"the unknown image_id '7'; expected one of the 12 image ids"),
        ("image_id", [7], r"the unknown image_id \[7\]"),
        ("image_id", None, r"the unknown image_id None"),
        ("category_id", True, r"the unknown category_id True; expected one of"),
        ("category_id", 0, r"the unknown category_id 0; expected one of the 4 category ids, such as 1, in"),
        ("score", NAN, r"score nan; expected a number as score"),
        ("score", "0.5", r"score '0\.5'; expected a number as score"),
        ("score", None, r"score None"),
        ("score", True, r"score True"),
        ("score", 10**400, r"score 10+; expected"),
        ("score", [0.5], r"score \[0\.5\]"),
        ("bbox", [1, 2, 3], r"the bbox \[1, 2, 3\]; expected four finite numbers \[x, y, width, height\]"),
        ("bbox", [1, 2, 3, 4, 5], r"the bbox"),
        ("bbox", [1, 2, 3, NAN], r"the bbox \[1, 2, 3, nan\]"),
        ("bbox", [1, 2, INFINITY, 4], r"the bbox \[1, 2, inf, 4\]"),
        ("bbox", [1, 2, "3", 4], r"the bbox \[1, 2, '3', 4\]"),
        ("bbox", [1, 2, False, 4], r"the bbox \[1, 2, False, 4\]"),
        ("bbox", {"x": 1}, r"the bbox {'x': 1}"),
        ("segmentation", {"size": [160, 200], "counts": "4"}, r"a run-length code of 4 pixels \('4'\)"),
        ("segmentation", {"size": [160, 200], "counts": "a"}, r"a run-length code that cannot be decoded"),
        ("segmentation", {"size": [200, 160], "counts": "4"}, r"a mask of size \[200, 160\]"),
        ("segmentation", [[1, 2]], r"the polygon \[1, 2\]"),
        ("segmentation", [[1, 2, 3, 4]], r"the polygon \[1, 2, 3, 4\]"),
        ("segmentation", [[0, 0, 10**400, 0, 1, 1]], r"a polygon more than 3000 pixels from an image"),
        ("segmentation", [[0, 0, 5e8, 0, 5e8, 5e8]], r"a polygon more than 3000 pixels from an image"),
        ("bbox", [1, 2, [3], 4], r"the bbox \[1, 2, \[3\], 4\]"),
    ],
)  # fmt: skip
def test_a_wrong_entry_of_the_results_is_named_with_its_file(files, field: str, value, message: str):
    truth, results = coco_set(3, segm=True)
    for entry in results:
        entry["bbox"] = [1, 2, 3, 4]
    results[5][field] = value
    with pytest.raises(InputError, match=rf"results\.json: entry 5 \(image_id .*\) has {message}"):
        scored(files, truth, results)


@pytest.mark.parametrize("field", ["image_id", "category_id", "score", "bbox", "segmentation"])
def test_a_missing_field_of_the_results_is_named(files, field: str):
    truth, results = coco_set(3, segm=True)
    for entry in results:
        entry["bbox"] = [1, 2, 3, 4]
    del results[2][field]
    with pytest.raises(InputError, match=rf"results\.json: entry 2 \(.*\) has no {field}; expected the field {field}"):
        scored(files, truth, results)


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("annotations", "image_id", 99, r"annotation 1 \(id 2.*\) has the unknown image_id 99; expected one of the 12"),
        ("annotations", "category_id", 99, r"annotation 1 \(id 2.*\) has the unknown category_id 99"),
        ("annotations", "area", NAN, r"annotation 1 .* has area nan; expected a number as area"),
        ("annotations", "area", "big", r"annotation 1 .* has area 'big'"),
        ("annotations", "iscrowd", 2, r"annotation 1 .* has iscrowd 2; expected 0 or 1 as iscrowd"),
        ("annotations", "iscrowd", [1], r"annotation 1 .* has iscrowd \[1\]"),
        ("annotations", "iscrowd", "1", r"annotation 1 .* has iscrowd '1'"),
        ("annotations", "id", 1, r"annotation 1 \(id 1.*\) has the id of an earlier annotation; expected each"),
        ("annotations", "id", None, r"annotation 1 .* has the id None; expected a number or a string"),
        ("annotations", "segmentation", {"size": [160, 200], "counts": [5]}, r"annotation 1 .* lengths of 5 pixels"),
        ("images", "id", 77, r"image .* \(id 77\) has the id of an earlier image; expected each only once"),
        ("images", "id", "7", r"the ids of the image entries are numbers and strings mixed; expected one kind"),
        ("images", "id", NAN, r"image 1 \(id nan\) has the id nan; expected a number or a string"),
        ("annotations", "iscrowd", NAN, r"annotation 1 .* has iscrowd nan; expected 0 or 1"),
        ("annotations", "image_id", True, r"annotation 1 .* has the unknown image_id True"),
        ("images", "height", 10**400, r"image \d+ has 10+ x 200 pixels; a run-length code holds at most 536870912"),
        ("images", "height", 0, r"image \d+ has height 0 and width 200; masks need both as whole numbers above 0"),
        ("images", "width", 1.5, r"image \d+ has height 160 and width 1\.5"),
        ("categories", "id", True, r"category 1 \(id True\) has the id True; expected a number or a string"),
    ],
)  # fmt: skip
def test_a_wrong_entry_of_the_ground_truth_is_named_with_its_file(files, section: str, field: str, value, message: str):
    truth, results = coco_set(3, segm=True)
    if section == "images" and value == 77:
        truth["images"][0]["id"], truth["annotations"], results = 77, [], []
    truth[section][1][field] = value
    with pytest.raises(InputError, match=rf"gt\.json: {message}"):
        scored(files, truth, results)


@pytest.mark.parametrize("field", ["id", "image_id", "category_id", "area", "segmentation"])
def test_a_missing_field_of_an_annotation_is_named(files, field: str):
    truth, results = coco_set(3, segm=True)
    del truth["annotations"][4][field]
    with pytest.raises(InputError, match=rf"gt\.json: annotation 4 \(.*\) has no {field}"):
        scored(files, truth, results)


def test_files_in_the_wrong_order_are_recognised(files):
    truth, results = coco_set(3)
    with pytest.raises(InputError, match=r"gt\.json, found a list of \d+; is this a result file\? the ground truth"):
        scored(files, results, truth)
    with pytest.raises(InputError, match=r"results\.json, found an object with the keys images, .* ground truth file"):
        scored(files, truth, truth, "bbox")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"expected results as JSON in .*results\.json, but it cannot be read: .*; is it whole\?"),
        ('[{"image_id": 1, "sco', r"expected results as JSON in .*results\.json"),
        ("\x00\x01PNG", r"expected results as JSON"),
        ("9" * 5000, r"expected results as JSON in .*results\.json, but it cannot be read: Exceeds the limit"),
        ("[" * 100_000, r"expected results as JSON in .*results\.json, but it cannot be read: maximum recursion"),
        ("3", r"expected a list of detections .*, found 3; is this"),
        ("[3]", r"results\.json: entry 0 is 3; expected an object with named fields"),
        ('["a"]', r"entry 0 is 'a'"),
    ],
)
def test_a_file_that_is_no_result_file_is_named(files, content: str, message: str):
    files[0].write_text(json.dumps(coco_set(3)[0]))
    files[1].write_text(content)
    with pytest.raises(InputError, match=message):
        coco.evaluate(*files)


def test_a_file_that_is_no_text_is_named(files):
    files[0].write_bytes(b"\x80\x02}q\x00\xff")
    with pytest.raises(InputError, match=r"expected ground truth as JSON in .*gt\.json"):
        coco.evaluate(*files)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"ground truth file not found: .*gt\.json"):
        coco.evaluate(tmp_path / "gt.json", [])
    with pytest.raises(InputError, match=re.escape(f"in {tmp_path}, found a folder")):
        coco.evaluate(coco_set(1)[0], tmp_path)


@pytest.mark.parametrize("missing", ["images", "categories", "annotations"])
def test_ground_truth_without_one_of_its_lists_is_refused(missing: str):
    truth, results = coco_set(1)
    del truth[missing]
    with pytest.raises(
        InputError, match=r"expected an object with the lists images, categories, annotations in the given"
    ):
        coco.evaluate(truth, results)


def test_ground_truth_without_categories_is_refused():
    truth, _ = coco_set(1)
    with pytest.raises(InputError, match="expected at least one category"):
        coco.evaluate({**truth, "categories": [], "annotations": []}, [])


def test_an_infinite_score_ranks_first_and_whole_numbers_are_scores():
    truth, results = coco_set(3)
    results[0]["score"], results[1]["score"] = INFINITY, 1
    detections = load_detections(results, load_ground_truth(truth, "bbox"), "bbox")
    assert detections.score[0] == INFINITY
    assert detections.score[1] == 1


def test_numbers_beyond_64_bits_are_read_as_floats():
    truth, results = coco_set(3)
    results[0]["bbox"] = [10**30, 0, 1, 1]
    results[1]["score"] = 10**30
    detections = load_detections(results, load_ground_truth(truth, "bbox"), "bbox")
    assert detections.boxes is not None
    assert detections.boxes[0, 0] == 1e30
    assert detections.score[1] == 1e30


def test_columns_follow_the_file_and_positions_follow_the_sorted_ids():
    truth, results = coco_set(3)
    loaded = load_ground_truth(truth, "bbox")
    assert [image["id"] for image in loaded.images] == sorted(image["id"] for image in truth["images"])
    assert [category["id"] for category in loaded.categories] == [1, 2, 3, 4]
    detections = load_detections(results, loaded, "bbox")
    assert [loaded.images[i]["id"] for i in detections.image] == [entry["image_id"] for entry in results]
    assert [loaded.categories[k]["id"] for k in detections.category] == [entry["category_id"] for entry in results]
    np.testing.assert_array_equal(detections.boxes, [entry["bbox"] for entry in results])
    kept = detections.take(np.array([3, 1]))
    np.testing.assert_array_equal(kept.score, [results[3]["score"], results[1]["score"]])


@pytest.mark.parametrize("flag", [1, True, 1.0, np.int64(1), np.bool_(True), np.float32(1)])
def test_a_flag_may_be_written_in_any_way_that_equals_one(flag):
    truth, _ = coco_set(3)
    for annotation in truth["annotations"]:
        annotation["iscrowd"] = 0
    truth["annotations"][2]["iscrowd"] = flag
    np.testing.assert_array_equal(np.flatnonzero(load_ground_truth(truth, "bbox").crowd), [2])


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_boxes_of_loaded_objects_may_be_arrays(iou_type):
    truth, results = coco_set(3, segm=True)
    for entry in results:
        entry["bbox"] = [1.0, 2.0, 30.0, 4.0]
    expected = coco.evaluate(truth, results, iou_type).precision
    for entry in (*truth["annotations"], *results):
        entry["bbox"] = np.array(entry["bbox"])
    np.testing.assert_array_equal(coco.evaluate(truth, results, iou_type).precision, expected)
    results[5]["bbox"] = np.array(3.0)
    with pytest.raises(InputError, match=r"entry 5 .* the bbox 3\.0"):
        coco.evaluate(truth, results, iou_type)


def small_files(folder: Path, boxes: list[list[float]], detections: list[tuple[int, list[float]]]) -> tuple[Path, Path]:
    """Three images of 60×40 with one object each, and detections (image, box)."""
    truth = {
        "images": [{"id": k, "width": 60, "height": 40} for k in (1, 2, 3)],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [
            {"id": k, "image_id": k, "category_id": 1, "bbox": box, "area": 1.0, "iscrowd": 0}
            for k, box in enumerate(boxes, 1)
        ],
    }
    results = [{"image_id": k, "category_id": 1, "score": 0.5, "bbox": box} for k, box in detections]
    files = folder / "gt.json", folder / "results.json"
    for file, content in zip(files, (truth, results), strict=True):
        file.write_text(json.dumps(content))
    return files


BOX = [5.0, 5.0, 10.0, 10.0]


def test_ground_truth_in_fractions_of_the_image_is_refused(tmp_path: Path):
    fractions = [0.1, 0.1, 0.9, 0.9]
    with pytest.raises(InputError, match=r"pixels in .*gt\.json, found all 3 within 0 … 1"):
        coco.evaluate(*small_files(tmp_path, [fractions] * 3, [(1, BOX)]))
    coco.evaluate(*small_files(tmp_path, [fractions, BOX, fractions], [(1, BOX)]))


def test_fractions_that_rounding_or_the_edge_puts_beyond_0_and_1_are_refused_too(tmp_path: Path):
    with pytest.raises(InputError, match=r"found all 3 within 0 … 1"):
        coco.evaluate(*small_files(tmp_path, [[-0.004, 0.1, 1.003, 0.9]] * 3, [(1, BOX)]))


def test_detections_in_fractions_of_the_image_are_counted(tmp_path: Path, caplog):
    files = small_files(tmp_path, [BOX] * 3, [(k, [0.1, 0.2, 0.5, 1.0]) for k in (1, 2, 3)])
    coco.evaluate(*files)
    assert [record.getMessage() for record in caplog.records] == [
        f"{files[1]}: 3 of 3 detections are fractions of the image, not pixels, and match nothing"
    ]


def test_detections_outside_their_image_and_images_without_any_are_counted_once(tmp_path: Path, caplog):
    beyond, before, rounded = [50.0, 5.0, 11.5, 10.0], [5.0, -1.5, 10.0, 10.0], [50.0, 30.0, 10.9, 10.9]
    files = small_files(tmp_path, [BOX] * 3, [(1, beyond), (2, before), (1, rounded), (1, BOX)])
    for _ in range(2):
        coco.evaluate(*files)
    assert [record.getMessage() for record in caplog.records] == [
        f"{files[1]}: 1 of 3 images have no detection",
        f"{files[1]}: 2 of 4 detections leave their image by more than a pixel",
    ]


def test_an_image_of_unknown_size_holds_every_detection(tmp_path: Path, caplog):
    files = small_files(tmp_path, [BOX] * 3, [(k, [500.0, 5.0, 9.0, 9.0]) for k in (1, 2, 3)])
    files[0].write_text(files[0].read_text().replace('"width": 60, "height": 40', '"note": 0'))
    coco.evaluate(*files)
    assert not caplog.records


def test_what_was_read_for_masks_is_not_scored_as_boxes():
    truth, results = coco_set(3, segm=True)
    read = load_ground_truth(truth, "segm")
    with pytest.raises(InputError, match="read for bbox, found it read for segm"):
        load_ground_truth(read, "bbox")
    detections = load_detections(results, read, "segm")
    boxes = load_ground_truth(truth, "bbox")
    with pytest.raises(InputError, match="read for bbox, found it read for segm"):
        load_detections(detections, boxes, "bbox")
    assert load_ground_truth(boxes, "bbox") is boxes


def test_objects_of_negative_and_infinite_area_are_counted_and_those_of_none_are_not(tmp_path: Path, caplog):
    files = small_files(tmp_path, [BOX] * 3, [(k, BOX) for k in (1, 2, 3)])
    truth = json.loads(files[0].read_text())
    areas = [-0.5, INFINITY, -INFINITY, 0.0, 0.5, 1e12]
    truth["annotations"] = [
        {**truth["annotations"][0], "id": number, "area": area} for number, area in enumerate(areas, start=1)
    ]
    files[0].write_text(json.dumps(truth))
    load_ground_truth(files[0], "bbox")
    assert [record.getMessage() for record in caplog.records] == [
        f"{files[0]}: 3 objects with a negative or infinite area, which no range of sizes holds"
    ]
