import math
from pathlib import Path

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import voc

CLASSES = ("dog", "cat", "cow")


def voc_set(seed: int, tied: bool = True):
    """Whole-pixel objects, some difficult; detections near them and elsewhere; the last class has no object."""
    random = np.random.default_rng(seed)
    images = [
        {"id": number, "file_name": f"{number:06d}.jpg", "height": 200, "width": 300} for number in (4, 9, 2, 7, 5)
    ]
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES)]
    annotations, results = [], []
    for image in images:
        boxes = random.integers((0, 0, 10, 10), (150, 90, 120, 100), (random.integers(0, 7), 4))
        for box in boxes.tolist():
            annotation = {
                "id": len(annotations),
                "image_id": image["id"],
                "category_id": int(random.integers(2)),
                "bbox": box,
            }
            annotations.append(annotation | {"difficult": int(random.random() < 0.25)})
            for _ in range(random.integers(0, 5)):
                near = np.round(np.array(box) + random.normal(0, 6, 4), 2)
                near[2:] = near[2:].clip(1)
                category = annotation["category_id"] if random.random() < 0.85 else int(random.integers(3))
                results.append({"image_id": image["id"], "category_id": category, "bbox": near.tolist()})
    levels = np.arange(len(results)) % 9 if tied else np.arange(len(results))
    for entry, score in zip(results, random.permutation(levels) / 1000 + 0.1, strict=True):
        entry["score"] = float(score) + random.uniform(-4e-4, 4e-4)  # the third decimal is what counts when rounded
    return {"images": images, "categories": categories, "annotations": annotations}, results


def naive_average_precision(
    truth, results, category: int, threshold: float, interpolation: str, rounded: bool
) -> float:
    """The VOC devkit's procedure, one detection, one object and one recall level after another."""

    def written(value: float, digits: int) -> float:
        return float(f"{value:.{digits}f}") if rounded else value

    objects = [
        {"image": a["image_id"], "x": a["bbox"][0] + 1, "y": a["bbox"][1] + 1, "right": a["bbox"][0] + a["bbox"][2],
         "bottom": a["bbox"][1] + a["bbox"][3], "difficult": a["difficult"], "found": False}
        for a in truth["annotations"] if a["category_id"] == category
    ]  # fmt: skip
    required = sum(not entry["difficult"] for entry in objects)
    if not required:
        return math.nan
    mine = [entry for entry in results if entry["category_id"] == category]
    true = false = 0
    points = []
    for entry in sorted(mine, key=lambda entry: -written(entry["score"], 3)):
        x, y, width, height = entry["bbox"]
        left, top, right, bottom = (written(value, 1) for value in (x + 1, y + 1, x + width, y + height))
        best, highest = None, threshold
        for candidate in objects:
            if candidate["image"] != entry["image_id"]:
                continue
            shared_width = min(right, candidate["right"]) - max(left, candidate["x"]) + 1
            shared_height = min(bottom, candidate["bottom"]) - max(top, candidate["y"]) + 1
            shared = max(0, shared_width) * max(0, shared_height)
            own = (candidate["right"] - candidate["x"] + 1) * (candidate["bottom"] - candidate["y"] + 1)
            overlap = shared / ((right - left + 1) * (bottom - top + 1) + own - shared)
            if overlap > highest:
                best, highest = candidate, overlap
        if best is None:
            false += 1
        elif not best["difficult"]:
            true, false = (true, false + 1) if best["found"] else (true + 1, false)
            best["found"] = True
        points.append((true / required, true / max(true + false, 1)))
    if interpolation == "11-point":
        levels = [max((p for r, p in points if r >= level), default=0.0) for level in np.arange(0.0, 1.1, 0.1)]
        return 100 * sum(levels) / 11
    area, reached = 0.0, 0.0
    for index, (recall, _) in enumerate(points):
        area += (recall - reached) * max(p for _, p in points[index:])
        reached = recall
    return 100 * area


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("interpolation", ["11-point", "area"])
@pytest.mark.parametrize("seed", range(12))
def test_every_class_and_threshold_equals_the_naive_procedure(seed: int, interpolation, rounded: bool):
    truth, results = voc_set(seed)
    scores = voc.evaluate(truth, results, interpolation, rounded)
    expected = np.array(
        [
            [naive_average_precision(truth, results, k, iou / 100, interpolation, rounded) for k in range(len(CLASSES))]
            for iou in voc.IOU_PERCENT
        ]
    )
    np.testing.assert_allclose(scores.table, expected, rtol=0, atol=1e-11)
    defined = expected[:, ~np.isnan(expected[0])]
    assert scores.metrics["AP"] == pytest.approx(defined.mean())
    assert scores.metrics["AP50"] == pytest.approx(defined[0].mean())
    assert scores.metrics["AP75"] == pytest.approx(defined[5].mean())
    assert math.isnan(scores.per_class["cow"])
    assert scores.per_class["dog"] == pytest.approx(expected[:, 0].mean(), nan_ok=True)
    assert scores.per_class_ap50["cat"] == pytest.approx(expected[0, 1], nan_ok=True)


