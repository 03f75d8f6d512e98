"""Wrong entries are counted and named; those that cannot be trained on stop before training."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.check_annotations import _FATAL, NAMED, _find_problems, check
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.data.digit_scenes import RECIPES

SQUARE = np.zeros((40, 60), np.uint8)
SQUARE[10:20, 5:25] = 1
LARGER = coco_mask.encode(np.asfortranarray(np.ones((80, 90), np.uint8)))


def rle() -> dict[str, Any]:
    encoded = coco_mask.encode(np.asfortranarray(SQUARE))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}


def counts_list() -> dict[str, Any]:
    flat = SQUARE.flatten(order="F")
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flat, [flat[-1] ^ 1]])))
    return {"size": [40, 60], "counts": np.diff(np.concatenate([[0], edges])).tolist()}


POLYGON = [[5, 10, 25, 10, 25, 20, 5, 20]]
GOOD = {
    "images": [{"id": 1, "file_name": "1.png", "height": 40, "width": 60}],
    "categories": [{"id": 1, "name": "square"}],
    "annotations": [
        {
            "id": k,
            "image_id": 1,
            "category_id": 1,
            "bbox": [5, 10, 20, 10],
            "segmentation": form,
            "iscrowd": 0,
            "area": 200.0,
        }
        for k, form in enumerate((POLYGON, rle(), counts_list()), 1)
    ],
}


def dataset(folder: Path, change: Callable[[dict[str, Any]], object] = lambda data: None):  # type: ignore[no-untyped-def]
    content = copy.deepcopy(GOOD)
    change(content)
    (folder / "1.png").touch()
    file = folder / "own.json"
    file.write_text(json.dumps(content))
    return get_dataset(f"{folder}:{file}")


def test_a_good_set_has_no_problems(tmp_path: Path):
    assert check(dataset(tmp_path)) == []


def annotation(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["annotations"][0].update(changes)


CASES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing image file": (lambda data: data["images"][0].update(file_name="gone.png"), "gone.png"),
    "image without a positive size": (lambda data: data["images"][0].update(height=0), "image 1"),
    "duplicate image id": (lambda data: data["images"].append(data["images"][0]), "1"),
    "duplicate annotation id": (lambda data: data["annotations"][1].update(id=1), "1"),
    "duplicate category id": (lambda data: data["categories"].append({"id": 1, "name": "b"}), "1"),
    "unknown image id": (annotation(image_id=9), "annotation 1 (image_id 9)"),
    "unknown category id": (annotation(category_id=9), "annotation 1 (category_id 9)"),
    "malformed box": (annotation(bbox=[1, 2, 3]), "annotation 1 of image 1: [1, 2, 3]"),
    "box outside its image": (annotation(bbox=[45, 10, 20, 10]), "annotation 1 of image 1: [45, 10, 20, 10] in 60x40"),
    "crowd flag other than 0 or 1": (annotation(iscrowd="yes"), "annotation 1 ('yes')"),
    "object without a mask": (annotation(segmentation=[]), "annotation 1"),
    "object without an area": (annotation(area="x"), "annotation 1 ('x')"),
    "malformed mask": (annotation(segmentation=[[1, 2, 3, 4]]), "annotation 1 of image 1"),
    "empty box": (annotation(bbox=[5, 10, 0, 10]), "annotation 1 of image 1: [5, 10, 0, 10]"),
    "mask does not fit its box": (
        annotation(bbox=[5, 10, 20, 20]),
        "annotation 1 of image 1: box ends [5, 10, 25, 30]",
    ),
}


#: What a training can bear.
BEARABLE = {"empty box", "mask does not fit its box"}


def test_every_kind_of_problem_has_a_case():
    assert set(CASES) == set(_FATAL)


@pytest.mark.parametrize("kind", CASES)
def test_problem_is_counted_named_and_fatal_where_it_must_be(kind: str, tmp_path: Path):
    change, entry = CASES[kind]
    data = dataset(tmp_path, change)
    found = {problem.kind: problem for problem in _find_problems(data, masks=True, scored=True)}
    assert found[kind].count == 1
    assert entry in found[kind].examples[0]
    assert found[kind].fatal is (kind not in BEARABLE)
    if kind not in BEARABLE:
        with pytest.raises(InputError, match=f"1 × {kind}"):
            check(data, masks=True, scored=True)
    else:
        assert [problem.kind for problem in check(data, masks=True, scored=True)] == [kind]


@pytest.mark.parametrize(
    "form",
    [
        {"size": [60, 40], "counts": rle()["counts"]},
        {"size": [40, 60], "counts": [10, 20]},
        {"counts": "x"},
        {"size": [40, 60], "counts": LARGER["counts"].decode()},
        [[1, 2, 3, 4, 5]],
        [[1, 2, 3, float("nan"), 5, 6]],
        [["1", "2", "3", "4", "5", "6"]],
        [{"size": [40, 60]}],
        {"size": 7, "counts": "x"},
        {"size": [40, 60], "counts": [[1], 2]},
        {"size": [40, 60], "counts": 5},
        {"size": [40, 60], "counts": [-100, 2500]},
        {"size": [40, 60], "counts": [2400.0]},
        {"size": [40, 60], "counts": [10**30, 2400 - 10**30]},
        [[1, 2, 3, 4, 5, 10**400]],
        "polygon",
    ],
)
def test_masks_that_are_not_of_their_image_are_malformed(form: Any, tmp_path: Path):
    kinds = [problem.kind for problem in _find_problems(dataset(tmp_path, annotation(segmentation=form)))]
    assert kinds == ["malformed mask"]


@pytest.mark.parametrize(
    "box",
    [
        [5, 10, -20, 10],
        [5, 10, 20, -0.5],
        [10**400, 1, 2, 3],
        [float("nan"), 1, 2, 3],
        ["1", 2, 3, 4],
        None,
        [1, 2, float("inf"), 3],
    ],
)
def test_boxes_that_are_not_four_numbers_are_malformed(box: Any, tmp_path: Path):
    assert [p.kind for p in _find_problems(dataset(tmp_path, annotation(bbox=box)))] == ["malformed box"]


@pytest.mark.parametrize("value", [None, "1", [1], {"id": 1}, 1.5])
def test_ids_of_another_type_are_unknown(value: Any, tmp_path: Path):
    for key, kind in (("image_id", "unknown image id"), ("category_id", "unknown category id")):
        assert [p.kind for p in _find_problems(dataset(tmp_path, annotation(**{key: value})))] == [kind]


def test_rounded_corners_are_no_problem(tmp_path: Path):
    change = annotation(bbox=[-0.4, 30, 60.9, 10.5], segmentation=None)
    assert _find_problems(dataset(tmp_path, change)) == []


def test_many_entries_are_counted_and_the_first_ten_named(tmp_path: Path):
    def many(data: dict[str, Any]) -> None:
        data["annotations"] = [{**GOOD["annotations"][0], "id": k, "category_id": 5} for k in range(25)]  # type: ignore[dict-item]

    (problem,) = _find_problems(dataset(tmp_path, many))
    assert problem.count == 25
    assert len(problem.examples) == NAMED
    with pytest.raises(InputError, match=r"25 × unknown category id: annotation 0 .*annotation 9 \(category_id 5\), …"):
        check(dataset(tmp_path, many))


def test_embedded_scenes_pass_the_check(monkeypatch: pytest.MonkeyPatch):
    for name, recipe in list(RECIPES.items()):
        monkeypatch.setitem(RECIPES, name, replace(recipe, images=(30, 10)))
        for split in ("train", "val"):
            assert check(get_dataset(f"{name}_{split}")) == []


def test_masks_and_areas_are_asked_for_only_where_they_are_needed(tmp_path: Path):
    def lacking(data: dict[str, Any]) -> None:
        for entry in data["annotations"]:
            del entry["segmentation"], entry["area"]

    assert check(dataset(tmp_path, lacking)) == []
    with pytest.raises(InputError, match="3 × object without an area"):
        check(dataset(tmp_path, lacking), scored=True)


def test_a_folder_is_no_picture(tmp_path: Path):
    data = dataset(tmp_path, lambda data: data["images"][0].update(file_name="."))
    assert [problem.kind for problem in _find_problems(data)] == ["missing image file"]


@pytest.mark.parametrize("area", [-1, float("inf"), float("nan"), 10**400])
def test_an_area_that_is_there_is_a_finite_number_of_at_least_0(area: Any, tmp_path: Path):
    assert [p.kind for p in _find_problems(dataset(tmp_path, annotation(area=area)))] == ["object without an area"]


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/../../1.png", "1.png\0", "x" * 300, "..", "\ud800"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused_as_such(name: str, tmp_path: Path):
    for changes in ({"file_name": name}, {"coco_url": f"http://host/{name}"}):

        def rename(data: dict[str, Any], changes: dict[str, str] = changes) -> None:
            del data["images"][0]["file_name"]
            data["images"][0].update(changes)

        (problem,) = _find_problems(dataset(tmp_path, rename))
        assert problem.kind == "missing image file"
    (problem,) = _find_problems(dataset(tmp_path, lambda data: data["images"][0].update(file_name=name)))
    assert ("outside the images' folder" in problem.examples[0]) == (name != "\ud800")


@pytest.mark.parametrize("part", ["images", "annotations"])
def test_a_file_without_images_or_annotations_is_refused(part: str, tmp_path: Path):
    with pytest.raises(InputError, match=f"expected {part} in .*own.json, found none"):
        check(dataset(tmp_path, lambda data: data[part].clear()))


@pytest.mark.parametrize("size", [True, 1.5, 10**400, -4, None, [1]])
def test_sizes_are_whole_numbers(size: Any, tmp_path: Path):
    kinds = [p.kind for p in _find_problems(dataset(tmp_path, lambda data: data["images"][0].update(width=size)))]
    assert kinds == ["image without a positive size"]


@pytest.mark.parametrize("name", [None, "", [], {}])
def test_categories_have_names(name: Any, tmp_path: Path):
    with pytest.raises(InputError, match="expected named categories"):
        dataset(tmp_path, lambda data: data["categories"][0].update(name=name))


def test_boxes_that_all_lie_within_the_first_pixel_are_refused_as_fractions(tmp_path: Path):
    def fractions(data: dict[str, Any]) -> None:
        for entry in data["annotations"]:
            entry["bbox"] = [5 / 60, 10 / 40, 20 / 60, 10 / 40]
            del entry["segmentation"]

    found = r"own\.json, found all 3 within 0 … 1, as fractions of the image; multiply them by its width and height"
    with pytest.raises(InputError, match=found):
        check(dataset(tmp_path, fractions))
    one = annotation(bbox=[0, 0, 1, 1], segmentation=[])
    assert check(dataset(tmp_path, one)) == []
