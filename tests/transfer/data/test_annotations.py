import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pycocotools import mask as coco_mask

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.annotations import checked_runs, decode_mask, in_fractions, refuse_fractions

SIDES = st.tuples(st.integers(1, 40), st.integers(1, 40))
MASKS = SIDES.flatmap(lambda shape: arrays(np.uint8, shape, elements=st.integers(0, 1)))


@settings(max_examples=50, deadline=None)
@given(MASKS)
def test_every_mask_is_read_back_from_pycocotools_code(mask):
    code = coco_mask.encode(np.asfortranarray(mask))
    assert np.array_equal(decode_mask(code, *mask.shape), mask)
    text = {"size": code["size"], "counts": code["counts"].decode()}
    assert np.array_equal(decode_mask(text, *mask.shape), mask)
    plain = {"size": code["size"], "counts": checked_runs(code["counts"], *mask.shape).tolist()}
    assert coco_mask.frPyObjects(plain, *mask.shape)["counts"] == code["counts"]
    assert np.array_equal(decode_mask(plain, *mask.shape), mask)


def test_long_runs_take_several_characters():
    mask = np.zeros((900, 1100), dtype=np.uint8)
    mask[:, 3:1000] = 1
    mask[5:7] = 1
    assert np.array_equal(decode_mask(coco_mask.encode(np.asfortranarray(mask)), 900, 1100), mask)


def test_polygons_are_drawn_as_pycocotools_does():
    random = np.random.default_rng(0)
    for _ in range(30):
        polygons = [random.uniform(-5, 45, 2 * random.integers(3, 8)).tolist() for _ in range(random.integers(1, 4))]
        drawn = decode_mask(polygons, 31, 40)
        code = coco_mask.merge(coco_mask.frPyObjects(polygons, 31, 40))
        assert coco_mask.encode(np.asfortranarray(drawn.astype(np.uint8)))["counts"] == code["counts"]


@pytest.mark.parametrize("counts", ["", "P", "o", "00000000", [3, 4], [-1, 13], "\xff1", "ooooooo0", 7])
def test_codes_of_another_size_or_none_at_all_are_refused(counts):
    with pytest.raises(ValueError, match="run lengths"):
        decode_mask({"size": [3, 4], "counts": counts}, 3, 4)


@pytest.mark.parametrize(
    ("boxes", "count"),
    [
        ([[0.1, 0.2, 0.3, 0.4]], 1),
        ([[0, 0, 1, 0.5], [0, 0, 1, 1]], 2),
        ([[-0.1, 0, 1.1, 0.5]], 1),
        ([[-0.11, 0, 1, 0.5]], 0),
        ([[0, 0.5, 1.11, 1]], 0),
        ([[0.1, 0.2, 0.3, 0.4], [5, 5, 9, 9]], 0),
        ([[0, 0, 1, 1]], 0),  # one pixel
        ([], 0),
    ],
)
def test_boxes_are_fractions_if_all_lie_within_an_image_of_one(boxes: list[list[float]], count: int):
    assert in_fractions(boxes) == count
    if count:
        with pytest.raises(InputError, match=rf"in pixels in x\.json, found all {count} within"):
            refuse_fractions(boxes, "x.json")
    else:
        refuse_fractions(boxes, "x.json")
