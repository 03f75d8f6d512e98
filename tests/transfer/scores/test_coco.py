import copy
import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import coco, voc
from tests.transfer.scores.random_sets import coco_set, rectangle, small_coco_set
from tests.transfer.scores.references import largest_difference, pycocotools_eval

SEEDS = range(80)
NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def assert_equal_to_pycocotools(truth, results, iou_type, max_dets=(1, 10, 100)):
    """Every entry of the tables, and for the usual limits also the twelve numbers that pycocotools prints."""
    theirs = pycocotools_eval(truth, results, iou_type, max_dets)
    ours = coco.evaluate(truth, results, iou_type, max_dets)
    assert largest_difference(ours.precision, theirs.eval["precision"]) == 0.0
    assert largest_difference(ours.recall, theirs.eval["recall"]) == 0.0
    if tuple(max_dets) == (1, 10, 100):
        assert tuple(ours.metrics) == NAMES
        percents = [float(value) * 100 if value > -1 else math.nan for value in theirs.stats]
        np.testing.assert_array_equal(list(ours.metrics.values()), percents)
    return ours, theirs


@pytest.mark.parametrize("seed", SEEDS)
def test_every_box_entry_equals_pycocotools(seed: int):
    assert_equal_to_pycocotools(*coco_set(seed), "bbox")


@pytest.mark.parametrize("seed", SEEDS[:40])
def test_every_mask_entry_equals_pycocotools(seed: int):
    assert_equal_to_pycocotools(*coco_set(seed, segm=True), "segm")


@pytest.mark.parametrize("seed", SEEDS[:10])
@pytest.mark.parametrize("max_dets", [(1,), (2, 5, 7), (1, 10, 300)])
def test_every_limit_of_detections_equals_pycocotools(seed: int, max_dets: tuple[int, ...]):
    assert_equal_to_pycocotools(*coco_set(seed), "bbox", max_dets)


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_string_ids_equal_pycocotools(seed: int):
    assert_equal_to_pycocotools(*coco_set(seed, string_ids=True), "bbox")


def test_without_the_flag_an_object_is_no_crowd():
    truth, results = coco_set(5)
    for annotation in truth["annotations"]:
        annotation["iscrowd"] = 0
    expected = coco.evaluate(truth, results).precision
    for annotation in truth["annotations"]:
        del annotation["iscrowd"]
    np.testing.assert_array_equal(coco.evaluate(truth, results).precision, expected)


def test_numpy_numbers_in_loaded_objects_are_numbers():
    truth, results = coco_set(5, segm=True)
    expected = coco.evaluate(truth, results, "segm").precision
    for entry in (*truth["images"], *truth["annotations"], *results):
        for key, value in entry.items():
            if key in ("id", "image_id", "category_id", "height", "width"):
                entry[key] = np.int64(value)
            elif key in ("area", "score"):
                entry[key] = np.float64(value)
    np.testing.assert_array_equal(coco.evaluate(truth, results, "segm").precision, expected)


@settings(max_examples=150, deadline=None)
@given(small_coco_set())
def test_small_box_sets_equal_pycocotools(case):
    assert_equal_to_pycocotools(*case, "bbox")


@settings(max_examples=60, deadline=None)
@given(small_coco_set(segm=True))
def test_small_mask_sets_with_boxes_in_the_file_equal_pycocotools(case):
    assert_equal_to_pycocotools(*case, "segm")


def test_masks_can_be_sized_as_detectron2_does_by_dropping_the_boxes_first():
    truth, results = coco_set(3, segm=True)
    boxed = [{**entry, "bbox": [0, 0, 190, 150]} for entry in results]
    by_mask = coco.evaluate(truth, boxed, "segm", area_from="mask")
    np.testing.assert_array_equal(by_mask.precision, pycocotools_eval(truth, results, "segm").eval["precision"])
    by_box = coco.evaluate(truth, boxed, "segm")
    np.testing.assert_array_equal(by_box.precision, pycocotools_eval(truth, boxed, "segm").eval["precision"])
    assert (by_box.precision != by_mask.precision).any()