@pytest.mark.detectron2
@pytest.mark.parametrize("year", [2007, 2012])
@pytest.mark.parametrize("seed", range(6))
def test_scores_equal_detectron2_evaluator(seed: int, year: int, tmp_path: Path):
    # Scores are distinct, for Detectron2's sort is not stable; a class without objects has no answer there.
    truth, results = voc_set(seed, tied=False)
    truth["categories"] = truth["categories"][:2]
    results = [entry for entry in results if entry["category_id"] < 2]
    theirs = _detectron2_scores(truth, results, year, tmp_path, f"voc_{seed}_{year}_{tmp_path.name}")
    ours = voc.evaluate(truth, results, "11-point" if year == 2007 else "area")
    assert ours.metrics == theirs


def _detectron2_scores(truth, results, year: int, folder: Path, name: str) -> dict[str, float]:
    import torch
    from detectron2.data import MetadataCatalog
    from detectron2.evaluation import PascalVOCDetectionEvaluator
    from detectron2.structures import Boxes, Instances

    (folder / "Annotations").mkdir()
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    names = {image["id"]: image["file_name"].removesuffix(".jpg") for image in truth["images"]}
    (folder / "ImageSets" / "Main" / "test.txt").write_text("\n".join(names.values()))
    for image, stem in names.items():
        objects = "".join(_xml(a) for a in truth["annotations"] if a["image_id"] == image)
        (folder / "Annotations" / f"{stem}.xml").write_text(f"<annotation>{objects}</annotation>")
    MetadataCatalog.get(name).set(dirname=str(folder), split="test", year=year, thing_classes=list(CLASSES[:2]))
    evaluator = PascalVOCDetectionEvaluator(name)
    evaluator.reset()
    for image, stem in names.items():
        mine = [entry for entry in results if entry["image_id"] == image]
        instances = Instances((200, 300))
        corners = [[x, y, x + w, y + h] for x, y, w, h in (entry["bbox"] for entry in mine)]
        instances.pred_boxes = Boxes(torch.zeros(len(mine), 4))
        # Boxes would make float32 of them, and another first decimal of some.
        instances.pred_boxes.tensor = torch.tensor(corners, dtype=torch.float64).reshape(-1, 4)
        instances.scores = torch.tensor([entry["score"] for entry in mine], dtype=torch.float64)
        instances.pred_classes = torch.tensor([entry["category_id"] for entry in mine], dtype=torch.int64)
        evaluator.process([{"image_id": stem}], [{"instances": instances}])
    return {metric: float(value) for metric, value in evaluator.evaluate()["bbox"].items()}


