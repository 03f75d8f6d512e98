"""Random ground truth and results, small enough for the references and full of what makes them differ."""

import copy
import json
from typing import Any

import numpy as np
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

HEIGHT, WIDTH = 160, 200

GroundTruth = dict[str, Any]
Results = list[dict[str, Any]]


def rectangle(x: int, y: int, width: int, height: int, striped: bool = False) -> dict[str, Any]:
    """The mask of a box as a compressed run-length code, as it stands in a JSON file."""
    mask = np.zeros((HEIGHT, WIDTH), dtype=np.uint8, order="F")
    mask[y : y + height, x : x + width] = 1
    if striped:
        mask[::3] = 0
    code = coco_mask.encode(mask)
    return {"size": code["size"], "counts": code["counts"].decode()}


def coco_set(seed: int, segm: bool = False, images: int = 12, string_ids: bool = False) -> tuple[GroundTruth, Results]:
    """Crowds, ties, every size class, images and classes without objects, zero-area boxes, the annotation id 0."""
    random = np.random.default_rng(seed)
    categories = 1 + seed % 6
    truth: GroundTruth = {
        "images": [{"id": int(i) * 7, "height": HEIGHT, "width": WIDTH} for i in random.permutation(images)],
        "categories": [{"id": int(c) + 1, "name": f"class {c}"} for c in random.permutation(categories)],
        "annotations": [],
    }
    results: Results = []
    for image in truth["images"]:
        # The last class never has an object.
        mine = [_object(random, image["id"], max(1, categories - 1), segm) for _ in range(random.integers(0, 9))]
        truth["annotations"] += mine
        crowded = 130 if seed % 10 == 0 else 50
        results += [_detection(random, image["id"], mine, categories, segm) for _ in range(random.integers(0, crowded))]
    for number, annotation in enumerate(truth["annotations"]):
        annotation["id"] = number + (seed % 2)
    if string_ids:
        for entry in (*truth["images"], *truth["categories"]):
            entry["id"] = f"id-{entry['id']}"
        for entry in (*truth["annotations"], *results):
            entry["image_id"], entry["category_id"] = f"id-{entry['image_id']}", f"id-{entry['category_id']}"
    return truth, results


def _object(random: np.random.Generator, image: int, categories: int, segm: bool) -> dict[str, Any]:
    width, height = random.integers(0, 150, 2) if random.random() < 0.5 else random.integers(2, 30, 2)
    x, y = random.integers(0, 50, 2)
    box = [int(value) for value in (x, y, width, height)]
    annotation = {
        "image_id": image,
        "category_id": int(random.integers(1, categories + 1)),
        "bbox": box,
        "area": float(width * height * random.choice([1, 0.6])),
        "iscrowd": int(random.random() < 0.15),
    }
    if segm:
        annotation["segmentation"] = rectangle(*box, striped=random.random() < 0.5)
        if random.random() < 0.3:
            left, top, right, bottom = (float(value) for value in (x, y, x + width, y + height))
            annotation["segmentation"] = [[left, top, right, top, right, bottom]]
    return annotation


def _detection(
    random: np.random.Generator, image: int, objects: list[dict[str, Any]], categories: int, segm: bool
) -> dict[str, Any]:
    box, category = random.integers(0, 100, 4).tolist(), int(random.integers(1, categories + 1))
    if objects and random.random() < 0.8:
        near = objects[random.integers(len(objects))]
        box = [int(max(0, value + random.integers(-3, 4))) for value in near["bbox"]]
        category = near["category_id"]
    detection = {"image_id": image, "category_id": category, "score": float(random.integers(0, 12)) / 11}
    return detection | ({"segmentation": rectangle(*box)} if segm else {"bbox": [float(value) for value in box]})


def federated(truth: GroundTruth, seed: int) -> GroundTruth:
    """The same ground truth in LVIS's form: absent and incomplete categories, frequencies, ignored objects."""
    random = np.random.default_rng(seed)
    truth = copy.deepcopy(truth)
    ids = [category["id"] for category in truth["categories"]]
    for category in truth["categories"]:
        category["frequency"] = str(random.choice(list("rcf")))
    for image in truth["images"]:
        present = {entry["category_id"] for entry in truth["annotations"] if entry["image_id"] == image["id"]}
        image["neg_category_ids"] = [c for c in ids if c not in present and random.random() < 0.5]
        image["not_exhaustive_category_ids"] = [c for c in ids if random.random() < 0.3]
    for annotation in truth["annotations"]:
        annotation.pop("iscrowd")
        if random.random() < 0.1:
            annotation["ignore"] = 1
    return truth


_side = st.sampled_from([0, 2, 10, 20, 30])
# Equal boxes along a line: two objects left and right of a detection overlap it equally.
_box = st.one_of(
    st.tuples(st.integers(0, 6), st.just(0), st.just(20), st.just(20)),
    st.tuples(st.sampled_from([0, 1, 5, 10]), st.sampled_from([0, 1, 5]), _side, _side),
)
_area = st.sampled_from([0.0, 4.0, 600.0, 1024.0, 1025.0, 5000.0, 9216.0, 20000.0])


@st.composite
def small_coco_set(draw: st.DrawFn, segm: bool = False) -> tuple[GroundTruth, Results]:
    """One or two images, one or two classes, coarse boxes: equal overlaps and equal scores are the rule."""
    images = draw(st.sampled_from([[3], [3], [5, 2]]))
    categories = draw(st.sampled_from([[1], [1], [4, 2]]))
    place = {"image_id": st.sampled_from(images), "category_id": st.sampled_from(categories)}
    objects = st.fixed_dictionaries({**place, "bbox": _box, "area": _area, "iscrowd": st.sampled_from([0, 0, 0, 1])})
    detections = st.fixed_dictionaries({**place, "bbox": _box, "score": st.sampled_from([0, 0.25, 0.5, 1.0])})
    first_id = draw(st.sampled_from([0, 1]))
    annotations = draw(st.lists(objects, max_size=6))
    results = draw(st.lists(detections, min_size=1, max_size=10))
    for entry in (*annotations, *results):
        entry["bbox"] = list(entry["bbox"])
        if segm:
            entry["segmentation"] = rectangle(*entry["bbox"])
    truth = {
        "images": [{"id": image, "height": HEIGHT, "width": WIDTH} for image in images],
        "categories": [{"id": category, "name": str(category)} for category in categories],
        "annotations": [{"id": number, **entry} for number, entry in enumerate(annotations, first_id)],
    }
    return json.loads(json.dumps(truth)), results


@st.composite
def small_lvis_set(draw: st.DrawFn) -> tuple[GroundTruth, Results]:
    """``small_coco_set`` in LVIS's form."""
    truth, results = draw(small_coco_set())
    return federated(truth, draw(st.integers(0, 50))), results