def test_polygon_and_plain_run_length_results_equal_pycocotools():
    truth, _ = coco_set(9, segm=True)
    polygon = [[10.0, 10.0, 60.0, 10.0, 60.0, 70.0, 10.0, 70.0]]
    plain = {"size": [160, 200], "counts": [160 * 20 + 10, 30, 160 * 200 - 160 * 20 - 40]}
    results = [
        {"image_id": image["id"], "category_id": 1, "score": 0.5, "bbox": [0, 0, 9, 9], "segmentation": segmentation}
        for image in truth["images"]
        for segmentation in (polygon, plain)
    ]
    assert_equal_to_pycocotools(truth, results, "segm")


def test_scores_of_files_and_of_objects_are_the_same(tmp_path: Path):
    truth, results = coco_set(5)
    before = copy.deepcopy((truth, results))
    from_objects = coco.evaluate(truth, results)
    assert (truth, results) == before
    (tmp_path / "gt.json").write_text(json.dumps(truth))
    (tmp_path / "results.json").write_text(json.dumps(results))
    from_files = coco.evaluate(tmp_path / "gt.json", str(tmp_path / "results.json"))
    np.testing.assert_array_equal(from_files.precision, from_objects.precision)


def test_order_of_images_and_classes_in_the_file_does_not_matter():
    truth, results = coco_set(7)
    turned = {**truth, "images": truth["images"][::-1], "categories": truth["categories"][::-1]}
    np.testing.assert_array_equal(coco.evaluate(turned, results).precision, coco.evaluate(truth, results).precision)


def test_no_predictions_score_zero_where_pycocotools_crashes():
    truth, results = coco_set(5)
    with pytest.raises(IndexError):
        pycocotools_eval(truth, [], "bbox")
    nothing = coco.evaluate(truth, [])
    # A detection far below the others in an image without objects is what an empty list comes to.
    has_objects = coco.evaluate(truth, results).precision > -1
    np.testing.assert_array_equal(nothing.precision, np.where(has_objects, 0.0, -1.0))
    assert nothing.metrics["AP"] == 0.0
    assert coco.evaluate(truth, [], "bbox").recall.max() == 0.0
    masks, _ = coco_set(5, segm=True)
    assert coco.evaluate(masks, [], "segm").metrics["AP"] == 0.0


def test_no_ground_truth_at_all_leaves_every_score_undefined():
    truth, results = coco_set(5)
    scores = coco.evaluate({**truth, "annotations": []}, results)
    assert all(math.isnan(value) for value in scores.metrics.values())
    assert all(math.isnan(value) for value in scores.per_class.values())
    np.testing.assert_array_equal(scores.precision, -1.0)


def test_a_perfect_detector_scores_one_hundred():
    truth, _ = coco_set(11)
    truth["annotations"] = [a for a in truth["annotations"] if not a["iscrowd"] and min(a["bbox"][2:]) > 0 and a["id"]]
    results = [{**entry, "score": 1.0} for entry in truth["annotations"]]
    scores = coco.evaluate(truth, results)
    assert scores.metrics["AP"] == pytest.approx(100)
    assert scores.metrics["AR100"] == 100


def test_ap_per_class_and_size_is_the_mean_of_pycocotools_entries():
    truth, results = coco_set(4)
    ours, theirs = assert_equal_to_pycocotools(truth, results, "bbox")
    for k, category in enumerate(ours.category_ids):
        for area, values in enumerate((ours.per_class, *_by_area(ours))):
            entries = theirs.eval["precision"][:, :, k, area, 2]
            expected = entries[entries > -1].mean() * 100 if (entries > -1).any() else math.nan
            name = next(c["name"] for c in truth["categories"] if c["id"] == category)
            np.testing.assert_array_equal(values[name], expected)


def _by_area(scores: coco.CocoScores) -> list[dict[str, float]]:
    return [
        {name: values[metric] for name, values in scores.per_class_by_area.items()} for metric in ("APs", "APm", "APl")
    ]


def test_two_classes_of_one_name_are_told_apart_by_their_ids():
    truth, results = coco_set(2)
    for category in truth["categories"]:
        category["name"] = "same"
    assert list(coco.evaluate(truth, results).per_class) == ["same (1)", "same (2)", "same (3)"]


