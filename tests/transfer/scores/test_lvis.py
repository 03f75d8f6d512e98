import copy
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import coco, lvis
from tests.transfer.scores.random_sets import coco_set, federated, small_lvis_set
from tests.transfer.scores.references import largest_difference, lvis_eval

SEEDS = range(60)

pytestmark = pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")


def lvis_set(seed: int, segm: bool = False):
    truth, results = coco_set(seed, segm)
    return federated(truth, seed), results


def assert_equal_to_lvis(folder, truth, results, iou_type="bbox", max_dets=300):
    theirs = lvis_eval(folder, truth, results, iou_type, max_dets)
    ours = lvis.evaluate(truth, results, iou_type, max_dets)
    assert largest_difference(ours.precision, theirs.eval["precision"]) == 0.0
    assert largest_difference(ours.recall, theirs.eval["recall"]) == 0.0
    names = {f"AR@{max_dets}": "AR" if max_dets < 0 else f"AR{max_dets}"}
    names |= {f"AR{size}@{max_dets}": f"AR{size}" for size in "sml"}
    assert list(ours.metrics) == [names.get(name, name) for name in theirs.results]
    percents = [float(value) * 100 if value > -1 else math.nan for value in theirs.results.values()]
    np.testing.assert_array_equal(list(ours.metrics.values()), percents)
    return ours


@pytest.mark.parametrize("seed", SEEDS)
def test_every_box_entry_equals_lvis(seed: int, tmp_path: Path):
    # 20 and 5 detections per image cut deep into every image of these sets.
    assert_equal_to_lvis(tmp_path, *lvis_set(seed), max_dets=(300, 20, 5, -1)[seed % 4])


@pytest.mark.parametrize("seed", SEEDS[:25])
def test_every_mask_entry_equals_lvis(seed: int, tmp_path: Path):
    assert_equal_to_lvis(tmp_path, *lvis_set(seed, segm=True), iou_type="segm")


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_string_ids_equal_lvis(seed: int, tmp_path: Path):
    truth, results = coco_set(seed, string_ids=True)
    assert_equal_to_lvis(tmp_path, federated(truth, seed), results)


@settings(max_examples=120, deadline=None)
@given(case=small_lvis_set())
def test_small_sets_equal_lvis(tmp_path_factory: pytest.TempPathFactory, case):
    truth, results = case
    assert_equal_to_lvis(tmp_path_factory.mktemp("lvis"), truth, results, max_dets=4)


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_the_order_of_equal_scores_is_that_of_the_file_when_an_image_has_too_many(seed: int, tmp_path: Path):
    truth, results = lvis_set(seed)
    for entry in results:
        entry["score"] = 0.5
    assert_equal_to_lvis(tmp_path, truth, results, max_dets=7)


def one_object():
    box = [10, 10, 20, 20]
    truth = {
        "images": [
            {"id": i, "height": 160, "width": 200, "neg_category_ids": [], "not_exhaustive_category_ids": []}
            for i in (1, 2)
        ],
        "categories": [{"id": 1, "name": "one", "frequency": "r"}, {"id": 2, "name": "two", "frequency": "f"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "area": 400}],
    }
    hit = {"image_id": 1, "category_id": 1, "score": 0.5, "bbox": box}
    return truth, hit


def test_a_false_positive_counts_only_where_the_category_is_known_to_be_absent():
    truth, hit = one_object()
    elsewhere = {**hit, "image_id": 2, "score": 0.9}
    assert lvis.evaluate(truth, [hit, elsewhere]).metrics["AP"] == pytest.approx(100)
    truth["images"][1]["neg_category_ids"] = [1]
    assert lvis.evaluate(truth, [hit, elsewhere]).metrics["AP"] == pytest.approx(50)


def test_a_false_positive_is_forgiven_where_the_category_is_not_exhaustively_annotated():
    truth, hit = one_object()
    second = {**hit, "bbox": [100, 100, 20, 20], "score": 0.9}
    assert lvis.evaluate(truth, [hit, second]).metrics["AP"] == pytest.approx(50)
    truth["images"][0]["not_exhaustive_category_ids"] = [1]
    assert lvis.evaluate(truth, [hit, second]).metrics["AP"] == pytest.approx(100)


