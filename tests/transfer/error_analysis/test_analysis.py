"""Kinds and costs of errors against a naive loop, AP50 against the scorer, thresholds against all thresholds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.error_analysis.analysis import analyse, write_analysis
from momentum_transfer.transfer.error_analysis.kinds import _greedy
from momentum_transfer.transfer.scores import coco
from momentum_transfer.transfer.scores.greedy_matching import Pairs
from tests.transfer.error_analysis import naive_tide
from tests.transfer.scores.random_sets import HEIGHT, WIDTH, rectangle

FALSE_POSITIVES = ("classification", "localisation", "both", "duplicate", "background")


def crowded_set(seed: int, images: int = 15, classes: int = 3, segm: bool = False):
    """Objects with detections of every fate: exact, moved, of another class, repeated, on nothing; some crowds."""
    random = np.random.default_rng(seed)
    truth = {
        "images": [{"id": i + 1, "file_name": f"{i}.png", "height": HEIGHT, "width": WIDTH} for i in range(images)],
        "categories": [{"id": 10 * (c + 1), "name": f"class {c}"} for c in range(classes + 1)],  # the last: no object
        "annotations": [],
    }
    results = []

    def entry(image, category, box):
        x, y, w, h = (int(v) for v in box)
        made = {"image_id": image, "category_id": int(category), "bbox": [x, y, w, h]}
        return made | ({"segmentation": rectangle(x, y, w, h)} if segm else {})

    for image in truth["images"][1:]:  # the first has no objects
        for _ in range(random.integers(1, 6)):
            box = [*random.integers(0, 90, 2), *random.integers(12, 60, 2)]
            category = 10 * random.integers(1, classes + 1)
            thing = entry(image["id"], category, box)
            crowd = int(random.random() < 0.1)
            area = float(box[2] * box[3])
            truth["annotations"].append({**thing, "id": len(truth["annotations"]) + 1, "area": area, "iscrowd": crowd})
            for _ in range(random.integers(0, 4)):
                moved = np.maximum(np.array(box) + random.integers(-9, 10, 4), [0, 0, 4, 4])
                other = category if random.random() < 0.7 else 10 * random.integers(1, classes + 2)
                results.append({**entry(image["id"], other, moved), "score": float(random.random())})
    for image in truth["images"]:
        box = [*random.integers(0, 120, 2), *random.integers(5, 30, 2)]
        found = entry(image["id"], 10 * random.integers(1, classes + 2), box)
        results.append({**found, "score": float(random.random())})
    return truth, results


@pytest.mark.parametrize("seed", range(8))
def test_kinds_and_costs_are_those_of_a_naive_loop(seed):
    truth, results = crowded_set(seed)
    found, naive = analyse("coco", truth, results), naive_tide.errors(truth, results)
    assert found["ap50"] == pytest.approx(naive["ap50"], abs=1e-9)
    assert {name: kind["number"] for name, kind in found["kinds"].items()} == naive["numbers"]
    costs = {name: kind["cost"] for name, kind in found["kinds"].items()} | found["sides"]
    assert costs == pytest.approx(naive["costs"], abs=1e-9)
    assert set(naive["numbers"]) == {*FALSE_POSITIVES, "missed"}


def test_the_random_sets_hold_every_kind_of_error():
    total = dict.fromkeys((*FALSE_POSITIVES, "missed"), 0)
    for seed in range(8):
        for name, kind in analyse("coco", *crowded_set(seed))["kinds"].items():
            total[name] += kind["number"]
    assert min(total.values()) > 3, total


@pytest.mark.parametrize("segm", [False, True])
def test_ap50_is_the_scorers(segm):
    iou_type = "segm" if segm else "bbox"
    truth, results = crowded_set(11, segm=segm)
    scores = coco.evaluate(truth, results, iou_type)
    found = analyse("coco", truth, results, iou_type)
    assert found["ap50"] == pytest.approx(scores.metrics["AP50"], abs=1e-10)
    per_class = scores.precision[0, :, :, 0, -1]
    for k, entry in enumerate(found["classes"]):
        if entry["objects"]:
            assert entry["curve"] == pytest.approx(per_class[:, k], abs=1e-4)
            assert entry["ap50"] == pytest.approx(100 * per_class[:, k].mean(), abs=1e-10)
        else:
            assert entry["ap50"] is None


def test_one_error_of_each_kind_in_a_set_made_for_it():
    boxes = {"found": [0, 0, 20, 20], "badly": [40, 0, 20, 20], "renamed": [80, 0, 20, 20], "missed": [0, 60, 20, 20],
             "both": [40, 60, 20, 20]}  # fmt: skip
    truth = {
        "images": [{"id": 1, "file_name": "a.png", "height": 100, "width": 200}],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [
            {"id": n, "image_id": 1, "category_id": 1, "bbox": box, "area": 400.0, "iscrowd": 0}
            for n, box in enumerate(boxes.values(), start=1)
        ],
    }
    fates = [  # box, class, score
        ([0, 0, 20, 20], 1, 0.9), ([1, 0, 20, 20], 1, 0.8), ([50, 0, 20, 20], 1, 0.7), ([80, 0, 20, 20], 2, 0.6),
        ([150, 60, 20, 20], 1, 0.5), ([50, 60, 20, 20], 2, 0.4),
    ]  # fmt: skip
    results = [{"image_id": 1, "category_id": c, "bbox": box, "score": s} for box, c, s in fates]
    found = analyse("coco", truth, results)
    numbers = {name: kind["number"] for name, kind in found["kinds"].items()}
    assert numbers == {**dict.fromkeys(FALSE_POSITIVES, 1), "missed": 2}  # "both" covers no object
    cat = found["classes"][0]
    assert cat["kinds"] == {
        "classification": 0,
        "localisation": 1,
        "both": 0,
        "duplicate": 1,
        "background": 1,
        "missed": 2,
    }
    assert (cat["threshold"], cat["precision"], cat["recall"]) == (0.9, 100.0, 20.0)
    assert found["confusion"] == [[0, 0, 1], [0, 2, 4]]
    hard = found["hardest"][0]
    assert (hard["file_name"], hard["f1"]) == ("a.png", pytest.approx(100 / 3))
    assert [hard[name] for name in ("objects", "right", "wrong", "missed")] == [5, 1, 0, 4]


@pytest.mark.parametrize("seed", range(3))
def test_the_best_threshold_is_the_best_of_all(seed):
    truth, results = crowded_set(seed, images=6)
    for k, entry in enumerate(analyse("coco", truth, results)["classes"]):
        tried = {}
        for threshold in sorted({r["score"] for r in results}):
            kept = [r for r in results if r["score"] >= threshold]
            scores = coco.evaluate(truth, kept) if kept else None
            recall = scores.recall[0, k, 0, -1] if scores is not None else 0.0
            right = round(max(recall, 0) * entry["objects"])
            wrong = sum(r["category_id"] == 10 * (k + 1) for r in kept) - right
            tried[threshold] = 200 * right / max(1, entry["objects"] + right + wrong)
        if entry["objects"]:
            assert entry["f1"] >= max(tried.values()) - 1e-9  # detections on crowds, which do not count, are in `wrong`


def test_the_confusion_matrix_accounts_for_every_object_and_every_shown_detection():
    truth, results = crowded_set(5)
    found = analyse("coco", truth, results)
    classes = len(truth["categories"])
    table = np.zeros((classes + 1, classes + 1), dtype=int)
    for i, j, number in found["confusion"]:
        table[i, j] = number
    objects = [
        sum(a["category_id"] == 10 * (k + 1) and not a["iscrowd"] for a in truth["annotations"]) for k in range(classes)
    ]
    assert table[:-1].sum(axis=1).tolist() == objects
    assert table[-1, -1] == 0
    assert table[0, 1] + table[1, 0] + table[0, 2] > 0


def test_calibration_is_the_mean_gap_of_score_and_precision():
    truth = {
        "images": [{"id": 1, "height": 99, "width": 2000}], "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {"id": n + 1, "image_id": 1, "category_id": 1, "bbox": [40 * n, 0, 20, 20], "area": 400.0, "iscrowd": 0}
            for n in range(4)
        ],
    }  # fmt: skip
    boxes = [(0, 0.75), (40, 0.75), (80, 0.75), (1000, 0.75), (120, 1.0)]  # three of four are right at 0.75
    results = [{"image_id": 1, "category_id": 1, "bbox": [x, 0, 20, 20], "score": s} for x, s in boxes]
    found = analyse("coco", truth, results)["calibration"]
    assert found["number"] == [0, 0, 0, 0, 0, 0, 0, 4, 0, 1]
    assert found["error"] == pytest.approx(0)
    shifted = [{**r, "score": r["score"] - 0.2} for r in results]
    assert analyse("coco", truth, shifted)["calibration"]["error"] == pytest.approx(20)


def test_lvis_holds_no_class_against_a_detector_that_was_not_looked_for():
    box = {"bbox": [0, 0, 20, 20], "area": 400.0}
    lists = {"neg_category_ids": [2], "not_exhaustive_category_ids": [3]}
    truth = {
        "images": [{"id": 1, "height": 99, "width": 99, **lists}],
        "categories": [{"id": k, "name": str(k), "frequency": "f"} for k in (1, 2, 3, 4)],
        "annotations": [
            {"id": k, "image_id": 1, "category_id": k, "segmentation": [[0, 0, 20, 0, 20, 20, 0, 20]], **box}
            for k in (1, 3)
        ],
    }  # fmt: skip
    far = [60, 60, 20, 20]
    results = [{"image_id": 1, "category_id": k, "bbox": far, "score": 0.9} for k in (1, 2, 3, 4)]
    found = analyse("lvis", truth, results)
    assert found["kinds"]["background"]["number"] == 2  # of classes 1 and 2: 3 is not listed wholly, 4 not looked for
    assert found["kinds"]["missed"]["number"] == 2


def test_difficult_objects_of_voc_are_neither_missed_nor_held_against_a_detection():
    truth = {
        "images": [{"id": 1, "height": 99, "width": 99}], "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 20, 20], "difficult": 1},
            {"id": 2, "image_id": 1, "category_id": 1, "bbox": [50, 50, 20, 20], "difficult": 0},
        ],
    }  # fmt: skip
    results = [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 20, 20], "score": 0.9}]
    found = analyse("voc", truth, results)
    assert {name: kind["number"] for name, kind in found["kinds"].items()} == {
        **dict.fromkeys(FALSE_POSITIVES, 0),
        "missed": 1,
    }


def test_a_detector_that_finds_nothing_misses_everything(tmp_path):
    truth, _ = crowded_set(0)
    found = analyse("coco", truth, [])
    objects = sum(not a["iscrowd"] for a in truth["annotations"])
    assert found["kinds"]["missed"]["number"] == objects
    assert found["ap50"] == 0
    assert found["calibration"]["error"] is None
    write_analysis(tmp_path / "errors.json", found)
    assert json.loads((tmp_path / "errors.json").read_text()) == found


def test_a_wrong_result_file_is_named(tmp_path):
    (tmp_path / "found.json").write_text("{}")
    with pytest.raises(InputError, match=r"found\.json"):
        analyse("coco", crowded_set(0)[0], tmp_path / "found.json")


def test_a_set_of_crowds_alone_has_no_curve_and_no_ap():
    truth, results = crowded_set(0)
    for entry in truth["annotations"]:
        entry["iscrowd"] = 1
    found = analyse("coco", truth, results)
    assert found["curve"] == []
    assert found["ap50"] is None
    assert len(analyse("coco", *crowded_set(0))["curve"]) > 9


def one_class(objects: int, detections: list[tuple[int, float]], apart: int = 40):
    """``objects`` in a row of one image, and a detection (which object, score) each; objects beyond the last are not
    there."""
    truth = {
        "images": [{"id": 1, "height": 99, "width": 99_999}], "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {"id": n + 1, "image_id": 1, "category_id": 1, "bbox": [apart * n, 0, 20, 20], "area": 400.0, "iscrowd": 0}
            for n in range(objects)
        ],
    }  # fmt: skip
    results = [
        {"image_id": 1, "category_id": 1, "bbox": [apart * n, 0, 20, 20], "score": score} for n, score in detections
    ]
    return truth, results


def test_precision_recall_and_f1_are_those_at_the_best_threshold():
    detections = [(0, 0.9), (7, 0.8), (1, 0.7), (2, 0.6), (8, 0.5), (9, 0.4), (3, 0.1)]
    (found,) = analyse("coco", *one_class(5, detections))["classes"]
    assert found["threshold"] == 0.6  # 3 of 4 are right there, of 5 objects
    assert [found[name] for name in ("precision", "recall", "f1")] == pytest.approx([75, 60, 100 * 6 / 9])
    assert (found["objects"], found["detections"]) == (5, 7)


@pytest.mark.parametrize(("kind", "hits"), [("coco", 0), ("voc", 1)])
def test_the_101st_detection_of_an_image_and_class_counts_for_voc_alone(kind: str, hits: int):
    nothing = [(n, 0.9) for n in range(3, 103)]
    (found,) = analyse(kind, *one_class(1, [*nothing, (0, 0.1)]))["classes"]
    assert found["detections"] == 100 + hits
    assert found["kinds"]["missed"] == 1 - hits
    (found,) = analyse(kind, *one_class(1, [*nothing[:99], (0, 0.1)]))["classes"]
    assert (found["detections"], found["kinds"]["missed"]) == (100, 0)


@pytest.mark.parametrize("seed", range(40))
def test_each_detection_takes_the_best_free_object_as_in_a_naive_loop(seed: int):
    """Equal overlaps, crowds that are never used up, and objects that are taken only if none that counts is left."""
    random = np.random.default_rng(seed)
    objects = int(random.integers(1, 6))
    overlap = random.choice([0.2, 0.5, 0.5, 0.7, 0.9], (6, objects))
    crowd, counts = random.random((2, objects)) < [[0.2], [0.7]]
    counts &= ~crowd
    detection, other = np.nonzero(overlap > 0.3)
    eligible = overlap[detection, other] >= 0.5
    found = _greedy(Pairs(detection, other, overlap[detection, other]), eligible, 6, counts, crowd)
    used: set[int] = set()
    for d in range(6):
        free = [g for g in range(objects) if overlap[d, g] >= 0.5 and (g not in used or crowd[g])]
        best = max(free, key=lambda g: (counts[g], overlap[d, g], g), default=-1)
        used.add(best)
        assert found[d] == best