def _xml(annotation) -> str:
    x, y, width, height = annotation["bbox"]
    corners = {"xmin": x + 1, "ymin": y + 1, "xmax": x + width, "ymax": y + height}
    box = "".join(f"<{side}>{value}</{side}>" for side, value in corners.items())
    fields = f"<name>{CLASSES[annotation['category_id']]}</name><pose>Left</pose><truncated>0</truncated>"
    return f"<object>{fields}<difficult>{annotation['difficult']}</difficult><bndbox>{box}</bndbox></object>"


def one_object(**flags: int):
    box = [10, 10, 20, 20]
    truth = {
        "images": [{"id": 1}],
        "categories": [{"id": 1, "name": "dog"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [60, 60, 9, 9]},
            {"id": 2, "image_id": 1, "category_id": 1, "bbox": box, **flags},
        ],
    }
    return truth, {"image_id": 1, "category_id": 1, "bbox": box, "score": 0.5}


@pytest.mark.parametrize("flag", ["difficult", "ignore"])
def test_a_difficult_object_is_neither_required_nor_held_against_a_detection(flag: str):
    truth, on_difficult = one_object(**{flag: 1})
    hit = {**on_difficult, "bbox": [60, 60, 9, 9], "score": 0.4}
    assert voc.evaluate(truth, [on_difficult, on_difficult, hit]).metrics["AP50"] == pytest.approx(100)


def test_a_second_detection_of_one_object_is_a_false_positive():
    truth, hit = one_object()
    other = {**hit, "bbox": [60, 60, 9, 9], "score": 0.4}
    area = voc.evaluate(truth, [hit, hit, other], "area").metrics["AP50"]
    assert area == pytest.approx(100 * (0.5 * 1 + 0.5 * 2 / 3))


def test_a_detection_belongs_to_its_best_object_only():
    # The second box overlaps the taken object more than the free one: COCO would give it the free one, VOC does not.
    truth, _ = one_object()
    truth["annotations"][0]["bbox"], truth["annotations"][1]["bbox"] = [0, 0, 100, 100], [0, 0, 100, 60]
    first = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 100, 100], "score": 0.9}
    second = {**first, "bbox": [0, 0, 100, 90], "score": 0.8}
    assert voc.evaluate(truth, [first, second], "area").metrics["AP50"] == pytest.approx(50)


def test_overlap_must_exceed_the_threshold():
    truth, hit = one_object()
    truth["annotations"] = truth["annotations"][1:]
    half = {**hit, "bbox": [10, 10, 20, 10]}
    assert voc.evaluate(truth, [half]).metrics["AP50"] == 0


def test_no_predictions_score_zero_and_no_objects_leave_scores_undefined():
    truth, hit = one_object()
    for interpolation in ("11-point", "area"):
        assert voc.evaluate(truth, [], interpolation).metrics == {"AP": 0, "AP50": 0, "AP75": 0}
    empty = voc.evaluate({**truth, "annotations": []}, [hit]).metrics
    assert all(math.isnan(value) for value in empty.values())


def test_an_unknown_interpolation_is_refused():
    with pytest.raises(InputError, match="expected interpolation 11-point"):
        voc.evaluate(*voc_set(0), interpolation="101-point")  # type: ignore[arg-type]


@pytest.mark.parametrize("side", [0, 1])
def test_boxes_side_by_side_overlap_in_no_pixel(side: int):
    """Each a pixel thick: a row or column of overlap too many would make two neighbours one."""
    truth, _ = one_object()
    box, neighbour = [10, 10, 1, 1], [10, 10, 1, 1]
    box[3 - side] = neighbour[3 - side] = 50
    neighbour[side] += 1
    truth["annotations"] = [{"id": 1, "image_id": 1, "category_id": 1, "bbox": box}]
    found = {"image_id": 1, "category_id": 1, "bbox": neighbour, "score": 0.5}
    assert voc.evaluate(truth, [found]).metrics["AP50"] == 0
    assert voc.evaluate(truth, [{**found, "bbox": box}]).metrics["AP50"] == pytest.approx(100)