def test_one_limit_stands_for_one_ten_and_itself():
    truth, results = coco_set(5)
    assert coco.evaluate(truth, results, max_dets=300).max_dets == (1, 10, 300)
    assert coco.evaluate(truth, results, max_dets=5).max_dets == (1, 5)
    assert coco.evaluate(truth, results, max_dets=10).max_dets == (1, 10)
    assert coco.evaluate(truth, results, max_dets=1).max_dets == (1,)
    assert coco.evaluate(truth, results, max_dets=np.int64(100)).max_dets == (1, 10, 100)  # type: ignore[arg-type]
    assert "AR300" in coco.evaluate(truth, results, max_dets=300).metrics


def test_a_limit_given_twice_is_refused():
    with pytest.raises(InputError, match=r"expected each limit in max_dets once, found \(1, 1, 100\)"):
        coco.evaluate(*coco_set(1), max_dets=(1, 1, 100))


@pytest.mark.parametrize("identity", [0, 0.0, "0", "00", "0.0", " 0", "-0", 1, "01"])
def test_an_annotation_id_that_reads_as_zero_equals_pycocotools(identity):
    truth, hit = one_object()
    truth["annotations"][0]["id"] = identity
    ours, _ = assert_equal_to_pycocotools(truth, [hit], "bbox")
    assert ours.metrics["AP"] == pytest.approx(100 * (float(identity) != 0))


@pytest.mark.parametrize("area", [math.inf, 0, -1.0, 1e10, 1e11])
def test_areas_at_the_ends_of_the_ranges_equal_pycocotools(area: float):
    truth, hit = one_object()
    truth["annotations"][0]["area"] = area
    assert_equal_to_pycocotools(truth, [hit], "bbox")


@pytest.mark.parametrize("side", [1e-200, 1e200])
def test_boxes_whose_area_is_no_float_overlap_nothing_and_warn_of_nothing(side: float):
    truth, hit = one_object()
    box = {"bbox": [0.0, 0.0, side, side]}
    truth["annotations"][0].update(box)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = coco.evaluate(truth, [hit | box])
        voc.evaluate(truth, [hit | box])
    assert ours.metrics["AP"] == 0
    assert pycocotools_eval(truth, [hit | box], "bbox").stats[0] == pytest.approx(1)  # NaN counts as a match


def test_whole_number_scores_are_compared_as_floats():
    truth, hit = one_object()
    ranked = [hit | {"bbox": [100, 100, 5, 5], "score": 2**53}, hit | {"score": 2**53 + 1}]
    assert coco.evaluate(truth, ranked).metrics["AP"] == pytest.approx(50)
    assert pycocotools_eval(truth, ranked, "bbox").stats[0] == pytest.approx(1)


@pytest.mark.parametrize("max_dets", [0, -1, [], [10, 0], 1.5, True])
def test_a_limit_that_is_no_count_is_refused(max_dets):
    with pytest.raises(InputError, match="expected max_dets as whole numbers above 0"):
        coco.evaluate(*coco_set(1), max_dets=max_dets)


def test_an_unknown_iou_type_is_refused():
    with pytest.raises(InputError, match="expected iou_type bbox or segm, found 'keypoints'"):
        coco.evaluate(*coco_set(1), iou_type="keypoints")  # type: ignore[arg-type]


def one_object():
    box = [10, 10, 20, 20]
    truth = {
        "images": [{"id": 1, "height": 160, "width": 200}],
        "categories": [{"id": 1, "name": "one"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "area": 400, "iscrowd": 0}],
    }
    return truth, {"image_id": 1, "category_id": 1, "score": 0.5, "bbox": box}


def test_the_limit_of_detections_applies_after_stable_ranking():
    truth, hit = one_object()
    miss = {**hit, "bbox": [100, 100, 5, 5]}
    assert coco.evaluate(truth, [miss, hit], max_dets=1).metrics["AP"] == 0
    assert coco.evaluate(truth, [hit, miss], max_dets=1).metrics["AP"] == pytest.approx(100)


def test_a_mask_result_is_not_scored_as_boxes_in_silence():
    truth, _ = coco_set(3)
    results = [{"image_id": 0, "category_id": 1, "score": 1.0, "segmentation": rectangle(1, 1, 5, 5)}]
    with pytest.raises(InputError, match=r"entry 0 .* has no bbox"):
        coco.evaluate(truth, results)
