import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pycocotools import mask as coco_mask

from momentum_transfer.transfer.scores import rle

# pycocotools' own decode is the reference here; under NumPy 2 it makes its array by a protocol that NumPy will drop.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


class Malformed(Exception):
    pass


def fail(index: int, found: str, hint: str) -> None:
    raise Malformed(f"{index}: {found}; {hint}")


def encoded(mask: np.ndarray) -> dict:
    return coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))


@settings(max_examples=100, deadline=None)
@given(st.lists(hnp.arrays(bool, st.tuples(st.integers(1, 40), st.integers(1, 40))), max_size=5))
def test_areas_equal_the_number_of_pixels(arrays):
    rles = rle.read([encoded(array) for array in arrays], [list(array.shape) for array in arrays], fail)
    np.testing.assert_array_equal(rles.areas, [array.sum() for array in arrays])


def test_areas_of_large_masks_equal_pycocotools():
    # Long runs take several characters, noise makes many of them; more than one block is decoded.
    random = np.random.default_rng(0)
    arrays = [np.zeros((900, 1200), bool), np.ones((900, 1200), bool), random.random((900, 1200)) < 0.5]
    smooth = np.add.outer(np.arange(900), np.arange(1200)) % 700 < 90
    codes = [encoded(array) for array in (*arrays, smooth)] * 3
    rles = rle.read(codes, [[900, 1200]] * len(codes), fail)
    np.testing.assert_array_equal(rles.areas, coco_mask.area(codes))


def test_every_written_form_gives_the_same_code():
    array = np.zeros((30, 40), bool)
    array[5:15, 8:28] = True
    compressed = encoded(array)
    runs, pixels = [], array.ravel(order="F")
    for start, stop in np.split(np.flatnonzero(np.diff(pixels, prepend=False, append=False)), array.any(axis=0).sum()):
        runs += [int(start) - sum(runs), int(stop - start)]
    runs.append(array.size - sum(runs))
    polygon = [[8.0, 5.0, 28.0, 5.0, 28.0, 15.0, 8.0, 15.0]]
    forms = [
        compressed,
        {"size": (30, 40), "counts": compressed["counts"].decode()},
        {"size": [30, 40], "counts": runs},
        polygon,
    ]
    rles = rle.read(forms, [[30, 40]] * len(forms), fail)
    assert rles.codes_at(np.arange(4)) == [compressed["counts"]] * 4


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ({"size": [4, 6], "counts": b""}, "a run-length code that cannot be decoded"),
        ({"size": [4, 6], "counts": "0d"}, r"cannot be decoded \('0d'\)"),  # ends in a character that promises more
        ({"size": [4, 6], "counts": " "}, "cannot be decoded"),  # below the alphabet
        ({"size": [4, 6], "counts": "é"}, "cannot be decoded"),  # above it
        ({"size": [4, 6], "counts": "O"}, "cannot be decoded"),  # a run of -1
        ({"size": [4, 6], "counts": "PPPPPPPPPPPP0"}, "cannot be decoded"),  # a value of 65 bits
        ({"size": [4, 6], "counts": "4"}, "a run-length code of 4 pixels .* in an image of 24"),
        ({"size": [4, 6], "counts": [4, 4]}, "run lengths of 8 pixels in an image of 24"),
        ({"size": [4, 6], "counts": [30, -6]}, r"the run lengths \[30, -6\]"),
        ({"size": [4, 6], "counts": [1.5, 22.5]}, "the run lengths"),
        ({"size": [6, 4], "counts": [24]}, r"a mask of size \[6, 4\] in an image of height, width \[4, 6\]"),
        ({"counts": [24]}, "a mask of size None"),
        ({"size": [4, 6]}, "the mask counts None"),
        ({"size": [4, 6], "counts": 3}, "the mask counts 3"),
        ([], "an empty list of polygons"),
        ([[0, 0, 3, 3]], "three or more x, y pairs"),
        ([[0, 0, 3, 3, 2, 1, 7]], "three or more x, y pairs"),
        ([0, 0, 3, 3, 2, 1], "the polygon 0"),
        ([[0, 0, 3, 3, float("nan"), 1]], "a coordinate that is no finite number"),
        ([[0, 0, 3, 3, "2", 1]], "a coordinate that is no finite number"),
        ([[0, 0, 5e8, 0, 5e8, 5e8]], r"a polygon more than 1060 pixels from an image of height, width \[4, 6\]"),
        ([[0, 0, 3, 3, 2, 1], [0, 0, -1061, 0, 1, 1]], "more than 1060 pixels from an image"),
        ([[0, 0, 10**400, 0, 1, 1]], "a polygon more than 1060 pixels"),
        ("04L", "the segmentation '04L'"),
        (None, "the segmentation None"),
    ],
)
def test_a_malformed_mask_is_named(segmentation, message: str):
    good = encoded(np.eye(4, 6))
    with pytest.raises(Malformed, match=f"1: .*{message}.*; expected polygons or a run-length code"):
        rle.read([good, segmentation, good], [[4, 6]] * 3, fail)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=12))
def test_a_code_is_accepted_only_if_it_says_what_its_mask_says(code: bytes):
    neighbour = encoded(np.eye(4, 6))["counts"]
    failed: list[int] = []

    def note(index: int, *_: str) -> None:
        failed.append(index)
        raise Malformed

    with contextlib.suppress(Malformed):
        rles = rle.read([{"size": [4, 6], "counts": c} for c in (neighbour, code, neighbour)], [[4, 6]] * 3, note)
    if failed:
        assert failed == [1]  # and never a neighbour
        return
    assert rles.areas[0] == rles.areas[2] == 4
    assert rles.areas[1] == coco_mask.decode({"size": [4, 6], "counts": code}).sum()


def test_a_polygon_near_an_image_is_clipped_and_one_far_from_a_huge_image_is_refused():
    rles = rle.read([[[-1060, -1060, 1060, -1060, 1060, 1060, -1060, 1060]]], [[4, 6]], fail)
    np.testing.assert_array_equal(rles.areas, [24])
    # pycocotools crashes on this one, although it lies in the image.
    with pytest.raises(Malformed, match="a polygon more than 1000000 pixels from an image"):
        rle.read([[[0, 0, 5e8, 0, 5e8, 1]]], [[2, 10**9]], fail)
