import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask

from momentum_transfer.transfer.torchvision_engine.structures import (
    BitMasks,
    Detections,
    PolygonMasks,
    paste,
    polygons_to_bitmap,
    rescale,
)

# pycocotools' own decode is the reference here; under NumPy 2 it makes its array by a protocol that NumPy will drop.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

#: Of one box, whose object is the first.
FIRST = torch.tensor([0])


def naive_paste(mask, box, height, width):
    """Bilinear lookup of every pixel centre; outside the mask's cells the value is 0."""
    size = mask.shape[0]
    pasted = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            u = (x + 0.5 - box[0]) / (box[2] - box[0]) * size - 0.5
            v = (y + 0.5 - box[1]) / (box[3] - box[1]) * size - 0.5
            total = 0.0
            for row in (int(np.floor(v)), int(np.floor(v)) + 1):
                for column in (int(np.floor(u)), int(np.floor(u)) + 1):
                    if 0 <= row < size and 0 <= column < size:
                        total += (1 - abs(v - row)) * (1 - abs(u - column)) * mask[row, column]
            pasted[y, x] = total
    return pasted


@pytest.mark.parametrize("box", [(3.2, 4.7, 15.9, 12.1), (0.0, 0.0, 20.0, 16.0), (17.5, 1.0, 20.0, 15.5)])
def test_pasting_equals_a_lookup_of_every_pixel_centre(box):
    mask = torch.rand(7, 7, generator=torch.Generator().manual_seed(0))
    expected = naive_paste(mask.numpy(), box, 16, 20)
    found = paste(mask[None], torch.tensor([box]), (16, 20))[0].numpy()
    clear = np.abs(expected - 0.5) > 1e-4
    assert np.array_equal(found[clear], (expected >= 0.5)[clear])
    assert clear.mean() > 0.95


def test_a_mask_cropped_by_its_own_box_is_full():
    bitmap = torch.zeros(1, 20, 20, dtype=torch.bool)
    bitmap[0, 5:12, 3:17] = True
    box = torch.tensor([[3.0, 5.0, 17.0, 12.0]])
    assert BitMasks(bitmap).crop_and_resize(box, FIRST, 14).all()
    square = PolygonMasks([[np.array([3.0, 5.0, 17.0, 5.0, 17.0, 12.0, 3.0, 12.0])]])
    assert square.crop_and_resize(box, FIRST, 14).all()


def test_half_a_mask_fills_half_the_target():
    bitmap = torch.zeros(1, 16, 16, dtype=torch.bool)
    bitmap[0, :, :8] = True
    crop = BitMasks(bitmap).crop_and_resize(torch.tensor([[0.0, 0.0, 16.0, 16.0]]), FIRST, 8)[0]
    assert crop[:, :4].all()
    assert not crop[:, 4:].any()


def test_a_cell_that_is_half_covered_is_set():
    bitmap = torch.tensor([[[True, True], [False, False]]])  # as one cell: the mean of four samples is one half
    assert BitMasks(bitmap).crop_and_resize(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), FIRST, 1).tolist() == [[[True]]]


@pytest.mark.parametrize("kind", ["bitmaps", "polygons"])
def test_every_box_takes_its_own_object_as_if_it_were_alone(kind):
    polygons = [[np.array([2.0, 1.0, 27.0, 3.0, 11.0, 25.0]) + 3 * k] for k in range(3)]
    bitmaps = torch.from_numpy(np.stack([polygons_to_bitmap(each, 30, 37) for each in polygons]))
    boxes = torch.tensor(
        [[0.0, 0.0, 30.0, 30.0], [3.5, 2.0, 21.0, 29.0], [1.0, 5.5, 30.0, 17.0], [4.0, 4.0, 20.0, 9.0]]
    )
    objects = torch.tensor([2, 0, 2, 1])
    masks = BitMasks(bitmaps) if kind == "bitmaps" else PolygonMasks(polygons)
    found = masks.crop_and_resize(boxes, objects, 7)
    alone = [masks.select(objects[[i]]).crop_and_resize(boxes[[i]], FIRST, 7)[0] for i in range(4)]
    assert torch.equal(found, torch.stack(alone))
    assert found.any(dim=(1, 2)).all()
    assert masks.crop_and_resize(boxes[:0], objects[:0], 7).shape == (0, 7, 7)


def test_a_pixel_of_probability_one_half_is_set():
    mask = torch.tensor([[0.5, 0.25], [0.75, 0.5]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    pasted = paste(mask[None], torch.tensor([[2.0, 1.0, 6.0, 5.0]]), (8, 8))[0]  # each pixel is one cell of the mask
    assert pasted[1:5, 2:6].tolist() == (mask >= 0.5).tolist()
    assert pasted.sum() == 12


def test_polygon_targets_are_pycocotools_rasterisation_in_the_boxs_frame():
    polygon = np.array([2.0, 1.0, 18.0, 3.0, 11.0, 15.0])
    box = np.array([1.0, 1.0, 19.0, 16.0])
    found = PolygonMasks([[polygon]]).crop_and_resize(torch.tensor(box[None]), FIRST, 28)[0].numpy()
    moved = (polygon.reshape(-1, 2) - box[:2]) * np.array([28 / 18, 28 / 15])
    expected = coco_mask.decode(coco_mask.frPyObjects([moved.reshape(-1).tolist()], 28, 28))[:, :, 0]
    assert np.array_equal(found, expected.astype(bool))


def test_selection_repeats_and_reorders():
    bitmaps = torch.eye(3, dtype=torch.bool)[:, None]
    index = torch.tensor([2, 0, 2])
    assert torch.equal(BitMasks(bitmaps).select(index).bitmaps, bitmaps[index])
    polygons = PolygonMasks([[np.arange(6.0) + k] for k in range(3)]).select(index)
    assert [p[0][0] for p in polygons.polygons] == [2.0, 0.0, 2.0]


def test_an_object_without_polygons_has_no_pixel():
    assert not polygons_to_bitmap([], 5, 5).any()
    assert PolygonMasks([[], [np.arange(6.0)]]).nonempty().tolist() == [False, True]


def test_rescaling_drops_what_becomes_empty_and_keeps_masks_beside_their_boxes():
    found = Detections(
        torch.tensor([[0.0, 0.0, 10.0, 10.0], [50.0, 5.0, 60.0, 9.0]]), torch.tensor([0.9, 0.8]), torch.tensor([1, 2]),
        torch.ones(2, 1, 7, 7),
    )  # fmt: skip
    scaled = rescale(found, (40, 40), 80, 20)  # twice as high, half as wide; the second box lies outside
    assert scaled.boxes.tolist() == [[0.0, 0.0, 5.0, 20.0]]
    assert scaled.classes.tolist() == [1]
    assert scaled.masks[0, :20, :5].all()
    assert scaled.masks.sum() == 100
    assert found.boxes[0, 2] == 10.0  # the input is left alone