def test_the_limit_counts_detections_of_all_classes_of_an_image():
    truth, hit = one_object()
    others = [{**hit, "category_id": 2, "score": 0.9}] * 3
    assert lvis.evaluate(truth, [*others, hit], max_dets=3).metrics["AP"] == 0
    assert lvis.evaluate(truth, [*others, hit], max_dets=4).metrics["AP"] == pytest.approx(100)


def test_ap_by_frequency_is_undefined_where_no_category_of_it_has_an_object():
    truth, hit = one_object()
    metrics = lvis.evaluate(truth, [hit]).metrics
    assert metrics["APr"] == pytest.approx(100)
    assert math.isnan(metrics["APc"])
    assert math.isnan(metrics["APf"])


def test_no_predictions_score_zero_where_lvis_crashes(tmp_path: Path):
    truth, _ = one_object()
    with pytest.raises(IndexError):
        lvis_eval(tmp_path, truth, [], "bbox")
    scores = lvis.evaluate(truth, [])
    assert scores.metrics["AP"] == 0
    assert scores.metrics["AR300"] == 0


def test_inputs_are_left_as_they_were():
    truth, results = lvis_set(3)
    before = copy.deepcopy((truth, results))
    lvis.evaluate(truth, results)
    assert (truth, results) == before


def test_without_federated_lists_and_crowds_it_is_coco_without_a_limit():
    truth, results = coco_set(4)
    truth["annotations"] = [a | {"iscrowd": 0} for a in truth["annotations"] if a["area"] > 0]
    results = [entry for entry in results if entry["bbox"][2] * entry["bbox"][3] > 0]
    everything = copy.deepcopy(truth)
    for category in everything["categories"]:
        category["frequency"] = "f"
    for image in everything["images"]:
        image["neg_category_ids"] = [category["id"] for category in truth["categories"]]
        image["not_exhaustive_category_ids"] = []
    federated_scores = lvis.evaluate(everything, results, max_dets=-1)
    np.testing.assert_array_equal(
        federated_scores.precision, coco.evaluate(truth, results, max_dets=(10**6,)).precision[..., 0]
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t["images"][0].pop("neg_category_ids"), "image 1 has no list neg_category_ids"),
        (lambda t: t["images"][1].update(not_exhaustive_category_ids=3), "image 2 has no list not_exhaustive"),
        (lambda t: t["categories"][0].update(frequency="x"), "category 1 has the frequency 'x'; expected r, c or f"),
        (lambda t: t["categories"][1].pop("frequency"), "category 2 has the frequency None"),
    ],
)
def test_ground_truth_that_is_not_lvis_is_refused(damage, message: str):
    truth, hit = one_object()
    damage(truth)
    with pytest.raises(InputError, match=message):
        lvis.evaluate(truth, [hit])


@pytest.mark.parametrize("area", [math.inf, 0.0, -1.0, 1e11])
def test_objects_whose_area_is_no_size_are_left_out_as_by_lvis(area: float, tmp_path: Path):
    truth, hit = one_object()
    truth["annotations"].append({**truth["annotations"][0], "id": 2, "image_id": 2, "area": area})
    # In image 2 the category is neither annotated (where the object is left out) nor known to be absent.
    assert_equal_to_lvis(tmp_path, truth, [hit, {**hit, "image_id": 2, "bbox": [90, 90, 9, 9], "score": 0.9}])


@pytest.mark.parametrize("side", [1e200, 0.0])
def test_detections_whose_area_is_no_size_are_left_out_as_by_lvis(side: float, tmp_path: Path):
    truth, hit = one_object()
    ours = assert_equal_to_lvis(tmp_path, truth, [hit, {**hit, "bbox": [90.0, 90.0, side, side], "score": 0.9}])
    assert ours.metrics["AP"] == pytest.approx(100)


def test_a_limit_may_be_a_numpy_number():
    truth, hit = one_object()
    assert "AR300" in lvis.evaluate(truth, [hit], max_dets=np.int64(300)).metrics  # type: ignore[arg-type]


@pytest.mark.parametrize("max_dets", [0, -2, True, 1.5])
def test_a_limit_that_is_no_count_is_refused(max_dets):
    truth, hit = one_object()
    with pytest.raises(InputError, match="expected max_dets as a whole number"):
        lvis.evaluate(truth, [hit], max_dets=max_dets)
