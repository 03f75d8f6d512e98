"""Detections in order of score in a file: read back as they were, and refused where a place does not exist."""

from dataclasses import fields

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts.ranked import Ranked


def made(**changes: object) -> Ranked:
    """Three detections and two objects of two categories in three images, two runs."""
    values = {
        "test_set": "a", "rule": "lvis", "images": 3, "categories": 2, "thresholds": 2, "areas": 1, "limits": (10, 300),
        "image": [0, 2, 1], "starts": [0, 1, 3], "false_candidates": [0, 1, 0], "match": [0, 2], "counted": [1, 3],
        "ignored": [2, 0], "limit": [0, 1], "object_image": [0, 2], "object_category": [0, 1], "object_areas": [1, 0],
        "groups": {"r": [1], "f": [0]},
    } | changes  # fmt: skip
    return Ranked(**{key: np.array(value, dtype=np.int64) if isinstance(value, list) else value
                     for key, value in values.items()})  # fmt: skip


NO_DETECTIONS: dict[str, object] = {
    name: [] for name in ("image", "false_candidates", "match", "counted", "ignored", "limit")
} | {"starts": [0, 0, 0]}
NO_OBJECTS: dict[str, object] = {name: [] for name in ("object_image", "object_category", "object_areas")}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rule": "voc area", "groups": {}},
        {"starts": [0, 0, 3]},  # a category without detections
        NO_DETECTIONS,
        NO_OBJECTS,
        {**NO_DETECTIONS, **NO_OBJECTS},
        {"match": [1, 2]},
        {"thresholds": 63, "counted": [1 << 62, 1 << 8], "ignored": [(1 << 62) - 1, 1 << 31]},
        {"thresholds": 1},
        {"images": 1 << 16, "object_image": [0, (1 << 16) - 1]},
        {"images": (1 << 16) + 1, "image": [0, 1 << 16, 1], "object_image": [0, 1 << 16]},
        {"categories": (1 << 16) + 1, "starts": [0, *[3] * ((1 << 16) + 1)], "object_category": [0, 1 << 16]},
    ],
)
def test_what_was_written_is_read_back_to_the_last_bit(changes):
    written = made(**changes)
    found = Ranked.from_arrays(written.arrays())
    for field in fields(Ranked):
        assert np.array_equal(getattr(found, field.name), getattr(written, field.name)), field.name


def test_a_file_takes_two_bytes_for_each_of_up_to_65536_images_and_categories():
    for count, size in (((1 << 16), 2), ((1 << 16) + 1, 4)):
        assert made(images=count).arrays()["image"].dtype.itemsize == size
        arrays = made(categories=count, starts=[0, *[3] * count]).arrays()
        assert arrays["object_category"].dtype.itemsize == size
        assert arrays["object_image"].dtype.itemsize == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": "voc"},
        {"image": [0, 3, 1]},
        {"object_image": [0, 3]},
        {"object_category": [0, 2]},
        {"match": [0, 3]},
        {"match": [2, 2]},
        {"starts": [0, 1, 4]},
        {"starts": [0, 2, 1]},
        {"starts": [-1, 1, 3]},
        {"starts": [0, 3]},
        {"thresholds": 0},
        {"thresholds": 64},
        {"thresholds": 32, "areas": 2},
        {"image": [0, 1, 2, 1]},
        *({name: [1]} for name in ("match", "counted", "ignored", "limit", "object_image", "object_areas")),
        {"object_category": [1]},
        {"false_candidates": [1, 0]},
    ],
)
def test_places_that_do_not_exist_are_refused(changes):
    with pytest.raises(InputError, match="whose arrays fit each other, found a damaged set"):
        Ranked.from_arrays(made(**changes).arrays())


def test_a_file_without_one_of_the_arrays_is_refused():
    for name in made().arrays():
        held = made().arrays()
        del held[name]
        with pytest.raises(InputError, match=f"expected the outcomes of detections, found a file without '{name}"):
            Ranked.from_arrays(held)
